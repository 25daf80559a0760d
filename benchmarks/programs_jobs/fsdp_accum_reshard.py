#OPTS world=2 stack=0 op=LlamaLayer
from torch.distributed.fsdp import fully_shard

MICRO_BATCHES = 3


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + LlamaLayer.apply(self.o(y), 0.004, 0.008)


class TinyLlama(nn.Module):
    def __init__(self, vocab=256, d=128, n=3):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.layers = nn.Sequential(*[Layer(d) for _ in range(n)])
        self.lm_head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        return self.lm_head(self.layers(self.tok(ids)))


def shard(model):
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def optimizer_step(model, opt, batches, accumulate_locally):
    """One step of the optimizer from several micro-batches."""
    total = 0.0
    for i, ids in enumerate(batches):
        if accumulate_locally:
            last = i == len(batches) - 1
            model.set_requires_gradient_sync(last)  # reduce-scatter with the last one only
            model.set_reshard_after_backward(last)  # and keep the weights until then
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / len(batches)
        loss.backward()
        total += loss.detach()
    opt.step()
    opt.zero_grad()
    return total


def train(rank, world, args):
    model = shard(TinyLlama())
    if not args.fault:
        model.set_reshard_after_forward(False)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    history = []
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            batches = torch.randint(0, 256, (MICRO_BATCHES, 2, 17))
            history.append(optimizer_step(model, opt, batches, accumulate_locally=not args.fault))
            prof.step()
