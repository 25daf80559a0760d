"""Score a small translation model on a held-out set with greedy decoding."""
import math
import random
from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn

PAD, BOS, EOS = 0, 1, 2


@dataclass
class Config:
    src_vocab: int = 900
    tgt_vocab: int = 700
    d_model: int = 128
    heads: int = 4
    enc_layers: int = 3
    dec_layers: int = 1
    batch_size: int = 8
    n_sentences: int = 360
    max_len: int = 12
    seed: int = 11


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=256):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        freq = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(pos * freq)
        pe[:, 1::2] = torch.cos(pos * freq)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Seq2Seq(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.d_model
        self.src_emb = nn.Embedding(cfg.src_vocab, d, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(cfg.tgt_vocab, d, padding_idx=PAD)
        self.pos = PositionalEncoding(d)
        enc = nn.TransformerEncoderLayer(d, cfg.heads, 4 * d, 0.0, batch_first=True, norm_first=True)
        dec = nn.TransformerDecoderLayer(d, cfg.heads, 4 * d, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(enc, cfg.enc_layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(dec, cfg.dec_layers)
        self.out = nn.Linear(d, cfg.tgt_vocab)

    def encode(self, src):
        return self.encoder(self.pos(self.src_emb(src)), src_key_padding_mask=src == PAD)

    def decode(self, tgt, memory, src):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        h = self.decoder(self.pos(self.tgt_emb(tgt)), memory, tgt_mask=mask, tgt_is_causal=True,
                         memory_key_padding_mask=src == PAD)
        return self.out(h)

    def forward(self, src, tgt):
        return self.decode(tgt, self.encode(src), src)


def make_corpus(cfg):
    rng = random.Random(cfg.seed)
    pairs = []
    for _ in range(cfg.n_sentences):
        n = rng.randint(25, 45)
        src = [rng.randrange(3, cfg.src_vocab) for _ in range(n)]
        ref = [3 + (t * 7) % (cfg.tgt_vocab - 3) for t in src[: cfg.max_len]]
        pairs.append((src, ref))
    pairs.sort(key=lambda p: len(p[0]))
    return pairs


def batches(pairs, size):
    for i in range(0, len(pairs), size):
        chunk = pairs[i:i + size]
        width = max(len(s) for s, _ in chunk)
        src = torch.tensor([s + [PAD] * (width - len(s)) for s, _ in chunk])
        yield src, [r for _, r in chunk]


@torch.no_grad()
def greedy_translate(model, src, max_len):
    ys = torch.full((src.size(0), 1), BOS)
    finished = torch.zeros(src.size(0), dtype=torch.bool)
    for _ in range(max_len):
        logits = model(src, ys)
        nxt = logits[:, -1].argmax(-1).masked_fill(finished, PAD)
        ys = torch.cat([ys, nxt.unsqueeze(1)], dim=1)
        finished |= nxt == EOS
        if finished.all():
            break
    return ys[:, 1:].tolist()


def unigram_f1(hyp, ref):
    hyp = [t for t in hyp if t > EOS]
    overlap = sum((Counter(hyp) & Counter(ref)).values())
    return 2 * overlap / max(len(hyp) + len(ref), 1)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = Seq2Seq(cfg).eval()
    corpus = make_corpus(cfg)
    scores, tokens = [], 0
    for step, (src, refs) in enumerate(batches(corpus, cfg.batch_size)):
        hyps = greedy_translate(model, src, cfg.max_len)
        scores += [unigram_f1(h, r) for h, r in zip(hyps, refs)]
        tokens += sum(len(h) for h in hyps)
        if step % 15 == 0:
            print(f"batch {step:3d}  mean F1 {sum(scores) / len(scores):.5f}")
    print(f"{len(scores)} sentences, {tokens} tokens, F1 {sum(scores) / len(scores):.5f}")


if __name__ == "__main__":
    main()
