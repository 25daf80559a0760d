"""Which recordings the benchmark has: told by a count and a seed alone, the same everywhere."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from torchtriage.dataset.child import STEPS
from torchtriage.dataset.script import MODES, Script, faults, programs, write

__all__ = ["SPLITS", "Item", "plan"]

FAULTY_PER_CLEAN = 2
_HELD_OUT = {
    "validation": ("mobilenet", "dit", "glpn", "gpt2"),
    "test": ("swin", "onestage", "unet", "autoencoder", "dpt", "hourglass", "bert"),
}
SPLITS = ("train", *_HELD_OUT)
"""By model family: no family is in two of them."""


@dataclass(frozen=True)
class Item:
    """One recording: a base program, and at most one fault. ``twin`` is the clean one's id."""

    id: str
    family: str
    mode: str
    loader: bool
    batch: int
    seed: int
    code: str
    """The fault's code, empty for a clean program."""
    severity: int
    twin: str
    stacks: bool

    @property
    def split(self) -> str:
        """Where its family belongs."""
        held_out = (name for name, families in _HELD_OUT.items() if self.family in families)
        return next(held_out, "train")

    def script(self) -> Script:
        """Return the program's text."""
        return write(
            programs()[self.family], self.mode, faults()[self.code] if self.code else None,
            severity=self.severity, loader=self.loader, batch=self.batch, seed=self.seed,
            steps=STEPS,
        )  # fmt: skip


def plan(count: int, seed: int) -> tuple[Item, ...]:
    """Return ``count`` items: clean programs, each followed by faulty twins.

    Families, modes and ways to load take turns; of the faults that fit a program, those that were
    taken least often so far come first. A longer plan begins with the shorter one of its seed.
    """
    items: list[Item] = []
    for item in _items(random.Random(seed)):
        if len(items) == count:
            break
        items.append(item)
    return tuple(items)


def _items(chance: random.Random) -> Iterator[Item]:
    taken: Counter[str] = Counter()
    kinds = list(product(programs().values(), MODES, (False, True)))
    number = 0
    while True:
        chance.shuffle(kinds)
        for program, mode, loader in kinds:
            batch = max(int(program.batch * chance.choice((0.5, 1, 1, 2))), 1)
            seed, stacks = chance.randrange(10**6), chance.random() < 0.5
            fitting = [one for one in faults().values() if one.fits(program, mode, loader)]
            chance.shuffle(fitting)
            fitting.sort(key=lambda one: taken[one.code])
            clean = f"{number:04d}"
            yield Item(clean, program.family, mode, loader, batch, seed, "", 0, clean, stacks)
            for at, fault in enumerate(fitting[:FAULTY_PER_CLEAN], 1):
                taken[fault.code] += 1
                severity = chance.choice(fault.severities) if fault.severities else 0
                yield Item(
                    f"{number + at:04d}", program.family, mode, loader, batch, seed, fault.code,
                    severity, clean, stacks,
                )  # fmt: skip
            number += 1 + len(fitting[:FAULTY_PER_CLEAN])
