"""What the newest items of a growing container keep alive that older ones do not.

A view weighs its base: ten numbers of a slice keep the whole array. What older items refer to as well, a shared
recording or the model behind a callback, is there anyway, and each storage and each object counts once.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

NEWEST, OLDER = 4, 4
"""Items that are weighed, and those before them, and the first ones, whose objects do not count."""
MAX_OBJECTS = 100
"""That are looked at behind one item."""
MANY = 50
"""Of a plain container among them."""
MAX_NUMBERS = 32
"""In an item of a log: a dict of metrics, a row. What has more is data."""
LONG_TEXT = 200
BLOCK = 16
"""Bytes that Python's heap gives at least, and multiples of them."""
WEAK_REFERENCE = 80
_NUMBERS = (int, float, complex, bool, type(None))
_SHARED = (type, ModuleType, CodeType, BuiltinFunctionType)


@dataclass(frozen=True)
class ItemWeight:
    """One more item: bytes and blocks that it keeps alive, whether it is a log, whether it has a graph, its type."""

    size: float = 0.0
    n_objects: float = 0.0
    log: bool = True
    graph: bool = False
    what: str = ""


def weigh_newest(container: Any) -> ItemWeight:
    """Return the mean of the newest items of a list, dict, set, deque or ``lru_cache``."""
    if hasattr(container, "cache_info"):
        # the calls of a C cache, by key
        container = next(
            (referent for referent in gc.get_referents(container) if type(referent) is dict and referent), {}
        )
        return ItemWeight(**{**vars(weigh_newest(container)), "log": False})
    newest, older = _ends(container)
    if not newest:
        return ItemWeight()
    seen = _Seen()
    for item in older:
        seen.add(item)
    base_size, base_objects = seen.size, seen.n_objects
    seen.log, seen.graph = True, False
    for item in newest:
        seen.add(item)
    last = newest[0][1] if isinstance(container, dict) else newest[0]
    # the place in the container itself, its free ones included
    place = sys.getsizeof(container, 0) / max(len(container), 1)
    return ItemWeight(
        (seen.size - base_size) / len(newest) + place,
        (seen.n_objects - base_objects) / len(newest),
        seen.log,
        seen.graph,
        type(last).__name__,
    )


def _ends(container: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(container, dict):
        backwards, forwards = reversed(container.items()), iter(container.items())
    elif isinstance(container, (list, deque)):
        backwards, forwards = reversed(container), iter(container)
    else:  # a set has no order
        backwards, forwards = iter(container), iter(())
    last = list(islice(backwards, NEWEST + OLDER))
    first = list(islice(forwards, min(OLDER, max(len(container) - len(last), 0))))
    return last[:NEWEST], last[NEWEST:] + first


class _Seen:
    """What was met so far, counted once."""

    def __init__(self) -> None:
        self.size, self.n_objects, self.log, self.graph = 0.0, 0, True, False
        self._ids: dict[int, Any] = {}  # held while it lasts, so that no id is another's
        self._storages: set[int] = set()

    def add(self, item: Any) -> None:
        tensor = getattr(sys.modules.get("torch"), "Tensor", ())
        todo, n_numbers = deque([item]), 0
        left = MAX_OBJECTS
        while todo and left:
            thing = todo.popleft()
            if isinstance(thing, _NUMBERS):
                n_numbers += 1
            if id(thing) in self._ids:
                # a log of the very same numbers is a log
                continue
            self._ids[id(thing)] = thing
            left -= 1
            if isinstance(thing, _SHARED):
                continue
            if isinstance(thing, tensor):
                self._tensor(thing)
                continue
            self.n_objects += 1
            self.size += -(-sys.getsizeof(thing, 0) // BLOCK) * BLOCK
            if isinstance(thing, (str, bytes)):
                self.log = self.log and len(thing) <= LONG_TEXT and isinstance(thing, str)
            elif type(thing) in (dict, list, tuple, set, deque):
                self.n_objects += type(thing) is not tuple  # their places are a block of their own
                n_numbers += max(len(thing) - MANY, 0)
                todo += islice(thing.values(), MANY) if isinstance(thing, dict) else islice(thing, MANY)
                if isinstance(thing, dict):
                    todo += islice(thing.keys(), MANY)
            elif not isinstance(thing, _NUMBERS):
                self.log = False
                base = _base(thing)
                if base is None:
                    referents = _referents(thing)
                    todo += referents
                    # attributes without a dict of their own have their places, and each weak reference is an object
                    if type(thing).__dictoffset__:
                        self.size += 8 * len(referents)
                        self.n_objects += 1
                    self.size += WEAK_REFERENCE * weakref.getweakrefcount(thing)
                elif isinstance(base, tensor):
                    self._tensor(base)
                else:
                    self._storage(*base)
        self.log = self.log and n_numbers <= MAX_NUMBERS

    def _tensor(self, tensor: Any) -> None:
        self.graph = self.graph or tensor.grad_fn is not None
        # a scalar off the graph is a number
        self.log = self.log and tensor.numel() <= 1 and tensor.grad_fn is None
        self.n_objects += 1
        with suppress(Exception):  # meta, fake, sparse
            storage = tensor.untyped_storage()
            self._storage(storage.data_ptr() or storage._cdata, storage.nbytes())

    def _storage(self, address: int, size: int) -> None:
        if address not in self._storages:
            self._storages.add(address)
            self.size += size


def _base(thing: Any) -> Any:
    """Return a tensor, or address and bytes, of what an array or a view of bytes keeps alive; None for others."""
    # arrays of arrays, of tensors, of bytes, mapped files
    while True:
        under = thing.obj if type(thing) is memoryview else getattr(thing, "base", None) if _is_array(thing) else None
        if under is None:
            break
        if not _is_array(under) and type(under) not in (memoryview, bytes, bytearray):
            if hasattr(under, "untyped_storage"):
                return under
            break
        thing = under
    if _is_array(thing):
        return thing.__array_interface__["data"][0], thing.nbytes
    return (id(thing), len(thing)) if type(thing) in (bytes, bytearray) else None


def _is_array(thing: Any) -> bool:
    return type(thing).__module__ == "numpy" and hasattr(thing, "__array_interface__") and hasattr(thing, "base")


def _referents(thing: Any) -> list[Any]:
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _bound(cell)]
        return [*cells, *(thing.__defaults__ or ()), *vars(thing).values()]
    # a module's names are there anyway
    return [
        referent
        for referent in islice(gc.get_referents(thing), MANY)
        if type(referent) is not dict or "__builtins__" not in referent
    ]


def _bound(cell: Any) -> bool:
    with suppress(ValueError):
        return cell.cell_contents is not None
    return False
