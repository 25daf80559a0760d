#OPTS world=3 stack=1 op=AttentionOp
class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, block_size):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        att = (q @ k.transpose(-2, -1)) * C**-0.5
        att = att.masked_fill(self.bias[:, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return AttentionOp.apply(self.c_proj(y), 0.014, 0.028)


class Block(nn.Module):
    def __init__(self, n_embd, block_size):
        super().__init__()
        self.ln = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, block_size)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln(x))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, vocab=128, n_embd=64, n_layer=2, block_size=512):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block(n_embd, block_size) for _ in range(n_layer)])
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


def wrap(model, args):
    if args.fault:
        return DDP(model)
    return DDP(model, broadcast_buffers=False)  # the masks never change


def train(rank, world, args):
    model = wrap(GPT(), args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            data = torch.randint(0, 128, (2, 33))
            logits = model(data[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 128), data[:, 1:].reshape(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            prof.step()
