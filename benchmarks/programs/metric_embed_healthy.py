# Metric learning on synthetic sensor windows: batch-hard triplets + memory queue + recall@1
# (notebook exported with nbconvert)

# In[1]:
import gc
import os
import tempfile
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, P, K_PER, STEPS = 3, 16, 8, 60
np.random.seed(SEED)
torch.manual_seed(SEED)

# In[2]:
n_classes, per_class, length = 60, 40, 128
tt = np.linspace(0, 1, length, dtype=np.float32)
freq = np.random.uniform(2, 14, (n_classes, 3)).astype(np.float32)
labels = np.repeat(np.arange(n_classes), per_class)
phase = np.random.uniform(0, 2 * np.pi, (len(labels), 3)).astype(np.float32)
data = np.sin(2 * np.pi * freq[labels][:, :, None] * tt + phase[:, :, None]).astype(np.float32)
data += 0.3 * np.random.randn(*data.shape).astype(np.float32)
print(data.shape, data.dtype)


# In[3]:
def pk_batches(x, y, p, k, steps):
    by_class = {c: np.flatnonzero(y == c) for c in np.unique(y)}
    classes = np.array(list(by_class))
    for _ in range(steps):
        chosen = np.random.choice(classes, p, replace=False)
        idx = np.concatenate([np.random.choice(by_class[c], k, replace=False) for c in chosen])
        yield torch.from_numpy(x[idx]), torch.from_numpy(y[idx])


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(3, 32, 7, stride=2, padding=3), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Conv1d(32, 64, 5, stride=2, padding=2), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Conv1d(64, 96, 3, stride=2, padding=1), nn.BatchNorm1d(96), nn.ReLU(),
        )
        self.fc = nn.Linear(96, dim)

    def forward(self, x):
        return F.normalize(self.fc(self.conv(x).mean(-1)), dim=1)


def batch_hard(z, y, bank_z, bank_y, margin=0.2):
    d = torch.cdist(z, z)
    same = y[:, None] == y[None, :]
    pos = d.masked_fill(~same, 0.0).amax(1)
    neg = d.masked_fill(same, float("inf")).amin(1)
    if bank_z is not None:
        far = torch.cdist(z, bank_z).masked_fill(y[:, None] == bank_y[None, :], float("inf")).amin(1)
        neg = torch.minimum(neg, far)
    return F.relu(pos - neg + margin).mean()


def recall_at_1(model, x, y, chunk=512):
    model.eval()
    with torch.no_grad():
        z = torch.cat([model(c) for c in torch.from_numpy(x).split(chunk)])
        hits = 0
        for start in range(0, len(z), chunk):   # chunks keep the distance matrix small
            sim = z[start:start + chunk] @ z.t()
            rows = torch.arange(len(sim))
            sim[rows, start + rows] = -2.0
            nn_idx = sim.argmax(1).numpy()
            hits += int((y[nn_idx] == y[start:start + chunk]).sum())
    model.train()
    return hits / len(y)


# In[4]:
model = Encoder()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
queue, history = deque(maxlen=8), []
for step, (xa, ya) in enumerate(pk_batches(data, labels, P, K_PER, STEPS), start=1):
    xa = xa + 0.05 * torch.randn_like(xa)
    z = model(xa)
    bank_z = torch.cat([q[0] for q in queue]) if queue else None
    bank_y = torch.cat([q[1] for q in queue]) if queue else None
    loss = batch_hard(z, ya, bank_z, bank_y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    queue.append((z.detach().clone(), ya))
    history.append(loss.item())
    if step % 30 == 0:
        print(f"step {step}  loss {np.mean(history[-30:]):.4f}  recall@1 {recall_at_1(model, data, labels):.3f}")

# In[5]:
gc.collect()
torch.save(model.state_dict(), os.path.join(tempfile.mkdtemp(), "encoder.pt"))
print("final recall@1: %.3f" % recall_at_1(model, data, labels))
