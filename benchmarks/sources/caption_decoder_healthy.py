import torch
from torch import nn
import torch.nn.functional as F


class SoftAttention(nn.Module):
    def __init__(self, feat, hid, att=512):
        super().__init__()
        self.q, self.v = nn.Linear(hid, att), nn.Linear(att, 1)
        self.k = nn.Linear(feat, att)

    def forward(self, h, feats, keys):
        score = self.v(torch.tanh(keys + self.q(h)[:, None])).squeeze(2)
        alpha = score.softmax(dim=1)
        return torch.einsum("bn,bnd->bd", alpha, feats), alpha


class Decoder(nn.Module):
    def __init__(self, vocab, feat=2048, emb=512, hid=512, drop=0.5, bos=1, eos=2, pad=0):
        super().__init__()
        self.vocab, self.bos, self.eos, self.pad = vocab, bos, eos, pad
        self.embed = nn.Embedding(vocab, emb, padding_idx=pad)
        self.att = SoftAttention(feat, hid)
        self.gate = nn.Linear(hid, feat)
        self.cell = nn.LSTMCell(emb + feat, hid)
        self.init_h, self.init_c = nn.Linear(feat, hid), nn.Linear(feat, hid)
        self.drop, self.head = nn.Dropout(drop), nn.Linear(hid, vocab)

    def initial(self, feats):
        m = feats.mean(dim=1)
        return torch.tanh(self.init_h(m)), torch.tanh(self.init_c(m)), self.att.k(feats)

    def step(self, tok, h, c, feats, keys):
        ctx, alpha = self.att(h, feats, keys)
        ctx = torch.sigmoid(self.gate(h)) * ctx
        h, c = self.cell(torch.cat([self.embed(tok), ctx], dim=1), (h, c))
        return h, c, alpha

    def forward(self, feats, caps, alpha_c=1.0):
        h, c, keys = self.initial(feats)
        hs, alphas = [], []
        for t in range(caps.shape[1] - 1):
            h, c, a = self.step(caps[:, t], h, c, feats, keys)
            hs.append(h)
            alphas.append(a)
        logits = self.head(self.drop(torch.stack(hs, dim=1)))
        loss = F.cross_entropy(logits.flatten(0, 1), caps[:, 1:].flatten(), ignore_index=self.pad)
        coverage = torch.stack(alphas, dim=1).sum(dim=1)
        return loss + alpha_c * (1 - coverage).square().mean()

    @torch.inference_mode()
    def beam(self, feats, k=5, max_len=20):
        b, n, d = feats.shape
        h, c, keys = self.initial(feats)
        rep = lambda x: x.repeat_interleave(k, dim=0)
        feats, keys, h, c = rep(feats), rep(keys), rep(h), rep(c)
        dev = feats.device
        tok = torch.full((b * k,), self.bos, device=dev)
        score = torch.full((b, k), float("-inf"), device=dev)
        score[:, 0] = 0
        seqs = torch.full((b, k, max_len), self.pad, dtype=torch.long, device=dev)
        done = torch.zeros(b, k, dtype=torch.bool, device=dev)
        base = torch.arange(b, device=dev)[:, None] * k
        frozen = torch.full((self.vocab,), float("-inf"), device=dev)
        frozen[self.pad] = 0
        for t in range(max_len):
            h, c, _ = self.step(tok, h, c, feats, keys)
            logp = self.head(h).log_softmax(dim=-1).view(b, k, -1)
            logp = torch.where(done[..., None], frozen, logp)
            score, flat = (score[..., None] + logp).flatten(1).topk(k, dim=1)
            parent, word = flat // self.vocab, flat % self.vocab
            rows = (base + parent).flatten()
            h, c = h[rows], c[rows]
            seqs = seqs.gather(1, parent[..., None].expand_as(seqs))
            seqs[:, :, t] = word
            done = done.gather(1, parent) | (word == self.eos)
            tok = word.flatten()
        length = (seqs != self.pad).sum(dim=2).clamp(min=1)
        best = (score / length).argmax(dim=1)
        return seqs[torch.arange(b, device=dev), best].tolist()


def train_epoch(decoder, encoder, loader, opt, device):
    decoder.train()
    encoder.eval()
    total = torch.zeros((), device=device)
    for images, caps in loader:
        images, caps = images.to(device, non_blocking=True), caps.to(device, non_blocking=True)
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            feats = encoder(images).flatten(2).transpose(1, 2)
        loss = decoder(feats.float(), caps)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 5.0)
        opt.step()
        total += loss.detach()
    return total.item() / len(loader)
