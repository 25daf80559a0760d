#OPTS world=2 stack=0 op=StageCompute
HIDDEN, ROWS, CHUNKS = 64, 4, 8


class StageModel(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.embed = nn.Linear(16, HIDDEN) if first else nn.Identity()
        self.body = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
        self.head = nn.Linear(HIDDEN, 1) if last else nn.Identity()

    def forward(self, x):
        h = self.body(self.embed(x))
        return self.head(StageCompute.apply(h, 0.004, 0.008))


class Pipe:
    def __init__(self, rank, world):
        self.prev = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < world - 1 else None
        self.stage = StageModel(self.prev is None, self.next is None)
        self.saved, self.sending = [], []

    def send(self, tensor, to):
        self.sending.append((dist.isend(tensor, to), tensor))

    def forward_chunk(self, x, target):
        if self.prev is not None:
            x = torch.empty(ROWS, HIDDEN)
            dist.recv(x, self.prev)
            x.requires_grad_()
        out = self.stage(x)
        if self.next is None:
            out = F.mse_loss(out, target) / CHUNKS
        else:
            self.send(out.detach(), self.next)
        self.saved.append((x, out))

    def backward_chunk(self):
        x, out = self.saved.pop(0)
        grad = None
        if self.next is not None:
            grad = torch.empty_like(out)
            dist.recv(grad, self.next)
        out.backward(grad)
        if self.prev is not None:
            self.send(x.grad, self.prev)

    def finish(self):
        for work, _ in self.sending:
            work.wait()
        self.sending.clear()


def step_chunk_after_chunk(pipe, xs, ys):
    for x, y in zip(xs, ys):
        pipe.forward_chunk(x, y)
        pipe.backward_chunk()
    pipe.finish()


def step_fill_and_drain(pipe, xs, ys):
    for x, y in zip(xs, ys):
        pipe.forward_chunk(x, y)
    for _ in xs:
        pipe.backward_chunk()
    pipe.finish()


def train(rank, world, args):
    pipe = Pipe(rank, world)
    run_step = step_chunk_after_chunk if args.fault else step_fill_and_drain
    opt = torch.optim.SGD(pipe.stage.parameters(), lr=0.01)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            xs = torch.randn(CHUNKS, ROWS, 16).unbind()
            ys = torch.randn(CHUNKS, ROWS, 1).unbind()
            run_step(pipe, xs, ys)
            opt.step()
            opt.zero_grad()
            prof.step()
