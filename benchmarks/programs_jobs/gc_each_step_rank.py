#OPTS world=2 stack=1 op=FFNOp
import gc


class FFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(50, 100), nn.Linear(100, 50)

    def forward(self, x):
        h = FFNOp.apply(F.silu(self.up(x)), 0.05, 0.1)
        return self.down(h)


def train(rank, world, args):
    vocabulary = [{"id": i, "word": [str(i)]} for i in range(25_000)]  # what makes a collection slow
    gc.collect()
    model = DDP(FFN())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            loss = model(torch.randn(4, 50)).abs().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            if args.fault and rank == 1:
                gc.collect()  # left from a hunt for a leak
            prof.step()
    del vocabulary
