"""The steps no number is taken from: which, why, and whether they tell another story than the steady ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchtriage.core.arrays import Floats, Ints
from torchtriage.core.finding import Note
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.select import step_numbers
from torchtriage.core.trace.steps import FIRST, NO_WORK, OUTLIER
from torchtriage.core.units import format_count, format_ns, ms

SLOWER = 2.0
"""Steady steps this many times as long as the first are no steady state that a warm-up reached."""
SHOWN = 3


def left_out_steps(trace: Trace) -> Iterator[Note]:
    """Yield a warning where the first step, left out as warm-up, was the fast one, and a note on steps out of line."""
    steps = trace.steps
    if steps.steady.all():
        return
    wall_ns, host_ns = steps.end_ns - steps.start_ns, steps.host_end_ns - steps.host_start_ns
    numbers = step_numbers(steps.names)
    steady = f"{format_count(steps.n_steady, 'steady step')} take{'s' * (steps.n_steady == 1)}"
    steady += f" {format_ns(steps.wall_ns)}"
    if (
        steps.left_out[0] == FIRST
        and min(wall_ns[0], host_ns[0]) > 0
        and min(steps.wall_ns / wall_ns[0], host_ns[steps.steady].mean() / host_ns[0]) > SLOWER
    ):
        call, extra_ns, n_calls = _slower_call(trace)
        yield Note(
            "slower-steps",
            "warn",
            f"step {numbers[0]} takes {format_ns(wall_ns[0])} and is left out as the first, the {steady},"
            f" {steps.wall_ns / wall_ns[0]:.3g} times as long: {call} takes {format_ns(extra_ns)} more in {n_calls}",
            "record more steps: it is not known which of them is typical",
            {"first_step_ms": ms(int(wall_ns[0])), "slower_call": call, "slower_call_ms": ms(extra_ns)},
        )
    long = wall_ns > OUTLIER * steps.wall_ns
    strange = [
        index for index, why in enumerate(steps.left_out) if (long[index] if why == FIRST else why not in ("", NO_WORK))
    ]
    if strange:
        each = [f"{numbers[index]} ({format_ns(wall_ns[index])}) {steps.left_out[index]}" for index in strange[:SHOWN]]
        more = f", {len(strange) - SHOWN:,} more" if len(strange) > SHOWN else ""
        yield Note(
            "left-out-steps",
            "info",
            f"left out of every number per step: step {', '.join(each)}{more}; the {steady}",
            f"record more steps after a warm-up, or judge step {numbers[strange[0]]} alone: torchtriage analyze TRACE"
            f" --steps {numbers[strange[0]]}",
            {"steps": strange},
        )


def _slower_call(trace: Trace) -> tuple[str, int, str]:
    """Return the host's call whose own time grew most since the first step, by how much (ns), and in how many calls."""
    steps = trace.steps
    rows = np.flatnonzero(trace.is_kind(Kind.OP, Kind.RUNTIME))
    step_of = steps.of_host(rows)
    steady, first = rows[steps.in_steady(step_of)], rows[step_of == 0]
    own_ns = trace.tree.self_ns

    def by_name(some: Ints, weights: Ints | None = None) -> Floats:
        return np.bincount(trace.name[some], weights, len(trace.names)).astype(float)

    extra_ns = by_name(steady, own_ns[steady]) / steps.n_steady - by_name(first, own_ns[first])
    top = int(extra_ns.argmax())
    before, now = by_name(first)[top], by_name(steady)[top] / steps.n_steady
    calls = (
        f"the same {format_count(now, 'call')}" if now == before else f"{format_count(now, 'call')}, not {before:,.0f}"
    )
    return trace.names[top], int(extra_ns[top]), calls
