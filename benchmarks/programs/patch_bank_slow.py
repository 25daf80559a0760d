"""Patch-memory anomaly scoring (PatchCore-like), inference only.

A frozen, randomly initialised conv net gives mid-level features through forward
hooks.  Patches of good parts fill a memory bank; a test image is scored by the
distance of its worst patch to a random core set of that bank.
"""
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

IMG = 64
N_GOOD, N_TEST = 3000, 96
BATCH = 12
CORESET = 1500


def make_weave(n, seed, defects=False):
    """Textile-like textures; a defect is a blurred scratch. Returns images, flags."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:IMG, 0:IMG].astype(np.float32)
    imgs = np.empty((n, 1, IMG, IMG), np.float32)
    flags = np.zeros(n, dtype=bool)
    for i in range(n):
        f, ph = rng.uniform(0.5, 0.6), rng.uniform(0, 6.28, 2)
        tex = np.sin(f * xx + ph[0]) * np.sin(f * yy + ph[1])
        tex += rng.normal(0, 0.15, tex.shape)
        if defects and rng.random() < 0.5:
            flags[i] = True
            a, c = rng.uniform(-1, 1), rng.uniform(15, IMG - 15)
            dist = np.abs(yy - a * (xx - IMG / 2) - c)
            tex = np.where((dist < 2) & (np.abs(xx - IMG / 2) < 14), 1.3, tex)
        imgs[i, 0] = tex
    return torch.from_numpy(imgs), torch.from_numpy(flags)


def conv_bn(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_bn(1, 48, 2)
        self.layer1 = nn.Sequential(conv_bn(48, 64, 1), conv_bn(64, 64, 1))
        self.layer2 = nn.Sequential(conv_bn(64, 64, 2), conv_bn(64, 64, 1), conv_bn(64, 64, 1))
        self.layer3 = nn.Sequential(conv_bn(64, 128, 2), conv_bn(128, 128, 1), conv_bn(128, 128, 1))

    def forward(self, x):
        return self.layer3(self.layer2(self.layer1(self.stem(x))))


class PatchExtractor:
    """Collects the named layers with hooks and makes one vector per patch."""

    def __init__(self, net, names=("layer2", "layer3")):
        self.net, self.names, self.taps = net, names, {}
        for name in names:
            net.get_submodule(name).register_forward_hook(self._tap(name))

    def _tap(self, name):
        def hook(module, inputs, output):
            self.taps[name] = output
        return hook

    def __call__(self, images):
        self.net(images)
        maps = [F.avg_pool2d(self.taps[n], 3, 2, 1) for n in self.names]
        size = maps[0].shape[-2:]
        maps = [maps[0]] + [F.interpolate(m, size=size, mode="bilinear") for m in maps[1:]]
        z = torch.cat(maps, dim=1)                      # (b, c, h, w)
        return z.flatten(2).transpose(1, 2)             # (b, h*w, c)


class MemoryBank:
    def __init__(self, dim):
        self.patches = torch.empty(0, dim)
        self.image_ids = torch.empty(0, dtype=torch.long)
        self.sum, self.sqsum, self.seen = torch.zeros(dim), torch.zeros(dim), 0

    def __len__(self):
        return self.patches.size(0)

    def update(self, z, ids):
        b, p, c = z.shape
        flat = z.reshape(b * p, c)
        self.sum += flat.sum(0)
        self.sqsum += flat.square().sum(0)
        self.seen += b * p
        self.patches = torch.cat([self.patches, flat], dim=0)
        self.image_ids = torch.cat([self.image_ids, ids.repeat_interleave(p)])

    def finish(self, k, gen):
        """Standardise the features and keep k random patches as the core set."""
        mean = self.sum / self.seen
        std = (self.sqsum / self.seen - mean.square()).clamp_min(1e-8).sqrt()
        keep = torch.randperm(len(self), generator=gen)[:k]
        return (self.patches[keep] - mean) / std, self.image_ids[keep], mean, std


def image_scores(extract, images, core, mean, std):
    out = []
    for chunk in images.split(BATCH):
        z = (extract(chunk) - mean) / std
        d = torch.cdist(z.reshape(-1, z.size(-1)), core).amin(1)
        out.append(d.view(z.size(0), -1).amax(1))
    return torch.cat(out)


def auroc(score, flag):
    rank = score.argsort().argsort().double() + 1
    n1, n0 = flag.sum().item(), (~flag).sum().item()
    return ((rank[flag].sum() - n1 * (n1 + 1) / 2) / (n1 * n0)).item()


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    good, _ = make_weave(N_GOOD, seed=1)
    test, flags = make_weave(N_TEST, seed=2, defects=True)
    extract = PatchExtractor(Backbone().eval())
    bank = MemoryBank(dim=64 + 128)

    n_batches = N_GOOD // BATCH
    t0 = time.perf_counter()
    for i, chunk in enumerate(good.split(BATCH)):
        ids = torch.arange(i * BATCH, i * BATCH + len(chunk))
        bank.update(extract(chunk), ids)
        if (i + 1) % 50 == 0:
            print(f"[{i + 1}/{n_batches}] {bank.seen} patches in the bank")
    core, ids, mean, std = bank.finish(CORESET, torch.Generator().manual_seed(5))
    dt = time.perf_counter() - t0
    print(f"bank built, {dt / n_batches * 1e3:.2f} ms/batch; core from {ids.unique().numel()} images")

    scores = image_scores(extract, test, core, mean, std)
    print(f"image AUROC {auroc(scores, flags):.4f}")


if __name__ == "__main__":
    main()
