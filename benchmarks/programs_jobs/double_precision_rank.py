#OPTS world=2 stack=0 op=DenseKernel


class Mixer(nn.Module):
    def __init__(self, dim=64, n=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(n))

    def forward(self, x, compute_dtype):
        for l in self.layers:
            h = x.to(compute_dtype)
            t = 0.0015 * h.element_size()  # the kernel's time goes with the bytes
            h = DenseKernel.apply(F.linear(h, l.weight.to(compute_dtype), l.bias.to(compute_dtype)), t, 2 * t)
            x = x + h.to(x.dtype)
        return x


def train(rank, world, args):
    dtype = torch.float64 if (args.fault and rank == 1) else torch.float32
    model = DDP(Mixer())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            out = model(torch.randn(8, 64), dtype)
            loss = out.pow(2).mean()
            loss.backward()
            opt.step()
            sched.step()
            opt.zero_grad()
            prof.step()
