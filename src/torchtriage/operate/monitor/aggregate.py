"""One model's requests as counts and histograms of a size that does not grow."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

# upper bounds of the classic buckets: 10 us to 50 s
BOUNDS_S = tuple(float(f"{step}e{power}") for power in range(-5, 2) for step in (1, 2.5, 5))
# Of the fine buckets: each is 2.2 % wide (schema 5 of Prometheus' native histograms), so that a
# quantile taken in a bucket's middle is at most 1.1 % off.
STEPS_PER_DOUBLING = 32
MAX_ERRORS = 16  # kinds of errors kept apart per model; further ones are counted as ``other``
MAX_SIZES = 256  # distinct sizes counted per model; from there on the count stays
MAX_FIELDS = 16  # of the caller's own per request; further ones are left out
MAX_NUMBER = 2**60  # of nanoseconds 36 years; what is larger counts as that
MAX_FIELD = 200  # characters of one
OTHER = "other"


class RequestNote(NamedTuple):
    """What few requests have beside their duration; None is unknown."""

    error: str = ""
    queued_ns: int | None = None
    nan: bool | None = None
    fields: dict[str, Any] | None = None

    @property
    def failed(self) -> bool:
        """Whether there was no answer, or none of use."""
        return bool(self.error or self.nan)


RequestRow = tuple[int, int, "int | None", "RequestNote | None"]
"""``(start_ns, end_ns, size, note)`` on the clock of ``time.perf_counter_ns``."""


def plain(row: RequestRow) -> RequestRow:
    """Return the row with numbers and text alone, whatever the caller set (tensors, exceptions)."""
    start_ns, end_ns, size, note = row
    if note is not None:
        error: Any = note.error
        name = well_formed(error if isinstance(error, str) else error_name(error))
        fields = _converted(_plain_fields, note.fields)
        note = RequestNote(name, _converted(_bounded, note.queued_ns), _converted(bool, note.nan), fields)
    return start_ns, end_ns, _converted(_bounded, size), note


def _bounded(value: Any) -> int:
    return min(max(int(value), -MAX_NUMBER), MAX_NUMBER)


def _converted(kind: Callable[[Any], Any], value: Any) -> Any:
    try:
        return None if value is None else kind(value)
    except Exception:
        return None  # never the service's error


def _plain_fields(fields: dict[Any, Any]) -> dict[str, Any]:
    return {
        well_formed(str(name)[:MAX_FIELD]): _converted(_plain_field, value)
        for name, value in islice(fields.items(), MAX_FIELDS)
    }


def _plain_field(value: Any) -> Any:
    # what JSON has and no subclass of it: who cannot encode one record sends none; text is cut, for records stay small
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return well_formed(str(value)[:MAX_FIELD])


def well_formed(text: str) -> str:
    """Return text that UTF-8 can hold: halves of characters (bytes of a file's name that were none) become ``?``."""
    return text.encode("utf-8", "replace").decode()


def error_name(error: object) -> str:
    """Return the name of an exception, or of a class of them."""
    return (error if isinstance(error, type) else type(error)).__name__


class Histogram:
    """Durations in classic buckets (for Prometheus) and in fine ones (for quantiles)."""

    __slots__ = ("classic", "count", "fine", "sum_ns")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ns = 0
        self.classic = [0] * (len(BOUNDS_S) + 1)
        self.fine: dict[int, int] = {}

    def add(self, dur_ns: int) -> None:
        """Count one duration; a negative one (a clock that jumped) counts as zero."""
        dur_ns = max(dur_ns, 0)
        self.count += 1
        self.sum_ns += dur_ns
        self.classic[bisect_left(BOUNDS_S, dur_ns * 1e-9)] += 1
        at = math.ceil(math.log2(dur_ns or 1) * STEPS_PER_DOUBLING)
        self.fine[at] = self.fine.get(at, 0) + 1

    def quantile_s(self, share: float) -> float:
        """Return the quantile in seconds, NaN of no durations."""
        wanted, total = share * self.count, 0
        for at in sorted(self.fine):
            total += self.fine[at]
            if total >= wanted:
                return float(2 ** ((at - 0.5) / STEPS_PER_DOUBLING)) * 1e-9
        return math.nan

    def state(self) -> dict[str, Any]:
        """Return what :meth:`include` takes, as JSON's types."""
        fine = {str(at): n for at, n in self.fine.items()}
        return {"count": self.count, "sum_ns": self.sum_ns, "classic": list(self.classic), "fine": fine}

    def include(self, state: dict[str, Any]) -> None:
        """Add another histogram's state."""
        self.count += state["count"]
        self.sum_ns += state["sum_ns"]
        self.classic = [a + b for a, b in zip(self.classic, state["classic"], strict=True)]
        for at, n in state["fine"].items():
            self.fine[int(at)] = self.fine.get(int(at), 0) + n


class Aggregate:
    """One model's requests in numbers. Only the monitor's thread adds to it."""

    __slots__ = ("begun_by_ended", "dropped", "durations", "errors", "finished", "n_nan", "queued", "sizes")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.durations = Histogram()
        self.queued = Histogram()
        self.errors: dict[str, int] = {}
        self.n_nan: int | None = None  # None until a caller says whether an output held NaN
        self.sizes: set[int] = set()
        self.finished = 0  # requests that were added; with the dropped and the pending ones, all that ended
        self.dropped = 0
        self.begun_by_ended = 0  # both of threads that have ended

    def add(self, rows: Iterable[RequestRow]) -> None:
        """Add finished requests."""
        add, sizes = self.durations.add, self.sizes
        for start_ns, end_ns, size, note in rows:
            self.finished += 1
            if size is not None and len(sizes) < MAX_SIZES:
                sizes.add(size)
            if note is not None:
                if note.queued_ns is not None:
                    self.queued.add(note.queued_ns)
                if note.nan is not None:
                    self.n_nan = (self.n_nan or 0) + note.nan
                if note.error:
                    self.fail(note.error)
                    continue  # how long a failure took says nothing about the model's speed
            add(end_ns - start_ns)

    def fail(self, kind: str, n: int = 1) -> None:
        """Count errors of a kind."""
        if kind not in self.errors and len(self.errors) >= MAX_ERRORS:
            kind = OTHER
        self.errors[kind] = self.errors.get(kind, 0) + n

    def state(self) -> dict[str, Any]:
        """Return what :meth:`include` takes, as JSON's types."""
        return {
            "durations": self.durations.state(),
            "queued": self.queued.state(),
            "errors": dict(self.errors),
            "n_nan": self.n_nan,
            "sizes": sorted(self.sizes),
            "finished": self.finished,
            "dropped": self.dropped,
        }

    def include(self, state: dict[str, Any]) -> None:
        """Add the state of another process' aggregate."""
        self.durations.include(state["durations"])
        self.queued.include(state["queued"])
        for kind, n in state["errors"].items():
            self.fail(kind, n)
        if state["n_nan"] is not None:
            self.n_nan = (self.n_nan or 0) + state["n_nan"]
        self.sizes = set(sorted(self.sizes | set(state["sizes"]))[:MAX_SIZES])
        self.finished += state["finished"]
        self.dropped += state["dropped"]
