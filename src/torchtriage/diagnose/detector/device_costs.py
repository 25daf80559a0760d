"""What an anti-pattern can cost of a window, by the device's own account.

A fault is named for what it costs, the most expensive first. So what trees make of a window is weighed by the share of
time that each type could give back: no communication, no fault of communication. The same shares, added, say how much
of a window is lost, also for repositories and devices that nobody knew. The weights below were chosen on the
development half of the recordings, repositories left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats
from torchtriage.diagnose.detector.device_features import WORK
from torchtriage.diagnose.detector.features import NAMES

Rows = NDArray[np.float32]

_AT = {name: at for at, name in enumerate(NAMES)}
LOST = 8.0
"""How many log-odds a window that is lost altogether is worth, beside what trees make of it."""
_TRUST = 0.25
"""The power of what trees say of types: of repositories that they do not know they are far too sure."""
_SHORT_MS = 0.2
"""How long the device waits for a launch: longer holes are no launches."""
_LEAST = 0.02
"""Below this share of the time a fault is not labelled: what a type may cost that has no share here."""
_COPIES = ("copy_to_device", "copy_to_host", "copy", "set")
_TYPES: dict[str, tuple[str, ...]] = {
    "late": ("LCH014", "LCH016", "LCH017"),
    "launch": ("HST055", "MSR034"),
    "python": ("HST020", "HST021", "HST054"),
    "loader": ("DAT018", "DAT019"),
    "allocator": ("MEM027", "MEM028", "MSR034"),
    "wait": ("SYN001", "SYN002", "SYN003", "SYN004", "SYN005", "CPY006", "CPY009", "CPY010", "CFG044"),
    "copy call": ("CPY007",),
    "fp32": ("KRN022",),
    "unaligned": ("KRN023",),
    "communication": ("COM035", "COM036", "COM037", "COM038", "COM039", "COM060"),
    "copies": ("CPY007", "CPY008", "CPY009", "CPY010"),
    "layout": ("CPY011",),
    "casts": ("CPY012", "CPY013", "KRN056"),
    "pointwise": ("LCH015", "CPY012", "KRN056"),
    "softmax": ("KRN025",),
    "norm": ("KRN026", "CFG042"),
}
"""Shares of the time, and the types that they are the cost of."""
_LOST = {"communication": 1, "hidden": 1, "fp32": 1, "layout": 1, "softmax": 1, "pointwise": 0.5, "casts": 0.5}
"""Beside idle time. Kernels that only read and write count half: fused, they would read half as much."""


def _shares(rows: Rows) -> dict[str, Floats]:
    def of(name: str) -> Floats:
        return rows[:, _AT[name]].astype(np.float64)

    work = {name: of(f"device time {name}") for name in WORK}
    busy = np.minimum(of("device busy"), np.sum(list(work.values()), axis=0))
    computing = np.sum([work[name] for name in WORK if name not in (*_COPIES, "communication")], axis=0)
    copies, communication = of("device exposed copies"), of("device exposed communication")
    idle = np.clip(1 - of("device busy") - of("idle in queued"), 0, 1)
    hole_ms = idle.mean() / max(float(np.expm1(of("device kernels per ms")).mean()), 1e-6)
    caused = {
        "loader": of("idle in loader"),
        "allocator": of("idle in allocator"),
        "wait": of("idle in sync") + of("idle in read") + of("idle in copy call"),
    }
    python = of("idle in python")
    launch = np.clip(idle - np.sum([python, *caused.values()], axis=0), 0, 1)
    return caused | {
        "idle": idle,
        "launch": launch,
        "python": python,
        "late": (launch + python) * min(1.0, _SHORT_MS / max(hole_ms, 1e-9)),
        "copy call": of("idle in copy call"),
        "fp32": of("products fp32") * busy,
        "unaligned": of("products unaligned") * busy,
        "communication": communication,
        "copies": copies,
        # no more than there is work to hide them behind
        "hidden": copies * min(1.0, float(computing.mean() / max(copies.mean(), 1e-9))),
        "layout": work["convert_layout"],
        "casts": work["direct_copy"],
        "pointwise": work["pointwise"],
        "softmax": work["softmax"],
        "norm": work["norm"],
    }


@dataclass(frozen=True)
class Account:
    """How trees and account go together; calibrated on published recordings of repositories that the trees do not know.

    ``slope``, ``offset`` : turn evidence into a probability. ``enough``, ``certain`` : as of the detector's experts.
    """

    slope: float
    offset: float
    enough: float
    certain: float

    def probability(self, odds: Floats, rows: Rows) -> Floats:
        """Return float64[n]: how likely an anti-pattern is in each window, of which trees give these log-odds."""
        margin = self.slope * evidence(odds, rows) + self.offset
        return 1 / (1 + np.exp(-np.clip(margin, -50, 50)))


def evidence(odds: Floats, rows: Rows) -> Floats:
    """Return float64[n]: what trees make of windows, and what of them is lost."""
    return odds + LOST * lost(rows)


def weighed(shares: Floats, rows: Rows, codes: tuple[str, ...]) -> Floats:
    """Return float64[n, codes]: how likely each type is, by what trees say and by what it could have cost."""
    found = shares**_TRUST * costs(rows, codes)
    return found / found.sum(axis=1, keepdims=True)


def lost(rows: Rows) -> Floats:
    """Return float64[n]: the share of each window that is lost, halfway to the recording's mean."""
    shares = _shares(rows)
    each = shares["idle"] + sum(weight * shares[name] for name, weight in _LOST.items())
    return (each + each.mean()) / 2


def costs(rows: Rows, codes: tuple[str, ...]) -> Floats:
    """Return float64[codes]: the share of a recording that each type could have cost."""
    shares = _shares(rows)
    found = [sum(float(shares[name].mean()) for name, types in _TYPES.items() if code in types) for code in codes]
    return np.array(found, np.float64) + _LEAST
