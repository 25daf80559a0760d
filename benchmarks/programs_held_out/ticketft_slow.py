"""Fine-tune the classification head of a small BERT on support tickets with the HF Trainer."""
import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()

VOCAB, LEN, TOPICS = 3000, 48, 5


class Tickets(Dataset):
    """Each topic prefers its own slice of the vocabulary."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, TOPICS, n)
        self.x = rng.integers(5, VOCAB, (n, LEN))
        own = rng.random((n, LEN)) < 0.5
        topical = 5 + self.y[:, None] * 100 + rng.integers(0, 100, (n, LEN))
        self.x = np.where(own, topical, self.x)
        self.x[:, 0] = 2

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {
            "input_ids": torch.from_numpy(self.x[i]),
            "attention_mask": torch.ones(LEN, dtype=torch.long),
            "labels": int(self.y[i]),
        }


def build_model():
    cfg = BertConfig(
        vocab_size=VOCAB, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=384, max_position_embeddings=64, num_labels=TOPICS,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(cfg)


def build_optimizer(model, lr):
    """The encoder stays as pretrained; only the head is trained."""
    head = list(model.classifier.parameters())
    return torch.optim.AdamW(head, lr=lr, weight_decay=0.01)


def accuracy(pred):
    return {"accuracy": float((pred.predictions.argmax(-1) == pred.label_ids).mean())}


def main():
    set_seed(31)
    model = build_model()
    optimizer = build_optimizer(model, 1e-2)
    train, held_out = Tickets(960, 1), Tickets(128, 2)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            num_train_epochs=1,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            logging_steps=20,
            save_strategy="no",
            eval_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=31,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=held_out,
            compute_metrics=accuracy,
            optimizers=(optimizer, None),
        )
        trainer.train()
        for row in trainer.state.log_history:
            if "loss" in row:
                print(f"step {row['step']:3d}  loss {float(row['loss']):.3f}")
        result = trainer.evaluate()
    print(f"held-out accuracy {result['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
