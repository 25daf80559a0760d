"""In the script's process: gradients of one optimizer's parameters, made for a step of another and thrown away.

A discriminator's loss that goes back through the generator, or a critic's target through the actor: ``detach`` cuts the
way. That is so where the first is given what the other made, and not the other way round. A generator's loss needs its
way through the discriminator, and an actor's through the critic, but no gradients of their weights.

Nothing here may reach the script: hooks that fail say nothing from then on, and no module of the script's holds one.
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


@dataclass
class _Written:
    """When gradients of an optimizer were written since the last step of any, of which first, and where from."""

    parameter: torch.Tensor
    ns: list[int]
    line: Line


class _Row(NamedTuple):
    """Gradients of an optimizer that were written for a step of another, and one of them as it was at that step."""

    ns: int
    last: bool
    parameter: torch.Tensor
    gradient: Any
    lines: tuple[Line | None, ...]


@dataclass
class _Thrown:
    """How often gradients of one optimizer were thrown away that had been written for steps of another.

    ``last`` : they always were the last to be written. ``lines`` : where the backward pass was called, the other model,
    and this one.
    """

    n: int = 0
    n_used: int = 0
    ns: int = 0
    last: bool = True
    lines: tuple[Line | None, ...] = ()
    pending: list[_Row] = field(default_factory=list)


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
        self._modules: dict[int, int] = {}
        self._hooked: set[int] = set()
        self._over = False
        every = [given for some in self._parameters for given in some]
        plain = len({id(given) for given in every}) == len(every) and all(given.is_leaf for given in every)
        few = 2 <= len(optimizers) <= MOST_OPTIMIZERS and all(self._parameters) and len(every) <= MOST_PARAMETERS
        if not few or not plain or has_compiled() or process_rank() is not None:
            self._over = True
            return  # a compiled graph is guarded against hooks
        for at, parameters in enumerate(self._parameters):
            modules = largest({id(given) for given in parameters})
            self._names.append(list(modules))
            self._modules |= {id(module): at for module in modules.values()}
        try:
            self._hook()
        except Exception:
            self.stop()
            raise

    def _hook(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        # for all modules: those of the script's that are saved or copied would take a hook of their own along
        self._undo.append(register_module_forward_pre_hook(self._called).remove)
        self._undo.append(register_optimizer_step_pre_hook(self._steps).remove)
        self._hook_parameters()

    def _hook_parameters(self) -> None:
        """Add hooks to parameters that are not frozen just now, as a discriminator's are for a generator's step."""
        for at, parameters in enumerate(self._parameters):
            for given in parameters:
                if given.requires_grad and id(given) not in self._hooked:
                    self._hooked.add(id(given))
                    hook = partial(self._accumulated, at)
                    self._undo.append(given.register_post_accumulate_grad_hook(hook).remove)

    def stop(self) -> None:
        """Take the hooks out."""
        self._over = True
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
                each = thrown.ns / (thrown.n + thrown.n_used)
                back_at, by_at, of_at = thrown.lines
                lines = [line for line in (by_at if needless else of_at, back_at) if line is not None and line[1]]
                names = {"of": self._names[of], "by": self._names[by]}
                share = each * (len(steps) - 1) / (steps[-1] - steps[0])
                found.append({**names, "needless": needless, "share": share, "lines": lines})
        return found

    # -- hooks ---------------------------------------------------------------------------------

    def _called(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        of = self._modules.get(id(module))
        if self._over or of is None:
            return
        try:
            if _has_graph(arguments, DEEPEST):
                self._fed.add(of)
                self._fed_at[of] = user_call(sys._getframe())
        except Exception:  # what the script hands over may refuse to be read
            self._over = True

    def _accumulated(self, of: int, given: torch.Tensor) -> None:
        if self._over:
            return
        try:
            now = perf_counter_ns()
            if (written := self._written.get(of)) is None:
                # in a thread of autograd's there is no frame of the script's
                self._written[of] = _Written(given, [now], user_call(sys._getframe()))
            else:
                written.ns.append(now)
        except Exception:
            self._over = True

    def _steps(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        by = self._of.get(id(optimizer))
        if self._over or by is None:
            return
        try:
            self._hook_parameters()
            self._step(by)
        except Exception:
            self._over = True

    def _step(self, by: int) -> None:
        self._steps_ns.setdefault(by, []).append(perf_counter_ns())
        for (of, _), thrown in self._thrown.items():
            for row in thrown.pending if of == by else ():
                if row.parameter.grad is row.gradient:
                    thrown.n_used += 1
                    continue  # another would have been made since that step
                thrown.n, thrown.ns, thrown.last, thrown.lines = thrown.n + 1, thrown.ns + row.ns, row.last, row.lines
            if of == by:
                thrown.pending.clear()
        own = self._written.get(by)
        for of, written in self._written.items():
            if of != by and own is not None and written.parameter.grad is not None:
                lines = written.line, self._fed_at.get(by), self._fed_at.get(of)
                last, ns = written.ns[0] > own.ns[-1], written.ns[-1] - written.ns[0]
                row = _Row(ns, last, written.parameter, written.parameter.grad, lines)
                self._thrown.setdefault((of, by), _Thrown()).pending.append(row)
        self._written.clear()
        self._fed_at.clear()


def _has_graph(given: Any, depth: int) -> bool:
    """Return whether a model's input, or something in it, was computed with a graph."""
    import torch

    if isinstance(given, torch.Tensor):
        return given.grad_fn is not None
    if type(given) is dict:
        given = tuple(given.values())
    return (
        type(given) in (tuple, list) and depth > 0 and any(_has_graph(item, depth - 1) for item in given[:MOST_ITEMS])
    )
