import argparse
import math
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
import torch.nn.functional as F


class Corpus:
    def __init__(self, root, max_vocab=33_000):
        texts = {s: (Path(root) / f"{s}.txt").read_text().replace("\n", " <eos> ").split() for s in ("train", "valid")}
        common = Counter(texts["train"]).most_common(max_vocab - 1)
        self.itos = ["<unk>"] + [w for w, _ in common]
        stoi = {w: i for i, w in enumerate(self.itos)}
        self.train = torch.tensor([stoi.get(w, 0) for w in texts["train"]])
        self.valid = torch.tensor([stoi.get(w, 0) for w in texts["valid"]])


class WordLM(nn.Module):
    def __init__(self, vocab, dim=650, layers=2, drop=0.5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, layers, dropout=drop)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(dim, vocab)
        self.head.weight = self.embed.weight
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def initial(self, batch):
        w = self.head.weight
        shape = (self.rnn.num_layers, batch, self.rnn.hidden_size)
        return w.new_zeros(shape), w.new_zeros(shape)

    def forward(self, x, state):
        out, state = self.rnn(self.drop(self.embed(x)), state)
        return self.head(self.drop(out)), state


def batchify(ids, batch, device):
    n = len(ids) // batch
    return ids[:n * batch].view(batch, n).t().contiguous().to(device)


@torch.no_grad()
def evaluate(model, stream, bptt):
    model.eval()
    state = model.initial(stream.shape[1])
    total = torch.zeros((), device=stream.device)
    for s in range(0, len(stream) - 1, bptt):
        n = min(bptt, len(stream) - 1 - s)
        logits, state = model(stream[s:s + n], state)
        total += n * F.cross_entropy(logits.flatten(0, 1), stream[s + 1:s + 1 + n].flatten())
    return total.item() / (len(stream) - 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default="data/wikitext-2")
    ap.add_argument("--epochs", type=int, default=40)
    ap.add_argument("--lr", type=float, default=20.0)
    ap.add_argument("--bptt", type=int, default=35)
    ap.add_argument("--log-interval", type=int, default=200)
    args = ap.parse_args()
    device = torch.device("cuda")
    corpus = Corpus(args.data)
    train, valid = batchify(corpus.train, 40, device), batchify(corpus.valid, 10, device)
    model = WordLM(len(corpus.itos)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    best = float("inf")
    for epoch in range(1, args.epochs + 1):
        model.train()
        state = model.initial(train.shape[1])
        running, t0 = torch.zeros((), device=device), time.time()
        for i, s in enumerate(range(0, len(train) - 1, args.bptt), start=1):
            n = min(args.bptt, len(train) - 1 - s)
            state = tuple(h.detach() for h in state)
            logits, state = model(train[s:s + n], state)
            loss = F.cross_entropy(logits.flatten(0, 1), train[s + 1:s + 1 + n].flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            opt.step()
            running += loss.detach()
            if i % args.log_interval == 0:
                ms = (time.time() - t0) * 1000 / args.log_interval
                cur = running.item() / args.log_interval
                print(f"| epoch {epoch} | {i} batches | {ms:.1f} ms | loss {cur:.2f} | ppl {math.exp(cur):.1f}")
                running.zero_()
                t0 = time.time()
        val = evaluate(model, valid, args.bptt)
        print(f"epoch {epoch} valid ppl {math.exp(val):.2f}")
        if val < best:
            best = val
            torch.save(model.state_dict(), "word_lm.pt")
        else:
            for group in opt.param_groups:
                group["lr"] /= 4


if __name__ == "__main__":
    main()
