#OPTS world=2 stack=1 op=LayerKernel
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh

TWIN = False


class Layer(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.fc = nn.Linear(d, d)

    def forward(self, x):
        return x + LayerKernel.apply(torch.relu(self.fc(x)), 0.014, 0.028)


def train(rank, world, args):
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(*[Layer() for _ in range(3)])
    for l in model:
        fully_shard(l, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def validate():
        model.eval()
        with torch.no_grad():
            acc = sum(model(torch.randn(8, 96)).mean() for _ in range(3))
        dist.all_reduce(acc)
        model.train()

    with recording(args, rank) as prof:
        for step in range(args.steps):
            loss = model(torch.randn(8, 96)).pow(2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            if step % 5 == 4:
                validate()
            prof.step()
