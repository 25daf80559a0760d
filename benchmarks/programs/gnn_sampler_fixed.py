# GraphSAGE on a synthetic community graph, with mini-batches of sampled neighbourhoods.
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

NUM_NODES = 5000
NUM_CLASSES = 6
FEAT = 64
HIDDEN = 64
FANOUT = (6, 4)


def build_graph(seed):
    rng = random.Random(seed)
    labels = [rng.randrange(NUM_CLASSES) for _ in range(NUM_NODES)]
    by_class = [[v for v in range(NUM_NODES) if labels[v] == c] for c in range(NUM_CLASSES)]
    adj = []
    for v in range(NUM_NODES):
        nbrs = [rng.choice(by_class[labels[v]]) for _ in range(12)]
        nbrs += [rng.randrange(NUM_NODES) for _ in range(8)]
        adj.append(nbrs)
    gen = torch.Generator().manual_seed(seed)
    centers = torch.randn(NUM_CLASSES, FEAT, generator=gen)
    y = torch.tensor(labels)
    x = 0.35 * centers[y] + torch.randn(NUM_NODES, FEAT, generator=gen)
    return x, y, adj


def sample_batches(adj, batch_size, rng):
    """Yields (global node ids, per layer: edge_index in local ids, number of seeds)."""
    nodes = list(range(len(adj)))
    rng.shuffle(nodes)
    for start in range(0, len(nodes), batch_size):
        seeds = nodes[start:start + batch_size]
        n_id = list(seeds)
        local = {v: i for i, v in enumerate(n_id)}
        frontier = seeds
        edges = []
        for fanout in FANOUT:
            nxt = []
            for v in frontier:
                for u in rng.sample(adj[v], fanout):
                    if u not in local:
                        local[u] = len(n_id)
                        n_id.append(u)
                        nxt.append(u)
                    edges.append((u, v))
            frontier = nxt
        src = [local[u] for u, _ in edges]
        dst = [local[v] for _, v in edges]
        yield torch.tensor(n_id), torch.tensor([src, dst]), len(seeds)


class SAGEConv(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.lin_self = nn.Linear(c_in, c_out)
        self.lin_nbr = nn.Linear(c_in, c_out, bias=False)

    def forward(self, x, edge_index):
        src, dst = edge_index
        agg = torch.zeros_like(x).index_add(0, dst, x[src])
        deg = torch.zeros(x.size(0)).index_add(0, dst, torch.ones(dst.numel()))
        return self.lin_self(x) + self.lin_nbr(agg / deg.clamp(min=1)[:, None])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = SAGEConv(FEAT, HIDDEN)
        self.c2 = SAGEConv(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, x, edge_index):
        h = F.relu(self.c1(x, edge_index))
        h = F.relu(self.c2(h, edge_index))
        return self.out(h)


torch.manual_seed(0)
x, y, adj = build_graph(5)
model = Net()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
rng = random.Random(9)

for epoch in range(2):
    total, correct, seen = 0.0, 0, 0
    for n_id, edge_index, n_seeds in sample_batches(adj, 80, rng):
        logits = model(x[n_id], edge_index)[:n_seeds]
        target = y[n_id[:n_seeds]]
        loss = F.cross_entropy(logits, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * n_seeds
        correct += int((logits.argmax(1) == target).sum())
        seen += n_seeds
    print(f"epoch {epoch}  loss {total / seen:.4f}  acc {correct / seen:.3f}")
