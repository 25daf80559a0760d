"""The report of a live watch (``memory_watch.json``) as a memory result, to be shown like one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from torchtriage.errors import SnapshotError
from torchtriage.finding import NotChecked, Note
from torchtriage.memory.growth import follow
from torchtriage.memory.leaks import CODE, PATIENCE_STEPS
from torchtriage.memory.result import MEMORY_SCHEMA, Growth, MemoryResult
from torchtriage.memory.watch_report import SCHEMA, SNAPSHOT, Leak, WatchReport, findings
from torchtriage.units import format_bytes, format_count, format_share
from torchtriage.version import __version__

__all__ = ["Watched", "judge_watch", "parse_watch"]

LONGER = "watch for longer"


@dataclass(frozen=True)
class Watched:
    """A watch's report and the file it came from."""

    path: str
    size_bytes: int
    report: WatchReport


def parse_watch(data: bytes, path: str) -> Watched:
    """Return the report that ``tt.memory.watch(out_dir=...)`` has left.

    Raises
    ------
    SnapshotError
        It is no such report, or one of another version.
    """
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
    sizes = [len(one.steps) == len(one.size_bytes) for one in report.series]
    if not all(sizes):
        raise SnapshotError("expected a size for each step of a series", where=path)
    return Watched(path, len(data), report)


def judge_watch(watched: Watched) -> MemoryResult:
    """Return what a watch has seen as a memory result: its verdict, series and findings."""
    report = watched.report
    leaks = sorted(report.leaks, key=lambda one: -one.bytes_per_step)
    missing = [
        NotChecked(
            "MEM052",
            "peak by line",
            ("snapshot",),
            f"torchtriage memory {SNAPSHOT}, which a watch leaves on CUDA after an alarm; else"
            " record one",
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
        verdict=(_first(report, leaks), _resident(report), _cost(report)),
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
        leak=_first(report, leaks),
        growth=tuple(_growth(report)),
        n_steps=report.n_steps,
    )


def _first(report: WatchReport, leaks: list[Leak]) -> str:
    steps = format_count(report.n_steps, "step")
    if leaks:
        also = f" {format_count(len(leaks) - 1, 'other leak')} below." if len(leaks) > 1 else ""
        return f"Leak: {leaks[0].sentence}.{also}"
    if report.answer == "no leak":
        return f"No leak: nothing that was looked at keeps growing in {steps}."
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


def _cost(report: WatchReport) -> str:
    looks = format_count(report.n_looks, "look")
    share = format_share(report.own_share)
    return f"{looks} in {format_count(report.n_steps, 'step')}: {share} of the loop's time."


def _growth(report: WatchReport) -> Iterator[Growth]:
    since = min((one.since_step for one in report.leaks), default=None)
    for one in report.series:
        told = follow(one.name, "", one.steps, one.size_bytes, onset_step=since)
        if told is not None and since is not None and not told.slope_low_bytes > 0:
            # the leak is elsewhere, or too small to show here
            told = follow(one.name, "", one.steps, one.size_bytes)
        if told is not None:
            yield told
