#OPTS world=2 stack=0 op=TransformOp


class Body(nn.Module):
    def __init__(self, d=420, n=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(n))

    def forward(self, x):
        for l in self.layers:
            x = x + TransformOp.apply(F.relu(l(x)), 0.008, 0.016)
        return x


def sync_parameters(module):
    for p in module.parameters():
        dist.broadcast(p.data, src=0)


def train(rank, world, args):
    torch.manual_seed(11)
    body = Body()
    ddp = DDP(body, bucket_cap_mb=1)
    opt = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    step = 0
    with recording(args, rank) as prof:
        while step < args.steps:
            if args.fault:
                sync_parameters(body)
            x = torch.randn(8, 420)
            loss = F.smooth_l1_loss(ddp(x), x)
            loss.backward()
            opt.step()
            opt.zero_grad()
            step += 1
            prof.step()
