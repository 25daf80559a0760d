#OPTS world=3 stack=1 op=CrossNetwork


class Ranker(nn.Module):
    def __init__(self, table, dim=16, fields=8, width=128):
        super().__init__()
        self.items = table
        self.bottom = nn.Linear(dim * fields, width)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.click = nn.Linear(width, 1)

    def forward(self, ids):
        x = self.bottom(self.items(ids).flatten(1))
        for layer in self.cross:
            x = x + torch.relu(layer(CrossNetwork.apply(x, 0.006, 0.012)))
        return self.click(x).squeeze(1)


def train(rank, world, args):
    if args.fault:
        table = nn.Embedding(60_000, 16)
    else:
        table = nn.Embedding(60_000, 16, sparse=True)
    model = DDP(Ranker(table))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(31 + rank)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            ids = torch.randint(60_000, (48, 8))
            clicked = torch.randint(2, (48,)).float()
            loss = F.binary_cross_entropy_with_logits(model(ids), clicked)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            prof.step()
