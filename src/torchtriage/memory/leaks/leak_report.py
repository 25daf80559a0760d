"""What a live watch observed: the dataclasses are ``memory_watch.json``, and a result like a snapshot's.

Written by the process that is watched (``leak_watch.py``), so imported there too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torchtriage.core.errors import SnapshotError
from torchtriage.core.finding import Finding, Fix, Frame, NotChecked, Note, Place
from torchtriage.core.units import format_bytes, format_count, format_share
from torchtriage.core.version import __version__
from torchtriage.memory.findings.memory_growth import CODE as MEMORY_GROWTH
from torchtriage.memory.leaks.growth_series import follow
from torchtriage.memory.leaks.growth_test import CODE, PATIENCE_STEPS
from torchtriage.memory.leaks.leak_candidates import Kind
from torchtriage.memory.snapshot.result import MEMORY_SCHEMA, Growth, MemoryResult

SCHEMA = "torchtriage-watch/1"
REPORT = "memory_watch.json"
SNAPSHOT = "memory_watch.pickle"
LONGER = "watch for longer"


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
            singular = {"processes": "process"}.get(self.unit, self.unit.removesuffix("s"))
            number = f"{format_count(self.per_step, singular, self.unit)} per step"
            size = f"{number}, {size}" if self.bytes_per_step else number
        adds = f"; line {self.line} of {Path(self.file).name} adds to it" if self.file else ""
        made = (
            f"; what it keeps is created on line {self.made_line} of {Path(self.made_file).name}"
            if self.made_file and (self.made_file, self.made_line) != (self.file, self.line)
            else ""
        )
        return f"{name} grows by {size} since step {self.since_step}{adds}{made}"


@dataclass(frozen=True)
class MemorySeries:
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
    series: tuple[MemorySeries, ...] = ()

    def __str__(self) -> str:
        """Return the report as a few lines of text."""
        head = {
            "leak": "memory leaks",
            "no leak": "no leak was found",
            "too early": "too early to tell whether memory leaks",
        }[self.answer]
        rss = f"{format_bytes(self.rss_first_bytes)} -> {format_bytes(self.rss_last_bytes)}"
        lines = [f"{head}: {format_count(self.n_steps, 'step')}, resident memory {rss}"]
        lines += [f"  {leak.sentence}" for leak in self.leaks]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def findings(report: WatchReport) -> tuple[Finding, ...]:
    """Return the leaks of a report as findings, fastest first."""
    rows = []
    for leak in _fastest_first(report):
        frame = Frame(leak.file, leak.line, leak.function or "", exact=True) if leak.file and leak.line else None
        rows.append(
            MEMORY_GROWTH.finding(
                severity="high" if leak.bytes_per_step >= 1024 else "medium",
                certainty="certain" if leak.holder and frame else "likely",
                message=leak.sentence,
                place=Place(frame=frame),
                evidence={key: value for key, value in asdict(leak).items() if value is not None},
                fix=_FIXES[leak.kind],
            )
        )
    return tuple(rows)


_FIXES: dict[str, Fix] = {
    "autograd graph": Fix(
        "Keep the number, not the tensor with its graph.", "total += loss.detach()   # or loss.item()"
    ),
    "growing list": Fix("Keep only what is needed, detached, or write it out and clear the list."),
    "growing cache": Fix("Bound the cache: functools.lru_cache(maxsize=...), or drop old entries."),
    "hooks": Fix("Register hooks once, or remove each one after use.", "handle.remove()  # after its step"),
    "growing tensor": Fix("Allocate once and write into it; do not concatenate in each step."),
    "compiled code": Fix(
        "Compile once: mark changing sizes as dynamic, and do not make functions in the loop.",
        "torch.compile(model, dynamic=True)",
    ),
    "worker processes": Fix("Bound what a worker caches; keep one DataLoader with persistent_workers=True."),
    "tensors kept": Fix("Find what keeps them: detach what is stored for later."),
    "device memory": Fix("Read the snapshot next to the report: torchtriage memory SNAPSHOT."),
    "resident memory": Fix("No Python name grows: look at native code, or run memray."),
}


@dataclass(frozen=True)
class WatchFile:
    """A watch's report and the file it came from."""

    path: str
    size_bytes: int
    report: WatchReport


