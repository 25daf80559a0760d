"""Findings out of compared calls: functions that get equal inputs and give equal results again, at their call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.core.names import file_name
from torchtriage.core.record.call_probe import ProbedCall
from torchtriage.core.units import format_share
from torchtriage.diagnose.lint.base import lookup
from torchtriage.diagnose.runs.account import SampledLoop, Seen
from torchtriage.diagnose.runs.costs import counting_error, severity_of, share_cost
from torchtriage.diagnose.runs.samples import Position, shortened
from torchtriage.diagnose.runs.source_view import SourceView

MIN_SHARE, MIN_LOOKS = 0.03, 4
MOSTLY = 0.4
"""A function repeats itself where so much of its time has inputs and results of an earlier call; of two equal calls the
second is the faster one."""
ALL = 0.99
"""Of a batch's rows: from here on it is the same batch again, and no window that moves on."""
KEEPS, ROWS_KEEP = 0.85, 0.5
"""What part of the repeated time is surely saved: what is stored must be looked up; and fewer rows of a batch do not
take as much less time."""
KEEP_ROWS = Fix(
    "Keep the result of each row, and run the module on new rows only.",
    """features.append(encoder(new_frames))   # a deque as long as the window
clip = torch.cat(list(features))""",
    "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
MOST_LINES = 5
MODULE = "torch/nn/modules/module.py"


def repeated_calls(
    loop: SampledLoop,
    probed: Sequence[Mapping[str, Any]],
    roots: Sequence[str],
    view: SourceView,
    step_ms: float,
    *,
    infers: bool,
) -> tuple[tuple[Finding, ...], SampledLoop]:
    """Return a finding for each call that does the same work again, and the loop without the lines of that work.

    Where every large result of a step is that of the step before, the data are the same: then only what is repeated
    within a step counts. ``infers`` : no optimizer changes weights, so that modules whose results differ get new data.
    """
    calls = [ProbedCall(**call) for call in probed]
    calls = [
        replace(call, file=shortened(call.file, roots), caller_file=shortened(call.caller_file, roots))
        for call in calls
        if call.large
    ]
    of_modules: Counter[tuple[str, int]] = Counter()
    for call in calls:
        if not call.first_line:
            of_modules[call.caller_file, call.caller_line] += call.ns
    varies = any(call.repeated < MOSTLY for call in calls)
    new_data = infers and any(call.repeated < MOSTLY for call in calls if not call.first_line)
    explained: set[Seen] = set()
    findings = []
    for call in calls:  # the longest first: what it calls is part of it
        # a module's weights change or its inputs do; where neither does, it is what the loop is for, unless others'
        # inputs do
        part = call.repeated if new_data or (varies and call.first_line) else call.within
        # a sliding window: most of its rows were in the one before, but not all, and no weights change meanwhile
        of_rows = infers and max(part, call.repeated) < MOSTLY <= call.rows < ALL
        part = call.rows if of_rows else part
        if not call.first_line:  # the looks know the line, and not which of its modules was called
            part *= call.ns / max(of_modules[call.caller_file, call.caller_line], 1)
        if part < MOSTLY or (call.first_line and view.changes_state(call.file, call.first_line)):
            continue
        caller = _caller(call)
        inside = [item for item in loop.seen if item not in explained and caller(item) is not None]
        share = loop.share(inside)
        if share < MIN_SHARE or len(inside) < MIN_LOOKS:
            continue
        explained.update(inside)
        findings.append(_finding(call, inside, share, part, loop, step_ms, of_rows=of_rows))
    seen = (replace(item, chain=(), loops=(), cause=None) if item in explained else item for item in loop.seen)
    return tuple(findings), replace(loop, seen=tuple(seen))


def _caller(call: ProbedCall) -> Callable[[Seen], int | None]:
    """Return where in a look's stack the caller of this call is, None where the look is not inside it."""
    where = call.file, call.first_line, call.function.rpartition(".")[2]
    called_at = call.caller_file, call.caller_line

    def calls(inner: Position, outer: Position) -> bool:
        if (outer.file, outer.line) != called_at:
            return False
        return inner.library == MODULE if not call.first_line else (inner.file, inner.first_line, inner.name) == where

    return lambda item: next((at for at, pair in enumerate(pairwise(item.look.stack), 1) if calls(*pair)), None)


def _called_from(call: ProbedCall, inside: Sequence[Seen]) -> tuple[str, tuple[int, ...]]:
    """Return file and lines of the user's that a call comes from, the longest first, where a library hands it on."""
    caller = _caller(call)
    lines: Counter[tuple[str, int]] = Counter()
    for item in inside:
        at = caller(item) or 0
        outer = next((item.look.stack[user] for user in item.look.user if user >= at), item.look.stack[at])
        lines[outer.file, outer.line] += item.weight_ns
    ranked = [place for place, _ in lines.most_common()]
    return ranked[0][0], tuple(line for file, line in ranked if file == ranked[0][0])[:MOST_LINES]


def _finding(
    call: ProbedCall,
    inside: Sequence[Seen],
    share: float,
    part: float,
    loop: SampledLoop,
    step_ms: float,
    *,
    of_rows: bool,
) -> Finding:
    entry = lookup("LCH105")
    error = counting_error(share, len(loop.seen))
    low, high = (ROWS_KEEP if of_rows else KEEPS) * part * max(share - error, 0.0), min(part * (share + error), 1.0)
    name = call.function if call.function.endswith(".forward") else call.function.rpartition(".")[2]
    lines: Counter[Position] = Counter()
    for item in inside:
        lines[item.chain[0]] += item.weight_ns
    hottest = lines.most_common(1)[0][0]
    file, called_at = _called_from(call, inside)
    at = Frame(file, called_at[0], "", exact=True, called=name, lines=called_at)
    inner = Frame(hottest.file, hottest.line, hottest.name, exact=True, lines=(hottest.line,))
    again = "all" if part > 0.99 else format_share(part)
    where = f"{file_name(file)}:{', '.join(map(str, sorted(called_at)))}"
    equal = "it had inputs and results equal to an earlier call's"
    if of_rows:
        equal = "the rows of its input had equal results in an earlier call"
    return entry.rule.finding(
        severity=severity_of(low, high),
        certainty="likely",
        message=f"{name}() takes {loop.took(share, step_ms)}, called from {where}; {again} of {equal}",
        place=Place(frame=at, stack=(at, inner)),
        cost=share_cost(low, high, step_ms, share, "compared calls, and their share of stack samples", loop, "B"),
        evidence={
            "share_of_step": round(share, 6),
            "repeated": round(part, 6),
            "calls_per_step": call.n_calls,
            "lines": [hottest.line],
        },
        fix=KEEP_ROWS if of_rows else entry.fix,
        n_events=call.n_calls,
    )
