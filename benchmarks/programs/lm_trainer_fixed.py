"""Fine-tune a small GPT-2 on short customer messages with the Hugging Face Trainer."""
import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed)
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()

MAX_LENGTH = 128
PAD, BOS, EOS = 0, 1, 2

SUBJECTS = "my order|the parcel|this invoice|your app|the refund|our account".split("|")
VERBS = "has not arrived|was damaged|keeps crashing|is wrong|was charged twice".split("|")
TAILS = "|please help|since monday|again|and nobody answers the phone|can you check".split("|")


class CharTokenizer:
    def __init__(self, texts):
        chars = sorted(set("".join(texts)))
        self.stoi = {c: i + 3 for i, c in enumerate(chars)}
        self.vocab_size = len(chars) + 3

    def __call__(self, text):
        return [BOS] + [self.stoi[c] for c in text] + [EOS]


class MessageDataset(Dataset):
    def __init__(self, texts, tokenizer):
        self.rows = [tokenizer(t)[:MAX_LENGTH] for t in texts]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


class Collator:
    def __init__(self, max_length):
        self.max_length = max_length

    def __call__(self, features):
        rows = [f["input_ids"] for f in features]
        width = min(self.max_length, max(len(r) for r in rows))
        ids = torch.full((len(rows), width), PAD)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, :len(row)] = torch.tensor(row)
            mask[i, :len(row)] = 1
        labels = ids.masked_fill(mask == 0, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class LossPrinter(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step:3d}  loss {float(logs['loss']):.3f}")


def make_messages(n, seed):
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        text = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(TAILS)}".strip()
        out.append(text)
    return out


def main():
    set_seed(4)
    texts = make_messages(1200, seed=21)
    tokenizer = CharTokenizer(texts)
    config = GPT2Config(
        vocab_size=tokenizer.vocab_size, n_positions=MAX_LENGTH, n_embd=96, n_layer=3, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS, eos_token_id=EOS,
    )
    model = GPT2LMHeadModel(config)
    model.config.use_cache = False
    with tempfile.TemporaryDirectory() as out_dir:
        args = TrainingArguments(
            output_dir=out_dir,
            per_device_train_batch_size=8,
            max_steps=80,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            logging_steps=20,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model, args=args, train_dataset=MessageDataset(texts, tokenizer),
            data_collator=Collator(MAX_LENGTH), callbacks=[LossPrinter()],
        )
        trainer.remove_callback(PrinterCallback)
        result = trainer.train()
    print(f"mean loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
