"""Supervised fine-tuning of a small Llama on question/answer pairs."""
import argparse
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true")
parser.add_argument("--lr", type=float, default=2e-5)
parser.add_argument("--steps", type=int, default=120)
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(0)
torch.manual_seed(0)

if args.small:
    SEQ, BATCH, VOCAB, STEPS = 64, 2, 500, 4
    shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
else:
    SEQ, BATCH, VOCAB, STEPS = 2048, 4, 128256, args.steps
    shape = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
                 num_key_value_heads=4)

BOS, EOS, ASSISTANT = 1, 2, 3
IGNORE = -100


def make_example():
    """A long context with a question, followed by a short answer."""
    n_answer = random.randint(SEQ // 32, SEQ // 12)
    n_prompt = SEQ - n_answer - 3
    prompt = [BOS] + [random.randrange(4, VOCAB) for _ in range(n_prompt)] + [ASSISTANT]
    answer = [random.randrange(4, VOCAB) for _ in range(n_answer)] + [EOS]
    return {"input_ids": prompt + answer, "labels": [IGNORE] * len(prompt) + answer}


def collate(examples):
    ids = torch.tensor([e["input_ids"] for e in examples])
    labels = torch.tensor([e["labels"] for e in examples])
    batch = {"input_ids": ids, "labels": labels}
    if device.type == "cuda":
        batch = {k: v.pin_memory() for k, v in batch.items()}
    return batch


examples = [make_example() for _ in range(16 * BATCH)]
loader = [collate(examples[i:i + BATCH]) for i in range(0, len(examples), BATCH)]

config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=SEQ, tie_word_embeddings=True, use_cache=False,
                     attn_implementation="sdpa", pad_token_id=0, bos_token_id=BOS, eos_token_id=EOS, **shape)
with torch.device(device):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
model.train()

optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0,
                              fused=device.type == "cuda")
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=10, num_training_steps=STEPS)
running = torch.zeros((), device=device)

for step in range(STEPS):
    # STEP
    batch = {k: v.to(device, non_blocking=True) for k, v in loader[step % len(loader)].items()}
    loss = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    running.lerp_(loss.detach().float(), 0.1)
    if (step + 1) % 40 == 0 or step + 1 == STEPS:
        print(f"step {step + 1:4d}  loss {running.item():.4f}  lr {scheduler.get_last_lr()[0]:.2e}")
