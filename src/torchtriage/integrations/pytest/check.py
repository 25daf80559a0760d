"""The verdict on one budget of one test, and how a failed test reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from torchtriage.core.errors import TriageError
from torchtriage.core.finding import Fix

Verdict = Literal["within", "over", "inconclusive", "not checked"]


@dataclass(frozen=True)
class Check:
    """One judged budget or comparison.

    ``metric`` : ``step time``. ``sentence`` : what was found, against what. ``lines`` : where it
    comes from and how to fix it, each beginning with its indent; only shown where it fails.
    """

    metric: str
    verdict: Verdict
    sentence: str
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the whole answer on one line."""
        # what passed and what failed say so by their numbers
        verdict = f"{self.verdict}: " if self.verdict in ("inconclusive", "not checked") else ""
        return f"{self.metric}: {verdict}{self.sentence}"


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Fail the test with our own message alone, without a traceback through our code."""
    try:
        yield
    except TriageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def failure(checks: Sequence[Check], name: str) -> str:
    """Return the message of a test that failed: each finding whole, then what else was looked at.

    ``name`` : of what was measured, empty for the only step of a test.
    """
    of = f"{name}: " if name else ""
    lines = []
    for check in sorted(checks, key=lambda check: check.verdict != "over"):
        lines.append(f"fine: {of}{check}" if check.verdict == "within" else f"{of}{check}")
        lines += [f"  {line}" for line in check.lines if check.verdict == "over"]
    return "\n".join(lines)


def fix_lines(fix: Fix) -> Iterator[str]:
    """Yield a fix and its code, as indented lines below a finding."""
    yield f"   fix: {fix.text}"
    if fix.code:
        yield from (f"        {line}" for line in fix.code.splitlines())
