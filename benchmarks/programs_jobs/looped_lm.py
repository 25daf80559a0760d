#OPTS world=2 stack=1 op=RecurrentAttention
from torch.distributed.fsdp import fully_shard


class Core(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        x = RecurrentAttention.apply(x, 0.0015, 0.003)
        return x + self.down(F.gelu(self.up(x)))


class LoopedModel(nn.Module):
    def __init__(self, width=320, loops=5):
        super().__init__()
        self.loops = loops
        self.embed = nn.Embedding(256, width)
        self.core = Core(width)
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(self.loops):
            x = self.core(x)
        return self.head(x)


def train(rank, world, args):
    model = LoopedModel()
    if args.fault:
        fully_shard(model.core)
    else:
        fully_shard(model.core, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            ids = torch.randint(256, (2, 8))
            logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
