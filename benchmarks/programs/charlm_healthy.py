"""Character language model: train on generated text, sample a few lines every now and then."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

DIM, HEADS, LAYERS, CTX = 96, 4, 3, 96
WORDS = "the cat sat on a mat while one dog ran over two hills and saw some birds near our old house".split()


def make_text(n_words, seed):
    rng = random.Random(seed)
    out = []
    for i in range(n_words):
        out.append(rng.choice(WORDS))
        if i % 9 == 8:
            out[-1] += "."
    return " ".join(out)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x, past):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.ln2(x)))), (k, v)


class CharLM(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, DIM), nn.Embedding(CTX, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, vocab)

    def forward(self, ids, past=None):
        start = 0 if past is None else past[0][0].size(2)
        x = self.tok(ids) + self.pos.weight[start:start + ids.size(1)]
        new = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, None if past is None else past[i])
            new.append(kv)
        return self.head(self.ln(x)), new


@torch.no_grad()
def sample(model, prompt, stoi, itos, n, gen):
    model.eval()
    ids, past = torch.tensor([[stoi[c] for c in prompt]]), None
    text = prompt
    for _ in range(n):
        logits, past = model(ids, past)
        probs = torch.softmax(logits[0, -1] / 0.8, -1)
        ids = torch.multinomial(probs, 1, generator=gen).view(1, 1)
        text += itos[ids.item()]
    model.train()
    return text


def get_batch(data, batch_size, gen):
    starts = torch.randint(0, len(data) - CTX - 1, (batch_size,), generator=gen)
    rows = torch.stack([data[s:s + CTX + 1] for s in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def lr_at(step, total, base=3e-3, warmup=20):
    return base * min(1.0, (step + 1) / warmup) * (1.0 - 0.9 * step / total)


def main(total=110):
    torch.manual_seed(1)
    gen = torch.Generator().manual_seed(2)
    text = make_text(6000, seed=3)
    chars = sorted(set(text))
    stoi = {c: i for i, c in enumerate(chars)}
    itos = dict(enumerate(chars))
    data = torch.tensor([stoi[c] for c in text])
    model = CharLM(len(chars))
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}])
    losses = []
    for step in range(total):
        for group in opt.param_groups:
            group["lr"] = lr_at(step, total)
        x, y = get_batch(data, 12, gen)
        logits, _ = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
        if step % 10 == 0:
            recent = losses[-10:]
            print(f"step {step:3d}  loss {sum(recent) / len(recent):.3f}  |g| {norm.item():.2f}")
        if (step + 1) % 55 == 0:
            print("   >", sample(model, "the ", stoi, itos, 40, gen))
    print(f"final loss {sum(losses[-10:]) / 10:.3f}")


if __name__ == "__main__":
    main()
