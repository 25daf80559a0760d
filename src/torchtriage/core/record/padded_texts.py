"""In the script's process: how much of the texts that modules are given is padding in every row.

A text is a matrix of whole numbers that goes into an embedding, ``int[rows, positions]``. Its padding are the positions
at one end that hold the same number in all rows: with them cut off, the batch would be as long as its longest text.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from torchtriage.core.record.stacks import is_library, of_the_user
from torchtriage.core.record.torch_modes import is_watched

SHORTEST, LARGEST, MOST_LOOKS = 16, 1 << 20, 200
"""Positions from which on padding may matter; numbers of a text that are read at most, and texts."""
COMPILED = "OptimizedModule"


@dataclass
class PaddedTexts:
    """What a module was given from one line: of how many positions, in ``n_calls``, how many are padding."""

    file: str
    line: int
    function: str
    module: str
    n_calls: int = 0
    n_positions: int = 0
    n_padding: int = 0


class PaddingWatch:
    """Looks at the texts that modules are called with."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int, str], PaddedTexts] = {}
        self._reads_texts: dict[int, bool] = {}
        self._n_looks = 0

    def look(self, module: Any, given: Any, caller: FrameType | None) -> None:
        """Note the padding of a call, at the script's line that leads to ``caller``; ``given`` : its arguments."""
        torch: Any = sys.modules["torch"]
        try:
            if not self._wants_texts(module, torch):
                return
            texts = next((value for value in _tensors(given) if _is_text(value, torch)), None)
            if texts is None or self._n_looks >= MOST_LOOKS or is_watched(torch, texts.device.type):
                return
            self._n_looks += 1
            n_padding = _padding(texts)
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
        seen.n_positions += texts.shape[1]
        seen.n_padding += n_padding

    def _wants_texts(self, module: Any, torch: Any) -> bool:
        """Whether a module embeds numbers, and may be given texts of any length: a compiled one wants one size."""
        if id(module) not in self._reads_texts:
            parts = _parts(module)
            fixed = any(
                type(part).__name__ == COMPILED
                or isinstance(part, torch.jit.ScriptModule)
                or getattr(part, "_compiled_call_impl", None) is not None
                for part in parts
            )
            self._reads_texts[id(module)] = not fixed and any(isinstance(part, torch.nn.Embedding) for part in parts)
        return self._reads_texts[id(module)]

    def facts(self) -> list[dict[str, Any]]:
        """Return the lines whose texts hold padding, as JSON values."""
        return [asdict(seen) for seen in self._places.values() if seen.n_padding]


def _parts(module: Any) -> list[Any]:
    """Return a module and all below it, without asking code of the script's own."""
    parts, todo = {}, [module]
    while todo:
        part = todo.pop()
        if part is not None and id(part) not in parts:
            parts[id(part)] = part
            todo += (object.__getattribute__(part, "__dict__").get("_modules") or {}).values()
    return list(parts.values())


def _tensors(value: Any, depth: int = 2) -> list[Any]:
    """Return the tensors among arguments, those in lists and mappings as well."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value[:16] for tensor in _tensors(item, depth - 1)] if depth >= 0 else []
    return [value] if hasattr(value, "dtype") else []


def _is_text(tensor: Any, torch: Any) -> bool:
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda")
    return (
        plain
        and tensor.dtype in (torch.int32, torch.int64)
        and tensor.dim() == 2
        and tensor.shape[0] > 1
        and tensor.shape[1] >= SHORTEST
        and tensor.numel() <= LARGEST
    )


def _padding(texts: Any) -> int:
    """Return how many positions at one end hold one number in all rows; 0 where that is all of them."""
    numbers = texts.detach().cpu().numpy()
    first, last = ((numbers == numbers[0, at]).all(axis=0) for at in (0, -1))
    return int(max(first.argmin(), last[::-1].argmin()))
