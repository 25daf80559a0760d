#OPTS world=2 stack=1 op=ResBlockOp
NAMES = [f"layer{i}/{a}" for i in range(12) for a in ("grad_norm", "weight_norm", "update", "act_mean", "act_std", "dead", "max", "snr")]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(64, 200), nn.Linear(200, 200), nn.Linear(200, 6)

    def forward(self, x):
        x = ResBlockOp.apply(F.relu(self.l1(x)), 0.018, 0.035)
        x = ResBlockOp.apply(F.relu(self.l2(x)), 0.018, 0.035)
        return self.l3(x)


class Metrics:
    def __init__(self, one_by_one):
        self.one_by_one = one_by_one
        self.history = []

    def reduce_one(self, value, world):
        t = torch.tensor([value])
        dist.all_reduce(t)
        return t.item() / world

    def log(self, values, world):
        if self.one_by_one:
            self.history.append({k: self.reduce_one(v, world) for k, v in values.items()})
        else:
            packed = torch.tensor(list(values.values()))
            dist.all_reduce(packed)
            self.history.append(dict(zip(values, (packed / world).tolist())))


def train(rank, world, args):
    net = DDP(Classifier())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    metrics = Metrics(args.fault)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            x, y = torch.randn(12, 64), torch.randint(0, 6, (12,))
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            base = loss.item()
            metrics.log({n: base + i for i, n in enumerate(NAMES)}, world)
            prof.step()
