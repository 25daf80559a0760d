"""What an expression is, as far as its source tells: a tensor and where it lives, or a module.

A :class:`Value` is a guess that only gets weaker: what is not known is ``UNKNOWN``, and rules speak
about what is known. ``device`` is the taint: results of modules and of work on device tensors carry
it on, ``.cpu()``, ``.item()`` and NumPy end it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Literal

__all__ = [
    "CPU",
    "DEVICE",
    "HOST",
    "MAYBE",
    "NUMPY",
    "OUTPUT",
    "UNKNOWN",
    "Kind",
    "Value",
    "placed",
]

Kind = Literal[
    "unknown", "host", "numpy", "tensor", "module", "optimizer", "loader", "list", "callable",
    "params", "clock", "dataset", "profiler",
]  # fmt: skip

CPU, MAYBE, DEVICE = 0, 1, 2
"""Where a tensor or module lives: on the host for sure, not known, on the device for sure."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What is known about one expression.

    ``grad`` : holds on to the autograd graph. ``scalar`` : one number. ``guess`` : a tensor by its
    name or position only. ``data`` : comes out of a loader, ``pinned`` if that loader pins (None:
    not known). ``made_by`` : the factory call that built it on the host. ``mask`` : what a
    comparison gave. ``readback`` : the call that copied it from the device. ``items`` : elements of
    a tuple, in order. ``of`` : the local class or function behind it.
    """

    kind: Kind = "unknown"
    device: int = MAYBE
    grad: bool = False
    scalar: bool = False
    guess: bool = False
    data: bool = False
    pinned: bool | None = None
    compiled: bool = False
    ddp: bool = False
    norm: bool = False
    mask: bool = False
    evaluated: bool = False
    made_by: ast.Call | None = None
    readback: ast.Call | None = None
    items: tuple[Value, ...] = ()
    of: str = ""

    @property
    def on_device(self) -> bool:
        """Whether it is a tensor that may live on a device."""
        return self.kind == "tensor" and self.device > CPU

    def but(self, **changes: object) -> Value:
        """Return the value with other fields."""
        return replace(self, **changes)  # type: ignore[arg-type]


OUTPUT = "output"
"""``Value.of`` of what a module gave: a tensor, or a tuple or record of them."""

UNKNOWN = Value()
HOST = Value("host", CPU)
NUMPY = Value("numpy", CPU)


def placed(values: list[Value]) -> tuple[int, bool]:
    """Return device and autograd history of what is computed from ``values``."""
    device, grad, seen = CPU, False, False
    for one in values:
        if one.kind == "tensor" or one.kind == "unknown":
            seen = True
            device = max(device, one.device)
            grad = grad or one.grad
        for item in one.items:
            if item.kind == "tensor":
                seen = True
                device = max(device, item.device)
                grad = grad or item.grad
    return (device if seen else MAYBE), grad
