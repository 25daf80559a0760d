#OPTS world=3 stack=1 op=EncoderKernel
from torch.distributed.fsdp import fully_shard


class EncoderLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn_in, self.attn_out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = self.attn_in(self.ln1(x)).chunk(3, -1)
        x = x + self.attn_out(F.scaled_dot_product_attention(q, k, v))
        h = EncoderKernel.apply(self.fc1(self.ln2(x)), 0.014, 0.028)
        return x + self.fc2(F.gelu(h))


class Encoder(nn.Module):
    def __init__(self, d=64, layers=2):
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(d) for _ in range(layers)])
        self.pool = nn.Linear(d, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.pool(x.mean(1))


def tensors_to_watch(model):
    for name, p in model.named_parameters():
        yield f"grad_norm/{name}", p.grad.to_local()
        yield f"weight_norm/{name}", p.detach().to_local()


def norms_one_by_one(model):
    """What goes to the dashboard: norms of each parameter and its gradient, over all shards."""
    norms = {}
    for name, shard in tensors_to_watch(model):
        square = shard.float().pow(2).sum()
        dist.all_reduce(square)
        norms[name] = square.sqrt().item()
    return norms


def norms_together(model):
    names, shards = zip(*tensors_to_watch(model))
    squares = torch.stack([shard.float().pow(2).sum() for shard in shards])
    dist.all_reduce(squares)
    return dict(zip(names, squares.sqrt().tolist()))


def train(rank, world, args):
    model = Encoder()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    watch = norms_one_by_one if args.fault else norms_together
    dashboard = []
    with recording(args, rank) as prof:
        for step in range(args.steps):
            x, y = torch.randn(2, 8, 64), torch.randint(0, 10, (2,))
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norms = watch(model)
            total = sum(n * n for name, n in norms.items() if name.startswith("grad_")) ** 0.5
            scale = min(1.0, 1.0 / (total + 1e-6))
            for p in model.parameters():
                p.grad.to_local().mul_(scale)
            opt.step()
            opt.zero_grad()
            if rank == 0:
                dashboard.append({"step": step, **norms})
            prof.step()
