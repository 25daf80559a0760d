#OPTS world=2 stack=1 op=EncoderLayer
class Encoder(nn.Module):
    def __init__(self, depth=4, width=344):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(EncoderLayer.apply(x, 0.00125, 0.003)))
        return x


def train(rank, world, args):
    model = DDP(Encoder(), bucket_cap_mb=0.3, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    accumulate = 6
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            for micro in range(accumulate):
                last = micro == accumulate - 1
                x = torch.randn(4, 344, requires_grad=True)
                if args.fault:
                    loss = model(x).square().mean()
                    with contextlib.nullcontext() if last else model.no_sync():
                        (loss / accumulate).backward()
                else:
                    with contextlib.nullcontext() if last else model.no_sync():
                        loss = model(x).square().mean()
                        (loss / accumulate).backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
