#OPTS world=4 stack=0 op=PackedAttention


class RewardModel(nn.Module):
    def __init__(self, width=128, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.score = nn.Linear(width, 1)

    def forward(self, x, tokens):
        for layer in self.layers:
            x = x + torch.relu(layer(PackedAttention.apply(x, 3.2e-6 * tokens, 6.4e-6 * tokens)))
        return self.score(x).squeeze(1)


def dialogue_tokens(source):
    return min(2000, int(120 * source.paretovariate(0.9)))


def train(rank, world, args):
    model = DDP(RewardModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    torch.manual_seed(200 + rank)
    source = random.Random(1000 + rank)
    accumulate = 6
    with recording(args, rank) as prof:
        for step in range(args.steps):
            optimizer.zero_grad()
            total = torch.zeros(1)
            for micro in range(accumulate):
                chosen, rejected = torch.randn(4, 128), torch.randn(4, 128)
                tokens = dialogue_tokens(source)
                with model.no_sync() if micro < accumulate - 1 else contextlib.nullcontext():
                    better, worse = model(torch.cat([chosen, rejected]), tokens).chunk(2)
                    loss = -F.logsigmoid(better - worse).mean() / accumulate
                    loss.backward()
                if args.fault:
                    shown = loss.detach().clone()
                    dist.all_reduce(shown)
                    total += shown / world
                else:
                    total += loss.detach()
            if args.clean:
                dist.all_reduce(total)
                total /= world
            optimizer.step()
            prof.step()
