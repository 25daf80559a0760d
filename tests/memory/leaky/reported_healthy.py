"""Reports of leaks that were none, in small; each cites its thread."""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import queue
from collections import OrderedDict, deque

import numpy as np
import torch
from memory.leaky.cases import fit, healthy, mlp, sgd
from memory.leaky.reported import Curve, MolGraph, Request


@healthy("github.com/toshikwa/sac-discrete.pytorch/issues/28")
def replay_memory(watch, rng, steps):
    model, memory = mlp(), deque(maxlen=2500)
    optimizer = sgd(model)
    for _ in range(steps):
        memory.append((torch.randn(4, 32), rng.random()))
        fit(model, optimizer, rng.choice(memory)[0])
        watch.step()


@healthy("github.com/pytorch/pytorch/issues/181213")
def shapes_vary(watch, rng, steps):
    model = mlp()
    for _ in range(steps):
        with torch.no_grad():
            model(torch.randn(rng.randrange(128, 1024), 32))
        watch.step()


@healthy("github.com/Lightning-AI/pytorch-lightning/issues/5735")
def outputs_until_the_epoch_ends(watch, rng, steps):
    model, outputs = mlp(), []
    for step in range(steps):
        if step % 140 == 0:
            outputs = []
        with torch.no_grad():
            outputs.append(model(torch.randn(16, 32)))
        watch.step()


@healthy("github.com/Lightning-AI/torchmetrics/issues/1949")
def metric_that_is_reset(watch, rng, steps):
    model, metric = mlp(), Curve()
    for step in range(steps):
        metric.update(model(torch.randn(16, 32)).detach())
        if step % 110 == 109:
            metric.preds.clear()
        watch.step()


@healthy("github.com/huggingface/transformers/pull/40007")
def positions_by_shape(watch, rng, steps):
    @functools.lru_cache(maxsize=128)
    def positions(length):
        return torch.arange(length * 32.0).sin().reshape(length, 32)

    model = mlp()
    for _ in range(steps):
        length = rng.randrange(4, 100)
        model(torch.randn(length, 32) + positions(length))
        watch.step()


@healthy("github.com/litestar-org/litestar/issues/5085")
def sessions_that_expire(watch, rng, steps):
    model, sessions = mlp(), {}
    for step in range(steps):
        for _ in range(rng.randrange(3)):
            sessions[rng.getrandbits(64)] = (step, bytes(600))
        if step % 50 == 0:
            sessions = {key: one for key, one in sessions.items() if step - one[0] < 200}
        model(torch.randn(8, 32))
        watch.step()


@healthy("github.com/IBM/mi-prometheus/issues/111")
def losses_as_numbers(watch, rng, steps):
    model, losses, log = mlp(), [], []
    optimizer = sgd(model)
    for step in range(steps):
        losses.append(fit(model, optimizer, torch.randn(16, 32)).item())
        log.append({"step": step, "loss": losses[-1], "lr": 1e-3, "name": "train"})
        watch.step()


@healthy("github.com/lmmx/range-streams/issues/12")
def windows_of_one_recording(watch, rng, steps):
    recording, windows, parts = np.random.rand(100_000), [], []
    whole = memoryview(bytes(1 << 20))
    model = mlp()
    for step in range(steps):
        windows.append(recording[step : step + 64])
        parts.append(whole[step : step + 8])
        model(torch.from_numpy(windows[-1][:32]).float())
        watch.step()


@healthy("github.com/pergolafabio/Hikvision-Addons/issues/371")
def cycles_until_collected(watch, rng, steps):
    for _ in range(steps):
        buffer = (ctypes.c_char * 50_000)()
        ctypes.cast(buffer, ctypes.c_void_p)
        [[] for _ in range(5)]
        np.random.rand(3000).sum()
        watch.step()
    gc.collect()


@healthy("github.com/omry/omegaconf/issues/1295")
def exceptions_in_cycles(watch, rng, steps):
    model = mlp()

    def lookup(x):
        hidden = model(x).detach()
        try:
            raise KeyError(float(hidden.mean()))
        except KeyError as error:
            kept = error
        return kept

    for _ in range(steps):
        lookup(torch.randn(16, 32))
        watch.step()


@healthy("github.com/chemprop/chemprop/issues/32")
def graphs_of_one_dataset(watch, rng, steps):
    model, graphs = mlp(), {}
    for _ in range(steps):
        smiles = f"CC(=O)N{rng.randrange(300)}"
        if smiles not in graphs:
            graphs[smiles] = MolGraph(smiles)
        model(torch.randn(8, 32))
        watch.step()


@healthy("github.com/pytorch/pytorch/issues/23900")
def cycled_list(watch, rng, steps):
    model, batches = mlp(), itertools.cycle([torch.randn(16, 32) for _ in range(100)])
    optimizer = sgd(model)
    for _ in range(steps):
        fit(model, optimizer, next(batches))
        watch.step()


def smoothed(source):
    recent = deque(maxlen=100)
    for value in source:
        recent.append(value)
        yield sum(recent) / len(recent)


@healthy("github.com/Lightricks/LTX-Video-Trainer/pull/6")
def generator_with_a_window(watch, rng, steps):
    model, averages = mlp(), smoothed(torch.randn(4, 32) for _ in itertools.count())
    best = None
    for _ in range(steps):
        out = model(next(averages)).detach()
        best = out[:1] if best is None or float(out[0, 0]) > float(best[0, 0]) else best
        watch.step()
    return best


class SlidingCache:
    """Keys and values of the last tokens, as slices of what was joined."""

    def __init__(self):
        self.keys = torch.zeros(0, 32)

    def add(self, new):
        self.keys = torch.cat([self.keys, new])[-120:]


@healthy("github.com/ml-explore/mlx-lm/pull/1077")
def sliding_cache(watch, rng, steps):
    model, cache = mlp(), SlidingCache()
    with torch.no_grad():
        for _ in range(steps):
            cache.add(model(torch.randn(4, 32)))
            watch.step()


@healthy("github.com/airbytehq/airbyte-python-cdk/pull/92")
def counts_that_are_dropped(watch, rng, steps):
    model, attempts = mlp(), OrderedDict()
    for step in range(steps):
        attempts[Request(step)] = 1
        if rng.random() < len(attempts) / 150:
            while len(attempts) > 75:
                attempts.popitem(last=False)
        model(torch.randn(8, 32))
        watch.step()


@healthy("github.com/microsoft/infinibatch/pull/27")
def queue_that_swings(watch, rng, steps):
    model, done = mlp(), queue.Queue()
    for step in range(steps):
        if step // 70 % 2 == 0:
            for _ in range(2):
                done.put(np.random.rand(128))
        while not done.empty() and step // 70 % 2:
            done.get()
            if rng.random() < 0.5:
                break
        model(torch.randn(8, 32))
        watch.step()
