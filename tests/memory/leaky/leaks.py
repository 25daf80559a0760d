"""Loops that leak, one function each; the line that holds the memory ends with HOLDS."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from random import Random

import numpy as np
import torch

CACHE = {}
RUN = ["watch", "rng", "steps"]


def net(rng: Random):
    width = rng.choice((16, 32, 64))
    return torch.nn.Sequential(torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))


def batch(rng: Random):
    return torch.randn(rng.choice((8, 16, 32)), 32)


def train(model, x, optimizer):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def trained(rng):
    model = net(rng)
    return model, sgd(model)


def programs(module):
    """Return the functions of a module that are programs."""
    return [one for one in module.values() if inspect.isfunction(one) and [*inspect.signature(one).parameters] == RUN]


def graph_in_validation(watch, rng, steps):
    model = net(rng)
    total = torch.zeros(())
    for _ in range(steps):
        loss = model(batch(rng)).pow(2).mean()
        total = total + loss  # HOLDS
        watch.step()
    return float(total.detach())


def graph_after_backward(watch, rng, steps):
    model, optimizer = trained(rng)
    epoch_loss = 0
    for _ in range(steps):
        loss = train(model, batch(rng), optimizer)
        epoch_loss += loss  # HOLDS
        watch.step()
    return float(epoch_loss.detach())


class Meter:
    def __init__(self):
        self.total = 0.0
        self.n = 0

    def update(self, value):
        self.total = self.total + value  # HOLDS
        self.n += 1


def graph_in_meter(watch, rng, steps):
    model = net(rng)
    meter = Meter()
    for _ in range(steps):
        meter.update(model(batch(rng)).abs().mean())
        watch.step()


def graphs_in_list(watch, rng, steps):
    model = net(rng)
    losses = []
    for _ in range(steps):
        out = model(batch(rng))
        losses.append(out.pow(2).mean())  # HOLDS
        watch.step()


def state_never_detached(watch, rng, steps):
    cell = torch.nn.GRUCell(32, rng.choice((16, 32)))
    state = None
    for _ in range(steps):
        state = cell(torch.randn(8, 32), state)  # HOLDS
        watch.step()


def list_of_outputs(watch, rng, steps):
    model, optimizer = trained(rng)
    outputs = []
    for _ in range(steps):
        x = batch(rng)
        train(model, x, optimizer)
        with torch.no_grad():
            outputs.append(model(x))  # HOLDS
        watch.step()


class Trainer:
    def __init__(self, rng):
        self.model = net(rng)
        self.optimizer = sgd(self.model)
        self.log = {"pred": [], "lr": 0.1}

    def fit(self, watch, rng, steps):
        for _ in range(steps):
            self.one(batch(rng))
            watch.step()

    def one(self, x):
        train(self.model, x, self.optimizer)
        self.keep(self.model(x).detach())

    def keep(self, value):
        self.log["pred"].append(value)  # HOLDS


def list_in_trainer(watch, rng, steps):
    Trainer(rng).fit(watch, rng, steps)


def arrays_in_deque(watch, rng, steps):
    model, optimizer = trained(rng)
    recent = deque()
    for _ in range(steps):
        x = batch(rng)
        train(model, x, optimizer)
        recent.append(np.array(x))  # HOLDS
        watch.step()


def global_cache(watch, rng, steps):
    model, optimizer = trained(rng)
    for step in range(steps):
        x = batch(rng)
        train(model, x, optimizer)
        features(step, x)
        watch.step()
    CACHE.clear()


def features(key, x):
    if key not in CACHE:
        CACHE[key] = x * 2  # HOLDS
    return CACHE[key]


@functools.cache
def mask(step, width):
    return torch.ones(width, width).tril() * step


def unbounded_lru_cache(watch, rng, steps):
    model, optimizer = trained(rng)
    for step in range(steps):
        train(model, batch(rng), optimizer)
        mask(step, 32)  # HOLDS
        watch.step()
    mask.cache_clear()


def forward_hooks(watch, rng, steps):
    model, optimizer = trained(rng)
    for _ in range(steps):
        x = batch(rng)
        model[0].register_forward_hook(lambda module, args, out, x=x: None)  # HOLDS
        train(model, x, optimizer)
        watch.step()


def tensor_hooks(watch, rng, steps):
    model, optimizer = trained(rng)
    weight = model[0].weight
    for step in range(steps):
        x = batch(rng)

        def scale(grad, x=x, step=step):
            return grad * (1 + 0 * x.sum())

        weight.register_hook(scale)  # HOLDS
        if step % 20 == 0:
            train(model, x, optimizer)
        watch.step()


class CachedDataset(torch.utils.data.Dataset):
    def __init__(self, size):
        self.cache = {}
        self.size = size

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = torch.randn(self.size)  # HOLDS
        return self.cache[index][:32]


def dataset_cache(watch, rng, steps):
    model, optimizer = trained(rng)
    data = CachedDataset(rng.choice((64, 256, 1024)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    for step, x in enumerate(loader):
        train(model, x, optimizer)
        watch.step()
        if step + 1 == steps:
            break


class DecodedDataset(CachedDataset):
    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = torch.randn(self.size * 64)  # HOLDS
        return self.cache[index][:32]


def worker_cache(watch, rng, steps):
    model, optimizer = trained(rng)
    data = DecodedDataset(rng.choice((256, 1024)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
    for step, x in enumerate(loader):
        for _ in range(12):
            train(model, x, optimizer)
        watch.step()
        if step + 1 == steps:
            break


def traced_by_shape(watch, rng, steps):
    model, optimizer = trained(rng)
    compiled = {}
    for step in range(steps):
        shape = (step + 1, 32)
        if shape not in compiled:
            compiled[shape] = torch.fx.symbolic_trace(model)  # HOLDS
        compiled[shape](torch.randn(*shape))
        train(model, batch(rng), optimizer)
        watch.step()


def compiled_anew(watch, rng, steps):
    model, optimizer = trained(rng)
    for step in range(steps):
        scope = {}
        exec(f"def scaled(x):\n    return x * {step} + 1", scope)
        torch.compile(scope["scaled"], backend="eager")(torch.ones(4))  # HOLDS
        train(model, batch(rng), optimizer)
        watch.step()


def tensor_that_grows(watch, rng, steps):
    model, optimizer = trained(rng)
    seen = torch.zeros(0, 32)
    for _ in range(steps):
        x = batch(rng)
        train(model, x, optimizer)
        seen = torch.cat([seen, x])  # HOLDS
        watch.step()


def sets_in_closure(watch, rng, steps):
    model, optimizer = trained(rng)
    kept = {}

    def remember(x, step):
        kept[step] = x.clone()  # HOLDS

    for step in range(steps):
        x = batch(rng)
        train(model, x, optimizer)
        remember(x, step)
        watch.step()


LEAKS = programs(globals())
