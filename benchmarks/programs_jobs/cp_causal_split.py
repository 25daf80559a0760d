#OPTS world=2 stack=0 op=FlashAttn
"""A long sequence cut into pieces, one per rank: keys and values are gathered, queries stay."""
import torch.distributed.nn.functional as distF

SEQ, DIM, HEADS = 128, 64, 4
PAIR = 3.2e-6  # seconds of forward attention for one query with one key


def positions_in_order(rank, world):
    n = SEQ // world
    return torch.arange(rank * n, (rank + 1) * n)


def positions_zigzag(rank, world):
    """Piece r from the front and piece r from the back."""
    n = SEQ // (2 * world)
    head = torch.arange(rank * n, (rank + 1) * n)
    tail = torch.arange(SEQ - (rank + 1) * n, SEQ - rank * n)
    return torch.cat([head, tail])


class ContextParallelAttention(nn.Module):
    def __init__(self, mine, everyone):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        self.visible = mine[:, None] >= everyone[None, :]
        self.seconds = PAIR * self.visible.sum().item()  # blocks that are masked out are skipped

    def forward(self, x):
        kv = torch.cat(distF.all_gather(self.kv(x)), dim=0)
        q = self.q(x).view(-1, HEADS, DIM // HEADS).transpose(0, 1)
        k, v = (t.view(-1, HEADS, DIM // HEADS).transpose(0, 1) for t in kv.chunk(2, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible)
        y = FlashAttn.apply(y.transpose(0, 1).reshape(-1, DIM), self.seconds, 2 * self.seconds)
        return self.o(y)


class LongModel(nn.Module):
    def __init__(self, mine, everyone, layers=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(64, DIM), nn.Embedding(SEQ, DIM)
        self.attn = nn.ModuleList(ContextParallelAttention(mine, everyone) for _ in range(layers))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(DIM, DIM), nn.GELU()) for _ in range(layers))
        self.head = nn.Linear(DIM, 64)
        self.mine = mine

    def forward(self, tokens):
        x = self.emb(tokens) + self.pos(self.mine)
        for attn, mlp in zip(self.attn, self.mlp):
            x = x + attn(x)
            x = x + FlashAttn.apply(mlp(x), 0.004, 0.008)
        return self.head(x)


def train(rank, world, args):
    cut = positions_in_order if args.fault else positions_zigzag
    everyone = torch.cat([cut(r, world) for r in range(world)])
    mine = cut(rank, world)
    model = DDP(LongModel(mine, everyone))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.Generator().manual_seed(5)  # all ranks have the same document
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            tokens = torch.randint(0, 64, (SEQ + 1,), generator=text)
            loss = F.cross_entropy(model(tokens[mine]), tokens[mine + 1])
            loss.backward()
            opt.step()
            opt.zero_grad()
            prof.step()
