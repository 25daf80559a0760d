import random

import torch
from torch import nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, vocab, emb=256, hid=512, pad=0):
        super().__init__()
        self.hid, self.pad = hid, pad
        self.embed = nn.Embedding(vocab, emb, padding_idx=pad)
        self.fwd = nn.LSTMCell(emb, hid)
        self.bwd = nn.LSTMCell(emb, hid)
        self.bridge_h = nn.Linear(2 * hid, hid)
        self.bridge_c = nn.Linear(2 * hid, hid)
        self.drop = nn.Dropout(0.2)

    def run(self, cell, x, mask, steps):
        b = x.shape[0]
        h = x.new_zeros(b, self.hid)
        c = x.new_zeros(b, self.hid)
        outs = [None] * x.shape[1]
        for t in steps:
            h_new, c_new = cell(x[:, t], (h, c))
            m = mask[:, t, None]
            h, c = torch.where(m, h_new, h), torch.where(m, c_new, c)
            outs[t] = h
        return torch.stack(outs, dim=1), h, c

    def forward(self, src):
        mask = src != self.pad
        x = self.drop(self.embed(src))
        n = src.shape[1]
        of, hf, cf = self.run(self.fwd, x, mask, range(n))
        ob, hb, cb = self.run(self.bwd, x, mask, reversed(range(n)))
        h = torch.tanh(self.bridge_h(torch.cat([hf, hb], dim=1)))
        c = torch.tanh(self.bridge_c(torch.cat([cf, cb], dim=1)))
        return torch.cat([of, ob], dim=2), mask, h, c


class Attention(nn.Module):
    def __init__(self, hid):
        super().__init__()
        self.key = nn.Linear(2 * hid, hid, bias=False)
        self.out = nn.Linear(3 * hid, hid)

    def forward(self, h, keys, memory, mask):
        score = torch.einsum("bh,bth->bt", h, keys).masked_fill(~mask, float("-inf"))
        ctx = torch.einsum("bt,btd->bd", score.softmax(dim=1), memory)
        return torch.tanh(self.out(torch.cat([h, ctx], dim=1)))


class Decoder(nn.Module):
    def __init__(self, vocab, emb=256, hid=512, pad=0):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=pad)
        self.cell = nn.LSTMCell(emb + hid, hid)
        self.attn = Attention(hid)
        self.proj = nn.Linear(hid, vocab)

    def forward(self, memory, mask, h, c, tgt, teacher=1.0):
        keys = self.attn.key(memory)
        feed = torch.zeros_like(h)
        tok, hs = tgt[:, 0], []
        for t in range(1, tgt.shape[1]):
            h, c = self.cell(torch.cat([self.embed(tok), feed], dim=1), (h, c))
            feed = self.attn(h, keys, memory, mask)
            hs.append(feed)
            if random.random() < teacher:
                tok = tgt[:, t]
            else:
                tok = self.proj(feed.detach()).argmax(dim=1)
        return self.proj(torch.stack(hs, dim=1))


class Seq2Seq(nn.Module):
    def __init__(self, src_vocab, tgt_vocab, pad=0):
        super().__init__()
        self.pad = pad
        self.encoder = Encoder(src_vocab, pad=pad)
        self.decoder = Decoder(tgt_vocab, pad=pad)

    def forward(self, src, tgt, teacher=1.0):
        memory, mask, h, c = self.encoder(src)
        logits = self.decoder(memory, mask, h, c, tgt, teacher)
        return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=self.pad)


def train_epoch(model, loader, opt, device, teacher=0.9, clip=1.0):
    model.train()
    total = torch.zeros((), device=device)
    for src, tgt in loader:
        src, tgt = src.to(device, non_blocking=True), tgt.to(device, non_blocking=True)
        loss = model(src, tgt, teacher)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        total += loss.detach()
    return total.item() / len(loader)
