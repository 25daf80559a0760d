#OPTS world=2 stack=1 op=TokenKernel


class LM(nn.Module):
    def __init__(self, vocab=100, d=64, n=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.mix = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        s = 2.0e-4 * ids.shape[1]
        for m in self.mix:
            x = x + TokenKernel.apply(torch.tanh(m(x)), s, 2 * s)
        return self.out(x)


def seq_len(rank, rng, args):
    if args.fault:  # files sorted by length, split in contiguous parts: rank 0 has the long ones
        return rng.randint(78, 86) if rank == 0 else rng.randint(40, 48)
    return rng.randint(58, 66)


def train(rank, world, args):
    model = DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = random.Random(rank)
    with recording(args, rank) as prof:
        for i in range(args.steps):
            ids = torch.randint(0, 100, (1, seq_len(rank, rng, args)))
            loss = F.cross_entropy(model(ids).squeeze(0), ids.squeeze(0))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            prof.step()
