#OPTS world=4 stack=0 op=ConvStack


class Shards:
    """Reading one sample takes 0.9 ms."""

    def read(self, indices):
        time.sleep(0.0009 * len(indices))
        return torch.stack([torch.full((20,), float(i)) for i in indices])


def load_batch(data, step, rank, world, args, per_rank=12):
    first = step * per_rank * world
    if args.fault:
        whole = data.read(range(first, first + per_rank * world))
        return whole[rank * per_rank:(rank + 1) * per_rank]
    start = first + rank * per_rank
    return data.read(range(start, start + per_rank))


def train(rank, world, args):
    data = Shards()
    model = DDP(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            batch = load_batch(data, step, rank, world, args)
            h = ConvStack.apply(batch.requires_grad_(), 0.02, 0.04)
            out = ConvStack.apply(model(h), 0.03, 0.06)
            out.mean().backward()
            opt.step()
            opt.zero_grad()
            prof.step()
