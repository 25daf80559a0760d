"""What a script computes at its start: losses, gradients and updates of the first steps, or outputs of its models.

Two programs that should be alike are compared by these. Taken while the script warms up, before
anything is timed; what then is left of the hooks returns at once.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.core.whole_files import replacing

if TYPE_CHECKING:  # here only the script imports torch
    import torch

ANSWERS_FILE = "answers-{pid}.json"
SEED = 0
FIRST = 8
"""So many losses, optimizer steps or outputs are noted."""
MOST_TENSORS = 128
"""Of one step, or of one output: evenly from all."""
MOST_VALUES = 16
"""Of one tensor: evenly from all, in the order of its indices, whatever its layout in memory."""

Sampled = tuple[list[int], "torch.Tensor | None"]


class Answers:
    """Notes the first losses, steps and outputs of this process, and writes them when there are enough, or at its end.

    The file holds ``events`` in the order in which they happened, each of a ``kind`` (``loss``, ``gradients``,
    ``update``, ``output``) with ``tensors`` (``shape`` and some ``values``, None where there is no tensor), and
    ``epsilon``, the rounding of the narrowest type that was computed in.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ANSWERS_FILE.format(pid=os.getpid())
        self._pid = os.getpid()
        self._events: list[tuple[str, list[Sampled]]] = []
        self._counts = dict.fromkeys(("loss", "update", "output"), 0)
        self._before: dict[int, list[Sampled]] = {}
        self._epsilon = 0.0
        self._depth = threading.local()
        self._undo_outputs: list[Callable[[], object]] = []
        self._undo_before_step: Callable[[], object] = int

    def start(self) -> None:
        """Begin to listen, from seeds that hold until the script sets its own: unseeded programs repeat themselves."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        _seed()
        self._listen_to_backward()
        # depth, because only what the script itself calls is an answer
        self._undo_outputs = [
            register_module_forward_pre_hook(self._enter).remove,
            register_module_forward_hook(self._leave, always_call=True).remove,
        ]
        self._undo_before_step = register_optimizer_step_pre_hook(self._before_step).remove
        register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._write)

    def _write(self) -> None:
        if os.getpid() != self._pid:
            return
        with contextlib.suppress(Exception):  # no answers then, and the parent says so
            events = [
                {"kind": kind, "tensors": [{"shape": shape, "values": _plain(values)} for shape, values in tensors]}
                for kind, tensors in self._events
                if kind != "output" or not self._counts["loss"]
            ]
            with replacing(self._path) as part:
                part.write_text(json.dumps({"events": events, "epsilon": self._epsilon}), encoding="utf-8")

    def _note(self, kind: str, tensors: list[Sampled]) -> None:
        self._events.append((kind, tensors))
        if kind in self._counts:
            self._counts[kind] += 1
            if self._counts[kind] == FIRST:
                self._write()

    def _computed_in(self, dtype: torch.dtype) -> None:
        import torch

        if dtype.is_floating_point:
            self._epsilon = max(self._epsilon, torch.finfo(dtype).eps)

    # -- losses --------------------------------------------------------------------------------

    def _listen_to_backward(self) -> None:
        import torch

        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensors, torch.Tensor):
                self._computed_in(tensors.dtype)
                self._note("loss", [([], tensors.detach().double().mean().reshape(1))])  # read later: no wait here
                if self._counts["loss"] >= FIRST:
                    restore()
            return original(tensors, *args, **kwargs)

        def restore() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        torch.autograd.backward = backward

    # -- steps ---------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        with contextlib.suppress(Exception):  # what cannot be sampled is not compared, and the script goes on
            parameters = _parameters(optimizer)
            for parameter in parameters:
                self._computed_in(parameter.dtype)
            before = [_sampled(parameter) for parameter in parameters]
            self._note("gradients", [_sampled(parameter.grad) for parameter in parameters])
            self._before[id(optimizer)] = before

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        before = self._before.pop(id(optimizer), None)
        if before is None:
            return
        with contextlib.suppress(Exception):
            after = [_sampled(parameter) for parameter in _parameters(optimizer)]
            update: list[Sampled] = [
                (shape, new - old) if old is not None and new is not None and old.shape == new.shape else (shape, None)
                for (_, old), (shape, new) in zip(before, after, strict=False)
            ]
            self._note("update", update)
        if self._counts["update"] >= FIRST:
            self._undo_before_step()  # torch goes through the hooks after a step right now: this one stays, and returns

    # -- outputs -------------------------------------------------------------------------------

    def _enter(self, _module: torch.nn.Module, _args: Any) -> None:
        import torch

        self._depth.value = getattr(self._depth, "value", 0) + 1
        with contextlib.suppress(TypeError, AttributeError):  # before torch 2.4 it is not asked by device
            for device in ("cpu", "cuda", "xpu"):
                if torch.is_autocast_enabled(device):
                    self._computed_in(torch.get_autocast_dtype(device))

    def _leave(self, _module: torch.nn.Module, _args: Any, output: Any) -> None:
        import torch

        self._depth.value = getattr(self._depth, "value", 1) - 1
        if self._depth.value or torch.compiler.is_compiling():
            return
        if self._counts["output"] < FIRST:
            with contextlib.suppress(Exception):
                self._note("output", [_sampled(tensor) for tensor in _spread(_tensors(output), MOST_TENSORS)])
        if self._counts["output"] >= FIRST:
            while self._undo_outputs:
                self._undo_outputs.pop()()


def _seed() -> None:
    import torch

    torch.manual_seed(SEED)
    random.seed(SEED)
    if "numpy" in sys.modules:  # torch imports it where there is one
        sys.modules["numpy"].random.seed(SEED)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return _spread([parameter for group in optimizer.param_groups for parameter in group["params"]], MOST_TENSORS)


def _tensors(output: Any) -> list[torch.Tensor]:
    import torch
    from torch.utils._pytree import tree_leaves

    if hasattr(output, "to_tuple"):  # transformers' and diffusers' outputs
        output = output.to_tuple()
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _spread(items: list[Any], most: int) -> list[Any]:
    """Return at most so many items, evenly from all."""
    return items if len(items) <= most else [items[len(items) * place // most] for place in range(most)]


def _sampled(tensor: torch.Tensor | None) -> Sampled:
    """Return a tensor's shape and some of its values, on its device: nothing waits for it here."""
    import torch

    if tensor is None or not tensor.numel():
        return [] if tensor is None else [*tensor.shape], None
    with torch.no_grad():
        whole = tensor.detach()
        whole = whole.coalesce().to_dense() if whole.is_sparse else whole
        whole = torch.view_as_real(whole) if whole.is_complex() else whole
        count = min(MOST_VALUES, whole.numel())
        places = torch.arange(count, device=whole.device) * whole.numel() // count
        return [*tensor.shape], whole.reshape(-1)[places].double()


def _plain(values: torch.Tensor | None) -> list[float | None] | None:
    if values is None:
        return None
    numbers: Iterable[float] = values.tolist()
    return [number if math.isfinite(number) else None for number in numbers]
