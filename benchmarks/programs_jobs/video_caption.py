#OPTS world=3 stack=0 op=SpatioTemporalAttention
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x):
        x = SpatioTemporalAttention.apply(x, 0.004, 0.008)
        return x + self.down(F.gelu(self.up(x)))


class Captioner(nn.Module):
    def __init__(self, features, width=128, depth=3):
        super().__init__()
        self.patch = nn.Linear(features, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, 128)

    def forward(self, clips):
        x = self.patch(clips).mean(1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Clips(torch.utils.data.IterableDataset):
    def __init__(self, start, stride, frames=64, features=256):
        self.start, self.stride = start, stride
        self.frames, self.features = frames, features

    def decode(self, index):
        time.sleep(0.003)
        return torch.full((self.frames, self.features), index % 7 / 7), index % 128

    def __iter__(self):
        index = self.start
        while True:
            yield self.decode(index)
            index += self.stride


class Dispatcher:
    def __init__(self, loader, rank, world, batch):
        self.source = iter(loader) if rank == 0 else None
        self.rank, self.world, self.batch = rank, world, batch

    def __iter__(self):
        while True:
            clips = torch.empty(self.world * self.batch, 64, 256)
            labels = torch.empty(self.world * self.batch, dtype=torch.long)
            if self.source is not None:
                parts = [next(self.source) for _ in range(self.world)]
                clips.copy_(torch.cat([part[0] for part in parts]))
                labels.copy_(torch.cat([part[1] for part in parts]))
            dist.broadcast(clips, 0)
            dist.broadcast(labels, 0)
            mine = slice(self.rank * self.batch, (self.rank + 1) * self.batch)
            yield clips[mine], labels[mine]


def train(rank, world, args):
    model = Captioner(256)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    batch = 4
    if args.fault:
        loader = torch.utils.data.DataLoader(Clips(0, 1), batch_size=batch)
        batches = iter(Dispatcher(loader, rank, world, batch))
    else:
        loader = torch.utils.data.DataLoader(Clips(rank, world), batch_size=batch)
        batches = iter(loader)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            clips, labels = next(batches)
            loss = F.cross_entropy(model(clips), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
