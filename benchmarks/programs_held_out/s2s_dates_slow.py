"""Translate spelled-out dates ("the 3rd of march, nineteen ninety ...") into ISO
strings with a character-level encoder/decoder and additive attention."""
import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, SOS, EOS = 0, 1, 2
MONTHS = ("january february march april may june july august september "
          "october november december").split()
ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen "
        "fourteen fifteen sixteen seventeen eighteen nineteen").split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def spell(n):
    if n < 20:
        return ONES[n]
    t, o = divmod(n, 10)
    return TENS[t] + ("" if o == 0 else " " + ONES[o])


def make_pair(rng):
    d, m, y = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1901, 2099)
    year = spell(y // 100) + " " + spell(y % 100)
    form = rng.randint(0, 2)
    if form == 0:
        src = f"the {spell(d)} of {MONTHS[m - 1]} {year}"
    elif form == 1:
        src = f"{MONTHS[m - 1]} the {spell(d)}, {year}"
    else:
        src = f"{MONTHS[m - 1][:3]}. {d} in the year {year}"
    return src, f"{y:04d}-{m:02d}-{d:02d}"


class Vocab:
    def __init__(self, texts):
        self.itos = ["<pad>", "<s>", "</s>"] + sorted(set("".join(texts)))
        self.stoi = {c: i for i, c in enumerate(self.itos)}

    def __len__(self):
        return len(self.itos)

    def encode(self, text):
        return [self.stoi[c] for c in text] + [EOS]


def pad_batch(seqs):
    n = max(len(s) for s in seqs)
    return torch.tensor([s + [PAD] * (n - len(s)) for s in seqs])


def batches(pairs, sv, tv, size, seed):
    """Endless length-sorted pools, so that a batch holds sentences of like length."""
    rng = random.Random(seed)
    enc = [(sv.encode(a), tv.encode(b)) for a, b in pairs]
    while True:
        rng.shuffle(enc)
        for lo in range(0, len(enc) - size * 8 + 1, size * 8):
            pool = sorted(enc[lo:lo + size * 8], key=lambda p: len(p[0]))
            chunks = [pool[i:i + size] for i in range(0, len(pool), size)]
            rng.shuffle(chunks)
            for c in chunks:
                yield pad_batch([s for s, _ in c]), pad_batch([t for _, t in c])


class Encoder(nn.Module):
    def __init__(self, n_vocab, emb, hid):
        super().__init__()
        self.emb = nn.Embedding(n_vocab, emb, padding_idx=PAD)
        self.rnn = nn.GRU(emb, hid // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(hid, hid)

    def forward(self, src):
        out, h = self.rnn(self.emb(src))
        return out, torch.tanh(self.bridge(torch.cat([h[0], h[1]], dim=-1)))


class AdditiveAttention(nn.Module):
    def __init__(self, hid, att):
        super().__init__()
        self.query = nn.Linear(hid, att, bias=False)
        self.key = nn.Linear(hid, att)
        self.score = nn.Linear(att, 1, bias=False)

    def forward(self, state, memory, mask):
        e = torch.tanh(self.query(state).unsqueeze(1) + self.key(memory))
        e = self.score(e).squeeze(-1).masked_fill(mask, -1e9)
        w = F.softmax(e, dim=-1)
        return torch.bmm(w.unsqueeze(1), memory).squeeze(1), w


class Decoder(nn.Module):
    def __init__(self, n_vocab, emb, hid, att):
        super().__init__()
        self.emb = nn.Embedding(n_vocab, emb, padding_idx=PAD)
        self.attn = AdditiveAttention(hid, att)
        self.cell = nn.GRUCell(emb + hid, hid)
        self.out = nn.Linear(2 * hid, n_vocab)

    def step(self, tok_emb, state, memory, mask):
        ctx, w = self.attn(state, memory, mask)
        state = self.cell(torch.cat([tok_emb, ctx], dim=-1), state)
        return state, ctx, w

    def forward(self, memory, state, mask, tgt):
        inp = torch.cat([torch.full_like(tgt[:, :1], SOS), tgt[:, :-1]], dim=1)
        embs = self.emb(inp)
        feats = []
        for t in range(tgt.size(1)):
            state, ctx, _ = self.step(embs[:, t], state, memory, mask)
            feats.append(torch.cat([state, ctx], dim=-1))
        return self.out(torch.stack(feats, dim=1))


class Seq2Seq(nn.Module):
    def __init__(self, n_src, n_tgt, emb, hid, att):
        super().__init__()
        self.encoder = Encoder(n_src, emb, hid)
        self.decoder = Decoder(n_tgt, emb, hid, att)

    def forward(self, src, tgt):
        memory, state = self.encoder(src)
        return self.decoder(memory, state, src.eq(PAD), tgt)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--hid", type=int, default=192)
    ap.add_argument("--att", type=int, default=192)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    pairs = [make_pair(rng) for _ in range(8000)]
    sv, tv = Vocab([a for a, _ in pairs]), Vocab([b for _, b in pairs])
    model = Seq2Seq(len(sv), len(tv), 64, args.hid, args.att)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    stream = batches(pairs, sv, tv, args.batch, args.seed)

    t0 = time.perf_counter()
    for step in range(1, args.steps + 1):
        src, tgt = next(stream)
        logits = model(src, tgt)
        loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=PAD)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 15 == 0:
            acc = (logits.argmax(-1) == tgt).float().mean().item()
            print(f"step {step:4d}  loss {loss.item():.4f}  char acc {acc:.3f}")
    dt = time.perf_counter() - t0
    print(f"{dt / args.steps * 1e3:.2f} ms/step over {args.steps} steps")


if __name__ == "__main__":
    main()
