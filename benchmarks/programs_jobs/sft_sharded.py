#OPTS world=2 stack=0 op=LlamaBlock
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + F.silu(self.up(LlamaBlock.apply(x, 0.0028, 0.0056)))


def train(rank, world, args):
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(*(Block(224) for _ in range(3)))
    for block in model:
        fully_shard(block, mesh=mesh, reshard_after_forward=args.fault)
    fully_shard(model, mesh=mesh, reshard_after_forward=args.fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    accumulate = 4
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            for micro in range(accumulate):
                last = micro == accumulate - 1
                model.set_requires_gradient_sync(last)
                if args.clean:
                    model.set_reshard_after_backward(last)
                x = torch.randn(4, 224, requires_grad=True)
                (model(x).square().mean() / accumulate).backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
