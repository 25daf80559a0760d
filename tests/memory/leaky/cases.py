"""Cases of programs that leak or do not, and what they train.

``holder`` is how the program itself writes what keeps the memory (several where it has two names), None where no
Python object does; the line that adds ends with HOLDS. Labels are from the threads, not from what the watch says.
Every second case, by place in its file, is ``held_out``: never looked at when a rule is chosen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """A program, whether it leaks, and what then holds the memory."""

    run: Callable[[Any, Random, int], object]
    leaks: bool
    holder: tuple[str, ...]
    thread: str
    held_out: bool


CASES: list[Case] = []


def _case(leaks: bool, thread: str, *holder: str) -> Callable[[Any], Any]:
    def add(run: Any) -> Any:
        n = sum(case.leaks == leaks for case in CASES)
        CASES.append(Case(run, leaks, holder, thread, bool(n % 2)))
        return run

    return add


leak = functools.partial(_case, True)
healthy = functools.partial(_case, False)


def mlp(width: int = 32) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))


def fit(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)
