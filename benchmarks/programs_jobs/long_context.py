#OPTS world=3 stack=1 op=FlashBlock
class Ring(nn.Module):
    def __init__(self, rank, world, args, width=64):
        super().__init__()
        self.rank, self.world, self.args = rank, world, args
        self.query = nn.Linear(width, width)
        self.kv = nn.Linear(width, width)

    def exchange(self, kv):
        got = torch.empty_like(kv)
        ops = [
            dist.P2POp(dist.isend, kv, (self.rank + 1) % self.world),
            dist.P2POp(dist.irecv, got, (self.rank - 1) % self.world),
        ]
        return got, dist.batch_isend_irecv(ops)

    def forward(self, x):
        q, kv = self.query(x), self.kv(x)
        out = torch.zeros_like(q)
        held = kv.detach()
        for hop in range(self.world):
            works = []
            if hop < self.world - 1:
                coming, works = self.exchange(held)
            if self.args.fault:
                for work in works:
                    work.wait()
            out = out + FlashBlock.apply(q, 0.0055, 0.006) * held.mean()
            if self.args.clean:
                for work in works:
                    work.wait()
            if works:
                held = coming
        return x + out + kv


def train(rank, world, args):
    layers = nn.Sequential(*(Ring(rank, world, args) for _ in range(3)))
    model = DDP(layers, bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            x = torch.randn(1600, 64)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
