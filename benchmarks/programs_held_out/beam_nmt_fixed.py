"""Translate a synthetic test set with a small encoder-decoder and batched beam search.

Decoder layers keep key/value caches (self- and cross-attention) in a tuple per layer, the
way the big libraries do; hypotheses are scored with length-normalised log-probabilities.
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BOS, EOS, PAD = 1, 2, 0


def split_heads(x, h):
    b, t, d = x.shape
    return x.view(b, t, h, d // h).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def project_kv(self, x):
        return (split_heads(self.k(x), self.h).contiguous(),
                split_heads(self.v(x), self.h).contiguous())

    def forward(self, x, k, v, mask=None):
        q = split_heads(self.q(x), self.h)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self, d, h, ff):
        super().__init__()
        self.self_attn, self.cross_attn = Attention(d, h), Attention(d, h)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(d) for _ in range(3))
        self.ffn = nn.Sequential(nn.Linear(d, ff), nn.ReLU(), nn.Linear(ff, d))

    def forward(self, x, past, src_mask):
        sk, sv, ck, cv = past
        h = self.n1(x)
        k, v = self.self_attn.project_kv(h)
        if sk is not None:
            k, v = torch.cat([sk, k], 2), torch.cat([sv, v], 2)
        x = x + self.self_attn(h, k, v)
        x = x + self.cross_attn(self.n2(x), ck, cv, src_mask)
        x = x + self.ffn(self.n3(x))
        return x, (k, v, ck, cv)


class Translator(nn.Module):
    def __init__(self, vocab, d, h, ff, n_enc, n_dec, max_len=256):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(max_len, d) * 0.1)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, h, ff, 0.0, batch_first=True, norm_first=True),
            n_enc, enable_nested_tensor=False)
        self.dec = nn.ModuleList(DecoderLayer(d, h, ff) for _ in range(n_dec))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)

    def encode(self, src):
        x = self.emb(src) + self.pos[: src.shape[1]]
        return self.enc(x, src_key_padding_mask=src == PAD)

    def init_past(self, memory, beams):
        past = []
        for layer in self.dec:
            ck, cv = layer.cross_attn.project_kv(memory)
            past.append((None, None, ck.repeat_interleave(beams, 0), cv.repeat_interleave(beams, 0)))
        return past

    def decode_step(self, tokens, t, past, src_mask):
        x = self.emb(tokens)[:, None] + self.pos[t]
        new_past = []
        for layer, p in zip(self.dec, past):
            x, p = layer(x, p, src_mask)
            new_past.append(p)
        return self.out(self.norm(x[:, 0])), new_past

    @staticmethod
    def reorder_past(past, beam_idx):
        reordered = []
        for sk, sv, ck, cv in past:      # the beams of a sentence share its encoder states
            reordered.append((sk.index_select(0, beam_idx), sv.index_select(0, beam_idx), ck, cv))
        return reordered


class BeamSearch:
    def __init__(self, model, beams, max_new, alpha=0.6):
        self.model, self.beams, self.max_new, self.alpha = model, beams, max_new, alpha

    def __call__(self, src):
        m, K = self.model, self.beams
        B = src.shape[0]
        memory = m.encode(src)
        past = m.init_past(memory, K)
        src_mask = (src != PAD)[:, None, None].repeat_interleave(K, 0)
        scores = torch.full((B, K), -1e9)
        scores[:, 0] = 0.0
        tokens = torch.full((B * K,), BOS)
        history = tokens[:, None]
        done = torch.zeros(B * K, dtype=torch.bool)
        length = torch.ones(B * K)
        base = (torch.arange(B) * K)[:, None]
        for t in range(self.max_new):
            logits, past = m.decode_step(tokens, t, past, src_mask)
            logp = F.log_softmax(logits, -1)
            best, cand = logp.topk(2 * K, -1)                      # (B*K, 2K)
            best = best.masked_fill(done[:, None], -1e9)
            best[:, 0] = torch.where(done, 0.0, best[:, 0])
            cand = torch.where(done[:, None], PAD, cand)
            total = (scores.view(-1, 1) + best).view(B, -1)
            scores, flat = total.topk(K, -1)
            beam_idx = (base + flat // (2 * K)).view(-1)
            tokens = cand.view(B, -1).gather(1, flat).view(-1)
            history = torch.cat([history[beam_idx], tokens[:, None]], 1)
            past = m.reorder_past(past, beam_idx)
            done, length = done[beam_idx], length[beam_idx]
            length = length + (~done)
            done = done | (tokens == EOS)
        norm = scores.view(-1) / length ** self.alpha
        pick = norm.view(B, K).argmax(-1) + base[:, 0]
        return history[pick], norm[pick]


def make_testset(n, vocab, lo, hi, g):
    lens = torch.randint(lo, hi + 1, (n,), generator=g).sort(descending=True).values
    return [torch.randint(3, vocab, (int(L),), generator=g) for L in lens]


def batches(sents, bs):
    for i in range(0, len(sents), bs):
        yield nn.utils.rnn.pad_sequence(sents[i:i + bs], batch_first=True, padding_value=PAD)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--sentences", type=int, default=180)
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--beams", type=int, default=5)
    ap.add_argument("--max-new", type=int, default=16)
    ap.add_argument("--vocab", type=int, default=3000)
    a = ap.parse_args()
    torch.manual_seed(0)
    model = Translator(a.vocab, 192, 6, 512, 2, 4).eval()
    search = BeamSearch(model, a.beams, a.max_new)
    sents = make_testset(a.sentences, a.vocab, 110, 160, torch.Generator().manual_seed(1))
    outputs, total, n, t0 = [], 0.0, 0, time.perf_counter()
    with torch.inference_mode():
        for src in batches(sents, a.batch):
            hyp, score = search(src)
            outputs.append(hyp)
            total += score.sum().item()
            n += 1
            if n % 20 == 0:
                print(f"batch {n:3d}  mean score {total / (n * a.batch):.5f}")
    dt = time.perf_counter() - t0
    check = int(torch.cat(outputs).sum())
    print(f"{n} batches, mean score {total / len(sents):.5f}, token checksum {check}")
    print(f"finished in {dt:.1f} s, {1000 * dt / n:.1f} ms/batch")


if __name__ == "__main__":
    main()
