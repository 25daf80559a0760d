#OPTS world=2 stack=0 op=ShardedGemm
SEQ, DIM = 384, 192


class ReduceFromTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


class CopyToTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class TPMLP(nn.Module):
    """Column-parallel then row-parallel: one reduction. `naive` reduces after both linears (both row-parallel)."""

    def __init__(self, world, rank, naive):
        super().__init__()
        self.rank, self.world, self.naive = rank, world, naive
        part = DIM // world
        self.up = nn.Linear(part, DIM, bias=False) if naive else nn.Linear(DIM, part, bias=False)
        self.down = nn.Linear(part, DIM, bias=False)

    def shard(self, x):
        part = DIM // self.world
        return x[:, self.rank * part:(self.rank + 1) * part]

    def forward(self, x):
        if self.naive:
            h = ReduceFromTP.apply(self.up(self.shard(CopyToTP.apply(x))))
            h = self.shard(CopyToTP.apply(F.gelu(h)))
        else:
            h = F.gelu(self.up(CopyToTP.apply(x)))
        h = ShardedGemm.apply(h, 0.010, 0.020)
        return x + ReduceFromTP.apply(self.down(h))


def train(rank, world, args):
    blocks = nn.Sequential(*[TPMLP(world, rank, args.fault) for _ in range(4)])
    opt = torch.optim.SGD(blocks.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(3)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            x = torch.randn(SEQ, DIM, generator=g)
            loss = blocks(x).pow(2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            prof.step()
