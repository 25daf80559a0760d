"""What a live watch has seen: the dataclasses are ``memory_watch.json``.

Written by the process that is watched (``watching.py``), read again by ``watched.py``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torchtriage.finding import Finding, Fix, Frame, Place
from torchtriage.memory.codes.memory_growth import CODE as MEMORY_GROWTH
from torchtriage.memory.suspects import Kind
from torchtriage.units import format_bytes, format_count

__all__ = ["REPORT", "SCHEMA", "SNAPSHOT", "Leak", "Series", "WatchReport", "findings"]

SCHEMA = "torchtriage-watch/1"
REPORT = "memory_watch.json"
SNAPSHOT = "memory_watch.pickle"


@dataclass(frozen=True)
class Leak:
    """One thing that grows without end.

    ``holder`` : the name that holds it, ``root`` : where that name is. ``file line function`` : the
    line that adds to it, None where it could not be caught; ``made_*`` : the line whose tensors
    stay alive. ``per_step`` : by how many ``unit`` it grows, ``bytes_per_step`` : what that is.
    """

    kind: Kind
    holder: str
    root: str
    file: str | None
    line: int | None
    function: str | None
    unit: str
    per_step: float
    bytes_per_step: float
    since_step: int
    found_step: int
    made_file: str | None = None
    made_line: int | None = None
    made_function: str | None = None
    made_shape: str = ""
    what: str = ""

    @property
    def sentence(self) -> str:
        """Return what leaks, where, and how fast."""
        name = f"{self.kind} `{self.holder}` in {self.root}" if self.holder else self.kind
        size = f"{format_bytes(self.bytes_per_step)} per step"
        if self.unit != "bytes":
            one = {"processes": "process"}.get(self.unit, self.unit.removesuffix("s"))
            number = f"{format_count(self.per_step, one, self.unit)} per step"
            size = f"{number}, {size}" if self.bytes_per_step else number
        adds = f"; line {self.line} of {Path(self.file).name} adds to it" if self.file else ""
        made = (
            f"; what it keeps is made in line {self.made_line} of {Path(self.made_file).name}"
            if self.made_file and (self.made_file, self.made_line) != (self.file, self.line)
            else ""
        )
        return f"{name} grows by {size} since step {self.since_step}{adds}{made}"


@dataclass(frozen=True)
class Series:
    """Memory by step: ``size_bytes`` at each of ``steps``, thinned to what a picture needs."""

    name: str
    steps: tuple[int, ...]
    size_bytes: tuple[int, ...]


@dataclass(frozen=True)
class WatchReport:
    """What a watch has seen so far; the JSON report has the same fields.

    ``answer`` : leak, no leak, or too early to tell. ``own_share`` : the watch's time over the
    loop's. ``notes`` : what was not looked at, and why. ``rss_peak_bytes`` : of the process, from
    its start; ``allocated_peak_bytes`` and ``reserved_peak_bytes`` : of the current CUDA device,
    since the program last reset them, None without one in use.
    """

    schema: str
    answer: Literal["leak", "no leak", "too early"]
    n_steps: int
    n_looks: int
    leaks: tuple[Leak, ...]
    rss_first_bytes: int
    rss_last_bytes: int
    rss_why: str
    own_s: float
    own_share: float
    notes: tuple[str, ...]
    rss_peak_bytes: int = 0
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    series: tuple[Series, ...] = ()

    def __str__(self) -> str:
        """Return the report as a few lines of text."""
        head = {
            "leak": "memory leaks",
            "no leak": "no leak was seen",
            "too early": "too early to tell whether memory leaks",
        }[self.answer]
        rss = f"{format_bytes(self.rss_first_bytes)} -> {format_bytes(self.rss_last_bytes)}"
        lines = [f"{head}: {format_count(self.n_steps, 'step')}, resident memory {rss}"]
        lines += [f"  {leak.sentence}" for leak in self.leaks]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def findings(report: WatchReport) -> tuple[Finding, ...]:
    """Return the leaks of a report as findings, fastest first."""
    found = []
    for leak in sorted(report.leaks, key=lambda one: -one.bytes_per_step):
        frame = (
            Frame(leak.file, leak.line, leak.function or "", exact=True)
            if leak.file and leak.line
            else None
        )
        found.append(
            MEMORY_GROWTH.finding(
                severity="high" if leak.bytes_per_step >= 1024 else "medium",
                certainty="certain" if leak.holder and frame else "likely",
                message=leak.sentence,
                place=Place(frame=frame),
                evidence={key: value for key, value in asdict(leak).items() if value is not None},
                fix=_FIXES[leak.kind],
            )
        )
    return tuple(found)


_FIXES: dict[str, Fix] = {
    "autograd graph": Fix(
        "Keep the number, not the tensor with its graph.",
        "total += loss.detach()   # or loss.item()",
    ),
    "growing list": Fix("Keep what is needed only, detached, or write it out and clear the list."),
    "growing cache": Fix("Bound the cache: functools.lru_cache(maxsize=...), or drop old entries."),
    "hooks": Fix("Register hooks once, or remove each again.", "handle.remove()  # after its step"),
    "growing tensor": Fix("Allocate once and write into it; do not concatenate in each step."),
    "compiled code": Fix(
        "Compile once: mark changing sizes as dynamic, and do not make functions in the loop.",
        "torch.compile(model, dynamic=True)",
    ),
    "worker processes": Fix(
        "Bound what a worker caches; keep one DataLoader with persistent_workers=True."
    ),
    "tensors kept": Fix("Find who keeps them: detach what is stored for later."),
    "device memory": Fix("Read the snapshot beside the report: torchtriage memory SNAPSHOT."),
    "resident memory": Fix("No Python name grows: look at native code, or run memray."),
}
