"""Small functions whose calls the profiler recorded, for the tests of exact lines.

What called what is known twice: from the profiler, and from ``sys.setprofile``, which sees the true
line of every call. ``record.py`` writes both down.
"""

# fmt: off
# ruff: noqa

import asyncio
import contextlib
import functools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.layer = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 2)
        self.act = F.relu
        self.extra = None

    def forward(self, x):
        for block in self.layer:
            x = block(x)
        if self.extra is not None:
            x = self.extra(x)
        else:
            x = self.act(x)
        return self.head(
            x.mean(dim=1),
        )


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder(8, 3)

    def forward(self, x):
        return self.encoder(x)


def two_items_in_a_loop(values):
    total = 0.0
    for value in values:
        total += value.item()
        doubled = value * 2
        total += doubled.item()
    return total


def straight_line(x):
    a = x.sum().item()
    b = x.mean().item()
    c = x.max().item()
    return a + b + c


def branches(x, which):
    if which == 0:
        return x.sum().item()
    elif which == 1:
        y = x.exp()
        return y.item() if y.numel() == 1 else y.sum().item()
    return x.min().item()


def same_call_in_both_branches(x, flag):
    if flag:
        y = x.cos()
        out = y.tolist()
    else:
        y = x.sin()
        out = y.tolist()
    return out


def comprehension(xs):
    sums = [
        x.sum().item()
        for x in xs
        if x.numel() > 1
    ]
    return sums + [x.mean().item() for x in xs]


def nested_functions(x):
    def inner(y):
        return y.abs().item()

    first = inner(x.sum())
    second = inner(x.mean())
    return first + second


def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        args[0].relu()
        return function(*args)

    return wrapper


@traced
@torch.no_grad()
def decorated(x):
    y = x @ x.t()
    return y.trace().item()


def multi_line_call(x, y):
    z = torch.cat(
        [
            x.flatten(),
            y.flatten(),
        ],
        dim=0,
    )
    return torch.stack(
        [z, z * 2],
    )


def method_chain(x):
    return (
        x
        .double()
        .sum()
        .item()
    )


def try_finally(x):
    try:
        y = x.sum()
        y.item()
        raise ValueError("expected")
    except ValueError:
        x.mean().item()
    finally:
        x.max().item()


def while_loop(x, n):
    while n > 0:
        x = x.tanh()
        if x.sum() > 0:
            n -= 1
            continue
        x = x.sigmoid()
        n -= 1
    return x.cpu()


def with_blocks(x):
    with torch.no_grad(), torch.autograd.profiler.record_function("part"):
        y = x.exp()
    with torch.inference_mode():
        z = x.exp()
    return (y + 1).sum(), z


def numbers(step=1.0):
    for index in range(3):
        yield torch.ones(2) * index
        torch.zeros(1).item()


def generators():
    total = 0.0
    for number in numbers():
        total += number.sum().item()
    rest = numbers()
    next(rest)
    return total + sum(number.sum().item() for number in rest)


async def fetch(x):
    await asyncio.sleep(0)
    y = x.log()
    await asyncio.sleep(0)
    return y.item()


async def coroutines(x):
    a = await fetch(x.sum())
    b = await fetch(x.mean())
    c, d = await asyncio.gather(fetch(x.max()), fetch(x.min()))
    return a + b + c + d


def operators(x, y):
    a = x + y
    b = x * y
    a += b
    c = a - b
    d = -c
    e = d[0]
    d[0] = 1.0
    f = d @ x
    if (f > 0).all():
        return float(f)
    return int(e)


def truth(x):
    hits = 0
    for row in x:
        if row.sum() > 0:
            hits += 1
        elif row[0]:
            hits += 2
    return hits, f"{x.sum()}", bool(x.sum())


def lambdas(x):
    scale = lambda y: y.mul(2)  # noqa: E731
    shift = lambda y: y.add(1)  # noqa: E731
    return shift(scale(shift(x)))


def aliases(xs):
    out = []
    put = out.append
    for x in xs:
        put(x.exp())
        put(x.log())
    return torch.stack(out)


def callbacks(x, functions):
    for function in functions:
        x = function(x)
    return x.item()


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.loss_fn = nn.CrossEntropyLoss()
        self.logged = []

    @property
    def loss(self):
        return self.logged[-1]

    def log(self, loss):
        self.logged.append(loss.item())

    def train(self, batches):
        self.model.train()
        for step, (x, y) in enumerate(batches):
            self.optimizer.zero_grad()
            out = self.model(x)
            loss = self.loss_fn(out, y)
            loss.backward()
            self.optimizer.step()
            self.log(loss)
            if step % 2 == 0:
                self.logged.append(loss.item())
            print(f"step {step}", loss.item(), file=None if step > 99 else SINK)
        return self.loss


class Sink:
    def write(self, text):
        return len(text)


SINK = Sink()


def early_return(xs):
    for x in xs:
        if x.sum().item() > 100:
            return x.max().item()
        if x.numel() == 0:
            return None
    return xs[0].min().item()


def nested_loops(x):
    total = 0.0
    for _ in range(2):
        total += x.sum().item()
        for _ in range(3):
            total += x.mean().item()
        total += x.max().item()
    return total


@contextlib.contextmanager
def timed(x):
    x.cos()
    yield x.sin()
    x.tan()


def context_managers(x):
    with timed(x) as y:
        y.exp()
    with timed(y) as z:
        z.exp()
    return z


def match_statement(x, kind):
    match kind:
        case "sum":
            return x.sum().item()
        case "mean":
            return x.mean().item()
        case _:
            return x.max().item()


def starred(xs):
    first, *rest = [x.exp() for x in xs]
    return torch.cat([first, *rest]).sum().item()


def short_circuit(x, flag):
    ok = flag and x.sum().item() > 0
    return ok or x.mean().item()


def walrus(xs):
    while (n := xs.pop().item()) > 1:
        torch.ones(2).item if n < 0 else torch.zeros(1).item()
    return n


def run():
    torch.manual_seed(0)
    x = torch.rand(4, 4) + 1
    two_items_in_a_loop(list(torch.rand(3)))
    straight_line(x)
    for which in (0, 1, 2):
        branches(x, which)
    same_call_in_both_branches(x, True)
    same_call_in_both_branches(x, False)
    comprehension([x, x[0]])
    nested_functions(x)
    decorated(x)
    multi_line_call(x, x)
    method_chain(x)
    try_finally(x)
    while_loop(x, 2)
    with_blocks(x)
    generators()
    asyncio.run(coroutines(x))
    operators(x[0], x[1])
    truth(x - 1.5)
    lambdas(x)
    aliases([x, x])
    callbacks(x, [torch.sum, torch.abs, lambda y: y.neg()])
    model = Model()
    batches = [(torch.rand(2, 5, 8), torch.tensor([0, 1])) for _ in range(3)]
    Trainer(model).train(batches)
    early_return([x, x])
    nested_loops(x)
    context_managers(x)
    for kind in ("sum", "mean", "other"):
        match_statement(x, kind)
    starred([x, x, x])
    short_circuit(x, True)
    short_circuit(x, False)
    walrus([torch.tensor(0.0), torch.tensor(2.0), torch.tensor(3.0)])
