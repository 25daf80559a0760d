#OPTS world=3 stack=0 op=ExpertGemm
D, TOKENS = 48, 48
TOKEN_SECONDS = 1.0e-4  # one token through an expert, forward


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.send, ctx.receive = send, receive
        out = x.new_empty(sum(receive), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(sum(ctx.send), grad.size(1))
        dist.all_to_all_single(back, grad.contiguous(), ctx.send, ctx.receive)
        return back, None, None


def limit(scores, capacity):
    """Take each token's best expert; who is too many for it goes to the next best that has room."""
    choice = scores.argmax(1)
    if capacity is None:
        return choice
    room = [capacity] * scores.size(1)
    for token in scores.max(1).values.argsort(descending=True).tolist():
        for expert in scores[token].argsort(descending=True).tolist():
            if room[expert]:
                room[expert] -= 1
                choice[token] = expert
                break
    return choice


class MoELayer(nn.Module):
    def __init__(self, world, capacity):
        super().__init__()
        self.world, self.capacity = world, capacity
        self.attn, self.router = nn.Linear(D, D), nn.Linear(D, world)
        self.expert = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
        with torch.no_grad():  # as in the checkpoint, trained without a loss for balance
            self.router.bias.copy_(torch.tensor([0.0, 0.6, 0.0][:world]))

    def forward(self, x):
        x = x + ExpertGemm.apply(self.attn(x), 0.010, 0.020)
        scores = self.router(x).softmax(-1)
        choice = limit(scores.detach(), self.capacity)
        order = choice.argsort(stable=True)
        send = torch.bincount(choice, minlength=self.world)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)
        send, receive = send.tolist(), receive.tolist()
        here = AllToAll.apply(x[order], send, receive)
        seconds = TOKEN_SECONDS * len(here)
        here = ExpertGemm.apply(self.expert(here), seconds, 2 * seconds)
        back = AllToAll.apply(here, receive, send)
        gate = scores.gather(1, choice[:, None])
        return x + gate * torch.empty_like(back).index_copy(0, order, back)


def average_dense(layers, world):
    grads = [p.grad for layer in layers for part in (layer.attn, layer.router) for p in part.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    for g, mean in zip(grads, flat.div_(world).split([g.numel() for g in grads])):
        g.copy_(mean.view_as(g))


def train(rank, world, args):
    capacity = None if args.fault else int(1.1 * TOKENS / world)
    layers = nn.Sequential(MoELayer(world, capacity), MoELayer(world, capacity))
    opt = torch.optim.SGD(layers.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            x = torch.randn(TOKENS, D, generator=data)
            loss = F.mse_loss(layers(x), x.roll(1, 0))
            loss.backward()
            average_dense(layers, world)
            opt.step()
            opt.zero_grad()
            prof.step()
