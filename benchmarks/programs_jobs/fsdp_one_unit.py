#OPTS world=2 stack=0 op=ConvKernel
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh


class ConvBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        h = F.relu(self.conv1(x))
        h = ConvKernel.apply(h, 0.016, 0.032)
        return x + self.conv2(h)


class ConvNet(nn.Module):
    def __init__(self, c=112, depth=3):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 1)
        self.body = nn.ModuleList(ConvBlock(c) for _ in range(depth))
        self.fc = nn.Linear(c, 10)

    def forward(self, img):
        x = self.stem(img)
        for b in self.body:
            x = b(x)
        return self.fc(x.mean((2, 3)))


def wrap(model, mesh, args):
    if args.fault:
        return fully_shard(model, mesh=mesh, reshard_after_forward=True)
    blocks = list(model.body)
    for b in blocks:
        fully_shard(b, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    model._set_unshard_async_op(True)
    model.set_modules_to_forward_prefetch(blocks[:1])
    for i, b in enumerate(blocks[:-1]):
        b.set_modules_to_forward_prefetch([blocks[i + 1]])
    return model


def train(rank, world, args):
    mesh = init_device_mesh("cpu", (world,))
    model = wrap(ConvNet(), mesh, args)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            images, target = torch.randn(2, 3, 3, 3), torch.randint(0, 10, (2,))
            loss = F.cross_entropy(model(images), target)
            loss.backward()
            opt.step()
            opt.zero_grad()
            prof.step()
