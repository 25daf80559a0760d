"""Learn a visual codebook with k-means, then train a linear classifier on the histograms."""
import os
import tempfile
import warnings

import numpy as np
import torch
import torch.nn as nn
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.metrics import normalized_mutual_info_score

warnings.filterwarnings("ignore", category=FutureWarning)


class TorchKMeans(BaseEstimator, ClusterMixin):
    """Drop-in for sklearn.cluster.KMeans, on tensors."""

    def __init__(self, n_clusters=256, max_iter=20, tol=1e-5, random_state=0, verbose=True):
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def _assign(self, x):
        c = self.cluster_centers_
        d2 = (x * x).sum(1, keepdim=True) - 2.0 * (x @ c.t()) + (c * c).sum(1)
        best = d2.min(dim=1)
        return best.indices, best.values.sum().item()

    def _update(self, x, labels):
        sums = torch.zeros_like(self.cluster_centers_).index_add_(0, labels, x)
        count = torch.bincount(labels, minlength=self.n_clusters).unsqueeze(1)
        return torch.where(count > 0, sums / count.clamp(min=1), self.cluster_centers_)

    def fit(self, X, y=None):
        x = torch.as_tensor(X, dtype=torch.float32)
        g = torch.Generator().manual_seed(self.random_state)
        self.cluster_centers_ = x[torch.randperm(len(x), generator=g)[: self.n_clusters]].clone()
        self.history_ = []
        for it in range(1, self.max_iter + 1):
            labels, inertia = self._assign(x)
            centers = self._update(x, labels)
            shift = (centers - self.cluster_centers_).pow(2).sum().item()
            self.cluster_centers_ = centers
            self.history_.append(inertia)
            if self.verbose and it % 5 == 0:
                print(f"iter {it:3d}  inertia {inertia / len(x):.4f}  shift {shift:.4f}")
            if shift < self.tol:
                break
        self.labels_, self.inertia_ = self._assign(x)
        self.n_iter_ = it
        return self

    def predict(self, X):
        return self._assign(torch.as_tensor(X, dtype=torch.float32))[0]


def make_patches(n_images=120, per_image=50, dim=32, n_classes=5, seed=0):
    rng = np.random.RandomState(seed)
    atoms = rng.randn(40, dim)
    mix = rng.dirichlet(np.full(40, 0.15), size=n_classes)
    y = rng.randint(0, n_classes, n_images)
    words = np.stack([rng.choice(40, per_image, p=mix[c]) for c in y])
    patches = atoms[words] + 0.5 * rng.randn(n_images, per_image, dim)
    return patches.astype(np.float32), words, y


def histograms(labels, n_images, k):
    h = torch.zeros(n_images, k)
    rows = torch.arange(n_images).repeat_interleave(len(labels) // n_images)
    h.index_put_((rows, labels), torch.ones(len(labels)), accumulate=True)
    return h / h.sum(1, keepdim=True)


def main():
    torch.manual_seed(0)
    patches, words, y = make_patches()
    flat = patches.reshape(-1, patches.shape[-1])
    km = TorchKMeans().fit(flat)
    nmi = normalized_mutual_info_score(words.ravel(), km.labels_.numpy())
    print(f"k-means: {km.n_iter_} iterations, inertia {km.inertia_ / len(flat):.4f}, NMI {nmi:.3f}")

    h = histograms(km.labels_, len(patches), km.n_clusters)
    target = torch.from_numpy(y)
    clf = nn.Linear(km.n_clusters, 5)
    opt = torch.optim.Adam(clf.parameters(), lr=0.05)
    for _ in range(60):
        loss = nn.functional.cross_entropy(clf(h), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    acc = (clf(h).argmax(1) == target).float().mean().item()
    print(f"bag of words: loss {loss.item():.4f}, accuracy {acc:.3f}")
    np.save(os.path.join(tempfile.mkdtemp(), "codebook.npy"), km.cluster_centers_.numpy())


if __name__ == "__main__":
    main()
