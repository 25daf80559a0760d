#OPTS world=3 stack=0 op=VarlenAttn
PER_RANK = 8


def token_cost(length):
    """Seconds of a forward pass for a sequence of this length, without padding (packed, varlen kernels)."""
    return 2.5e-5 * length + 2e-8 * length**2


class PackedLM(nn.Module):
    def __init__(self, vocab=200, d=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.head = nn.Linear(d, vocab)

    def forward(self, tokens, lengths):
        seconds = sum(token_cost(n) for n in lengths)
        x = VarlenAttn.apply(self.emb(tokens), seconds, 2 * seconds)
        return self.head(x + self.ff(x))


class Conversations:
    """Lengths of chat transcripts: most are short, some very long."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def global_batch(self, count):
        return [min(512, max(16, int(self.rng.lognormvariate(4.2, 1.0)))) for _ in range(count)]


def deal_in_order(lengths, world):
    return [lengths[r * PER_RANK : (r + 1) * PER_RANK] for r in range(world)]


def deal_by_tokens(lengths, world):
    """Longest first, each to who has least to do."""
    hands, loads = [[] for _ in range(world)], [0.0] * world
    for n in sorted(lengths, reverse=True):
        r = loads.index(min(loads))
        hands[r].append(n)
        loads[r] += token_cost(n)
    return hands


def train(rank, world, args):
    data = Conversations(seed=1234)  # the same on all ranks
    deal = deal_in_order if args.fault else deal_by_tokens
    model = DDP(PackedLM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = 0
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            lengths = deal(data.global_batch(PER_RANK * world), world)[rank]
            tokens = torch.randint(0, 200, (sum(lengths),))
            logits = model(tokens[:-1], lengths)
            loss = F.cross_entropy(logits, tokens[1:])
            loss.backward()
            opt.step()
            opt.zero_grad()
            seen += len(tokens)
            prof.step()
