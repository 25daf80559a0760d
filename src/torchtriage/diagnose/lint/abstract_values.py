"""What an expression is, as far as its source shows: a tensor and where it lives, or a module.

A :class:`Value` is a guess that only gets weaker: what is not known is ``UNKNOWN``, and rules speak
about what is known. ``device`` is the taint: results of modules and of work on device tensors carry
it on, ``.cpu()``, ``.item()`` and NumPy end it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torchtriage.diagnose.lint.facts import SourceFunction

Kind = Literal[
    "unknown",
    "host",
    "numpy",
    "tensor",
    "module",
    "optimizer",
    "loader",
    "list",
    "callable",
    "object",
    "params",
    "clock",
    "dataset",
    "profiler",
]

CPU, MAYBE, DEVICE = 0, 1, 2
"""Where a tensor or module lives: on the host for sure, not known, on the device for sure."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What is known about one expression.

    ``grad`` : holds on to the autograd graph. ``scalar`` : one number. ``guess`` : a tensor by its
    name or position only. ``data`` : comes out of a loader, ``pinned`` if that loader pins (None:
    not known). ``made_by`` : the factory call that built it on the host, or that made the loader.
    ``mask`` : what a comparison gave. ``readback`` : the call that copied it from the device. ``items`` : elements of
    a tuple, in order; of an object or callable, what it may be. ``of`` : the local class or function
    behind it. ``calls`` : functions of the file that run when it is called, or iterated.
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
    calls: tuple[SourceFunction, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether it is a tensor that may live on a device."""
        return self.kind == "tensor" and self.device > CPU

    @property
    def known_on_device(self) -> bool:
        """Whether more than its name or its place says so."""
        return self.on_device and not self.guess

    def but(self, **changes: object) -> Value:
        """Return the value with other fields."""
        return replace(self, **changes)  # type: ignore[arg-type]


OUTPUT = "output"
"""``Value.of`` of what a module gave: a tensor, or a tuple or record of them."""

NO_GRAD = "no_grad"
"""``Value.of`` of a context manager that switches autograd off."""

UNKNOWN = Value()
HOST = Value("host", CPU)
NUMPY = Value("numpy", CPU)
MAYBE_TENSOR = Value("tensor", MAYBE)
GUESSED_TENSOR = Value("tensor", MAYBE, guess=True)
LOADED = Value("tensor", CPU, data=True)
A_MODULE = Value("module", MAYBE)
A_LOADER = Value("loader", CPU)
A_LIST = Value("list", CPU)
AN_OPTIMIZER = Value("optimizer", CPU)
PARAMETERS = Value("params", MAYBE)
A_PARAMETER = Value("tensor", MAYBE, of="parameter")
CLOCK_READ = Value("clock", CPU)
COMPARED = Value("unknown", mask=True)


def placed(values: list[Value]) -> tuple[int, bool]:
    """Return device and autograd history of what is computed from ``values``."""
    device, grad, seen = CPU, False, False
    for value in values:
        if value.kind == "tensor" or value.kind == "unknown":
            seen = True
            device = max(device, value.device)
            grad = grad or value.grad
        for item in value.items:
            if item.kind == "tensor":
                seen = True
                device = max(device, item.device)
                grad = grad or item.grad
    return (device if seen else MAYBE), grad


_RUN = frozenset(["object", "callable", "module"])


def common(items: tuple[Value, ...]) -> Value:
    """Return what all items are, where they are of one kind: the first stands for them."""
    kinds = {item.kind for item in items}
    if len(items) > 1 and kinds <= _RUN and (kinds - {"module"} or any(item.of for item in items)):
        # callbacks of several classes: each of them runs
        return (items[0] if len(kinds) == 1 else Value("object")).but(items=items)
    return items[0] if len(kinds) == 1 else UNKNOWN


def element(value: Value) -> Value:
    """Return one element of what is iterated."""
    if value.kind == "loader":
        if value.of == "enumerate":
            return value.items[1] if value.items else UNKNOWN
        return LOADED.but(pinned=value.pinned)
    if value.kind == "tensor":
        return value
    if value.kind == "params":
        return A_PARAMETER
    if value.kind == "module" and value.items:
        return common(value.items)
    if value.kind == "list" and value.items and not value.of:
        return common(value.items)
    return UNKNOWN


def together(left: Value, right: Value) -> Value:
    """Return what an operator gives on two operands."""
    if left.kind == "tensor" or right.kind == "tensor":
        tensors = [item for item in (left, right) if item.kind == "tensor"]
        device, grad = placed(tensors)
        others = [item for item in (left, right) if item.kind not in ("tensor", "host", "numpy")]
        return Value(
            "tensor",
            device,
            grad=grad,
            scalar=all(tensor.scalar for tensor in tensors) and not others,
            guess=all(tensor.guess for tensor in tensors),
            data=all(tensor.data for tensor in tensors),
            mask=left.mask and right.mask,
        )
    if left.kind == "clock" or right.kind == "clock":
        return HOST
    if left.kind == "numpy" or right.kind == "numpy":
        return left if left.kind == "numpy" else right
    if left.kind == "list" or right.kind == "list":
        return A_LIST
    if left.kind == "host" and right.kind == "host":
        return HOST
    return UNKNOWN
