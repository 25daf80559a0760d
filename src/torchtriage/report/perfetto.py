"""Findings as trace events: one process, one track per finding, above the recording's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from torchtriage.core.finding import Finding
from torchtriage.core.names import visible
from torchtriage.core.trace.event_numbers import us_text
from torchtriage.core.trace.joined import PROCESSES, Track
from torchtriage.diagnose.ranks.timeline import RankTimeline
from torchtriage.diagnose.verdict.result import Result
from torchtriage.report.words import saving

PROCESS = 2_000_000_001
"""Well above any real process id, so that the track never merges with one."""


def events(
    result: Result, *, process: int = PROCESS, title: str = "torchtriage findings", shift_ns: int = 0
) -> list[dict[str, Any]]:
    """Return Chrome-trace events that show a result's findings on its own clock, or one that differs by ``shift_ns``.

    Times are microseconds with three decimals, as Kineto writes them.
    """
    out: list[dict[str, Any]] = [
        _label("process_name", process, 0, title),
        {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": -1_000_000}},
    ]
    for track, finding in enumerate(result.findings, start=1):
        spans = _intervals(finding)
        if not spans:
            continue  # a setting has no place in time
        out.append(_label("thread_name", process, track, f"{finding.code} {finding.name}"))
        out += [
            {
                "ph": "X",
                "cat": "torchtriage",
                "name": f"{finding.code} {finding.title}",
                "pid": process,
                "tid": track,
                "ts": _us(start_ns + shift_ns),
                "dur": _us(end_ns - start_ns),
                "args": _args(finding),
            }
            for start_ns, end_ns in spans
        ]
    return out


def tracks(timelines: Sequence[RankTimeline], results: Sequence[Result]) -> list[Track]:
    """Return the ranks of a job as tracks of one file, each with its findings."""
    found = {result.trace.path: result for result in results}
    out = []
    for at, timeline in enumerate(timelines):
        process, title = (at + 2) * PROCESSES - 1, f"rank {timeline.number}"
        result = found[timeline.path]
        extra = events(result, process=process, title=f"{title}: torchtriage findings", shift_ns=timeline.shift_ns)
        # Perfetto sorts by it: a rank's findings stand above its processes
        extra[1]["args"]["sort_index"] = (at + 1) * PROCESSES - 1
        out.append(Track(timeline.path, title, timeline.shift_ns, timeline.flows, extra))
    return out


def _intervals(finding: Finding) -> list[tuple[int, int]]:
    if finding.place.intervals_ns:
        return list(finding.place.intervals_ns)
    return [(example.start_ns, example.start_ns + max(example.dur_ns, 1)) for example in finding.place.examples]


def _args(finding: Finding) -> dict[str, Any]:
    args = {"message": visible(finding.message), "fix": visible(finding.fix.text)}
    if finding.cost is not None:
        args["saving"] = saving(finding.cost)
    if finding.fix.code:
        args["code"] = finding.fix.code
    return args


def _label(name: str, process: int, track: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": track, "args": {"name": text}}


def _us(value_ns: int) -> msgspec.Raw:
    return msgspec.Raw(us_text(value_ns))
