#OPTS world=2 stack=0 op=UNetBlock
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x):
        x = UNetBlock.apply(x, 0.003, 0.006)
        return x + self.outer(F.silu(self.inner(x)))


class Denoiser(nn.Module):
    def __init__(self, width=192, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Average:
    def __init__(self, model, decay=0.999, full=False):
        self.decay, self.full = decay, full
        self.kept = {name: self.read(p).clone() for name, p in model.named_parameters()}

    def read(self, parameter):
        parameter = parameter.detach()
        return parameter.full_tensor() if self.full else parameter.to_local()

    def update(self, model):
        for name, parameter in model.named_parameters():
            self.kept[name].lerp_(self.read(parameter), 1 - self.decay)


def train(rank, world, args):
    model = Denoiser()
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    if args.fault:
        ema = Average(model, full=True)
    else:
        ema = Average(model)
    torch.manual_seed(rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            latents = torch.randn(8, 192)
            noise = torch.randn_like(latents)
            loss = F.mse_loss(model(latents + noise), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
            prof.step()
