#OPTS world=2 stack=1 op=ConformerBlock
import itertools

from torch.utils.data import DataLoader, IterableDataset


def decode(key):
    time.sleep(0.012)
    generator = torch.Generator().manual_seed(key)
    return torch.randn(40, generator=generator), key % 7


class Utterances(IterableDataset):
    def __init__(self, rank, world, args):
        self.rank, self.world, self.args = rank, world, args

    def __iter__(self):
        keys = itertools.count()
        if self.args.fault:
            return itertools.islice(map(decode, keys), self.rank, None, self.world)
        return map(decode, itertools.islice(keys, self.rank, None, self.world))


class Recognizer(nn.Module):
    def __init__(self, blocks=5, width=96):
        super().__init__()
        self.front = nn.Linear(40, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.head = nn.Linear(width, 7)

    def forward(self, x):
        x = self.front(x)
        for block in self.blocks:
            x = F.silu(block(ConformerBlock.apply(x, 0.0042, 0.0088)))
        return self.head(x)


def train(rank, world, args):
    model = DDP(Recognizer(), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Utterances(rank, world, args), batch_size=4, num_workers=1, prefetch_factor=3)
    batches = iter(loader)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            features, labels = next(batches)
            loss = F.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
