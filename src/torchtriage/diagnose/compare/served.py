"""What an inference engine's steps hold, and whether two runs of it hold the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchtriage.core.finding import Phase
from torchtriage.core.trace import Trace
from torchtriage.core.units import format_count, format_share
from torchtriage.diagnose.compare.result import Unlike

SAME_BATCH = 0.1
"""Difference of a phase's share of the steps, and relative one of its tokens per step, within which requests come and
go."""

Served = dict[Phase, tuple[float, float | None]]
"""Each phase's share of the steady steps, and the tokens of one of its steps where they are known."""


def served(trace: Trace) -> Served:
    """Return what the steady steps of an engine hold; empty without one."""
    if trace.serving is None or not len(trace.serving.rows):
        return {}
    steady = np.flatnonzero(trace.steps.steady).tolist()
    batches = [trace.serving.batches[index] for index in steady]
    out: Served = {}
    for phase in dict.fromkeys(batch.phase for batch in batches):
        sizes = [
            None if None in (batch.context_tokens, batch.generation_tokens)
            else (batch.context_tokens or 0) + (batch.generation_tokens or 0)
            for batch in batches
            if batch.phase == phase
        ]  # fmt: skip
        known = [size for size in sizes if size is not None]
        out[phase] = len(sizes) / len(batches), sum(known) / len(known) if len(known) == len(sizes) else None
    return out


def unlike_served(before: Served, after: Served) -> Iterator[Unlike]:
    """Yield the reason why steps of an engine are not alike."""
    if not (before and after):
        return
    for phase in {**before, **after}:
        share, tokens = before.get(phase, (0.0, None))
        other_share, other_tokens = after.get(phase, (0.0, None))
        far = abs(share - other_share) > SAME_BATCH
        if tokens is not None and other_tokens is not None:
            far |= abs(tokens - other_tokens) > SAME_BATCH * max(tokens, other_tokens)
        if far:
            yield Unlike(
                "shapes",
                f"the engine's steps hold different work: {_held(before)} before, {_held(after)} after",
                _held(before),
                _held(after),
                "record both runs under the same load",
            )
            return


def _held(side: Served) -> str:
    return ", ".join(
        f"{format_share(share)} {phase}" + (f" of {format_count(tokens, 'token')}" if tokens is not None else "")
        for phase, (share, tokens) in side.items()
    )
