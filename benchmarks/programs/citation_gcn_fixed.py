# Semi-supervised node classification on a synthetic citation graph with learned
# node factors (there are no node attributes).
import time
import warnings
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore")


@dataclass(frozen=True)
class GraphSpec:
    nodes: int = 8000
    degree: int = 28
    classes: int = 6
    factors: int = 192
    homophily: float = 0.7
    seed: int = 17


@dataclass
class RunSpec:
    epochs: int = 140
    widths: tuple = (32, 32)
    lr: float = 0.01
    graph: GraphSpec = field(default_factory=GraphSpec)


class Propagate(torch.autograd.Function):
    """adj @ x for a symmetric constant adj."""

    @staticmethod
    def forward(ctx, adj, x):
        ctx.adj = adj
        return torch.sparse.mm(adj, x)

    @staticmethod
    def backward(ctx, grad):
        if not ctx.needs_input_grad[1]:
            return None, None
        return None, torch.sparse.mm(ctx.adj, grad.contiguous())


def normalised_adjacency(src, dst, n):
    loops = torch.arange(n)
    row = torch.cat([src, dst, loops])
    col = torch.cat([dst, src, loops])
    adj = torch.sparse_coo_tensor(torch.stack([row, col]), torch.ones(row.numel()), (n, n)).coalesce()
    row, col = adj.indices()
    inv = torch.zeros(n).index_add_(0, row, adj.values()).rsqrt()
    values = adj.values() * inv[row] * inv[col]
    return torch.sparse_coo_tensor(adj.indices(), values, (n, n)).to_sparse_csr()


def citation_graph(spec):
    gen = torch.Generator().manual_seed(spec.seed)
    n, e = spec.nodes, spec.nodes * spec.degree // 2
    label = torch.randint(0, spec.classes, (n,), generator=gen)
    by_class = [torch.nonzero(label == c).flatten() for c in range(spec.classes)]
    src = torch.randint(0, n, (e,), generator=gen)
    dst = torch.randint(0, n, (e,), generator=gen)
    same = torch.rand(e, generator=gen) < spec.homophily
    for c, members in enumerate(by_class):
        pick = same & (label[src] == c)
        choice = torch.randint(0, members.numel(), (int(pick.sum()),), generator=gen)
        dst[pick] = members[choice]
    split = torch.rand(n, generator=gen)
    return normalised_adjacency(src, dst, n), label, split < 0.1, split > 0.6


class GraphConv(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.lin = nn.Linear(fan_in, fan_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, adj, x):
        return Propagate.apply(adj, self.lin(x)) + self.bias


class GCN(nn.Module):
    def __init__(self, nodes, factors, classes, widths):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(nodes, factors))
        sizes = [factors, *widths, classes]
        self.layers = nn.ModuleList(GraphConv(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, adj):
        x = self.table
        for i, layer in enumerate(self.layers):
            x = layer(adj, x)
            if i + 1 < len(self.layers):
                x = F.relu(x)
        return x


@torch.no_grad()
def accuracy(net, adj, label, mask):
    net.eval()
    hit = net(adj)[mask].argmax(1) == label[mask]
    net.train()
    return hit.float().mean().item()


def fit(run):
    torch.manual_seed(run.graph.seed)
    adj, label, train, test = citation_graph(run.graph)
    net = GCN(run.graph.nodes, run.graph.factors, run.graph.classes, run.widths)
    opt = torch.optim.Adam(net.parameters(), lr=run.lr, weight_decay=5e-4, fused=True)
    begin = time.perf_counter()
    for epoch in range(1, run.epochs + 1):
        loss = F.cross_entropy(net(adj)[train], label[train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} "
                  f"test {accuracy(net, adj, label, test):.4f}", flush=True)
    spent = time.perf_counter() - begin
    print(f"s/step {spent / run.epochs:.5f} total {spent:.2f}")


if __name__ == "__main__":
    fit(RunSpec())
