#OPTS world=2 stack=1 op=LayerOp


class Regressor(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(n))

    def forward(self, x):
        for l in self.layers:
            x = LayerOp.apply(torch.relu(l(x)), 0.008, 0.016)
        return x


@torch.no_grad()
def evaluate(model, shards):
    model.eval()
    total = torch.zeros(1)
    for _ in range(shards):
        total += model(torch.randn(4, 40)).pow(2).mean()
    model.train()
    return total


def train(rank, world, args):
    model = Regressor()
    ddp = DDP(model)
    opt = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    val_batches = 8
    with recording(args, rank) as prof:
        for step in range(args.steps):
            loss = ddp(torch.randn(4, 40)).pow(2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            if step % 5 == 4:
                if args.fault:
                    if rank == 0:
                        evaluate(model, val_batches)
                    dist.barrier()
                else:
                    score = evaluate(model, val_batches // world)
                    dist.all_reduce(score)
            prof.step()
