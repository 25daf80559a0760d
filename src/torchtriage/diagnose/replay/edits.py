"""Edits: what a fix does to a recorded run, in a form with which the run can be replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.errors import PatternError
from torchtriage.core.intervals import Spans

Factor = float | NDArray[np.float64]

EditKind = Literal["shrink", "drop", "unblock", "overlap", "parallel", "threads"]


@dataclass(frozen=True, eq=False)
class Edit:
    """One change to the recorded events.

    ``shrink`` : the time of ``rows`` times ``factor``. Host rows (ops, calls, annotations, frames) lose it on their
    thread, device rows on their stream; what a host row enqueued stays as long as it was. Fetches from a loader's
    workers: the workers take that much less.
    ``drop`` : ``rows`` are gone. Host rows take the waits inside them along; the device work they enqueued stays unless
    it is among ``rows`` too.
    ``unblock`` : the host runs on past the waits in ``rows`` (calls; a copy stands for the sync that follows it), which
    keep the cost of the call itself; only where ``factor`` is 0.
    ``overlap`` : device rows run beside everything else, but for ``factor`` of their time; nothing waits for the rest,
    but a step lasts at least as long as they do together, as the edits before this one have left them.
    ``parallel`` : the time of ``rows`` (host) leaves their thread and is done elsewhere at ``factor`` of its length; a
    step lasts at least that long.
    ``threads`` : everything that host threads do in ``spans`` (always, when left out), gaps between events included,
    times ``factor``; ``rows`` is not used.

    ``factor`` : what remains of the time (of each row), the cautious estimate, 0 or more; ``best`` : the hopeful one,
    at most ``factor``, the same when left out. ``spans`` : int64[m, 2], ns on the clock of the trace.

    Raises PatternError: the kind is unknown, a factor is negative or no number, or there are not as many factors as
    rows.
    """

    kind: EditKind
    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    factor: Factor = 0.0
    best: Factor | None = None
    spans: Spans | None = None

    def __post_init__(self) -> None:
        """Check the kind and the factors."""
        if self.kind not in get_args(EditKind):
            raise PatternError(f"expected a kind of edit ({', '.join(get_args(EditKind))}), found {self.kind!r}")
        for given in (self.factor, self.hopeful):
            values = np.asarray(given, float)
            if values.shape not in ((), (len(self.rows),)):
                raise PatternError(f"expected one factor or {len(self.rows)}, found {list(values.shape)}")
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise PatternError(f"expected factors of 0 or more, found {given!r}")

    @property
    def hopeful(self) -> Factor:
        """``best``, or ``factor`` without one."""
        return self.factor if self.best is None else self.best

    def remains(self, *, hopeful: bool) -> NDArray[np.float64]:
        """Return float64[k]: what remains of each row's time."""
        factor = self.hopeful if hopeful else self.factor
        return np.broadcast_to(np.asarray(factor, float), len(self.rows))
