#OPTS world=4 stack=0 op=MambaBlock
class Backbone(nn.Module):
    def __init__(self, depth=3, width=96):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x, cost):
        for block in self.blocks:
            x = x + F.gelu(block(MambaBlock.apply(x, cost, 2 * cost)))
        return x


def pack(budget, rows):
    cuts = [random.uniform(0.25, 1.75) for _ in range(rows)]
    return [budget * cut / sum(cuts) for cut in cuts]


def train(rank, world, args):
    model = DDP(Backbone(), bucket_cap_mb=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    rows = 6
    with recording(args, rank) as prof:
        for step in range(args.steps):
            total = torch.zeros(2)
            for index, tokens in enumerate(pack(12288, rows)):
                with model.no_sync() if index < rows - 1 else contextlib.nullcontext():
                    x = torch.randn(4, 96, requires_grad=True)
                    loss = model(x, 7.5e-7 * tokens).square().mean()
                    report = torch.stack([loss.detach() * tokens, torch.tensor(tokens)])
                    if args.fault:
                        dist.all_reduce(report)
                    total += report
                    (loss / rows).backward()
            optimizer.step()
            optimizer.zero_grad()
            if args.clean and step % 10 == 9:
                dist.all_reduce(total)
            if rank == 0 and step % 10 == 9:
                print(f"step {step} loss {float(total[0] / total[1]):.3f}")
            prof.step()
