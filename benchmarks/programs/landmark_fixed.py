"""Landmark retrieval: embed a photo collection and report recall while going through it."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))

    def forward(self, x):
        return x.clamp(min=1e-6).pow(self.p).mean((-2, -1)).pow(1.0 / self.p)


class Embedder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.ReLU(),
        )
        self.pool = GeM()
        self.project = nn.Linear(48, dim)

    def forward(self, x):
        return F.normalize(self.project(self.pool(self.trunk(x))), dim=1)


def photo_stream(places, batches, batch_size, size=48, seed=0):
    g = torch.Generator().manual_seed(seed)
    prototypes = torch.rand(places, 3, 8, 8, generator=g)
    for _ in range(batches):
        ids = torch.randint(0, places, (batch_size,), generator=g)
        views = F.interpolate(prototypes[ids], size=(size, size), mode="bilinear", align_corners=False)
        yield views + 0.35 * torch.randn(views.shape, generator=g), ids


class RecallAtK:
    """Leave-one-out recall: is one of the k closest other photos of the same place?"""

    def __init__(self, ks=(1, 5, 10)):
        self.ks = ks
        self.embeddings = []
        self.places = []

    def update(self, emb, ids):
        self.embeddings.append(emb)
        self.places.append(ids)

    def compute(self):
        emb = torch.cat(self.embeddings)
        ids = torch.cat(self.places)
        sim = emb @ emb.T
        sim.fill_diagonal_(-1.0)
        nearest = ids[sim.topk(max(self.ks), dim=1).indices]
        hits = nearest == ids[:, None]
        return {f"R@{k}": hits[:, :k].any(1).float().mean().item() for k in self.ks}


class Meter:
    def __init__(self):
        self.values = {}

    def show(self, step, total):
        text = "  ".join(f"{k} {v:.3f}" for k, v in self.values.items())
        print(f"[{step:3d}/{total}] {text}")


@torch.inference_mode()
def evaluate(model, stream, total, log_every=10):
    model.eval()
    metric = RecallAtK()
    meter = Meter()
    for step, (photos, ids) in enumerate(stream, 1):
        metric.update(model(photos), ids)
        if step % log_every == 0 or step == total:
            meter.values.update(metric.compute())
            meter.show(step, total)
    return meter.values


if __name__ == "__main__":
    torch.manual_seed(1)
    n = 72
    net = Embedder()
    result = evaluate(net, photo_stream(places=150, batches=n, batch_size=32), n)
    print("final", {k: round(v, 3) for k, v in result.items()})
