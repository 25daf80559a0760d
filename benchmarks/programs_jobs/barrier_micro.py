#OPTS world=3 stack=1 op=VariableLengthKernel
N_MICRO = 5


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(32, 128), nn.Linear(128, 4)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        ms = 1e-3 * x.shape[0]
        h = VariableLengthKernel.apply(h, ms, 2 * ms)
        return self.out(h)


def micro_batch(rng):
    n = rng.randint(4, 16)  # documents of different length, alike on all ranks in the mean
    return torch.randn(n, 32)


def train(rank, world, args):
    model = DDP(Reader())
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    rng = random.Random(1000 + rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            batches = [micro_batch(rng) for _ in range(N_MICRO)]
            for i, x in enumerate(batches):
                sync = contextlib.nullcontext() if i == N_MICRO - 1 else model.no_sync()
                with sync:
                    loss = model(x).pow(2).mean() / N_MICRO
                    loss.backward()
                if args.fault:
                    dist.barrier()  # "to keep the ranks in step"
            opt.step()
            opt.zero_grad()
            prof.step()
