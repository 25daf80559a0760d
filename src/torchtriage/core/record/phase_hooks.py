"""Switches a phase clock from inside torch: fetches, forward and backward passes, optimizers, waiting for other ranks.

What waiting is, of one rank alone: the time between the end of its own backward pass and the end of what its wrapper
does then, and every wait for a collective's work. The callbacks that the autograd engine runs at the end of a backward
pass come in the order in which they were asked for, and ours is asked for first.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchtriage.core.record.phase_clock import BACKWARD, BETWEEN, FORWARD, LOADER, OPTIMIZER, WAIT, PhaseClock
from torchtriage.core.record.stacks import callers

if TYPE_CHECKING:  # here only the script imports torch
    import torch

MOST_OUTPUTS = 4
"""So many tensors of a module's output are watched for the begin of their backward pass."""
FRAMES = (
    ("torch.utils.data.", LOADER),
    ("torch.distributed.", WAIT),
    ("torch.autograd", WAIT),  # or it computes: both are in C++
    ("torch.optim.", OPTIMIZER),
    ("torch.nn.modules.module", FORWARD),
)
"""Modules whose functions run in one phase."""


class _ModuleHook:
    """A hook of a module that a saved or copied model does not keep."""

    def __init__(self, act: Callable[..., None]) -> None:
        self.act = act

    def __call__(self, *given: Any) -> None:
        """Tell the clock."""
        self.act(*given)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> Any:
        # how to load it without this package: takes whatever is given, and returns None
        return getattr, (contextlib.nullcontext(), "__exit__")


