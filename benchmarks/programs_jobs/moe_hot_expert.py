#OPTS world=3 stack=1 op=ExpertGemm
DIM, TOKENS = 32, 96


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(sum(ctx.send), g.shape[1])
        dist.all_to_all_single(out, g.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class MoELayer(nn.Module):
    def __init__(self, world, skewed):
        super().__init__()
        self.expert = nn.Linear(DIM, DIM)
        share = [1, 3, 1] if skewed else [1] * world
        self.counts = [TOKENS * s // sum(share) for s in share]
        self.counts[0] += TOKENS - sum(self.counts)

    def forward(self, x, rank, world):
        send = self.counts
        recv = [send[rank]] * world
        mine = Exchange.apply(x, send, recv)
        s = 1.2e-4 * mine.shape[0]
        mine = ExpertGemm.apply(torch.relu(self.expert(mine)), s, 2 * s)
        return x + Exchange.apply(mine, recv, send)


class MoENet(nn.Module):
    def __init__(self, world, skewed):
        super().__init__()
        self.dense = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
        self.moe = nn.ModuleList(MoELayer(world, skewed) for _ in range(2))

    def forward(self, x, rank, world):
        for d, m in zip(self.dense, self.moe):
            x = ExpertGemm.apply(torch.tanh(d(x)), 0.006, 0.012)
            x = m(x, rank, world)
        return x


def train(rank, world, args):
    net = MoENet(world, skewed=args.fault)
    dense = [p for n, p in net.named_parameters() if "expert" not in n]
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            loss = net(torch.randn(TOKENS, DIM), rank, world).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in dense])
            dist.all_reduce(flat)
            opt.step()
            prof.step()
