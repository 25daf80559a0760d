#OPTS world=2 stack=1 op=TowerOp


class Stage(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Linear(d, d)

    def forward(self, x):
        return x + TowerOp.apply(torch.relu(self.w(x)), 0.006, 0.012)


class TwoTower(nn.Module):
    """The head is registered first and the stages from the last to the first (as grown code often is)."""

    def __init__(self, d=420, n=6):
        super().__init__()
        self.head = nn.Linear(d, 8)
        for i in reversed(range(n)):
            self.add_module(f"stage{i}", Stage(d))
        self.n = n

    def forward(self, x):
        for i in range(self.n):
            x = getattr(self, f"stage{i}")(x)
        return self.head(x)


def train(rank, world, args):
    model = DDP(TwoTower(), bucket_cap_mb=0.8, find_unused_parameters=args.fault)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            x = torch.randn(8, 420)
            loss = model(x).logsumexp(-1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            prof.step()
