"""Hooks into torch that leave no trace in the script: forward hooks, and what its compiler and optimizers have done."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # here only the script imports torch
    import torch


class ForwardHook:
    """A forward pre-hook that a saved or copied model does not keep."""

    def __init__(self, before: Callable[[], None]) -> None:
        self.before = before

    def __call__(self, _module: torch.nn.Module, _args: Any) -> None:
        """Say that a forward begins."""
        self.before()

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        """Return a hook that hands the inputs on unchanged."""
        return {}.get

    def __reduce__(self) -> Any:
        """Return how to load it without this package: ``{}.get(module, args)`` hands the inputs on unchanged."""
        return (getattr, ({}, "get"))


def before_compile(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` at the next ``torch.compile``, before it does anything; return how to take that back."""
    import torch

    compile_ = torch.compile

    @functools.wraps(compile_)
    def compiling(*args: Any, **kwargs: Any) -> Any:
        restore()
        act()
        return compile_(*args, **kwargs)

    def restore() -> None:
        if torch.compile is compiling:
            torch.compile = compile_

    torch.compile = compiling
    return restore


def before_fetches(act: Callable[[Any], None]) -> Callable[[], None] | None:
    """Call ``act`` with a DataLoader's iterator before each of its fetches; return how to take that back.

    None where the process has imported no such thing.
    """
    loaders = sys.modules.get("torch.utils.data.dataloader")
    iterators = getattr(loaders, "_BaseDataLoaderIter", None)
    if iterators is None:
        return None
    fetch = iterators.__next__

    @functools.wraps(fetch)
    def fetching(iterator: Any) -> Any:
        act(iterator)
        return fetch(iterator)

    def restore() -> None:
        if iterators.__next__ is fetching:
            iterators.__next__ = fetch

    iterators.__next__ = fetching
    return restore


def may_compile() -> bool:
    """Return whether a compiler of this process may look at code that is called now."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    backends = getattr(dynamo, "cached_backends", None)  # None in it: a function is left alone
    return backends is None or any(backend is not None for backend in backends.values())


def optimizer_made() -> bool:
    """Return whether an optimizer was constructed: torch wraps the class's ``step`` then."""
    from torch.optim.optimizer import Optimizer

    todo = list(Optimizer.__subclasses__())
    while todo:
        kind = todo.pop()
        if getattr(kind.__dict__.get("step"), "hooked", False):
            return True
        todo += kind.__subclasses__()
    return False


def in_backward() -> bool:
    """Return whether a backward pass calls this, in whichever thread: a profiler must neither begin nor end there."""
    import torch

    return getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1


def has_compiled() -> bool:
    """Return whether torch.compile has compiled any frame."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("frames"))
