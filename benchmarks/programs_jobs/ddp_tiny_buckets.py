#OPTS world=2 stack=0 op=EncoderKernel


class EncoderLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.f1, self.f2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.o(F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h)))
        x = EncoderKernel.apply(x, 0.005, 0.010)
        return x + self.f2(F.relu(self.f1(self.n2(x))))


class Encoder(nn.Module):
    def __init__(self, d=48, n=7):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(d) for _ in range(n))
        self.cls = nn.Linear(d, 5)

    def forward(self, x):
        for l in self.layers:
            x = l(x)
        return self.cls(x.mean(1))


def train(rank, world, args):
    kw = {"bucket_cap_mb": 0.0005} if args.fault else {}
    model = DDP(Encoder(), **kw)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            x, y = torch.randn(4, 10, 48), torch.randint(0, 5, (4,))
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            prof.step()
