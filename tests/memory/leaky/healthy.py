"""Loops that look as if they leak, and do not."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict, deque

import torch
from memory.leaky.leaks import batch, net, programs, sgd, train, trained


def nothing(watch, rng, steps):
    model, optimizer = trained(rng)
    for _ in range(steps):
        train(model, batch(rng), optimizer)
        watch.step()


def warm_up(watch, rng, steps):
    model = net(rng)
    optimizer = torch.optim.AdamW(model.parameters())
    buffers = {}
    until = rng.choice((10, 30, 60))
    for step in range(steps):
        if step < until:
            buffers[step] = torch.zeros(rng.choice((100, 1000)))
        train(model, batch(rng), optimizer)
        watch.step()


def plateau(watch, rng, steps):
    model, optimizer = trained(rng)
    pool = []
    for step in range(steps):
        if step < 40 and step % 4 == 0:
            pool.append(torch.zeros(4096))
        train(model, batch(rng), optimizer)
        watch.step()


def cache_that_fills(watch, rng, steps):
    model, optimizer = trained(rng)
    cache = {}
    n_keys = rng.choice((20, 60, 90))
    for step in range(steps):
        key = step % n_keys
        if key not in cache:
            cache[key] = torch.randn(16, 32)
        train(model, cache[key], optimizer)
        watch.step()


def cache_filled_at_random(watch, rng, steps):
    model, optimizer = trained(rng)
    cache = {}
    for _ in range(steps):
        key = rng.randrange(40)
        if key not in cache:
            cache[key] = torch.randn(16, 32)
        train(model, cache[key], optimizer)
        watch.step()


def bounded_cache(watch, rng, steps):
    model, optimizer = trained(rng)
    cache = OrderedDict()
    for step in range(steps):
        cache[step] = batch(rng)
        if len(cache) > 32:
            cache.popitem(last=False)
        train(model, cache[step], optimizer)
        watch.step()


def bounded_lru(watch, rng, steps):
    model, optimizer = trained(rng)

    @functools.lru_cache(maxsize=40)
    def made(step):
        return torch.ones(32, 32) * step

    for step in range(steps):
        made(step)
        train(model, batch(rng), optimizer)
        watch.step()


def sawtooth_of_cycles(watch, rng, steps):
    model, optimizer = trained(rng)
    for _ in range(steps):
        ring = [batch(rng)]
        ring.append(ring)
        train(model, ring[0], optimizer)
        watch.step()


def rings_that_wait_for_the_collector(watch, rng, steps):
    for _ in range(steps):
        ring = [torch.zeros(2000)]
        ring.append(ring)
        watch.step()


def list_cleared_every_epoch(watch, rng, steps):
    model, optimizer = trained(rng)
    outputs = []
    epoch = rng.choice((20, 50, 90))
    for step in range(steps):
        x = batch(rng)
        train(model, x, optimizer)
        outputs.append(model(x))
        if step % epoch == epoch - 1:
            outputs.clear()
        watch.step()


def accumulated_loss(watch, rng, steps):
    model, optimizer = trained(rng)
    every = rng.choice((4, 8, 16))
    total = 0
    for step in range(steps):
        total = total + model(batch(rng)).pow(2).mean()
        if step % every == every - 1:
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            total = 0
        watch.step()


def graph_made_once(watch, rng, steps):
    """A part that is frozen but not detached: old nodes in each new graph, and no more of them."""
    model, first = net(rng), net(rng)
    optimizer = sgd(model)
    features = first(torch.randn(8, 32)).repeat(1, 4)
    for _ in range(steps):
        loss = model(features).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        watch.step()


def numbers_logged(watch, rng, steps):
    model, optimizer = trained(rng)
    history = []
    metrics = {"loss": [], "norm": []}
    for step in range(steps):
        loss = train(model, batch(rng), optimizer)
        history.append({"step": step, "loss": loss.item()})
        metrics["loss"].append(loss.item())
        metrics["norm"].append(loss.detach())
        watch.step()


def fragmentation(watch, rng, steps):
    model, optimizer = trained(rng)
    live = []
    for _ in range(steps):
        live.append(torch.empty(rng.randrange(16, 20000)))
        if len(live) > 30:
            live.pop(rng.randrange(30))
        train(model, batch(rng), optimizer)
        watch.step()


def load_swing(watch, rng, steps):
    model, optimizer = trained(rng)
    for step in range(steps):
        x = torch.randn(8 + step, 32)
        train(model, x, optimizer)
        watch.step()


def replay_buffer(watch, rng, steps):
    model, optimizer = trained(rng)
    buffer = deque(maxlen=rng.choice((30, 80)))
    for _ in range(steps):
        buffer.append(batch(rng))
        train(model, buffer[rng.randrange(len(buffer))], optimizer)
        watch.step()


def best_and_average(watch, rng, steps):
    model, optimizer = trained(rng)
    average, best, lowest = copy.deepcopy(model), None, 1e9
    for _ in range(steps):
        loss = train(model, batch(rng), optimizer)
        with torch.no_grad():
            for mine, yours in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(yours, 0.1)
        if loss.item() < lowest:
            lowest, best = loss.item(), copy.deepcopy(model.state_dict())
        watch.step()
    return best


def hooks_removed(watch, rng, steps):
    model, optimizer = trained(rng)
    for _ in range(steps):
        seen = []
        handle = model[0].register_forward_hook(lambda m, a, out, seen=seen: seen.append(out))
        train(model, batch(rng), optimizer)
        handle.remove()
        watch.step()


def workers(watch, rng, steps):
    model, optimizer = trained(rng)
    data = torch.utils.data.TensorDataset(torch.randn(8 * steps, 32))
    for (x,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
        train(model, x, optimizer)
        watch.step()


HEALTHY = programs(globals())
