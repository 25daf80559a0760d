import argparse

import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

MAX_LEN = 2048


class RewardModel(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.backbone = AutoModel.from_pretrained(name, torch_dtype=torch.bfloat16, attn_implementation="sdpa")
        self.head = nn.Linear(self.backbone.config.hidden_size, 1, bias=False)

    def forward(self, input_ids, attention_mask):
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        last = attention_mask.sum(dim=1) - 1
        pooled = hidden[torch.arange(hidden.shape[0], device=hidden.device), last]
        return self.head(pooled.to(self.head.weight.dtype)).squeeze(-1)


def prepare(tok, workers=16):
    ds = load_dataset("Anthropic/hh-rlhf", split="train")

    def encode(batch):
        out = {}
        for side in ("chosen", "rejected"):
            enc = tok(batch[side], max_length=MAX_LEN, truncation=True, padding="max_length")
            out[f"{side}_ids"] = enc["input_ids"]
            out[f"{side}_mask"] = enc["attention_mask"]
        return out

    ds = ds.map(encode, batched=True, num_proc=workers, remove_columns=ds.column_names)
    return ds.with_format("torch").train_test_split(test_size=2000, seed=0)


@torch.no_grad()
def accuracy(model, loader, acc):
    model.eval()
    right = torch.zeros((), device=acc.device)
    seen = 0
    for b in loader:
        margin = model(b["chosen_ids"], b["chosen_mask"]) - model(b["rejected_ids"], b["rejected_mask"])
        right += (margin > 0).sum()
        seen += margin.numel()
    model.train()
    return acc.reduce(right).item() / (seen * acc.num_processes)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="meta-llama/Llama-3.2-1B")
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--lr", type=float, default=1e-5)
    args = ap.parse_args()
    acc = Accelerator()
    tok = AutoTokenizer.from_pretrained(args.model)
    tok.pad_token = tok.eos_token
    with acc.main_process_first():
        ds = prepare(tok)
    kw = dict(batch_size=args.batch_size, num_workers=4, pin_memory=True)
    train = DataLoader(ds["train"], shuffle=True, drop_last=True, **kw)
    test = DataLoader(ds["test"], **kw)
    model = RewardModel(args.model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    model, opt, train, test = acc.prepare(model, opt, train, test)
    sched = get_linear_schedule_with_warmup(opt, 100, len(train))
    for step, b in enumerate(train):
        r_c = model(b["chosen_ids"], b["chosen_mask"])
        r_r = model(b["rejected_ids"], b["rejected_mask"])
        loss = -F.logsigmoid(r_c - r_r).mean()
        acc.backward(loss)
        opt.step()
        sched.step()
        opt.zero_grad()
        if step % 50 == 0:
            acc.print(step, round(loss.item(), 4))
    acc.print("accuracy", accuracy(model, test, acc))


if __name__ == "__main__":
    main()
