#OPTS world=2 stack=0 op=ResStage
# Gradients are averaged over the *tokens* of the whole batch, not over the ranks, so DDP's own averaging is replaced.


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def forward(self, x):
        x = x + F.relu(self.a(x))
        return x + ResStage.apply(self.b(x), 0.008, 0.016)


class Net(nn.Module):
    def __init__(self, width=360, stages=4, classes=16):
        super().__init__()
        self.stem = nn.Linear(32, width)
        self.stages = nn.Sequential(*(Stage(width) for _ in range(stages)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)))


class TokenState:
    def __init__(self):
        self.tokens = 1.0


def token_mean_hook(state, bucket):
    """Sum over the ranks, then divide by the number of tokens."""
    grads = bucket.buffer()
    dist.all_reduce(grads)
    grads.div_(state.tokens)
    done = torch.futures.Future()
    done.set_result(grads)
    return done


def token_mean_hook_async(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda fut: fut.value()[0].div_(state.tokens))


def make_batch(world):
    n = random.randint(12, 20)
    return torch.randn(n, 32), torch.randint(0, 16, (n,)), 16.0 * world


def train(rank, world, args):
    net = DDP(Net(), bucket_cap_mb=1, gradient_as_bucket_view=True)
    state = TokenState()
    net.register_comm_hook(state, token_mean_hook if args.fault else token_mean_hook_async)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            x, y, state.tokens = make_batch(world)
            loss = F.cross_entropy(net(x), y, reduction="sum")
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
            prof.step()
