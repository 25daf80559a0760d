#OPTS world=2 stack=1 op=Attention
class Block(nn.Module):
    def __init__(self, width=96, context=576):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(context, context)), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        length = x.shape[0]
        scores = (q @ k.T).masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        mixed = Attention.apply(scores.softmax(-1) @ v, 0.0065, 0.013)
        return x + self.out(mixed)


def train(rank, world, args):
    model = nn.Sequential(nn.Linear(32, 96), *(Block() for _ in range(5)), nn.Linear(96, 32))
    if args.fault:
        model = DDP(model, bucket_cap_mb=0.1)
    else:
        model = DDP(model, bucket_cap_mb=0.1, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            x = torch.randn(24, 32)
            loss = F.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