def parse_watch(data: bytes, path: str) -> WatchFile:
    """Return the report that ``tt.memory.watch(out_dir=...)`` has left.

    Raises SnapshotError: it is no such report, or one of another version.
    """
    import msgspec  # the process that is watched may lack it

    try:
        report = msgspec.json.decode(data, type=WatchReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(
            f"expected the report of a watch, found one that does not follow {SCHEMA}: {error}",
            where=path,
            hint="let tt.memory.watch(out_dir=...) write it again",
        ) from None
    if report.schema != SCHEMA:
        raise SnapshotError(
            f"expected the report of a watch, {SCHEMA}, found {report.schema!r:.60}",
            where=path,
            hint="read it with the version of torchtriage that wrote it",
        )
    if not all(len(series.steps) == len(series.size_bytes) for series in report.series):
        raise SnapshotError("expected a size for each step of a series", where=path)
    return WatchFile(path, len(data), report)


def judge_watch(watched: WatchFile) -> MemoryResult:
    """Return what a watch observed as a memory result: its verdict, series and findings."""
    report = watched.report
    first = _first(report, _fastest_first(report))
    missing = [
        NotChecked(
            "MEM052",
            "peak by line",
            ("snapshot",),
            f"torchtriage memory {SNAPSHOT}, which a watch leaves on CUDA after an alarm; else record one",
        )
    ]
    if report.answer == "too early":
        missing.append(NotChecked(CODE, "memory-growth", ("more steps",), LONGER))
    # what no name holds shows in the process alone, and only after long
    is_long = report.n_steps >= PATIENCE_STEPS
    if report.answer == "no leak" and not is_long:
        wanted = format_count(PATIENCE_STEPS, "step")
        missing.append(NotChecked(CODE, "growth of the whole process", (wanted,), LONGER))
    return MemoryResult(
        schema=MEMORY_SCHEMA,
        version=__version__,
        path=watched.path,
        size_bytes=watched.size_bytes,
        verdict=(
            first,
            _resident(report),
            f"{format_count(report.n_looks, 'look')} in {format_count(report.n_steps, 'step')}:"
            f" {format_share(report.own_share)} of the loop's time.",
        ),
        healthy=report.answer == "no leak" and is_long,
        n_devices=0,
        n_entries=0,
        n_stacks=0,
        settings="not recorded",
        devices=(),
        findings=findings(report),
        notes=tuple(Note("watch", "info", note, "") for note in report.notes),
        not_checked=tuple(missing),
        crashes=(),
        leak=first,
        growth=tuple(_growth(report)),
        n_steps=report.n_steps,
    )


def _fastest_first(report: WatchReport) -> list[Leak]:
    return sorted(report.leaks, key=lambda leak: -leak.bytes_per_step)


def _first(report: WatchReport, leaks: list[Leak]) -> str:
    steps = format_count(report.n_steps, "step")
    if leaks:
        also = f" {format_count(len(leaks) - 1, 'other leak')} below." if len(leaks) > 1 else ""
        return f"Leak: {leaks[0].sentence}.{also}"
    if report.answer == "no leak":
        return f"No leak: nothing that was watched kept growing in {steps}."
    return f"Too early to tell whether memory leaks: {steps} seen."


def _resident(report: WatchReport) -> str:
    first, last = format_bytes(report.rss_first_bytes), format_bytes(report.rss_last_bytes)
    most = f", at most {format_bytes(report.rss_peak_bytes)}" if report.rss_peak_bytes else ""
    device = (
        f" CUDA: at most {format_bytes(report.allocated_peak_bytes)} allocated,"
        f" {format_bytes(report.reserved_peak_bytes)} reserved."
        if report.allocated_peak_bytes is not None and report.reserved_peak_bytes is not None
        else ""
    )
    return f"Resident memory: {first} at the first step, {last} at the last{most}.{device}"


def _growth(report: WatchReport) -> Iterator[Growth]:
    since = min((leak.since_step for leak in report.leaks), default=None)
    for series in report.series:
        growth = follow(series.name, "", series.steps, series.size_bytes, onset_step=since)
        if growth is not None and since is not None and not growth.slope_low_bytes > 0:
            # the leak is elsewhere, or too small to show here
            growth = follow(series.name, "", series.steps, series.size_bytes)
        if growth is not None:
            yield growth
