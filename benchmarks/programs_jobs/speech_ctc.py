#OPTS world=3 stack=1 op=ConformerConv


class EncoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        x = ConformerConv.apply(x, 0.0015, 0.003)
        return x + torch.relu(self.mix(self.norm(x)))


class Encoder(nn.Module):
    def __init__(self, mels=80, width=256, depth=3, vocab=64):
        super().__init__()
        self.front = nn.Linear(mels, width)
        self.layers = nn.ModuleList(EncoderLayer(width) for _ in range(depth))
        self.out = nn.Linear(width, vocab)

    def forward(self, feats):
        x = self.front(feats)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def train(rank, world, args):
    model = DDP(Encoder(), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(100 + rank)
    accumulate = 3
    with recording(args, rank) as prof:
        for step in range(args.steps):
            optimizer.zero_grad()
            for micro in range(accumulate):
                feats = torch.randn(24, 80)
                target = torch.randint(64, (24,))
                last = micro == accumulate - 1
                if args.fault:
                    loss = F.cross_entropy(model(feats), target)
                    with contextlib.nullcontext() if last else model.no_sync():
                        (loss / accumulate).backward()
                else:
                    with contextlib.nullcontext() if last else model.no_sync():
                        loss = F.cross_entropy(model(feats), target)
                        (loss / accumulate).backward()
            optimizer.step()
            prof.step()
