#OPTS world=3 stack=0 op=DecoderLayer
class Policy(nn.Module):
    def __init__(self, depth=6, width=128):
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x, tokens):
        x = self.embed(x)
        for layer in self.layers:
            x = DecoderLayer.apply(x, 0.9e-6 * tokens, 1.8e-6 * tokens)
            x = x + torch.tanh(layer(x))
        return x


def completions(step, count=24):
    draw = random.Random(1000 + step)
    return [draw.randint(320, 780) for _ in range(count)]


def train(rank, world, args):
    model = DDP(Policy(), bucket_cap_mb=0.15)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            lengths = sorted(completions(step))
            if args.fault:
                size = len(lengths) // world
                mine = lengths[rank * size : (rank + 1) * size]
            else:
                turn = 2 * world
                mine = lengths[rank::turn] + lengths[turn - 1 - rank :: turn]
            states = torch.randn(len(mine), 16)
            advantage = torch.randn(len(mine), 1)
            out = model(states, sum(mine))
            loss = -(advantage * out).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
