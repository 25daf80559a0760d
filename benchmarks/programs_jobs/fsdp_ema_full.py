#OPTS world=2 stack=1 op=DenoiseOp
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class ResBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        h = F.silu(self.up(self.norm(x)))
        h = DenoiseOp.apply(h, 0.009, 0.018)
        return x + self.down(h)


class Denoiser(nn.Module):
    def __init__(self, width=160, depth=4):
        super().__init__()
        self.time_embed = nn.Linear(1, width)
        self.blocks = nn.ModuleList(ResBlock(width) for _ in range(depth))
        self.out = nn.Linear(width, width)

    def forward(self, x, t):
        x = x + self.time_embed(t)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class EMA:
    """Averaged weights for sampling."""

    def __init__(self, model, decay, full):
        self.decay, self.full = decay, full
        self.shadow = {name: self.view(p).clone() for name, p in model.named_parameters()}

    def view(self, p):
        p = p.detach()
        if isinstance(p, DTensor):
            return p.full_tensor() if self.full else p.to_local()
        return p

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(self.view(p), 1 - self.decay)


def build(width=160):
    model = Denoiser(width)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def train(rank, world, args):
    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ema = EMA(model, decay=0.999, full=args.fault)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            clean, noise = torch.randn(4, 160), torch.randn(4, 160)
            t = torch.rand(4, 1)
            pred = model(clean * (1 - t) + noise * t, t)
            loss = F.mse_loss(pred, noise)
            loss.backward()
            opt.step()
            opt.zero_grad()
            ema.update(model)
            prof.step()
