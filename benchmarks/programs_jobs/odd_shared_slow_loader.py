#OPTS world=2 stack=1 op=AudioOp
TWIN = False


class RemoteStream:
    """All ranks read at the same pace from a shared service; 12 ms a batch of 140 ms, for all alike."""

    def __iter__(self):
        return self

    def __next__(self):
        time.sleep(0.012)
        return torch.randn(6, 30)


def train(rank, world, args):
    model = DDP(nn.Sequential(nn.Linear(30, 90), nn.ELU(), nn.Linear(90, 30)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    stream = iter(RemoteStream())
    with recording(args, rank) as prof:
        for step in range(args.steps):
            x = next(stream)
            h = AudioOp.apply(x.requires_grad_(), 0.02, 0.04)
            y = AudioOp.apply(model(h), 0.022, 0.045)
            loss = (y - x).abs().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            prof.step()
