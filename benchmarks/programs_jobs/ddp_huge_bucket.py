#OPTS world=2 stack=1 op=GemmOp


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + GemmOp.apply(self.lin(self.norm(x)), 0.006, 0.012)


def make_model(dim=460, n=6):
    return nn.Sequential(*[Layer(dim) for _ in range(n)], nn.Linear(dim, 16))


def train(rank, world, args):
    torch.manual_seed(7)
    net = DDP(make_model(), bucket_cap_mb=500 if args.fault else 0.9, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    losses = []
    with recording(args, rank) as prof:
        for step in range(args.steps):
            data = torch.randn(16, 460)
            optimizer.zero_grad()
            out = net(data)
            loss = out.square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.detach())
            prof.step()
