#OPTS world=2 stack=0 op=HeavyOp
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh

GRAD_ACC = 3


class ResidualUnit(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a, self.b = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        y = HeavyOp.apply(torch.tanh(self.a(x)), 0.005, 0.009)
        return x + self.b(y)


class Net(nn.Module):
    def __init__(self, n=230, depth=3):
        super().__init__()
        self.units = nn.ModuleList([ResidualUnit(n) for _ in range(depth)])
        self.final = nn.Linear(n, 1)

    def forward(self, x):
        for u in self.units:
            x = u(x)
        return self.final(x)


def build(world, keep_gathered):
    mesh = init_device_mesh("cpu", (world,))
    net = Net()
    for u in net.units:
        fully_shard(u, mesh=mesh, reshard_after_forward=not keep_gathered)
    fully_shard(net, mesh=mesh, reshard_after_forward=False)
    return net


def train(rank, world, args):
    net = build(world, keep_gathered=not args.fault)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            for m in range(GRAD_ACC):
                last = m == GRAD_ACC - 1
                net.set_requires_gradient_sync(last)
                if not args.fault:
                    net.set_reshard_after_backward(last)
                x = torch.randn(16, 230)
                loss = net(x).pow(2).mean() / GRAD_ACC
                loss.backward()
            opt.step()
            opt.zero_grad()
            prof.step()
