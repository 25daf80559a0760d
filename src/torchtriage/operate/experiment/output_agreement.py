"""Are two answers the same? Numbers, text, numpy arrays, torch tensors, and what holds them.

Torch is looked at only where the process has imported it.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEEPEST = 50  # levels of nesting; a structure that holds itself has no end
HUGE, SCALED = 2.0**900, 2.0**-200  # norms of larger numbers would overflow: from such a place on, all are scaled down


@dataclass(frozen=True)
class Agreement:
    """How far two answers are apart.

    ``reason`` : why they do not agree, with the place in the answer, empty where they do.
    ``largest`` : the largest absolute difference of numbers; None where none could be compared.
    ``relative`` : the difference of all numbers over their size (Euclidean norms).
    ``n_nan`` : NaN and infinities of the candidate where the control has a number.
    """

    reason: str
    largest: float | None = None
    relative: float | None = None
    n_nan: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the answers are the same within what is allowed."""
        return not self.reason


def agreement(control: Any, candidate: Any, *, relative: float = 1e-3, absolute: float = 1e-6) -> Agreement:
    """Return how far a candidate's answer is from the control's; the reason is of the first place that is unlike.

    ``control``, ``candidate`` : numbers, text, arrays, tensors; mappings, sequences, dataclasses and objects
    with attributes that hold them, of any depth.
    ``relative``, ``absolute`` : arrays agree where the norm of their difference is at most
    ``absolute sqrt(n) + relative norm(control)``: lower precision moves each element a little, and near
    zero by more than a share of itself. Integers, text and truth values must be equal.
    """
    largest, error, size, n_nan, compared, reason = 0.0, 0.0, 0.0, 0, False, ""
    scale = 1.0
    for place, item, other in _pairs(control, candidate, "", 0):
        where = f" at {place}" if place else ""
        if isinstance(other, str):
            reason = reason or f"{other}{where}"
            continue
        if item.shape != other.shape:
            reason = reason or f"shape {item.shape} became {other.shape}{where}"
            continue
        if item.dtype.kind not in "fc" and other.dtype.kind not in "fc":
            n_apart = int((item != other).sum())
            if n_apart:
                reason = reason or f"{n_apart} of {item.size} values differ{where}"
            continue
        with np.errstate(all="ignore"):
            a, b = item.astype(np.complex128), other.astype(np.complex128)
            fine, fine_b = np.isfinite(a), np.isfinite(b)
            lost = int((fine & ~fine_b).sum())
            same = fine & fine_b
            numbers, others = a[same], b[same]
            if scale == 1.0 and max(np.abs(x).max(initial=0.0) for x in (numbers, others)) > HUGE:
                scale, error, size = SCALED, error * SCALED, size * SCALED
            apart = np.abs(numbers * scale - others * scale)
            norm, norm_apart = _norm(np.abs(numbers * scale)), _norm(apart)
        n_nan += lost
        compared = compared or bool(same.any())
        if apart.size:
            largest = max(largest, min(float(apart.max()) / scale, sys.float_info.max))
        error, size = math.hypot(error, norm_apart), math.hypot(size, norm)
        if lost:
            reason = reason or f"{lost} of {item.size} values became NaN or infinite{where}"
        elif (~fine & ((a != b) & ~(np.isnan(a) & np.isnan(b)))).any():
            reason = reason or f"infinities or NaN differ{where}"
        elif not norm_apart <= scale * absolute * math.sqrt(max(item.size, 1)) + relative * norm:
            apart_text = f"{100 * norm_apart / norm:.3g} %" if norm else f"{norm_apart / scale:.3g}"
            reason = reason or f"values differ by {apart_text}{where}"
    return Agreement(
        reason=reason,
        largest=largest if compared else None,
        relative=(error / size if size else math.inf if error else 0.0) if compared else None,
        n_nan=n_nan,
    )


def _norm(sizes: NDArray[np.float64]) -> float:
    top = float(sizes.max(initial=0.0))
    return top * float(np.sqrt(((sizes / top) ** 2).sum())) if top else 0.0


def _pairs(control: Any, candidate: Any, place: str, depth: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield each place of an answer with both arrays there, or None and why they are unlike."""
    array, other = _array(control), _array(candidate)
    if array is not None and other is not None:
        yield place, array, other
        return
    parts, other_parts = _parts(control), _parts(candidate)
    if (array is None) != (other is None) or (parts is None) != (other_parts is None):
        yield place, None, f"{type(control).__name__} became {type(candidate).__name__}"
    elif parts is None or other_parts is None:
        if not _equal(control, candidate):
            yield place, None, f"{_short(control)} became {_short(candidate)}"
    elif depth >= DEEPEST:
        yield place, None, f"nested deeper than {DEEPEST} levels"
    elif parts.keys() != other_parts.keys():
        gone, new = (sorted(map(str, a.keys() - b.keys())) for a, b in ((parts, other_parts), (other_parts, parts)))
        changes = [f"without {', '.join(gone[:3])}"] if gone else []
        changes += [f"with {', '.join(new[:3])} added"] if new else []
        if isinstance(control, list | tuple):
            changes = [f"{len(parts)} elements became {len(other_parts)}"]
        yield place, None, " and ".join(changes)
    else:
        for key, value in parts.items():
            if isinstance(key, int):
                inside = f"{place}[{key}]"
            else:
                inside = f"{place}.{key}" if place else str(key)
            yield from _pairs(value, other_parts[key], inside, depth + 1)


def _array(value: Any) -> NDArray[Any] | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.to(torch.float32)  # numpy has no bfloat16 and no 8-bit floats
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        return np.asarray(tensor.cpu())
    if isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):
            return None
        return array if array.dtype.kind in "biufc" else None
    return None


def _parts(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, np.ndarray | np.void) and value.dtype.names:
        return {name: value[name] for name in value.dtype.names}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object and value.ndim):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not isinstance(value, str | bytes) and getattr(type(value), "__dict__", None) is not None:
        if callable(value):
            return None
        return {**getattr(value, "__dict__", {}), **_slots(value)} or None
    return None


def _slots(value: Any) -> dict[str, Any]:
    # those that are set; none where the class says itself what is equal
    kinds = type(value).__mro__[:-1]  # without object
    if any("__eq__" in vars(kind) for kind in kinds):
        return {}
    slotted = [vars(kind) for kind in kinds if "__slots__" in vars(kind)]
    names = [name for own in slotted for name, member in own.items() if isinstance(member, MemberDescriptorType)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _equal(value: Any, other: Any) -> bool:
    try:
        if isinstance(value, np.ndarray | np.generic):
            return np.array_equal(value, other, equal_nan=value.dtype.kind in "mM")
        return bool(value is other or value == other)
    except Exception:
        # an answer's own comparison may do anything; what cannot be compared is not equal
        return False


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = type(value).__name__
    return text if len(text) <= 40 else f"{text[:39]}…"
