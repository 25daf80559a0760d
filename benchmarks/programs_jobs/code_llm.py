#OPTS world=2 stack=0 op=GroupedQueryAttention
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        x = GroupedQueryAttention.apply(x, 0.002, 0.004)
        return x + self.down(F.silu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, width=320, depth=2, vocab=256):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(rank, world, args):
    model = Transformer()
    if args.fault:
        policy = MixedPrecisionPolicy()
        compute = torch.autocast("cpu", dtype=torch.bfloat16)
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        compute = contextlib.nullcontext()
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-4, momentum=0.9)
    torch.manual_seed(rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            ids = torch.randint(256, (2, 8))
            with compute:
                logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
