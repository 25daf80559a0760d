"""In the script's process: operators that compute again what was computed before, from equal values.

Each value gets a number: what made it, from which values and settings. Two operators with the same number have the same
result, whatever they are called with (global value numbering: Click, PLDI 1995). Numbers of two steps are compared, and
those within a step. What comes from outside is known by its storage and by what it holds; random numbers are new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

WHOLE, SAMPLED = 1 << 18, 4096
"""Bytes of what comes from outside that are compared in full; of more, so many of them."""
SAME_DATA = 0.9
"""Of the time of operators: where so much is as in the step before, the data are."""
AGAIN, WITHIN, LEAST, MOST_LINES = 0.5, 0.3, 0.01, 20
"""What part of a line's operators must repeat those of the step before, and those of the same step, the first among
them; and of all operators' time."""
Line: TypeAlias = tuple[str, int, str]


@dataclass
class RepeatedLine:
    """A line's operators; ``ns`` : of all, ``again_ns`` : with results of the step before, ``within_ns`` : of the same.

    ``needs_grad`` : whether gradients go back through them.
    """

    file: str
    line: int
    function: str
    ns: int = 0
    again_ns: int = 0
    within_ns: int = 0
    needs_grad: bool = False


class ValueNumbers:
    """Numbers what operators make, from step to step."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        # a weak reference keeps its number from being another storage's
        self._storages: dict[int, StorageWeakRef] = {}
        self._outside: set[int] = set()
        self._before: set[int] = set()
        self._now: set[int] = set()
        self._lines: dict[Line, RepeatedLine] = {}
        # by storage: lines, and what counts there as repeated, as long as nothing new is written into it
        self._kept: dict[int, list[tuple[RepeatedLine, int, int]]] = {}
        self._new = count()

    def step(self) -> None:
        """Say that a step has ended and the next begins."""
        self._before, self._now = self._now, set()
        self._lines, self._kept = {}, {}
        for key in self._outside:  # may have been changed by what is not seen
            del self._of[key]
        self._outside = set()

    def note(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        made: Sequence[torch.Tensor],
        changed: Sequence[torch.Tensor],
    ) -> int:
        """Return the number of what an operator computes; ``made``, ``changed`` : new tensors, and given ones."""
        name = func.name()
        number = hash((name, self._hashed(args), self._hashed(tuple(sorted(kwargs.items())))))
        if _is_random(func, args):
            number = hash(("new", next(self._new)))
        for at, tensor in enumerate(made):
            if tensor.layout is torch.strided:
                self._set(tensor, hash((number, at)))
        for at, tensor in enumerate(changed):
            if tensor.layout is not torch.strided:
                continue
            place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
            self._set(tensor, hash((number, self._number(tensor), at, place)))
        return number

    def count(self, number: int, line: Line, ns: int, written: Sequence[torch.Tensor], *, needs_grad: bool) -> None:
        """Count an operator of the forward pass; ``written`` : what it made or changed.

        Where something new is written into a result, it has to be made again: a table that is filled in each step.
        """
        row = self._lines.get(line)
        if row is None:
            row = self._lines[line] = RepeatedLine(*line)
        again_ns, within_ns = ns * (number in self._before), ns * (number in self._now)
        row.ns += ns
        row.needs_grad |= needs_grad
        row.again_ns += again_ns
        row.within_ns += within_ns
        self._now.add(number)
        for key in {item.untyped_storage()._cdata for item in written if item.layout is torch.strided}:
            if again_ns or within_ns:
                self._kept.setdefault(key, []).append((row, again_ns, within_ns))
            else:
                for other, again, within in self._kept.pop(key, ()):
                    other.again_ns -= again
                    other.within_ns -= within

    def facts(self) -> list[dict[str, Any]]:
        """Return the lines that repeat most of their work, the longest first, as JSON values."""
        rows = list(self._lines.values())
        total = sum(row.ns for row in rows)
        if sum(row.again_ns for row in rows) > SAME_DATA * total:
            for row in rows:
                row.again_ns = 0
        repeating = [
            row
            for row in rows
            if max(row.again_ns, row.within_ns) > LEAST * total
            and (row.again_ns > AGAIN * row.ns or row.within_ns > WITHIN * row.ns)
        ]
        return [asdict(row) for row in sorted(repeating, key=lambda row: -row.ns)[:MOST_LINES]]

    def _set(self, tensor: torch.Tensor, number: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = StorageWeakRef(storage)
        self._of[key] = number
        self._outside.discard(key)

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._of:
            if key not in self._storages:
                self._storages[key] = StorageWeakRef(storage)
            self._of[key] = self._from_outside(tensor, storage)
            self._outside.add(key)
        return self._of[key]

    def _from_outside(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> int:
        """Return the number of what no operator has made: by what it holds, if it is large by its storage, too."""
        if tensor.device.type != "cpu" or not storage.nbytes():
            return hash(("outside", storage._cdata, _version(tensor)))
        held = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        if len(held) <= WHOLE:
            return hash(held.numpy().tobytes())
        return hash((storage._cdata, held[:: (len(held) // SAMPLED) | 1].numpy().tobytes(), _version(tensor)))

    def _hashed(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            if given.layout is not torch.strided:
                return "new", next(self._new)
            place = tuple(given.shape), given.stride(), given.storage_offset(), given.dtype
            return self._number(given), place, given.is_conj(), given.is_neg()
        if isinstance(given, (list, tuple)):
            return tuple(map(self._hashed, given))
        return given if isinstance(given, (int, float, bool, str, complex, type(None))) else repr(given)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _is_random(func: Any, args: Sequence[Any]) -> bool:
    """Return whether an operator draws random numbers, or is none of torch's own; attention without dropout is not."""
    if func.namespace != "aten":
        return True
    name = func.overloadpacket.__name__
    if name.startswith("_scaled_dot_product"):
        return any(isinstance(item, float) and item > 0 for item in args[3:4])
    return torch.Tag.nondeterministic_seeded in func.tags or name in ("set_", "resize_")


def changed_by(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operator is given and changes."""
    for at, given in enumerate(func._schema.arguments):
        if given.alias_info is not None and given.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(given.name)
            yield from value if isinstance(value, (list, tuple)) else [value] if value is not None else []
