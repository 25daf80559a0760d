"""What one more item keeps alive: views weigh their base, what is shared weighs nothing."""

from __future__ import annotations

import functools
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from torchtriage.memory.leaks.item_weight import weigh_newest

N, BASE = 40, 32_000


def array() -> Any:
    return np.random.default_rng(0).random(BASE // 8)


@pytest.mark.parametrize(
    "view",
    [
        lambda: array()[:1],
        lambda: array().reshape(40, -1)[3, :2].T,
        lambda: memoryview(bytearray(BASE))[:8],
        lambda: np.frombuffer(bytearray(BASE), np.uint8)[5:6],
        lambda: memoryview(array())[:1],
        lambda: SimpleNamespace(part=array()[:1]),
        lambda: {"part": (array()[:1],)},
        lambda: functools.partial(len, array()[:1]),
    ],
)
def test_a_view_weighs_its_base(view: Any) -> None:
    for container in ([view() for _ in range(N)], {n: view() for n in range(N)}, deque(view() for _ in range(N))):
        weight = weigh_newest(container)
        assert weight.size == pytest.approx(BASE, rel=0.1)
        assert not weight.log


def test_views_of_one_base_weigh_no_more_than_themselves() -> None:
    base, buffer = array(), memoryview(bytes(BASE))
    assert weigh_newest([base[n : n + 2] for n in range(N)]).size < 256
    assert weigh_newest([buffer[n : n + 2] for n in range(N)]).size < 256
    assert weigh_newest([memoryview(base)[n : n + 2] for n in range(N)]).size < 256


def test_one_base_of_several_items_counts_once() -> None:
    parts = [part for _ in range(N) for part in np.split(array(), 4)]
    assert weigh_newest(parts).size == pytest.approx(BASE / 4, rel=0.1)


def test_what_older_items_refer_to_weighs_nothing() -> None:
    model = SimpleNamespace(weights=array(), layers=[array() for _ in range(5)])
    weight = weigh_newest([SimpleNamespace(of=model, step=n) for n in range(N)])
    assert weight.size < 1000
    assert weigh_newest([lambda n=n: (model, n) for n in range(N)]).size < 1000


def test_logs_are_numbers_and_few_of_them() -> None:
    rows = [{"step": n, "loss": n / 3, "name": "train"} for n in range(N)]
    assert weigh_newest(rows).log
    assert weigh_newest([n / 3 for n in range(N)]).log
    assert not weigh_newest([[n + i / 7 for i in range(64)] for n in range(N)]).log
    assert not weigh_newest([bytes(512) for n in range(N)]).log


def test_objects_weigh_their_attributes_and_a_cache_its_results() -> None:
    locks = weigh_newest([SimpleNamespace(lock=threading.RLock(), name=f"{n}" * 9, level=n * 0.5) for n in range(N)])
    assert locks.size > 256
    assert locks.n_objects >= 4

    @functools.cache
    def load(index: int) -> Any:
        return array()[:index]

    [load(n) for n in range(N)]
    assert weigh_newest(load).size == pytest.approx(BASE, rel=0.1)
    assert not weigh_newest(load).log


def test_empty_and_strange_things_weigh_nothing_and_do_no_harm() -> None:
    assert weigh_newest([]).size == 0

    class Angry:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no")

        def __len__(self) -> int:
            raise RuntimeError("no")

    assert weigh_newest([Angry() for _ in range(N)]).size < 500
    assert weigh_newest({Angry() for _ in range(N)}).size < 500


@pytest.mark.torch
def test_views_of_tensors_weigh_their_storage() -> None:
    import torch

    def made() -> Any:
        return torch.zeros(BASE // 4)

    for view in (
        lambda: made()[:1],
        lambda: made().view(4, -1)[1],
        lambda: made().numpy()[:3],
        lambda: made().requires_grad_().detach().numpy(),
        lambda: torch.from_numpy(array())[:2],
    ):
        assert weigh_newest([view() for _ in range(N)]).size == pytest.approx(BASE, rel=0.1)
    one = made()
    assert weigh_newest([one[n : n + 1] for n in range(N)]).size < 256
    assert weigh_newest([one[n:].numpy() for n in range(N)]).size < 256
    weight = weigh_newest([made().requires_grad_() * 2 for _ in range(N)])
    assert weight.graph
    assert weigh_newest([torch.tensor(n) for n in range(N)]).log
