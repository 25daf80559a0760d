#OPTS world=2 stack=0 op=SimMatmul
ACCUM = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return x + F.relu(SimMatmul.apply(self.fc(x), 0.003, 0.005))


class MLP(nn.Module):
    def __init__(self, width=400, depth=5):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(x))


def train(rank, world, args):
    model = DDP(MLP(), bucket_cap_mb=0.9)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            total = 0.0
            for micro in range(ACCUM):
                x = torch.randn(8, 400, generator=gen)
                y = torch.randint(0, 10, (8,), generator=gen)
                last = micro == ACCUM - 1
                ctx = contextlib.nullcontext() if (last or args.fault) else model.no_sync()
                with ctx:
                    loss = F.cross_entropy(model(x), y) / ACCUM
                    loss.backward()
                total += loss.item()
            opt.step()
            opt.zero_grad()
            prof.step()
