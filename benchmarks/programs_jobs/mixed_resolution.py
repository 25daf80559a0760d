#OPTS world=2 stack=0 op=VitBlock
class Vit(nn.Module):
    def __init__(self, depth=3, width=96):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x, cost):
        for block in self.blocks:
            x = x + F.gelu(block(VitBlock.apply(x, cost, 2 * cost)))
        return x


def train(rank, world, args):
    model = DDP(Vit(), bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes = [384, 160, 224, 288]
    with recording(args, rank) as prof:
        for step in range(args.steps):
            turn = (rank * 2 + step) % len(sizes) if args.fault else rank * 2
            order = sizes[turn:] + sizes[:turn]
            for index, side in enumerate(order):
                with model.no_sync() if index < len(order) - 1 else contextlib.nullcontext():
                    x = torch.randn(4, 96, requires_grad=True)
                    loss = model(x, 3.6e-8 * side * side).square().mean()
                    (loss / len(order)).backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
