"""Prototypical network, 5-way 3-shot, on synthetic glyph images; episodes come from a generator."""
import os
import random
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class GlyphSet:
    """Each class is a random stroke pattern; each sample is a shifted, noisy rendering of it."""

    def __init__(self, n_classes=60, per_class=40, size=20, seed=0):
        g = torch.Generator().manual_seed(seed)
        base = (F.interpolate(torch.rand(n_classes, 1, 5, 5, generator=g), size=size, mode="bilinear") > 0.55).float()
        images, labels = [], []
        for c in range(n_classes):
            for _ in range(per_class):
                dy, dx = torch.randint(-2, 3, (2,), generator=g).tolist()
                images.append(torch.roll(base[c], (dy, dx), dims=(1, 2)))
                labels.append(c)
        self.images = torch.stack(images)
        self.images += 0.3 * torch.randn(self.images.shape, generator=g)
        self.labels = torch.tensor(labels)
        self.classes = list(range(n_classes))


def episodes(data, n_way, k_shot, n_query, n_episodes, rng):
    for _ in range(n_episodes):
        support, query = [], []
        for c in rng.sample(data.classes, n_way):
            members = [i for i, label in enumerate(data.labels) if label == c]
            picked = rng.sample(members, k_shot + n_query)
            support.append(data.images[picked[:k_shot]])
            query.append(data.images[picked[k_shot:]])
        yield torch.stack(support), torch.stack(query)


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(), nn.MaxPool2d(2))


class Embedder(nn.Module):
    def __init__(self, width=32, dim=512):
        super().__init__()
        self.conv = nn.Sequential(conv_block(1, width), conv_block(width, width))
        self.fc1 = nn.Linear(width * 25, 640)
        self.fc2 = nn.Linear(640, dim)

    def forward(self, x):
        h = self.conv(x).flatten(1)
        return self.fc2(F.relu(self.fc1(h)))


def proto_loss(model, support, query):
    n_way, k_shot = support.shape[:2]
    n_query = query.shape[1]
    z = model(torch.cat([support.flatten(0, 1), query.flatten(0, 1)]))
    proto = z[: n_way * k_shot].view(n_way, k_shot, -1).mean(1)
    logits = -torch.cdist(z[n_way * k_shot:], proto).pow(2) / z.shape[1] ** 0.5
    target = torch.arange(n_way).repeat_interleave(n_query)
    return F.cross_entropy(logits, target), (logits.argmax(1) == target).float().mean()


def save_state(path, model, opt, episode, best):
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "episode": episode, "best": best}, path)


def train(data, model, out_dir, n_episodes=100):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = random.Random(0)
    smooth, best = 0.2, 0.0
    for ep, (support, query) in enumerate(episodes(data, 5, 3, 7, n_episodes, rng), 1):
        loss, acc = proto_loss(model, support, query)
        opt.zero_grad()
        loss.backward()
        opt.step()
        smooth = 0.95 * smooth + 0.05 * acc.item()
        best = max(best, smooth)
        save_state(os.path.join(out_dir, "last.pt"), model, opt, ep, best)
        if ep % 20 == 0:
            print(f"episode {ep:4d}  loss {loss.item():.4f}  acc {smooth:.3f}  best {best:.3f}")


@torch.no_grad()
def test(data, model, n_episodes=10):
    model.eval()
    accs = [proto_loss(model, s, q)[1] for s, q in episodes(data, 5, 3, 7, n_episodes, random.Random(99))]
    return torch.stack(accs).mean().item()


def main():
    torch.manual_seed(0)
    model = Embedder()
    with tempfile.TemporaryDirectory() as out_dir:
        train(GlyphSet(seed=0), model, out_dir)
        size = os.path.getsize(os.path.join(out_dir, "last.pt")) / 2 ** 20
    print(f"checkpoint {size:.1f} MiB")
    print(f"test accuracy on unseen glyphs: {test(GlyphSet(n_classes=20, seed=1), model):.3f}")


if __name__ == "__main__":
    main()
