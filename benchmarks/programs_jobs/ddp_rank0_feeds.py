#OPTS world=4 stack=1 op=UNetBlock
import numpy as np

BATCH = 4
SIDE = 48


class TileArchive:
    """Satellite tiles, each decoded from disk."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def read(self):
        time.sleep(0.0010)
        tile = self.rng.integers(0, 255, (3, SIDE, SIDE), dtype=np.uint8)
        return torch.from_numpy(tile).float().div_(255)

    def batch(self, count):
        return torch.stack([self.read() for _ in range(count)])


def batches_from_rank0(rank, world):
    """Only rank 0 opens the archive, so that no tile is seen twice; the others get their part from it."""
    archive = TileArchive(seed=0) if rank == 0 else None
    while True:
        mine = torch.empty(BATCH, 3, SIDE, SIDE)
        parts = None
        if rank == 0:
            parts = list(archive.batch(BATCH * world).chunk(world))
        dist.scatter(mine, parts, src=0)
        yield mine


def batches_of_own(rank, world):
    archive = TileArchive(seed=rank)  # tiles rank, rank + world, ...
    while True:
        yield archive.batch(BATCH)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 12, 4, stride=4)
        self.mid = nn.Conv2d(12, 12, 3, padding=1)
        self.up = nn.ConvTranspose2d(12, 3, 4, stride=4)

    def forward(self, x):
        x = UNetBlock.apply(F.relu(self.down(x)), 0.012, 0.024)
        x = UNetBlock.apply(F.relu(self.mid(x)), 0.018, 0.036)
        return self.up(x)


def train(rank, world, args):
    make = batches_from_rank0 if args.fault else batches_of_own
    batches = make(rank, world)
    net = DDP(UNet())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            tiles = next(batches)
            noisy = tiles + 0.1 * torch.randn_like(tiles)
            loss = F.l1_loss(net(noisy), tiles)
            opt.zero_grad()
            loss.backward()
            opt.step()
            prof.step()
