#OPTS world=2 stack=1 op=AttnKernel
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh


class GPTBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return AttnKernel.apply(x + self.mlp(x), 0.013, 0.026)


class TinyGPT(nn.Module):
    def __init__(self, vocab=128, dim=160, n_layer=3):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.h = nn.ModuleList(GPTBlock(dim) for _ in range(n_layer))
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        x = self.tok(idx)
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


class Trainer:
    def __init__(self, rank, world, args):
        self.args, self.rank = args, rank
        mesh = init_device_mesh("cpu", (world,))
        self.model = TinyGPT()
        for b in self.model.h:
            fully_shard(b, mesh=mesh, reshard_after_forward=True)
        fully_shard(self.model, mesh=mesh)
        if not args.fault:
            self.enable_prefetch()
        self.optim = torch.optim.SGD(self.model.parameters(), lr=3e-4)

    def enable_prefetch(self):
        h = self.model.h
        self.model._set_unshard_async_op(True)
        self.model.set_modules_to_forward_prefetch([h[0]])
        self.model.set_modules_to_backward_prefetch([h[-1]])
        for a, b in zip(h, h[1:]):
            a.set_modules_to_forward_prefetch([b])
            b.set_modules_to_backward_prefetch([a])

    def step(self, batch):
        logits = self.model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optim.step()
        self.optim.zero_grad()
        return loss


def train(rank, world, args):
    t = Trainer(rank, world, args)
    with recording(args, rank) as prof:
        for i in range(args.steps):
            t.step(torch.randint(0, 128, (2, 9)))
            prof.step()