class PhaseHooks:
    """The hooks of one clock.

    ``modules`` : whose passes are told apart; of several, each. ``on_step`` : called behind each step of ``optimizer``.
    """

    def __init__(
        self,
        clock: PhaseClock,
        modules: Iterable[torch.nn.Module],
        optimizer: torch.optim.Optimizer | None,
        on_step: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._modules = tuple(modules)
        self._optimizer = optimizer
        self._on_step = on_step
        self._depth = self._n_ended = 0
        self._n_nested = 1  # so often the hooks of one step are called: by its class, and by the base that it calls
        self._undo = contextlib.ExitStack()
        self._compiling: Callable[[], bool] = lambda: False
        self._queue: Callable[[Callable[[], None]], None] = lambda _act: None

    def install(self) -> None:
        """Begin to switch the clock."""
        import torch
        import torch.distributed as dist
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        from torch.utils.data import dataloader

        self._compiling = getattr(torch.compiler, "is_compiling", self._compiling)
        self._queue = torch.autograd.Variable._execution_engine.queue_callback
        for module in self._modules:
            self._undo.callback(module.register_forward_pre_hook(_ModuleHook(self._forward_begins)).remove)
            self._undo.callback(module.register_forward_hook(_ModuleHook(self._forward_ended)).remove)
        self._undo.callback(register_optimizer_step_pre_hook(self._optimizer_begins).remove)
        self._undo.callback(register_optimizer_step_post_hook(self._optimizer_ended).remove)
        self._in_phase(dataloader._BaseDataLoaderIter, "__next__", LOADER)
        if dist.is_available():
            self._in_phase(dist.Work, "wait", WAIT)
            self._in_phase(dist, "_broadcast_coalesced", WAIT)  # DistributedDataParallel's buffers
        for name in ("wait_for_unshard", "finalize_backward"):
            group = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param_group")
            self._in_phase(getattr(group, "FSDPParamGroup", None), name, WAIT)

    def remove(self) -> None:
        """Leave torch as it was."""
        self._undo.close()

    # -- modules ---------------------------------------------------------------------------------

    def _forward_begins(self, *_: Any) -> None:
        clock = self._clock
        if self._compiling() or not clock.timed:
            return
        if clock.phase != BACKWARD and get_ident() in clock.threads:  # else computed again, for the backward pass
            clock.enter(FORWARD)

    def _forward_ended(self, _module: Any, _args: Any, output: Any) -> None:
        clock = self._clock
        if self._compiling() or not clock.timed:
            return
        if clock.phase == FORWARD and get_ident() in clock.threads:
            for tensor in _outputs(output, MOST_OUTPUTS):
                tensor.register_hook(self._backward_begins)
            self._pass_ended()

    def _backward_begins(self, _grad: Any) -> None:
        clock = self._clock
        if clock.phase not in (BACKWARD, WAIT):
            clock.threads.add(get_ident())  # with a device the engine has a thread of its own
            clock.enter(BACKWARD)
            self._queue(self._own_backward_ended)

    def _own_backward_ended(self) -> None:
        self._clock.enter(WAIT)
        self._queue(self._pass_ended)

    def _pass_ended(self) -> None:
        self._clock.enter(OPTIMIZER if self._depth else BETWEEN)  # a closure's passes are inside of a step

    # -- optimizers ------------------------------------------------------------------------------

    def _optimizer_begins(self, *_: Any) -> None:
        clock = self._clock
        if self._compiling() or not clock.timed or get_ident() not in clock.threads:
            return
        step = sys._getframe(1)  # torch's, of each step that has hooks
        if self._depth:  # inside of another, as a class calls its base's; or that one raised, which no hook tells
            self._depth = sum(frame.f_code is step.f_code for frame in callers(step))
        else:
            self._depth = 1
        if self._depth == 1:
            self._n_ended = 0
            clock.enter(OPTIMIZER)

    def _optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        clock = self._clock
        if self._compiling():
            return
        if not clock.timed:
            if optimizer is self._optimizer:
                self._n_ended += 1
                if self._n_ended >= self._n_nested:
                    self._n_ended = 0
                    self._on_step()
            return
        if get_ident() not in clock.threads or not self._depth:
            return
        self._n_ended += optimizer is self._optimizer
        self._depth -= 1
        if not self._depth:
            n_ended, self._n_ended = self._n_ended, 0
            if n_ended:
                self._n_nested = n_ended
                self._on_step()
            if clock.phase == OPTIMIZER:  # not the end of the step
                clock.enter(BETWEEN)

    # -- functions -------------------------------------------------------------------------------

    def _in_phase(self, owner: Any, name: str, phase: int) -> None:
        """Give each call of ``owner.name`` a phase, and what follows the one before."""
        plain = getattr(owner, name, None)
        if plain is None:
            return
        clock = self._clock

        @functools.wraps(plain)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not clock.timed or get_ident() not in clock.threads:
                return plain(*args, **kwargs)
            before = clock.enter(phase)
            try:
                return plain(*args, **kwargs)
            finally:
                clock.enter(before)

        wrapper: Any = timed
        wrapper.ended = False

        def restore() -> None:
            wrapper.ended = True
            while getattr(getattr(owner, name), "ended", False):  # also what ended below one that was put on later
                setattr(owner, name, getattr(owner, name).__wrapped__)

        setattr(owner, name, wrapper)
        self._undo.callback(restore)


def _outputs(output: Any, most: int) -> Iterator[torch.Tensor]:
    """Yield the first tensors of a module's output that a backward pass can begin at."""
    todo = [output]
    while todo and most:
        value = todo.pop()
        if getattr(value, "grad_fn", None) is not None:
            most -= 1
            yield value
        elif isinstance(value, dict):
            todo += reversed(list(value.values())[:most])
        elif isinstance(value, (tuple, list)):
            todo += reversed(value[:most])


def phase_of(stack: Iterable[FrameType]) -> int:
    """Return the phase that a stack is in, told by its innermost frame of torch; WAIT where none tells."""
    for frame in stack:
        module = frame.f_globals.get("__name__", "")
        for prefix, phase in FRAMES:
            if module.startswith(prefix):
                return phase
    return WAIT
