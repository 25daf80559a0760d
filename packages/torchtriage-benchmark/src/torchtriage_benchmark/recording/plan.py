"""Which recordings the benchmark has: told by a count and a seed alone, the same everywhere."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from torchtriage_benchmark.recording.program_generator import MODES, Fault, Script, faults, lookalikes, programs, write
from torchtriage_benchmark.recording.recording_worker import STEPS

FAULTY_PER_CLEAN = 2
RANKS = 2
"""Processes of a program of the part ``ranks``; each one's trace is an item."""
WITHOUT_STACKS = ("CFG044",)
"""Faults whose programs and twins are recorded without Python frames: each operator formats a
traceback, which makes millions of them."""
PREFIX = {"eager": "", "compiled": "c", "ranks": "r", "lookalikes": "l"}
"""Of the ids of a part."""
SHARES = {"eager": 0.68, "compiled": 0.12, "ranks": 0.12, "lookalikes": 0.08}
"""Of the parts in a benchmark of all."""
_HELD_OUT = {
    "validation": ("mobilenet", "dit", "glpn", "gpt2"),
    "test": ("swin", "onestage", "unet", "autoencoder", "dpt", "hourglass", "bert"),
}
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
    part: str = "eager"
    variant: str = ""
    """The fault's name where its code has several."""
    lookalike: str = ""
    """What a clean program has that only looks like a fault."""
    rank: int = 0

    @property
    def split(self) -> str:
        """Where its family belongs."""
        return split_of(self.family)

    @property
    def run(self) -> str:
        """What is recorded together: all ranks of a program."""
        return f"{self.id[: -len('0000')]}{int(self.id[-4:]) - self.rank:04d}"

    @property
    def change(self) -> Fault | None:
        """What it has that its twin has not."""
        if self.code:
            return faults(self.part)[self.variant or self.code]
        return lookalikes()[self.lookalike] if self.lookalike else None

    def script(self) -> Script:
        """Return the program's text, and where its fault is on this rank."""
        return write(
            programs(self.part)[self.family],
            self.mode,
            self.change,
            severity=self.severity,
            loader=self.loader,
            batch=self.batch,
            seed=self.seed,
            steps=STEPS,
            part=self.part,
            rank=self.rank,
        )


def split_of(family: str) -> str:
    """Return the split that a model family belongs to."""
    return next((name for name, families in _HELD_OUT.items() if family in families), "train")


def whole(count: int, seed: int) -> tuple[Item, ...]:
    """Return ``count`` items of all parts, each with its share."""
    counts = {part: int(count * share) for part, share in SHARES.items()}
    counts["eager"] += count - sum(counts.values())
    return tuple(item for part, n in counts.items() for item in plan(n, seed, part))


def plan(count: int, seed: int, part: str = "eager") -> tuple[Item, ...]:
    """Return ``count`` items of a part: clean programs, each followed by faulty twins.

    Families, modes and ways to load take turns; of the faults that fit a program, those that were
    taken least often so far come first. A longer plan begins with the shorter one of its seed, and
    no part's plan depends on another's.
    """
    items: list[Item] = []
    for item in _items(random.Random(seed), part):
        if len(items) == count:
            break
        items.append(item)
    return tuple(items)


def _items(chance: random.Random, part: str) -> Iterator[Item]:
    taken: Counter[str] = Counter()
    modes = ("train",) if part == "ranks" else MODES
    kinds = list(product(programs(part).values(), modes, (False, True)))
    changes = lookalikes() if part == "lookalikes" else faults(part)
    sizes = (1,) if part == "compiled" else (0.5, 1, 1, 2)  # a size is compiled once
    ranks = range(RANKS if part == "ranks" else 1)
    number = 0
    while True:
        chance.shuffle(kinds)
        for program, mode, loader in kinds:
            batch = max(int(program.batch * chance.choice(sizes)), 1)
            seed, stacks = chance.randrange(10**6), chance.random() < 0.5
            fitting = [change for change in changes.values() if change.fits(program, mode, loader)]
            chance.shuffle(fitting)
            fitting.sort(key=lambda item: taken[item.name])
            chosen = fitting[:FAULTY_PER_CLEAN]
            stacks = stacks and not any(item.code in WITHOUT_STACKS for item in chosen)
            clean = number
            for change in (None, *chosen):
                severity, code, variant, lookalike = 0, "", "", ""
                if change is not None:
                    taken[change.name] += 1
                    severity = chance.choice(change.severities) if change.severities else 0
                    code = change.code
                    variant = change.name if code not in ("", change.name) else ""
                    lookalike = "" if code else change.name
                if change is not None and batch < change.least_batch:
                    number += len(ranks)  # what others are called does not depend on it
                    continue
                for rank in ranks:
                    twin = f"{PREFIX[part]}{clean + rank:04d}"
                    yield Item(
                        f"{PREFIX[part]}{number:04d}",
                        program.family,
                        mode,
                        loader,
                        batch,
                        seed,
                        code,
                        severity,
                        twin,
                        stacks,
                        part,
                        variant,
                        lookalike,
                        rank,
                    )
                    number += 1
