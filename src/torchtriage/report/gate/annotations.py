"""A check as workflow commands that GitHub shows beside the code and above the run."""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.gate import words as told
from torchtriage.gate.result import GateResult
from torchtriage.names import visible
from torchtriage.report.gate import words

__all__ = ["render"]

MAX_ANNOTATIONS = 10
"""GitHub shows ten of a kind for each step and drops the others in silence."""


def render(result: GateResult) -> str:
    """Return one line per annotation, or nothing where all is fine."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: GateResult) -> Iterator[str]:
    worse = [one for one in result.rows if one.verdict == "regression"]
    for row in worse[:MAX_ANNOTATIONS]:
        file, line = words.place(result, row)
        culprit = "".join(
            f". {one.sentence}" for one in result.culprits if one.benchmark == row.benchmark
        )
        yield _command(
            "error", f"{told.row_name(row)} is worse", f"{row.sentence}{culprit}", file, line
        )
    if len(worse) > MAX_ANNOTATIONS:
        yield _command("error", "and more", f"{len(worse) - MAX_ANNOTATIONS} more are worse")
    if result.outcome in ("inconclusive", "infrastructure"):
        yield _command("warning", result.verdict[0], result.verdict[1])


def _command(level: str, title: str, message: str, file: str = "", line: int = 0) -> str:
    given = [("file", file), ("line", str(line) if line else ""), ("title", title)]
    shown = ",".join(f"{name}={_property(value)}" for name, value in given if value)
    return f"::{level} {shown}::{_data(message)}"


def _data(value: str) -> str:
    # what ends a command or starts another must not come from a name
    return visible(value).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
