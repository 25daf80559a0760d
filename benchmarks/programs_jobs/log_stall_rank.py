#OPTS world=3 stack=1 op=RNNKernel
import logging


class SharedVolumeHandler(logging.Handler):
    """Appends to a file on a shared volume and syncs it: the sync takes `latency` seconds on this host."""

    def __init__(self, path, latency):
        super().__init__()
        self.f, self.latency = open(path, "a"), latency

    def emit(self, record):
        self.f.write(self.format(record) + "\n")
        self.f.flush()
        self.sync()

    def sync(self):
        time.sleep(self.latency)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(RNNKernel.apply(h, 0.035, 0.07)[:, -1])


def train(rank, world, args):
    log = logging.getLogger(f"train{rank}")
    log.propagate = False
    log.setLevel(logging.INFO)
    slow = args.fault and rank == 2
    log.addHandler(SharedVolumeHandler(os.devnull, 0.018 if slow else 0.0003))
    model = DDP(Model())
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            x = torch.randn(4, 5, 16)
            loss = model(x).pow(2).mean()
            log.info("step %d loss %.4f", step, loss.item())
            opt.zero_grad()
            loss.backward()
            log.info("step %d backward done", step)
            opt.step()
            prof.step()
