#OPTS world=2 stack=0 op=ResNetStage


class Backbone(nn.Module):
    def __init__(self, width=128, dim=64):
        super().__init__()
        self.stem = nn.Linear(192, width)
        self.stages = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.project = nn.Linear(width, dim)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = torch.relu(stage(ResNetStage.apply(x, 0.003, 0.006)))
        return F.normalize(self.project(x), dim=1)


class MoCo(nn.Module):
    def __init__(self, dim=64, size=20480, momentum=0.99):
        super().__init__()
        self.momentum = momentum
        self.query = Backbone(dim=dim)
        self.key = Backbone(dim=dim)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.register_buffer("head", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        parts = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, keys)
        keys = torch.cat(parts)
        at = int(self.head)
        self.queue[:, at : at + len(keys)] = keys.T
        self.head[0] = (at + len(keys)) % self.queue.shape[1]

    def forward(self, view_a, view_b):
        q = self.query(view_a)
        with torch.no_grad():
            for a, b in zip(self.query.parameters(), self.key.parameters()):
                b.lerp_(a, 1 - self.momentum)
            k = self.key(view_b)
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.clone()
        self.enqueue(k)
        return torch.cat([positive, negative], dim=1) / 0.07


def train(rank, world, args):
    net = MoCo()
    if args.fault:
        model = DDP(net)
    else:
        model = DDP(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.query.parameters(), lr=0.03, momentum=0.9)
    torch.manual_seed(7 + rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            images = torch.randn(16, 192)
            logits = model(images + 0.1 * torch.randn_like(images), images + 0.1 * torch.randn_like(images))
            loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
