"""The plan a module follows: made from the sizes that come, changed when they drift."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torchtriage.compile.bucketing.drift import Revision, revise
from torchtriage.compile.bucketing.planning import BucketPlan, Work, plan
from torchtriage.core.errors import UsageError

LEARN = 256
"""Requests after which ``"auto"`` plans: its padding is then some 3 to 9 % above the least for uniform sizes
(measured, docs/bucketing-measured.md)."""
REVIEW = 100
"""Requests between looks at the window."""
WINDOW = 1000
"""The latest requests, by which a change of plan is decided."""
HORIZON = 1_000_000
"""Requests over which a compilation is to pay."""
MIN_GAIN = 0.02
COMPILE_S, REQUEST_S, FALLBACK = 10.0, 0.01, 2.0
"""Assumed until measured: a compilation, a request, a request without a bucket over one with."""
MIN_FALLBACK = 1.25
"""Who compiles expects it to pay; a measurement on a busy machine may say less."""

Sizes = tuple[int, ...]


class Planner:
    """Keeps the latest sizes, and a plan for them; safe to use from several threads.

    ``axes`` : what varies. ``plan`` : buckets that the user gave; None for ``"auto"``, which alone changes its
    plan. ``max_buckets``, ``multiple_of``, ``work`` : as in :func:`torchtriage.compile.bucketing.plan`.
    """

    def __init__(
        self,
        axes: Sequence[str],
        plan: BucketPlan | None,
        *,
        max_buckets: int = 8,
        multiple_of: int = 1,
        work: Work = np.asarray,
    ) -> None:
        self.axes = tuple(axes)
        self.plan = plan
        self.auto = plan is None
        self.n_replans = 0
        self.compile_s: list[float] = []
        """Of each compilation."""
        self.eager_s: list[float] = []
        self.graph_s: list[float] = []
        """Seconds for each unit of work, by the model itself and by a compiled graph."""
        self._max_buckets, self._multiple_of, self._work = max_buckets, multiple_of, work
        self._history: deque[Sizes] = deque(maxlen=WINDOW)
        self._since_review = 0
        self._lock = threading.Lock()

    @property
    def history(self) -> list[Sizes]:
        """The latest sizes, oldest first."""
        with self._lock:
            return list(self._history)

    def observe(self, sizes: Mapping[str, int]) -> bool:
        """Remember a request's sizes; return whether :meth:`review` is due."""
        if len(sizes) < len(self.axes) or min(sizes.values()) < 1:
            return False
        with self._lock:
            self._history.append(tuple(sizes[axis] for axis in self.axes))
            self._since_review += 1
            due = self.auto and self._since_review >= (LEARN if self.plan is None else REVIEW)
            if due:
                self._since_review = 0
            return due

    def extend(self, history: Sequence[Sizes]) -> None:
        """Remember sizes of earlier requests; of more than are kept, some from everywhere: they may be sorted."""
        n = min(len(history), WINDOW)
        with self._lock:
            self._history.extend(history[at * len(history) // n] for at in range(n))

    def make(self, sizes: Mapping[str, Any] | None = None) -> BucketPlan:
        """Plan anew, from these sizes (of each axis) or from those seen; return the plan."""
        history = self.history
        if sizes is None:
            if not history:
                raise UsageError(
                    'no sizes were seen yet, and buckets="auto" plans from them',
                    hint="precompile(sizes=[...]) with the size of each request",
                )
            sizes = dict(zip(self.axes, map(list, zip(*history, strict=True)), strict=True))
        compile_cost, fallback = self._costs(len(next(iter(sizes.values()))))
        self.plan = plan(
            sizes,
            max_buckets=self._max_buckets,
            compile_cost=compile_cost,
            multiple_of=self._multiple_of,
            work=self._work,
            fallback=fallback if len(self.axes) == 1 else None,
        )
        return self.plan

    def review(self) -> bool:
        """Make the first plan, or change it where sizes have drifted; return whether it is new.

        At most two sizes are added, to one axis. Of several axes the one is changed that gains most with the others
        held.
        """
        if self.plan is None:
            self.make()
            return True
        history = self.history
        compile_cost, fallback = self._costs(len(history))
        now = self.plan.buckets
        best: tuple[float, str, Revision | None] = (0.0, "", None)
        for at, (axis, buckets) in enumerate(now.items()):
            others = {other: sizes for other, sizes in now.items() if other != axis}
            n_others = math.prod(map(len, others.values()))
            change = revise(
                buckets,
                [sizes[at] for sizes in history],
                weights=np.array([self._work_padded(others, sizes) for sizes in history]),
                max_buckets=max(len(buckets), self._max_buckets // n_others),
                max_new=2 if not others else 1,
                compile_cost=compile_cost * n_others,
                min_gain=MIN_GAIN,
                multiple_of=self._multiple_of,
                work=self._work,
                fallback=fallback,
            )
            if change is not None and change.gain > best[0]:
                best = change.gain, axis, change
        if best[2] is None:
            return False
        self.plan = BucketPlan({**now, best[1]: best[2].buckets}, exact=len(now) == 1)
        self.n_replans += 1
        return True

    def wanted(self, history: Sequence[Sizes]) -> list[dict[str, int]]:
        """Return the buckets that requests fall into, most frequent first."""
        assert self.plan is not None
        buckets = (self.plan.bucket_of(dict(zip(self.axes, sizes, strict=True))) for sizes in history)
        counts = Counter(tuple(bucket.items()) for bucket in buckets if bucket is not None)
        return [dict(bucket) for bucket, _ in counts.most_common()]

    def least(self, bucket: Mapping[str, int]) -> dict[str, int]:
        """Return the smallest sizes seen that fall into a bucket: there padding is most."""
        assert self.plan is not None
        sizes_seen = {}
        for at, axis in enumerate(self.axes):
            below = [size for size in self.plan.buckets[axis] if size < bucket[axis]]
            low = max(below, default=0)
            inside = [sizes[at] for sizes in self.history if low < sizes[at] <= bucket[axis]]
            sizes_seen[axis] = min(inside, default=low + 1 if below else max(1, bucket[axis] // 2))
        return sizes_seen

    def work_of(self, sizes: Mapping[str, int]) -> float:
        """Return what a request of these sizes costs, in the unit of ``work``."""
        return math.prod(float(self._work(np.array([size]))[0]) for size in sizes.values())

    def _work_padded(self, others: Mapping[str, Sizes], sizes: Sizes) -> float:
        named = dict(zip(self.axes, sizes, strict=True))
        padded = {
            axis: min((size for size in buckets if size >= named[axis]), default=named[axis])
            for axis, buckets in others.items()
        }
        return self.work_of(padded)

    def _costs(self, n_requests: int) -> tuple[float, float]:
        """Return a compilation's cost for so many requests, in work; and the fallback's factor."""
        unit_s = _median(self.graph_s) or _median(self.eager_s)
        if unit_s is None:
            history = [dict(zip(self.axes, sizes, strict=True)) for sizes in self.history[:100]]
            mean = sum(map(self.work_of, history)) / len(history) if history else 100.0
            unit_s = REQUEST_S / mean
        compile_s = _median(self.compile_s) or COMPILE_S
        eager, graph = _median(self.eager_s), _median(self.graph_s)
        fallback = max(MIN_FALLBACK, eager / graph) if eager and graph else FALLBACK
        return compile_s / unit_s * n_requests / HORIZON, fallback


def given(buckets: Any, axes: Sequence[str]) -> BucketPlan | None:
    """Return the plan of buckets that a user names; None for ``"auto"``."""
    if isinstance(buckets, str) and buckets == "auto":
        return None
    by_axis = buckets
    if isinstance(buckets, BucketPlan):
        by_axis = buckets.buckets
    elif not isinstance(buckets, Mapping):
        by_axis = {axes[0]: buckets}
    if len(by_axis) == len(axes) == 1:
        by_axis = {axes[0]: next(iter(by_axis.values()))}  # a plan of plain sizes
    if set(by_axis) != set(axes):
        listed = ", ".join(f"{axis!r}: [...]" for axis in axes)
        raise UsageError(
            f"buckets: expected sizes of {', '.join(axes)}, found {', '.join(map(str, by_axis))}",
            hint=f"buckets={{{listed}}}",
        )
    return BucketPlan({axis: _checked(by_axis[axis], axis) for axis in axes})


def _checked(sizes: Any, axis: str) -> Sizes:
    listed = list(sizes) if isinstance(sizes, Iterable) and not isinstance(sizes, str) else []
    whole = (int, np.integer)
    if not listed or not all(isinstance(size, whole) and int(size) > 0 for size in listed):
        raise UsageError(
            f"buckets: expected positive sizes for {axis}, found {sizes!r:.60}", hint='buckets=[128, 256], or "auto"'
        )
    return tuple(sorted({int(size) for size in listed}))


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
