#OPTS world=3 stack=1 op=EmbedOp
from torch.distributed.algorithms.join import Join

TWIN = False


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Linear(16, 32), nn.Linear(16, 32)

    def forward(self, u, i):
        h = self.user(u) * self.item(i)
        t = 0.003 * u.shape[0] + 0.02
        return EmbedOp.apply(h, t, 2 * t).sum(-1)


def train(rank, world, args):
    model = DDP(Ranker())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes = [8] * (args.steps - 1) + [8 if rank == 0 else 3]  # the end of the epoch: ranks 1 and 2 have a short batch
    with recording(args, rank) as prof:
        with Join([model]):
            for n in sizes:
                u, i = torch.randn(n, 16), torch.randn(n, 16)
                loss = F.softplus(-model(u, i)).mean()
                loss.backward()
                opt.step()
                opt.zero_grad()
                prof.step()
