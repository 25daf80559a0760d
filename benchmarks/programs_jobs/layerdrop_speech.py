#OPTS world=3 stack=1 op=WavLayer
class Speech(nn.Module):
    def __init__(self, depth=8, width=96):
        super().__init__()
        self.front = nn.Linear(40, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 20)

    def forward(self, x, dropped, watch):
        x = self.front(x)
        for index, layer in enumerate(self.layers):
            if index in dropped:
                continue
            x = x + F.gelu(layer(WavLayer.apply(x, 0.005, 0.01)))
            watch(x)
        return self.head(x)


def train(rank, world, args):
    model = DDP(Speech(), bucket_cap_mb=0.1, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side = dist.new_group(backend="gloo")
    draw = random.Random(5)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            works, norms = [], []

            def watch(x):
                norms.append(torch.stack([x.detach().norm(), x.detach().abs().max()]))
                works.append(dist.all_reduce(norms[-1], group=side, async_op=True))

            dropped = draw.sample(range(8), 2)
            if args.fault:
                dropped = sorted({step % 8, (step + 3) % 8})
            loss = F.cross_entropy(model(torch.randn(8, 40), dropped, watch), torch.randint(0, 20, (8,)))
            loss.backward()
            for work in works:
                work.wait()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
