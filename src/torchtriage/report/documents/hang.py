"""Why nothing moves: what the ranks wait for, and where each stands."""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.core.units import format_count
from torchtriage.diagnose.attach.result import HangResult, StackGroup
from torchtriage.report import blocks as b

N_CALLS = 12
N_NAMES = 16


def document(result: HangResult) -> b.Document:
    """Return the report of a job in which nothing moves."""
    blocks: list[b.Block] = [
        b.Head("torchtriage attach", result.verdict, facts=[("job", result.target)]),
        b.Section("Stacks", [b.Entry(_title(group), list(_calls(group))) for group in result.stacks]),
        b.Notes(result.notes, style="dim"),
        b.Foot(f"torchtriage {result.version}"),
    ]
    return b.Document(result.verdict[0], result.version, result.schema, blocks)


def _title(group: StackGroup) -> b.Text:
    names = ", ".join(group.names[:N_NAMES])
    rest = len(group.names) - N_NAMES
    return b.bold(names + (f" and {format_count(rest, 'more')}" if rest > 0 else "")), f"  {group.thread}"


def _calls(group: StackGroup) -> Iterator[b.Block]:
    rows = [(f"{call.function}  {call.file}:{call.line}", "") for call in group.calls[:N_CALLS]]
    rest = len(group.calls) - N_CALLS
    if rest > 0:
        rows.append((f"and {format_count(rest, 'caller')} in the JSON", "dim"))
    yield b.Code(rows)
