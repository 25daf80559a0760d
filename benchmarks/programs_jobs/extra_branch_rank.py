#OPTS world=4 stack=0 op=TrunkOp


class AuxDiagnostics(nn.Module):
    """A reconstruction branch without parameters; meant for debugging, left on in one host's config."""

    def forward(self, h):
        return TrunkOp.apply(torch.fft.rfft(h).abs().log1p(), 0.012, 0.024).mean()


class Net(nn.Module):
    def __init__(self, aux):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(24, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self.aux = AuxDiagnostics() if aux else None

    def forward(self, x):
        h = TrunkOp.apply(F.gelu(self.a(x)), 0.025, 0.05)
        h = TrunkOp.apply(F.gelu(self.b(h)), 0.025, 0.05)
        extra = 0.01 * self.aux(h) if self.aux is not None else 0.0
        return self.c(h), extra


def train(rank, world, args):
    model = DDP(Net(aux=args.fault and rank == 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            x, y = torch.randn(6, 24), torch.randint(0, 3, (6,))
            logits, extra = model(x)
            loss = F.cross_entropy(logits, y) + extra
            opt.zero_grad()
            loss.backward()
            opt.step()
            prof.step()
