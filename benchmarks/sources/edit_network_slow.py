import argparse
import math
from pathlib import Path

import torch
from torch import nn
import torch.nn.functional as F


class Vocab:
    def __init__(self, text):
        self.chars = sorted(set(text))
        self.index = {c: i for i, c in enumerate(self.chars)}

    def __len__(self):
        return len(self.chars)

    def encode(self, text):
        return torch.tensor([self.index.get(c, 0) for c in text], dtype=torch.long)

    def decode(self, ids):
        return "".join(self.chars[i] for i in ids)


class CharLM(nn.Module):
    def __init__(self, vocab, emb=128, hidden=1024, layers=3, drop=0.3):
        super().__init__()
        self.hidden, self.layers = hidden, layers
        self.embed = nn.Embedding(vocab, emb)
        self.rnn = nn.LSTM(emb, hidden, layers, batch_first=True, dropout=drop)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(hidden, vocab)

    def initial(self, batch, device):
        shape = (self.layers, batch, self.hidden)
        return torch.zeros(shape, device=device), torch.zeros(shape, device=device)

    def forward(self, x, state):
        out, state = self.rnn(self.embed(x), state)
        return self.head(self.drop(out)), state


def batchify(ids, batch, device):
    n = len(ids) // batch
    return ids[:n * batch].view(batch, n).to(device)


@torch.no_grad()
def sample(model, vocab, prompt, n=200, temperature=0.8, device="cuda"):
    model.eval()
    x = vocab.encode(prompt)[None].to(device)
    state, out = model.initial(1, device), []
    for _ in range(n):
        logits, state = model(x, state)
        x = torch.multinomial((logits[:, -1] / temperature).softmax(dim=-1), 1)
        out.append(x)
    model.train()
    return prompt + vocab.decode(torch.cat(out, dim=1)[0].tolist())


@torch.no_grad()
def evaluate(model, stream, bptt):
    model.eval()
    state = model.initial(stream.shape[0], stream.device)
    total, n = torch.zeros((), device=stream.device), 0
    for s in range(0, stream.shape[1] - bptt - 1, bptt):
        logits, state = model(stream[:, s:s + bptt], state)
        total += F.cross_entropy(logits.flatten(0, 1), stream[:, s + 1:s + bptt + 1].flatten())
        n += 1
    model.train()
    return total.item() / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("corpus", type=Path)
    ap.add_argument("--bptt", type=int, default=64)
    ap.add_argument("--chapter", type=int, default=16, help="chunks of bptt between optimizer steps")
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=30)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    device = torch.device("cuda")
    text = args.corpus.read_text()
    cut = int(0.95 * len(text))
    vocab = Vocab(text)
    model = CharLM(len(vocab)).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    valid = batchify(vocab.encode(text[cut:]), 16, device)
    for epoch in range(args.epochs):
        stream = batchify(vocab.encode(text[:cut]), args.batch, device)
        for c, s in enumerate(range(0, stream.shape[1] - args.bptt - 1, args.bptt)):
            if c % args.chapter == 0:
                state = model.initial(args.batch, device)
            x = stream[:, s:s + args.bptt]
            y = stream[:, s + 1:s + args.bptt + 1]
            out, state = model(x, state)
            loss = F.cross_entropy(out.flatten(0, 1), y.flatten()) / args.chapter
            loss.backward(retain_graph=True)
            if (c + 1) % args.chapter == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                opt.step()
                opt.zero_grad(set_to_none=True)
        ppl = math.exp(evaluate(model, valid, args.bptt))
        print(f"epoch {epoch} valid perplexity {ppl:.3f}")
        print(sample(model, vocab, "The "))
        torch.save(model.state_dict(), args.corpus.with_suffix(".pt"))


if __name__ == "__main__":
    main()
