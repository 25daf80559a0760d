"""In the script's process: how much of the texts that modules are given is padding in every row.

A text is a matrix of whole numbers, ``int[rows, positions]``, that is given to a module with an embedding; flags and
masks, of numbers up to 2, are none. Its padding are the positions at one end that hold the same number in all rows:
with them cut off, the batch would be as long as its longest text. What else may stand at an end of all rows (a prefix,
an image) is for the source to tell.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from torchtriage.core.record.stacks import is_library, of_the_user
from torchtriage.core.record.torch_modes import is_watched

SHORTEST, LARGEST, MOST_LOOKS = 16, 1 << 20, 200
"""Positions from which on padding may matter; numbers of a text that are read at most, and texts."""
FLAGS = 2
"""The largest number in a mask, a segment or a flag."""


@dataclass
class PaddedTexts:
    """What a module was given from one line: of how many positions, in ``n_calls``, how many are padding.

    ``trains`` : whether gradients go to parameters of the module.
    """

    file: str
    line: int
    function: str
    module: str
    n_calls: int = 0
    n_positions: int = 0
    n_padding: int = 0
    trains: bool = False


class PaddingWatch:
    """Looks at the texts that modules are called with."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int, str], PaddedTexts] = {}
        self._reads_texts: dict[int, tuple[weakref.ref[Any], bool]] = {}
        self._n_looks = 0

    def look(self, module: Any, given: Any, caller: FrameType | None) -> None:
        """Note the padding of a call, at the script's line that leads to ``caller``; ``given`` : its arguments."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return
        try:
            if not self._wants_texts(module, torch):
                return
            matrices = [value for value in _tensors(given, torch) if _is_matrix(value, torch)]
            if not matrices or self._n_looks >= MOST_LOOKS or is_watched(torch, matrices[0].device.type):
                return
            self._n_looks += 1
            all_numbers = (matrix.detach().cpu().numpy() for matrix in matrices)
            numbers = next((numbers for numbers in all_numbers if numbers.max() > FLAGS), None)
            if numbers is None:
                return
            trains = torch.is_grad_enabled() and any(
                parameter is not None and parameter.requires_grad
                for part in _parts(module)
                for parameter in (_own(part).get("_parameters") or {}).values()
            )
        except Exception as error:  # anything may refuse to be read
            if of_the_user(error):
                raise
            return
        while caller is not None and is_library(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is None:
            return
        name = type(module).__name__
        place = caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name
        seen = self._places.setdefault((*place[:2], name), PaddedTexts(*place, name))
        seen.n_calls += 1
        seen.n_positions += numbers.shape[1]
        seen.n_padding += _padding(numbers)
        seen.trains |= trains

    def _wants_texts(self, module: Any, torch: Any) -> bool:
        """Whether a module embeds numbers, and works on each of their positions."""
        known, wants = self._reads_texts.get(id(module), (None, False))
        if known is None or known() is not module:
            kinds = [type(part) for part in _parts(module)]
            wants = any(issubclass(kind, torch.nn.Embedding) for kind in kinds)
            wants &= not any(issubclass(kind, torch.nn.RNNBase) for kind in kinds)  # packed, they skip padding
            self._reads_texts[id(module)] = weakref.ref(module), wants
        return wants

    def facts(self) -> list[dict[str, Any]]:
        """Return the lines whose texts hold padding, as JSON values."""
        return [asdict(seen) for seen in self._places.values() if seen.n_padding]


def _own(value: Any) -> dict[str, Any]:
    """Return what an object holds, without asking code of the script's own."""
    held: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return held


def _parts(module: Any) -> list[Any]:
    """Return a module and all below it."""
    parts, todo = {}, [module]
    while todo:
        part = todo.pop()
        if part is not None and id(part) not in parts:
            parts[id(part)] = part
            todo += (_own(part).get("_modules") or {}).values()
    return list(parts.values())


def _tensors(value: Any, torch: Any, depth: int = 2) -> list[Any]:
    """Return the tensors among arguments, those in lists and dictionaries as well."""
    if type(value) is torch.Tensor:
        return [value]
    items = list(value.values()) if type(value) is dict else value
    if depth < 0 or type(items) not in (list, tuple):
        return []
    return [tensor for item in items[:16] for tensor in _tensors(item, torch, depth - 1)]


def _is_matrix(tensor: Any, torch: Any) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda")
    return (
        plain
        and tensor.dtype in (torch.int32, torch.int64)
        and tensor.dim() == 2
        and tensor.shape[0] > 1
        and tensor.shape[1] >= SHORTEST
        and tensor.numel() <= LARGEST
    )


def _padding(numbers: Any) -> int:
    """Return how many positions at one end hold one number in all rows; 0 where that is all of them."""
    first, last = ((numbers == numbers[0, at]).all(axis=0) for at in (0, -1))
    return int(max(first.argmin(), last[::-1].argmin()))
