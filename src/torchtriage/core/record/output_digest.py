"""What a script computes at its start: the first losses, or the first outputs of its models.

Two programs that should be alike are compared by these. Taken while the script warms up, before
anything is timed; then every hook is gone again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # here only the script imports torch
    import torch

__all__ = ["ANSWERS_FILE", "Answers"]

ANSWERS_FILE = "answers-{pid}.json"
LOSSES = 8
OUTPUTS = 8
MOST_LEAVES = 8
"""Tensors of one output that are looked at."""


class Answers:
    """Notes the first losses and outputs of this process, and writes them when it ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ANSWERS_FILE.format(pid=os.getpid())
        self._pid = os.getpid()
        self._losses: list[torch.Tensor] = []
        self._outputs: list[list[float]] = []
        self._depth = threading.local()
        self._undo: list[Callable[[], object]] = []
        self._written = False

    def start(self) -> None:
        """Begin to listen."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self._listen_to_backward()
        # depth, because only what the script itself calls is an answer
        self._undo = [
            register_module_forward_pre_hook(self._enter).remove,
            register_module_forward_hook(self._leave, always_call=True).remove,
        ]
        atexit.register(self._write)

    def _write(self) -> None:
        if os.getpid() != self._pid or self._written:
            return
        self._written = True
        with contextlib.suppress(Exception):  # no answers then, and the parent says so
            self._save()

    def _save(self) -> None:
        losses = [float(loss.double().mean()) for loss in self._losses]
        text = json.dumps({"losses": _plain(losses), "outputs": [*map(_plain, self._outputs)]})
        half = self._path.with_suffix(".part")
        half.write_text(text, encoding="utf-8")
        half.replace(self._path)

    # -- losses --------------------------------------------------------------------------------

    def _listen_to_backward(self) -> None:
        import torch

        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            loss = tensors if isinstance(tensors, torch.Tensor) else None
            if loss is not None and len(self._losses) < LOSSES:
                self._losses.append(loss.detach().clone())  # read at the end: no wait here
                if len(self._losses) == LOSSES:
                    restore()
                    self._write()
            return original(tensors, *args, **kwargs)

        def restore() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        torch.autograd.backward = backward

    # -- outputs -------------------------------------------------------------------------------

    def _enter(self, _module: torch.nn.Module, _args: Any) -> None:
        self._depth.value = getattr(self._depth, "value", 0) + 1

    def _leave(self, _module: torch.nn.Module, _args: Any, output: Any) -> None:
        import torch

        self._depth.value = getattr(self._depth, "value", 1) - 1
        if self._depth.value or torch.compiler.is_compiling():
            return
        if len(self._outputs) < OUTPUTS:
            self._outputs.append(_digest(output))
        if len(self._outputs) >= OUTPUTS or self._losses:
            while self._undo:
                self._undo.pop()()
            if not self._losses:
                self._write()


def _digest(output: Any) -> list[float]:
    """Return three numbers per tensor of an output, all positive: alike for alike tensors only.

    Its size, its root mean square, and the same of the values raised by that and weighted by their
    place, which distinguishes signs and orders. A mean would not do: next to zero it is all rounding.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    if hasattr(output, "to_tuple"):  # transformers' and diffusers' outputs
        output = output.to_tuple()
    tensors = [tensor for tensor in tree_leaves(output) if isinstance(tensor, torch.Tensor)]
    digest = []
    with torch.no_grad():
        for tensor in tensors[:MOST_LEAVES]:
            whole = tensor.detach().abs() if tensor.is_complex() else tensor.detach()
            values = whole.flatten().cpu().double()
            size = float(values.square().mean().sqrt())
            weights = torch.linspace(0.5, 1.5, values.numel(), dtype=torch.double)
            placed = ((values + size) * weights).square().mean().sqrt()
            digest += [float(values.numel()), size, float(placed)]
    return digest


def _plain(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
