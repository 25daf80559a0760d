"""Findings as trace events: one process, one track per finding, above the recording's own."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtriage.core.finding import Finding
from torchtriage.core.names import visible
from torchtriage.core.trace.event_numbers import us_text
from torchtriage.diagnose.verdict.result import Result
from torchtriage.report.words import saving

__all__ = ["events"]

PROCESS = 2_000_000_001
"""Well above any real process id, so that the track never merges with one."""


def events(result: Result) -> list[dict[str, Any]]:
    """Return Chrome-trace events that show a result's findings on its own clock.

    Times are microseconds with three decimals, as Kineto writes them.
    """
    out: list[dict[str, Any]] = [
        _label("process_name", 0, "torchtriage findings"),
        {"ph": "M", "name": "process_sort_index", "pid": PROCESS, "tid": 0, "args": {"sort_index": -1_000_000}},
    ]
    for track, finding in enumerate(result.findings, start=1):
        spans = _intervals(finding)
        if not spans:
            continue  # a setting has no place in time
        out.append(_label("thread_name", track, f"{finding.code} {finding.name}"))
        out += [
            {
                "ph": "X",
                "cat": "torchtriage",
                "name": f"{finding.code} {finding.title}",
                "pid": PROCESS,
                "tid": track,
                "ts": _us(start_ns),
                "dur": _us(end_ns - start_ns),
                "args": _args(finding),
            }
            for start_ns, end_ns in spans
        ]
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


def _label(name: str, track: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": track, "args": {"name": text}}


def _us(value_ns: int) -> msgspec.Raw:
    return msgspec.Raw(us_text(value_ns))
