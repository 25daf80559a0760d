"""What every report of a gate shows: sides, groups of rows, when, and where an annotation goes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from torchtriage.gate import words
from torchtriage.gate.result import Culprit, GateResult, Row, Side, Verdict
from torchtriage.names import visible
from torchtriage.units import format_count

__all__ = [
    "LABEL",
    "classic",
    "compare",
    "grouped",
    "left_out",
    "machine",
    "many",
    "place",
    "side",
    "when",
]

LABEL: dict[Verdict, str] = {
    "regression": "worse",
    "improvement": "better",
    "same": "same",
    "inconclusive": "undecided",
    "refused": "unjudged",
}
_FILE = re.compile(r"^([\w./\\-]+\.\w+)(?::(\d+))?(?:::|\s|$)")


def when(at_s: float) -> str:
    """Return a time as ``2026-01-31 14:05 UTC``; empty where it is not known."""
    if at_s <= 0:
        return ""
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def side(one: Side) -> str:
    """Return what a side was measured on, in few words."""
    parts = [visible(one.label)]
    commits = [commit[:10] for commit in one.commits if commit[:4] not in one.label]
    if commits:
        parts.append(
            visible(commits[0]) if len(commits) == 1 else format_count(len(commits), "commit")
        )
    if one.n_runs > 1:
        parts.append(format_count(one.n_runs, "run"))
    if when(one.recorded_to_s):
        parts.append(when(one.recorded_to_s))
    return ", ".join(parts)


def machine(one: Side) -> str:
    """Return the machine in few words: what makes its times comparable."""
    told = dict(one.machine)
    shown = [told[name] for name in ("cpu", "gpu", "os") if told.get(name)]
    if told.get("cores"):
        shown.insert(1, f"{told['cores']} cores")
    return ", ".join(map(visible, shown)) if shown else f"fingerprint {one.fingerprint}"


def grouped(rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Return rows that want to be read, those that are well, and those nobody asked to judge."""
    groups: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
    for one in rows:
        if one.verdict in ("same", "improvement"):
            groups[1].append(one)
        else:
            groups[0 if one.decides or one.verdict == "regression" else 2].append(one)
    return groups


def many(rows: Sequence[Row]) -> bool:
    """Return whether rows are of several benchmarks, and have to name theirs."""
    return len({one.benchmark for one in rows}) > 1


def left_out(rows: Sequence[Row], *, with_benchmark: bool) -> str:
    """Return one line about rows that hold up nothing and say nothing."""
    told = (words.row_name(one, with_benchmark=with_benchmark) for one in rows)
    names = list(dict.fromkeys(told))
    shown = "; ".join(names[:4])
    more = f"; {len(names) - 4} more" if len(names) > 4 else ""
    return f"{shown}{more}"


def classic(row: Row) -> str:
    """Return what people ask for, none of which decides; empty where there is nothing."""
    told = row.classic
    if told is None:
        return ""
    parts = [
        f"{name} {_p(value)}"
        for name, value in (("Welch's p", told.welch_p), ("Mann-Whitney p", told.mann_whitney_p))
        if value is not None
    ]
    if told.cohen_d is not None:
        parts.append(f"Cohen's d {told.cohen_d:.2f}")
    return ", ".join(parts)


def compare(one: Culprit) -> str:
    """Return the command that says more; empty where the traces' names do not tell them apart."""
    if one.before == one.after:
        return ""
    return visible(f"torchtriage compare {one.before} {one.after}")


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"


def place(result: GateResult, row: Row) -> tuple[str, int]:
    """Return file and line that a row is about, as far as they are known; ``("", 0)`` else.

    A benchmark named like a test (``tests/bench.py::test_step``) names its file; a culprit's
    finding names a line.
    """
    named = [one.place for one in result.culprits if one.benchmark == row.benchmark]
    for text in (*named, row.benchmark):
        if found := _FILE.match(text):
            return found[1].replace("\\", "/"), int(found[2] or 0)
    return "", 0
