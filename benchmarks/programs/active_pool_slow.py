"""Pool-based active learning with MC-dropout (BALD) on synthetic digits-like data."""
import json
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import make_classification
from sklearn.metrics import accuracy_score

ROUNDS = 9
QUERY = 100
POOL = 14000
PASSES = 4


class Net(nn.Module):
    def __init__(self, d=40, c=6):
        super().__init__()
        self.fc1 = nn.Linear(d, 128)
        self.fc2 = nn.Linear(128, 64)
        self.fc3 = nn.Linear(64, c)

    def forward(self, x):
        x = F.dropout(F.relu(self.fc1(x)), 0.3, training=self.training)
        x = F.dropout(F.relu(self.fc2(x)), 0.3, training=self.training)
        return self.fc3(x)


class Learner:
    """fit / predict / score, as in sklearn."""

    def __init__(self, epochs=8, lr=2e-3):
        self.epochs, self.lr = epochs, lr

    def fit(self, x, y):
        torch.manual_seed(0)
        self.net_ = Net()
        opt = torch.optim.Adam(self.net_.parameters(), lr=self.lr)
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        self.net_.train()
        for _ in range(self.epochs):
            for sel in torch.randperm(len(x)).split(64):
                opt.zero_grad()
                F.cross_entropy(self.net_(x[sel]), y[sel]).backward()
                opt.step()
        return self

    @torch.no_grad()
    def predict(self, x):
        self.net_.eval()
        return self.net_(torch.from_numpy(x)).argmax(1).numpy()

    @torch.no_grad()
    def bald(self, x):
        self.net_.train()
        x = torch.from_numpy(x)
        scores = np.zeros(len(x))
        for n in range(len(x)):
            sample = x[n].unsqueeze(0).expand(PASSES, -1)
            p = F.softmax(self.net_(sample), dim=1)
            mean = p.mean(0)
            total = -(mean * mean.clamp_min(1e-9).log()).sum()
            noise = -(p * p.clamp_min(1e-9).log()).sum(1).mean()
            scores[n] = float(total - noise)
        return scores


class Oracle:
    def __init__(self, x, y, n_start, rng):
        self.x, self.y = x, y
        self.labeled = rng.choice(len(x), n_start, replace=False).tolist()

    def unlabeled(self):
        return [i for i in range(len(self.x)) if i not in self.labeled]

    def query(self, idx):
        self.labeled.extend(int(i) for i in idx)


rng = np.random.RandomState(1)
X, Y = make_classification(POOL + 1000, 40, n_informative=16, n_classes=6, random_state=1)
X = X.astype(np.float32)
oracle = Oracle(X[:POOL], Y[:POOL], 1500, rng)
learner = Learner()
log = []
for rnd in range(ROUNDS):
    learner.fit(oracle.x[oracle.labeled], oracle.y[oracle.labeled])
    acc = accuracy_score(Y[POOL:], learner.predict(X[POOL:]))
    candidates = np.array(oracle.unlabeled())
    subset = rng.choice(candidates, min(1500, len(candidates)), replace=False)
    scores = learner.bald(oracle.x[subset])
    oracle.query(subset[np.argsort(-scores)[:QUERY]])
    log.append({"round": rnd, "labeled": len(oracle.labeled), "acc": round(float(acc), 4)})
    print(f"round {rnd}: {len(oracle.labeled)} labels, acc {acc:.4f}, mean bald {scores.mean():.4f}")

with open(os.path.join(tempfile.mkdtemp(), "al_log.json"), "w") as f:
    json.dump(log, f, indent=1)
