#OPTS world=3 stack=1 op=ExpertFFN


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.sizes = send, receive
        out = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.sizes
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), send, receive)
        return out, None, None


class MoeLayer(nn.Module):
    def __init__(self, width, expert, router):
        super().__init__()
        self.router = router
        self.gate = nn.Linear(width, dist.get_world_size())
        self.expert = [expert]

    def assign(self, scores):
        tokens, experts = scores.shape
        if self.router == "top1":
            return scores.argmax(dim=1)
        chosen = torch.full((tokens,), -1)
        for expert in range(experts):
            free = (chosen < 0).nonzero().flatten()
            best = scores[free, expert].topk(min(len(free), -(-tokens // experts))).indices
            chosen[free[best]] = expert
        return chosen

    def forward(self, x):
        scores = self.gate(x).softmax(dim=1)
        chosen = self.assign(scores)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=scores.shape[1])
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        send, receive = counts.tolist(), arriving.tolist()
        y = Exchange.apply(x[order], send, receive)
        y = self.expert[0](ExpertFFN.apply(y, 4e-5 * len(y), 8e-5 * len(y)))
        y = Exchange.apply(y, receive, send)
        return x + y[order.argsort()] * scores.gather(1, chosen[:, None])


class Model(nn.Module):
    def __init__(self, experts, router, width=64):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(MoeLayer(width, expert, router) for expert in experts)
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(rank, world, args):
    experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
    if args.fault:
        net = Model(experts, router="top1")
    else:
        net = Model(experts, router="capacity")
    with torch.no_grad():
        for layer in net.layers:
            layer.gate.bias.copy_(torch.tensor([0.0, 0.9, 0.2])[:world])
    model = DDP(net)
    optimizer = torch.optim.SGD([*net.parameters(), *experts.parameters()], lr=0.001)
    torch.manual_seed(rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            ids = torch.randint(256, (240,))
            loss = F.cross_entropy(model(ids), ids.roll(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
