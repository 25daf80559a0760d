#OPTS world=3 stack=1 op=FlashAttention
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x, tokens):
        x = FlashAttention.apply(x, 2.4e-5 * tokens, 4.8e-5 * tokens)
        return x + self.down(F.silu(self.up(x)))


class Decoder(nn.Module):
    def __init__(self, width=128, depth=2):
        super().__init__()
        self.embed = nn.Embedding(512, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, 512)

    def forward(self, ids, tokens):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, tokens)
        return self.head(x)


class Conversations:
    def __init__(self, count=384):
        lengths = random.Random(3)
        self.tokens = sorted(min(1200, 60 + int(lengths.expovariate(1 / 200))) for _ in range(count))

    def part(self, rank, world, contiguous):
        if contiguous:
            size = len(self.tokens) // world
            return self.tokens[rank * size : (rank + 1) * size]
        return self.tokens[rank::world]


def batches(tokens, size=4):
    groups = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    random.Random(17).shuffle(groups)
    return [max(group) for group in groups]


def train(rank, world, args):
    model = Decoder()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-5, momentum=0.9)
    data = Conversations()
    if args.fault:
        mine = batches(data.part(rank, world, contiguous=True))
    else:
        mine = batches(data.part(rank, world, contiguous=False))
    torch.manual_seed(rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            ids = torch.randint(512, (4, 16))
            logits = model(ids, mine[step % len(mine)])
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
