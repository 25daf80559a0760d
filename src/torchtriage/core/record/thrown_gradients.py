"""In the script's process: gradients of one optimizer's parameters, made for a step of another and thrown away.

A discriminator's loss that goes back through the generator, or a critic's target through the actor: ``detach`` cuts the
way. That is so where the first is given what the other made, and not the other way round. A generator's loss needs its
way through the discriminator, and an actor's through the critic, but no gradients of their weights.

Nothing here may reach the script: hooks that fail say nothing from then on, no module of the script's holds one, and
they hold no model.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from torchtriage.core.record.environment import process_rank
from torchtriage.core.record.stacks import of_the_user, user_call
from torchtriage.core.record.torch_hooks import may_compile
from torchtriage.core.record.torch_modes import is_watched

if TYPE_CHECKING:  # here only the script imports torch
    import torch

MOST_OPTIMIZERS = 4
MOST_PARAMETERS = 1000
DEEPEST, MOST_ITEMS = 3, 32
LONGEST_NS = 60_000_000_000
"""After so long the hooks are taken out, with what they saw."""
Line = tuple[str, int, str]


@dataclass
class _Written:
    """When gradients of an optimizer were written since the last step of any, of which first, and where from."""

    parameter: weakref.ref[torch.Tensor]
    ns: list[int]
    line: Line


class _Row(NamedTuple):
    """Gradients of an optimizer that were written for a step of another, and one of them as it was at that step."""

    ns: int
    after: bool
    parameter: weakref.ref[torch.Tensor]
    gradient: Any
    lines: tuple[Line | None, ...]


@dataclass
class _Thrown:
    """How often gradients of one optimizer were thrown away that had been written for steps of another.

    ``after`` : they always were written after the first of the other's own. ``lines`` : where the backward pass was
    called, the other model, and this one.
    """

    n: int = 0
    n_used: int = 0
    ns: int = 0
    after: bool = True
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
            [weakref.ref(given) for group in optimizer.param_groups for given in group["params"]]
            for optimizer in optimizers
        ]
        self._until_ns = perf_counter_ns() + LONGEST_NS
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
        every = [given for some in self._parameters for reference in some if (given := reference()) is not None]
        plain = len({id(given) for given in every}) == len(every) and all(given.is_leaf for given in every)
        few = 2 <= len(optimizers) <= MOST_OPTIMIZERS and all(self._parameters) and len(every) <= MOST_PARAMETERS
        if not few or not plain or may_compile() or process_rank() is not None:
            self._over = True
            return  # a compiled graph is guarded against hooks
        for at, parameters in enumerate(self._parameters):
            modules = largest({id(reference()) for reference in parameters})
            self._names.append(list(modules))
            self._modules |= {id(module): at for module in modules.values()}
        try:
            self._hook()
        except Exception:
            self.stop()
            raise

    def _hook(self) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def called(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
            if not torch.compiler.is_compiling():
                self._called(module, arguments)

        # for all modules: those of the script's that are saved or copied would take a hook of their own along
        self._undo.append(register_module_forward_pre_hook(called).remove)
        self._undo.append(register_optimizer_step_pre_hook(self._steps).remove)
        self._hook_parameters()

    def _hook_parameters(self) -> None:
        """Add hooks to parameters that are not frozen just now, as a discriminator's are for a generator's step."""
        for at, parameters in enumerate(self._parameters):
            for given in [given for reference in parameters if (given := reference()) is not None]:
                if given.requires_grad and id(given) not in self._hooked:
                    self._hooked.add(id(given))
                    hook = partial(self._accumulated, at)
                    self._undo.append(given.register_post_accumulate_grad_hook(hook).remove)

    def stop(self) -> None:
        """Take the hooks out."""
        self._over = True
        self._written.clear()
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
            mutual = back is not None and back.n > 0 and not back.n_used
            needless = thrown.after and by in self._fed and (of not in self._fed or mutual)
            if thrown.n and not thrown.n_used and len(steps) > 1 and (needless or of in self._fed):
                each = thrown.ns / thrown.n
                back_at, by_at, of_at = thrown.lines
                lines = [line for line in (by_at if needless else of_at, back_at) if line is not None and line[1]]
                names = {"of": self._names[of], "by": self._names[by]}
                share = each * (len(steps) - 1) / (steps[-1] - steps[0])
                found.append({**names, "needless": needless, "share": share, "lines": lines})
        return found

    # -- hooks ---------------------------------------------------------------------------------

    def _called(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if perf_counter_ns() > self._until_ns:
            self.stop()
        of = self._modules.get(id(module))
        if self._over or of is None:
            return
        with self._quietly() as torch:
            if torch is not None and _has_graph(arguments, torch, DEEPEST):
                self._fed.add(of)
                self._fed_at[of] = user_call(sys._getframe())

    def _accumulated(self, of: int, given: torch.Tensor) -> None:
        if self._over:
            return
        with self._quietly():
            now = perf_counter_ns()
            if (written := self._written.get(of)) is None:
                # in a thread of autograd's there is no frame of the script's
                self._written[of] = _Written(weakref.ref(given), [now], user_call(sys._getframe()))
            else:
                written.ns.append(now)

    def _steps(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        by = self._of.get(id(optimizer))
        if self._over or by is None:
            return
        with self._quietly() as torch:
            if torch is not None:
                self._hook_parameters()
                self._step(by)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[Any]:
        """Give torch where nobody looks at what is asked of it; what fails here ends the watch, and nothing else."""
        import torch

        watched = torch.compiler.is_compiling() or is_watched(torch, "cpu")
        try:
            yield None if watched else torch
        except Exception as error:  # what the script hands over may refuse to be read
            self._over = True
            if of_the_user(error):  # a signal handler's
                raise

    def _step(self, by: int) -> None:
        self._steps_ns.setdefault(by, []).append(perf_counter_ns())
        new = by in self._written
        for (of, _), thrown in self._thrown.items():
            for row in thrown.pending if of == by else ():
                parameter = row.parameter()
                if not new or parameter is None or parameter.grad is row.gradient:
                    thrown.n_used += 1
                    continue  # another would have been made since that step
                thrown.n, thrown.ns, thrown.lines = thrown.n + 1, thrown.ns + row.ns, row.lines
                thrown.after = thrown.after and row.after
            if of == by:
                thrown.pending.clear()
        own = self._written.get(by)
        for of, written in self._written.items():
            parameter = written.parameter()
            if of != by and own is not None and parameter is not None and parameter.grad is not None:
                lines = written.line, self._fed_at.get(by), self._fed_at.get(of)
                ns = written.ns[-1] - written.ns[0]
                row = _Row(ns, written.ns[0] > own.ns[0], written.parameter, parameter.grad, lines)
                self._thrown.setdefault((of, by), _Thrown()).pending.append(row)
        self._written.clear()
        self._fed_at.clear()


def _has_graph(given: Any, torch: Any, depth: int) -> bool:
    """Return whether a model's input, or something in it, was computed with a graph."""
    if type(given) is torch.Tensor:
        return given.grad_fn is not None
    if type(given) is dict:
        given = tuple(given.values())
    inside = given[:MOST_ITEMS] if type(given) in (tuple, list) and depth > 0 else ()
    return any(_has_graph(item, torch, depth - 1) for item in inside)
