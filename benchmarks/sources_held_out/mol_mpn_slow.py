import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from data.zinc import ZincGraphs


def collate(graphs):
    xs, eis, eas, ys, batch = [], [], [], [], []
    offset = 0
    for g, graph in enumerate(graphs):
        n = graph["x"].shape[0]
        xs.append(graph["x"])
        eis.append(graph["edge_index"] + offset)
        eas.append(graph["edge_attr"])
        ys.append(graph["y"])
        batch.append(torch.full((n,), g, dtype=torch.long))
        offset += n
    return (torch.cat(xs), torch.cat(eis, dim=1), torch.cat(eas), torch.cat(batch), torch.stack(ys))


class MessageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.msg = nn.Sequential(nn.Linear(3 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.gru = nn.GRUCell(dim, dim)

    def forward(self, x, edge_index, e):
        src, dst = edge_index
        m = self.msg(torch.cat([x[src], x[dst], e], dim=-1))
        out = []
        for v in range(x.shape[0]):
            incoming = m[dst == v]
            out.append(incoming.sum(dim=0))
        return self.gru(torch.stack(out), x)


class MPN(nn.Module):
    def __init__(self, n_atom=28, n_bond=4, dim=128, depth=5):
        super().__init__()
        self.atom = nn.Embedding(n_atom, dim)
        self.bond = nn.Embedding(n_bond, dim)
        self.layers = nn.ModuleList(MessageLayer(dim) for _ in range(depth))
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x, edge_index, edge_attr, batch, n_graphs):
        h, e = self.atom(x), self.bond(edge_attr)
        for layer in self.layers:
            h = h + layer(h, edge_index, e)
        pooled = h.new_zeros(n_graphs, h.shape[1]).index_add_(0, batch, h)
        return self.readout(pooled).squeeze(-1)


def run_epoch(model, loader, device, opt=None):
    training = opt is not None
    model.train(training)
    total, count = torch.zeros((), device=device), 0
    with torch.set_grad_enabled(training):
        for x, ei, ea, batch, y in loader:
            x, ei, ea, batch, y = (t.to(device, non_blocking=True) for t in (x, ei, ea, batch, y))
            loss = F.l1_loss(model(x, ei, ea, batch, y.shape[0]), y)
            if training:
                opt.zero_grad()
                loss.backward()
                opt.step()
            total += loss.detach() * y.shape[0]
            count += y.shape[0]
    return total.item() / count


def main(device="cuda"):
    kw = dict(batch_size=128, collate_fn=collate, num_workers=4, pin_memory=True, persistent_workers=True)
    train = DataLoader(ZincGraphs("train"), shuffle=True, **kw)
    valid = DataLoader(ZincGraphs("val"), **kw)
    model = MPN().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=10)
    for epoch in range(300):
        tr = run_epoch(model, train, device, opt)
        va = run_epoch(model, valid, device)
        sched.step(va)
        print(f"{epoch:3d} train {tr:.4f} valid {va:.4f}")


if __name__ == "__main__":
    main()
