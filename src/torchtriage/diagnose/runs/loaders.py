"""What the looks at the stacks say of a DataLoader: batches made on the loop's thread, waits, workers started again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.core.names import file_name
from torchtriage.diagnose.lint.base import lookup
from torchtriage.diagnose.runs.account import STARTS_WORKERS, WAITS_FOR_LOADER, SampledLoop
from torchtriage.diagnose.runs.costs import WORTH, counting_error, of_looks, severity_of, share_cost

LOADING, STARVED = "DAT018", "DAT019"
NEEDLESS = ("LCH105", "DAT103", "KRN105")
"""Codes of what need not be done at all: done already, read already, never read."""
MIN_LOOKS = 4
PAYS_MS = 5.0
"""Work for each batch below which handing it over to a process saves nothing for sure."""
STARVES = 0.15
"""Of a step, the wait for workers that is no accident of a busy machine."""
CHEAPER_BATCHES = Fix(
    "Make a batch cheaper: index whole batches of data in memory, or simplify the transforms; then add workers, up to"
    " the number of cores.",
    "for rows in torch.randperm(len(x)).split(256): batch = x[rows], y[rows]   # data in memory",
    "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
)
NO_WORKERS = Fix(
    "Build the loader once, with persistent_workers=True; for data in memory use no workers, or index whole batches.",
    "loader = DataLoader(dataset, num_workers=2, persistent_workers=True)   # before the loop",
    "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
)


def loader_cost(finding: Finding, loop: SampledLoop, step_ms: float, cores: int) -> Finding | None:
    """Return a recording's finding on a loader at the cost that the looks know; None where it is nothing.

    More workers share the cores there are, and take over only what the data set itself does.
    """
    cost = finding.cost
    share = loop.loading_share if finding.code == LOADING else loop.waiting_share
    if cost is None or share < WORTH:
        return None
    if finding.code == LOADING:
        work = loop.sample_share
        low = work * (1 - 1 / max(min(cores, 8), 2)) if work * step_ms >= PAYS_MS else 0.0
    else:
        low = _surely_waited(share, cores)
    cost = of_looks(cost, low, share, step_ms, "share of stack samples")
    return replace(finding, cost=cost, severity=severity_of(low, share))


def _surely_waited(share: float, cores: int) -> float:
    """Return what of the wait for workers goes: two cores are busy already, with a worker and with the loop."""
    return max(share - (0.25 if cores > 2 else 0.5), 0.0) / 2


def slow_workers(loop: SampledLoop, step_ms: float, cores: int) -> Iterator[Finding]:
    """Yield a finding where the steps wait for workers, of which the few recorded ones may have had batches ready."""
    inside = [item for item in loop.seen if item.kind == WAITS_FOR_LOADER and item.chain]
    share = loop.waiting_share
    if share < STARVES or len(inside) < MIN_LOOKS:
        return
    low = _surely_waited(share, cores)
    position = max(inside, key=lambda item: item.weight_ns).chain[0]
    frame = Frame(position.file, position.line, position.name, exact=True, lines=(position.line,))
    yield lookup(STARVED).rule.finding(
        severity=severity_of(low, share),
        certainty="likely",
        message=f"waiting for loader workers takes {loop.took(share, step_ms)}, iterated at"
        f" {file_name(position.file)}:{position.line}",
        place=Place(frame=frame, stack=(frame,)),
        cost=share_cost(low, share, step_ms, share, "share of stack samples", loop, "B"),
        evidence={"share_of_step": round(share, 6), "looks": len(inside)},
        fix=CHEAPER_BATCHES,
        n_events=len(inside),
    )


def restarted_workers(loop: SampledLoop, step_ms: float) -> Iterator[Finding]:
    """Yield a finding where worker processes start and end during the steps."""
    inside = [item for item in loop.seen if item.kind == STARTS_WORKERS and item.chain]
    share = loop.share(inside)
    if share < WORTH or len(inside) < MIN_LOOKS:
        return
    rule = lookup(STARVED).rule
    error = counting_error(share, len(loop.seen))
    # most waits are for workers that have just begun
    low, high = 0.8 * max(share - error, 0.0), min(share + error + loop.waiting_share, 1.0)
    position = max(inside, key=lambda item: item.weight_ns).chain[0]
    frame = Frame(position.file, position.line, position.name, exact=True, lines=(position.line,))
    yield rule.finding(
        severity=severity_of(low, high),
        certainty="certain",
        message=f"starting and stopping loader workers takes {loop.took(share, step_ms)}, iterated at"
        f" {file_name(position.file)}:{position.line}",
        place=Place(frame=frame, stack=(frame,)),
        cost=share_cost(low, high, step_ms, share, "share of stack samples", loop, "B"),
        evidence={"share_of_step": round(share, 6), "looks": len(inside)},
        fix=NO_WORKERS,
        n_events=len(inside),
    )


MOST_OF_IT, MUCH_OF_IT = 0.75, 0.25
"""Of the time in a loader, what a line must take to be its cause, and what a call that need not be made at all."""


def causes_first(findings: Sequence[Finding], loop: SampledLoop) -> tuple[Finding, ...]:
    """Return ranked findings with the lines that a loader spends its time at before the advice to load elsewhere."""
    ranked = list(findings)
    for loading in [finding for finding in findings if finding.code == LOADING]:
        causes = [finding for finding in ranked[ranked.index(loading) + 1 :] if spent_loading(finding, loop)]
        others = [finding for finding in ranked if finding not in causes]
        at = others.index(loading)
        ranked = [*others[:at], *causes, *others[at:]]
    return tuple(ranked)


def spent_loading(finding: Finding, loop: SampledLoop) -> bool:
    """Whether a finding's line takes much of the time in which the loop loads batches itself."""
    frame, needless = finding.place.frame, finding.code in NEEDLESS
    if frame is None or finding.cost is None or not (needless or finding.family == "host"):
        return False
    lines = {frame.line, *(frame.lines if needless else finding.evidence.get("lines", ()))}
    least = MUCH_OF_IT if needless else MOST_OF_IT
    return finding.cost.high_ms > 0 and loop.loading_share_at(frame.file, lines) >= least * loop.loading_share
