"""In the script's process: which of its optimizers ends an iteration."""

from __future__ import annotations

import weakref
from types import FrameType
from typing import TYPE_CHECKING

from torchtriage.core.record.loop import Loop
from torchtriage.core.record.stacks import user_call

if TYPE_CHECKING:  # here only the script imports torch
    from torch.optim.optimizer import Optimizer

FIRST_LOOKS = 2
"""Optimizer steps seen before the boundary is chosen: one that shows later can still take its place."""
MORE_LOOKS = 6
"""... and when there are several, so many, to see which one steps once per iteration."""


class OptimizerChoice:
    """Counts the steps of optimizers until it is clear which of them ends an iteration.

    The rarest one does: of two equals the first seen. ``n_steps`` : of each, by its ``id``.
    """

    def __init__(self) -> None:
        self.n_steps: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._chosen, self._name = 0, ""
        self._stepped: weakref.ref[Optimizer] | None = None  # the chosen one
        self._take_turns = False
        self._replaced: dict[int, weakref.ref[Optimizer] | None] = {}
        self._rival, self._rival_seen = 0, 0

    def is_chosen(self, optimizer: Optimizer) -> bool:
        """Return whether it is the chosen one; another may have its ``id`` once that is gone."""
        return id(optimizer) == self._chosen and type(optimizer).__name__ == self._name

    def may_be_anew(self, optimizer: Optimizer, loop: Loop | None, frame: FrameType) -> bool:
        """Return whether it was made since, and steps at the line of the chosen one: for the next fit."""
        if self._take_turns or loop is None or loop.boundary != "optimizer" or id(optimizer) in self.n_steps:
            return False
        if loop.name != type(optimizer).__name__:
            return False
        return user_call(frame) == (loop.file, loop.line, loop.function)

    def replace(self, optimizer: Optimizer) -> bool:
        """Take one that may have been made anew for the chosen one, unless both step at one line in turns."""
        key = id(optimizer)
        if (before := self._replaced.get(key)) is not None and before() is optimizer:
            self._take_turns = True
            return False
        self._replaced[self._chosen] = self._stepped
        # another may come to have its number
        self.n_steps[key] = self.n_steps.pop(self._chosen, 0)
        self._names[key] = self._name
        self._chosen, self._stepped = key, weakref.ref(optimizer)
        return True

    def forget(self) -> None:
        """Count anew: the loop that comes has other optimizers."""
        self.n_steps.clear()
        self._names.clear()

    def count(self, optimizer: Optimizer) -> None:
        """Count a step."""
        key = id(optimizer)
        self.n_steps[key] = self.n_steps.get(key, 0) + 1
        self._names[key] = type(optimizer).__name__

    def ends_iteration(self, optimizer: Optimizer) -> bool:
        """Return whether the step just counted is the rarest one's, after enough of all."""
        counts, key = self.n_steps, id(optimizer)
        if sum(counts.values()) < (FIRST_LOOKS if len(counts) == 1 else MORE_LOOKS):
            return False
        # as they were before this step: two that take turns would never be the rarest else
        return key == min(counts, key=lambda other: counts[other] - (other == key))

    def is_rarer(self, optimizer: Optimizer, n_boundaries: int) -> bool:
        """Return whether the chosen one stepped several times since this one did, ``n_boundaries`` times by now."""
        key = id(optimizer)
        rarer = self._rival == key and n_boundaries - self._rival_seen > 1
        self._rival, self._rival_seen = key, n_boundaries
        return rarer

    def choose(self, optimizer: Optimizer) -> tuple[str, str]:
        """Take this one; return its name and how it was chosen, in words."""
        key = id(optimizer)
        name = self._names[key]
        self._chosen, self._name, self._stepped = key, name, weakref.ref(optimizer)
        how = f"one step of {name}"
        if len(self.n_steps) > 1:
            others = {other_name for other, other_name in self._names.items() if other != key} - {name}
            how += f", the rarest of {len(self.n_steps)} optimizers"
            how += f" (beside {', '.join(sorted(others))})" if others else ""
        return name, how
