"""In the script's process: gradients of one optimizer's parameters, made for a step of another and thrown away.

A discriminator's loss that goes back through the generator, or a critic's target through the actor: ``detach`` cuts the
way. That is so where the first is given what the other made, and not the other way round. A generator's loss needs its
way through the discriminator, and an actor's through the critic, but no gradients of their weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from torchtriage.core.record.environment import process_rank
from torchtriage.core.record.stacks import user_call
from torchtriage.core.record.torch_hooks import has_compiled

if TYPE_CHECKING:  # here only the script imports torch
    import torch

MOST_OPTIMIZERS = 4
MOST_PARAMETERS = 1000
DEEPEST, MOST_ITEMS = 3, 32
Line = tuple[str, int, str]


class _Written(NamedTuple):
    """Gradients of an optimizer that were written since the last step of any, one of them, and where from."""

    ns: list[int]
    sample: list[tuple[Any, Line]]


@dataclass
class _Thrown:
    """How often gradients of one optimizer were thrown away that had been written for steps of another."""

    n: int = 0
    ns: int = 0
    last: bool = True  # they always were the last to be written
    lines: tuple[Line | None, ...] = ()  # where the backward pass was called, the other model, and this one
    pending: list[tuple[int, bool, Any, tuple[Line | None, ...]]] = field(default_factory=list)


class ThrownGradients:
    """Hooks modules, parameters and optimizers from its making to :meth:`facts`.

    ``largest`` : names the largest modules that all of some parameters make.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], largest: Callable[[set[int]], Mapping[str, torch.nn.Module]]
    ) -> None:
        self._undo: list[Callable[[], object]] = []
        self._parameters = [
            [given for group in optimizer.param_groups for given in group["params"]] for optimizer in optimizers
        ]
        self._of = {id(optimizer): at for at, optimizer in enumerate(optimizers)}
        self._written: dict[int, _Written] = {}
        self._thrown: dict[tuple[int, int], _Thrown] = {}
        self._steps_ns: dict[int, list[int]] = {}
        self._fed: set[int] = set()  # whose modules are given what has a graph
        self._fed_at: dict[int, Line] = {}  # and where, since the last step of any
        self._names: list[list[str]] = []
        self._hooked: set[int] = set()
        n = sum(map(len, self._parameters))
        shared = len({id(given) for some in self._parameters for given in some}) < n
        few = 2 <= len(optimizers) <= MOST_OPTIMIZERS and all(self._parameters) and n <= MOST_PARAMETERS
        if not few or shared or has_compiled() or process_rank() is not None:
            return  # a compiled graph is guarded against hooks
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._undo.append(register_optimizer_step_pre_hook(self._steps).remove)
        for at, parameters in enumerate(self._parameters):
            modules = largest({id(given) for given in parameters})
            self._names.append(list(modules))
            for module in modules.values():
                hook = partial(self._called, at)
                self._undo.append(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        self._hook_parameters()

    def _hook_parameters(self) -> None:
        """Add hooks to parameters that are not frozen just now, as a discriminator's are for a generator's step."""
        for at, parameters in enumerate(self._parameters):
            for given in parameters:
                if given.requires_grad and id(given) not in self._hooked:
                    self._hooked.add(id(given))
                    hook = partial(self._accumulated, at, given is parameters[0])
                    self._undo.append(given.register_post_accumulate_grad_hook(hook).remove)

    def stop(self) -> None:
        """Take the hooks out."""
        while self._undo:
            self._undo.pop()()

    def facts(self) -> list[dict[str, Any]]:
        """Return whose gradients are thrown away, for whose steps, from where, and the share of the time to write them.

        ``needless`` : the way to them is, too. Takes the hooks out.
        """
        self.stop()
        found = []
        for (of, by), thrown in self._thrown.items():
            back, steps = self._thrown.get((by, of)), self._steps_ns.get(by, [])
            both = of in self._fed and by in self._fed
            needless = by in self._fed and (not both or (thrown.last and back is not None and back.n > 0))
            if thrown.n and len(steps) > 1 and (needless or of in self._fed):
                share = thrown.ns / thrown.n * (len(steps) - 1) / (steps[-1] - steps[0])
                back_at, by_at, of_at = thrown.lines
                lines = [line for line in (by_at if needless else of_at, back_at) if line is not None]
                names = {"of": self._names[of], "by": self._names[by]}
                found.append({**names, "needless": needless, "share": share, "lines": lines})
        return found

    def _called(self, of: int, _module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if _has_graph((arguments, named), DEEPEST):
            self._fed.add(of)
            self._fed_at[of] = user_call(sys._getframe(1))

    def _accumulated(self, of: int, sample: bool, given: torch.Tensor) -> None:
        written = self._written.setdefault(of, _Written([], []))
        written.ns.append(perf_counter_ns())
        if sample:
            written.sample[:] = [(given.grad, user_call(sys._getframe(1)))]

    def _steps(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        by = self._of.get(id(optimizer))
        if by is None:
            return
        self._hook_parameters()
        self._steps_ns.setdefault(by, []).append(perf_counter_ns())
        for (of, _), thrown in self._thrown.items():
            for ns, last, gradient, lines in thrown.pending if of == by else ():
                if self._parameters[of][0].grad is not gradient:  # another than was made for that step
                    thrown.n, thrown.ns, thrown.last, thrown.lines = thrown.n + 1, thrown.ns + ns, last, lines
            if of == by:
                thrown.pending.clear()
        own = self._written.get(by)
        for of, written in self._written.items():
            if of != by and own is not None and written.sample:
                ((gradient, line),) = written.sample
                lines = line, self._fed_at.get(by), self._fed_at.get(of)
                row = written.ns[-1] - written.ns[0], written.ns[0] > own.ns[-1], gradient, lines
                self._thrown.setdefault((of, by), _Thrown()).pending.append(row)
        self._written.clear()
        self._fed_at.clear()


def _has_graph(given: Any, depth: int) -> bool:
    """Return whether a model's input, or something in it, was computed with a graph."""
    if isinstance(given, dict):
        given = tuple(given.values())
    if isinstance(given, tuple | list):
        return depth > 0 and any(_has_graph(item, depth - 1) for item in given[:MOST_ITEMS])
    return getattr(given, "grad_fn", None) is not None
