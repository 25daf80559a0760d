"""Values as the page of a trace holds them: short, visible and finite."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from torchtriage.core.finding import Cost, Frame
from torchtriage.core.names import visible

__all__ = ["clean", "clip", "cost", "counts", "finite", "frame", "value_of", "web_link"]


def clean(value: object, limit: int, *, lines: bool = False) -> str:
    """Return a name fit to print: nothing invisible, one line unless ``lines``, not too long."""
    # cut before and after cleaning: neither a 10 MB name nor its escapes reach the page
    text = clip(str(value), limit)
    clean = "\n".join(map(visible, text.splitlines())) if lines else visible(text)
    return clip(clean, limit)


def clip(text: str, limit: int) -> str:
    """Return the beginning of a text that is too long."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cost(cost: Cost | None) -> dict[str, Any] | None:
    """Return a saving."""
    if cost is None:
        return None
    return {
        "lowMs": finite(cost.low_ms),
        "highMs": finite(cost.high_ms),
        "per": cost.per,
        "ofMs": finite(cost.of_ms),
        "shareLow": finite(cost.share_low),
        "shareHigh": finite(cost.share_high),
        "naiveMs": finite(cost.naive_ms),
        "basis": cost.basis,
        "method": clean(cost.method, 300),
        "grade": cost.grade,
    }


def finite(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return value if math.isfinite(value) else None


def frame(frame: Frame) -> dict[str, Any]:
    """Return a frame of a stack."""
    return {
        "file": clean(frame.file, 400),
        "line": frame.line,
        "function": clean(frame.function, 200),
        "exact": frame.exact,
        "lines": list(frame.lines),
    }


def counts(counts: Mapping[str, int]) -> list[list[Any]]:
    """Return the most frequent names and their counts."""
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:40]
    return [[clean(name, 60), count] for name, count in rows]


def value_of(value: Any) -> Any:
    """Return a piece of evidence: a list becomes its first values and its length."""
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        value = value.tolist()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        pairs = [[clean(k, 60), _flat(v)] for k, v in list(value.items())[:12]]
        return {"pairs": pairs, "n": len(value)}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else list(value)
        return {"first": [_flat(item) for item in items[:12]], "n": len(items)}
    return clean(value, 300)


def _flat(value: Any) -> Any:
    plain = value_of(value)
    return clean(json.dumps(value, default=str), 200) if isinstance(plain, dict) else plain


def web_link(link: str) -> str:
    """Return a link that opens a page, else nothing."""
    return clean(link, 500) if re.match(r"https?://[^\s]+$", link) else ""
