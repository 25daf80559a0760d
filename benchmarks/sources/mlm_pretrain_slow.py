import argparse
import math
from itertools import chain

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    RobertaForMaskedLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

BLOCK = 512


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tokenizer", default="roberta-base")
    ap.add_argument("--train", default="corpus/train.txt")
    ap.add_argument("--valid", default="corpus/valid.txt")
    ap.add_argument("--output", default="out/roberta-domain")
    ap.add_argument("--lr", type=float, default=4e-4)
    ap.add_argument("--steps", type=int, default=100_000)
    return ap.parse_args()


def build_dataset(args, tok):
    raw = load_dataset("text", data_files={"train": args.train, "validation": args.valid})
    raw = raw.filter(lambda batch: [len(t) > 0 for t in batch["text"]], batched=True, num_proc=16)

    def encode(row):
        return tok(row["text"], return_special_tokens_mask=True)

    encoded = raw.map(encode, remove_columns=["text"])

    def group(batch):
        joined = {k: list(chain.from_iterable(batch[k])) for k in batch}
        n = len(joined["input_ids"]) // BLOCK * BLOCK
        return {k: [v[i:i + BLOCK] for i in range(0, n, BLOCK)] for k, v in joined.items()}

    return encoded.map(group, batched=True, batch_size=1000, num_proc=16)


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    preds = np.argmax(logits, axis=-1)
    mask = labels != -100
    return {"masked_accuracy": float((preds[mask] == labels[mask]).mean())}


def main():
    args = parse()
    set_seed(42)
    tok = AutoTokenizer.from_pretrained(args.tokenizer)
    data = build_dataset(args, tok)
    cfg = AutoConfig.from_pretrained(args.tokenizer, vocab_size=len(tok), attn_implementation="sdpa")
    model = RobertaForMaskedLM(cfg)
    collator = DataCollatorForLanguageModeling(tok, mlm_probability=0.15)
    targs = TrainingArguments(
        output_dir=args.output,
        max_steps=args.steps,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=64,
        learning_rate=args.lr,
        warmup_steps=6000,
        weight_decay=0.01,
        bf16=True,
        dataloader_num_workers=4,
        eval_strategy="steps",
        eval_steps=5000,
        save_steps=5000,
        save_total_limit=2,
        logging_steps=100,
        report_to="tensorboard",
    )
    trainer = Trainer(
        model=model,
        args=targs,
        data_collator=collator,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        compute_metrics=compute_metrics,
    )
    trainer.train()
    metrics = trainer.evaluate()
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    trainer.log_metrics("eval", metrics)


if __name__ == "__main__":
    main()
