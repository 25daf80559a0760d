#OPTS world=2 stack=0 op=VitBlock


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Linear(width, width)

    def forward(self, x):
        x = VitBlock.apply(x, 0.006, 0.011)
        return x + F.gelu(self.mlp(self.norm(x)))


class Classifier(nn.Module):
    def __init__(self, width=384, depth=6, classes=200):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(256, width), *(Block(width) for _ in range(depth)))
        self.head = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, classes))

    def forward(self, x):
        return self.head(self.backbone(x))


def train(rank, world, args):
    net = Classifier()
    if args.fault:
        net.backbone.eval()
    else:
        net.backbone.eval().requires_grad_(False)
    model = DDP(net)
    optimizer = torch.optim.AdamW(net.head.parameters(), lr=1e-3)
    torch.manual_seed(50 + rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            images = torch.randn(16, 256)
            labels = torch.randint(200, (16,))
            loss = F.cross_entropy(model(images), labels)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
