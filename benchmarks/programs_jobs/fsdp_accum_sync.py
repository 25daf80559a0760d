#OPTS world=2 stack=0 op=FusedBlockKernel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MICRO_BATCHES = 3


class TransformerLayer(nn.Module):
    def __init__(self, d=112):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v))
        x = FusedBlockKernel.apply(x, 0.005, 0.010)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Decoder(nn.Module):
    def __init__(self, n=3, d=112):
        super().__init__()
        self.emb = nn.Embedding(200, d)
        self.layers = nn.ModuleList(TransformerLayer(d) for _ in range(n))
        self.out = nn.Linear(d, 200)

    def forward(self, ids):
        h = self.emb(ids)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


def train(rank, world, args):
    mesh = init_device_mesh("cpu", (world,))
    model = Decoder()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(100 + rank)
    with recording(args, rank) as prof:
        for it in range(args.steps):
            optimizer.zero_grad(set_to_none=True)
            for i in range(MICRO_BATCHES):
                if not args.fault:
                    model.set_requires_gradient_sync(i == MICRO_BATCHES - 1)
                # parameters stay gathered between the micro-batches (in both variants)
                model.set_reshard_after_backward(i == MICRO_BATCHES - 1)
                ids = torch.randint(0, 200, (2, 12), generator=g)
                logits = model(ids)
                loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten()) / MICRO_BATCHES
                loss.backward()
            optimizer.step()
            prof.step()
