"""What every report of a rollout shows."""

from __future__ import annotations

from datetime import datetime, timezone

from torchtriage.experiment.result import Row
from torchtriage.names import visible
from torchtriage.rollout.result import Event, RolloutResult
from torchtriage.rollout.summary import percent

__all__ = ["LABEL", "event", "path", "row", "when"]

LABEL = {"worse": "worse", "better": "better", "undecided": "no regression", "no data": "no data"}


def when(at_s: float) -> str:
    """Return a time as ``2026-01-31 14:05:07 UTC``."""
    try:
        return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def event(one: Event) -> str:
    """Return one entry of the history without its time."""
    shares = f"{percent(one.share_before)} → {percent(one.share_after)}"
    moved = f" {shares}" if one.share_before != one.share_after else ""
    reason = f": {visible(one.reason)}" if one.reason else ""
    return f"{one.kind}{moved} by {visible(one.actor)}{reason}"


def path(result: RolloutResult) -> str:
    """Return the steps on one line, the one that runs in brackets."""
    shown = []
    for stage in result.stages:
        text = percent(stage.share)
        marks = {"now": f"[{text}]", "left": f"✗ {text}", "passed": f"✓ {text}"}
        shown.append(marks.get(stage.state, text))
    return "   ".join(shown)


def row(one: Row) -> str:
    """Return what is known of one metric."""
    return visible(one.sentence)
