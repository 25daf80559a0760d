"""What one can say of a device's timeline with sums alone: baselines after public tools and rules of thumb.

None learns, and none looks at an operator. Each splits the judged time into parts; the largest part above its limit
names the type, and a window is as suspicious as its share of what is no computation. The tools publish numbers, not
verdicts: which type a part becomes is decided here, their own limits are kept where they state any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.trace import Trace
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.schema import Kind
from torchtriage.learn.dataset.predictions import Prediction
from torchtriage.learn.dataset.recordings import DatasetItem

SHORT_NS = 10_000
"""A launch takes the host 5-10 us (NVIDIA's and PyTorch's guides): a device of shorter kernels waits for launches."""
NOTEWORTHY = 0.05
"""Of the time; the usual limit below which guides leave copies and communication alone."""
IDLE = 0.10
"""Of the time: "above 90 % busy" is what guides call well used."""
CLOSE_NS = 30
"""HTA's ``consecutive_kernel_delay``: a shorter gap lies between kernels that follow each other."""
TRACELENS_IDLE = 0.15
"""TraceLens looks for a cause on the host above 15 % idle."""
TRACELENS_SEEN = 0.01
"""It reports exposed copies and communication above zero, to whole percents."""


@dataclass(frozen=True)
class _Sums:
    """The judged time of a recording's busiest device, split."""

    trace: Trace
    windows_ns: Ints

    @cached_property
    def window_ns(self) -> int:
        return max(int((self.windows_ns[:, 1] - self.windows_ns[:, 0]).sum()), 1)

    def share(self, spans: intervals.Spans) -> float:
        return float(intervals.covered(self.windows_ns, spans).sum() / self.window_ns)

    @cached_property
    def device(self) -> Device:
        return max(self.trace.devices, key=lambda device: intervals.length(device.busy))

    @property
    def idle(self) -> float:
        return 1 - self.share(self.device.busy)

    @property
    def communication(self) -> float:
        """Exposed: nothing is computed beside it."""
        return self.share(self.device.comm_only)

    @property
    def copies(self) -> float:
        """Exposed: nothing is computed or sent beside them."""
        return self.share(self.device.copy_only)

    @cached_property
    def rows(self) -> Ints:
        """The device's rows that begin in the judged time, in their order."""
        rows = self.device.rows
        judged = intervals.union(self.windows_ns)
        return rows[intervals.owner(judged, self.trace.start_ns[rows]) >= 0]

    @cached_property
    def host_wait(self) -> intervals.Spans:
        """HTA: idle time before a row whose launch came after the end of the row before it.

        Per stream in HTA, here of the device. Shorter gaps than ``CLOSE_NS`` are no wait.
        """
        begin_ns, end_ns = self.trace.start_ns[self.rows], self.trace.end_ns[self.rows]
        before = np.maximum.accumulate(end_ns)[:-1]
        late = (self.trace.links.launched_ns(self.rows)[1:] > before) & (begin_ns[1:] - before >= CLOSE_NS)
        return intervals.union(intervals.spans(before[late], begin_ns[1:][late]))

    @property
    def median_kernel_ns(self) -> float:
        kernels = self.rows[self.trace.kind[self.rows] == Kind.KERNEL]
        return float(np.median(self.trace.dur_ns[kernels])) if len(kernels) else np.inf

    @property
    def short(self) -> float:
        """HTA: the share of kernels that are shorter than the call that launched them."""
        call = self.trace.links.call[self.rows]
        known = call >= 0
        shorter = self.trace.dur_ns[self.rows[known]] < self.trace.dur_ns[call[known]]
        return float(shorter.mean()) if known.any() else 0.0

    def longest_copy(self) -> str:
        """Return the type of the copies that take longest: downloads, pageable or pinned uploads."""
        copies = self.rows[self.trace.kind[self.rows] == Kind.MEMCPY]
        upload = self.trace.matching("HtoD|HostToDevice")[copies]
        pageable = self.trace.matching("Pageable")[copies]
        time = self.trace.dur_ns[copies]
        sums = {
            "CPY007": time[upload & pageable].sum(),
            "CPY008": time[upload & ~pageable].sum(),
            "CPY006": time[~upload].sum(),
        }
        return max(sums, key=sums.__getitem__)


def _statistics(sums: _Sums) -> dict[str, float]:
    """Idle above a tenth, copies or communication that nothing hides above a twentieth of the time."""
    host = "LCH014" if sums.median_kernel_ns < SHORT_NS else "HST020"
    return _above({host: (sums.idle, IDLE), sums.longest_copy(): (sums.copies, NOTEWORTHY)}, sums, NOTEWORTHY)


def _hta(sums: _Sums) -> dict[str, float]:
    """HTA: temporal breakdown, idle time breakdown (host wait), launch statistics (short kernels)."""
    host = "LCH014" if sums.short > 0.5 else "HST020"
    return _above({host: (sums.share(sums.host_wait), IDLE), "CPY008": (sums.copies, IDLE)}, sums, IDLE)


def _tracelens(sums: _Sums) -> dict[str, float]:
    """TraceLens' timeline: computation, exposed communication, exposed copies, idle."""
    parts = {"LCH014": (sums.idle, TRACELENS_IDLE), "CPY008": (sums.copies, TRACELENS_SEEN)}
    return _above(parts, sums, TRACELENS_SEEN)


def _above(parts: Mapping[str, tuple[float, float]], sums: _Sums, communication: float) -> dict[str, float]:
    """Return the parts that reach their limits, exposed communication with them."""
    parts = {**parts, "COM035": (sums.communication, communication)}
    return {code: share for code, (share, limit) in parts.items() if share >= limit}


def _system(types: Callable[[_Sums], dict[str, float]]) -> Callable[[DatasetItem], Prediction]:
    def says(recording: DatasetItem) -> Prediction:
        # a recording of its own: its trace does not stay in memory
        item = DatasetItem(recording.about, recording.path)
        windows_ns = item.windows_ns
        if not item.trace.devices:
            return Prediction((0.0,) * len(windows_ns))
        sums = _Sums(item.trace, windows_ns)
        computed = intervals.covered(windows_ns, sums.device.compute)
        shares = 1 - computed / np.maximum(windows_ns[:, 1] - windows_ns[:, 0], 1)
        return Prediction(tuple(shares.tolist()), types(sums))

    return says


BREAKDOWNS: Mapping[str, Callable[[DatasetItem], Prediction]] = {
    "statistics": _system(_statistics),
    "hta": _system(_hta),
    "tracelens": _system(_tracelens),
}
"""By name. They need a device: of a recording without one they say nothing."""
