"""A rollout or an experiment as Markdown for a pull request or a channel."""

from __future__ import annotations

from collections.abc import Iterable

from torchtriage.experiment.result import ExperimentResult
from torchtriage.report.markdown import prose
from torchtriage.report.rollout import words
from torchtriage.rollout.result import RolloutResult

__all__ = ["render"]

N_EVENTS = 50
_MARK = {"worse": "🔴", "better": "🟢", "undecided": "⚪", "no data": "🟡"}


def render(result: RolloutResult | ExperimentResult) -> str:
    """Return GitHub Markdown: the verdict, the metrics, the history."""
    return "\n\n".join(_blocks(result)) + "\n"


def _blocks(result: RolloutResult | ExperimentResult) -> Iterable[str]:
    first, *others = result.verdict
    yield f"### {prose(first)}"
    if others:
        yield "  \n".join(prose(line) for line in others)
    if isinstance(result, RolloutResult):
        yield prose(words.path(result))
    if result.rows:
        lines = ["| | metric | |", "|:--|:--|:--|"]
        lines += [
            f"| {_MARK[one.verdict]} {words.LABEL[one.verdict]} | {prose(one.name)}"
            f" | {prose(words.row(one))} |"
            for one in result.rows
        ]
        yield "\n".join(lines)
    if isinstance(result, RolloutResult):
        yield "\n".join(
            f"- {words.when(one.at_s)}: {prose(words.event(one))}"
            for one in result.events[-N_EVENTS:]
        )
    if result.notes:
        yield "  \n".join(
            f"> **{note.level}** {prose(note.message)}"
            + (f". Try: {prose(note.fix)}" if note.fix else "")
            for note in result.notes
        )
    yield f"<sub>torchtriage {prose(result.version)}</sub>"
