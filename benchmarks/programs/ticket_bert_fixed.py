"""Fine-tune a small BERT on support-ticket routing with the HF Trainer."""
import random
import tempfile

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (BertConfig, BertForSequenceClassification, DataCollatorWithPadding,
                          PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed)

QUEUES = {
    "billing": ["invoice", "refund", "charged", "card", "payment", "subscription"],
    "login": ["password", "locked", "reset", "account", "token", "signin"],
    "shipping": ["parcel", "courier", "late", "address", "tracking", "delivery"],
    "bug": ["crash", "freeze", "error", "update", "screen", "version"],
}
FILLER = "hello team i have a problem with my since yesterday please help it is the again can you thanks".split()


def write_tickets(n, seed):
    rng = random.Random(seed)
    names = list(QUEUES)
    texts, labels = [], []
    for _ in range(n):
        label = rng.randrange(len(names))
        length = min(int(rng.lognormvariate(3.2, 0.45)), 90)
        words = [rng.choice(QUEUES[names[label]]) if rng.random() < 0.12 else rng.choice(FILLER)
                 for _ in range(max(length, 4))]
        if rng.random() < 0.2:
            words[rng.randrange(len(words))] = rng.choice(QUEUES[rng.choice(names)])
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


def build_tokenizer():
    words = sorted({w for ws in QUEUES.values() for w in ws} | set(FILLER))
    vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + words)}
    tok = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = Whitespace()
    tok.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])])
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="[PAD]", unk_token="[UNK]",
                                   cls_token="[CLS]", sep_token="[SEP]")


class TicketDataset(torch.utils.data.Dataset):
    def __init__(self, texts, labels, tokenizer, max_length=128):
        self.enc = tokenizer(texts, truncation=True, max_length=max_length)
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        item = {k: self.enc[k][i] for k in ("input_ids", "attention_mask")}
        item["labels"] = self.labels[i]
        return item


def compute_metrics(pred):
    guess = pred.predictions.argmax(-1)
    per_class = [float(np.mean(guess[pred.label_ids == c] == c)) for c in range(len(QUEUES))]
    return {"accuracy": float(np.mean(guess == pred.label_ids)), "worst_class": min(per_class)}


def main():
    set_seed(17)
    tok = build_tokenizer()
    train = TicketDataset(*write_tickets(640, 1), tok)
    dev = TicketDataset(*write_tickets(160, 2), tok)
    config = BertConfig(vocab_size=len(tok), hidden_size=96, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=384, max_position_embeddings=160, num_labels=len(QUEUES),
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            num_train_epochs=2,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=16,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            logging_steps=40,
            save_steps=80,
            save_total_limit=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=17,
        )
        trainer = Trainer(model=model, args=targs, train_dataset=train, eval_dataset=dev,
                          data_collator=DataCollatorWithPadding(tok), compute_metrics=compute_metrics)
        trainer.train()
        scores = trainer.evaluate()
    print(f"dev accuracy {scores['eval_accuracy']:.3f}, worst queue {scores['eval_worst_class']:.3f}")


if __name__ == "__main__":
    main()
