import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def read_adjacency(csv, n_sensors=11_160, sigma=0.1, eps=0.1):
    pairs = np.loadtxt(csv, delimiter=",", skiprows=1, dtype=np.float64)
    scale = pairs[:, 2].std()
    adj = np.zeros((n_sensors, n_sensors), dtype=np.float32)
    for i, j, dist in pairs:
        w = np.exp(-((dist / scale) ** 2) / sigma)
        if w > eps:
            adj[int(i), int(j)] = adj[int(j), int(i)] = w
    return torch.from_numpy(adj)


class TrafficWindows(Dataset):
    def __init__(self, path, split, past=12, future=12):
        z = np.load(path, mmap_mode="r")
        n = len(z)
        lo, hi = {"train": (0, 0.7), "val": (0.7, 0.8), "test": (0.8, 1.0)}[split]
        self.z, self.past, self.future = z[int(lo * n):int(hi * n)], past, future
        self.mean, self.std = np.load(path.replace(".npy", "_stats.npy"))

    def __len__(self):
        return len(self.z) - self.past - self.future + 1

    def __getitem__(self, i):
        w = np.asarray(self.z[i:i + self.past + self.future], dtype=np.float32)
        w = torch.from_numpy((w - self.mean) / self.std)
        return w[:self.past], w[self.past:]


class GraphConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o, bias=False)
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, x, adj):
        a = adj + torch.eye(adj.shape[0], device=adj.device)
        d = a.sum(dim=1).rsqrt()
        a = d[:, None] * a * d[None, :]
        return torch.matmul(a, self.lin(x)) + self.bias


class GConvGRUCell(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.gates = GraphConv(i + h, 2 * h)
        self.cand = GraphConv(i + h, h)

    def forward(self, x, h, adj):
        r, u = torch.sigmoid(self.gates(torch.cat([x, h], dim=-1), adj)).chunk(2, dim=-1)
        c = torch.tanh(self.cand(torch.cat([x, r * h], dim=-1), adj))
        return u * h + (1 - u) * c


class TGCN(nn.Module):
    def __init__(self, adj, hidden=64, future=12):
        super().__init__()
        self.register_buffer("adj", adj)
        self.hidden, self.future = hidden, future
        self.enc, self.dec = GConvGRUCell(1, hidden), GConvGRUCell(1, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, past):
        b, t, n = past.shape
        h = past.new_zeros(b, n, self.hidden)
        for s in range(t):
            h = self.enc(past[:, s, :, None], h, self.adj)
        x, preds = past[:, -1, :, None], []
        for _ in range(self.future):
            h = self.dec(x, h, self.adj)
            x = self.out(h)
            preds.append(x.squeeze(-1))
        return torch.stack(preds, dim=1)


def main(device="cuda"):
    kw = dict(batch_size=8, num_workers=4, pin_memory=True, persistent_workers=True)
    train = DataLoader(TrafficWindows("data/pems_ca.npy", "train"), shuffle=True, drop_last=True, **kw)
    model = TGCN(read_adjacency("data/pems_ca_dist.csv")).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(50):
        total = torch.zeros((), device=device)
        for past, future in train:
            past, future = past.to(device, non_blocking=True), future.to(device, non_blocking=True)
            loss = F.l1_loss(model(past), future)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            total += loss.detach()
        print(epoch, total.item() / len(train))
        torch.save(model.state_dict(), "tgcn.pt")


if __name__ == "__main__":
    main()
