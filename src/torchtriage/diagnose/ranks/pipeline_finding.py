"""What a pipeline's bubble costs a job, and what a stage that is longer than the others does; what would help.

Savings are the same schedule, or another, played through with the measured times of the stages, of messages and of the
host between passes. The bubble is judged as if all stages were equally long, so that no time is claimed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtriage.core.finding import Cost, Finding, Fix, Place, RankSpread
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns import lookup
from torchtriage.diagnose.patterns.comm.pipeline_bubble import ONE_BY_ONE_FIX
from torchtriage.diagnose.ranks.pipeline_bubble import Bubble
from torchtriage.diagnose.ranks.pipeline_schedule import ONE_BY_ONE, order_of
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.verdict.verdict import severity_of

PIPELINES = BUBBLE, IMBALANCE = "COM062", "COM063"
MIN_BUBBLE = 0.10
"""Of the step. With four times as many micro-batches as stages, which GPipe's authors find enough, it is 11 % on two
ranks (Huang et al., "GPipe", 2019, section 2.3)."""
MIN_GAIN = 0.05
"""Of the step, as for a straggler."""
MIN_LONGER = 1.1
"""Of the mean over ranks: stages that are as long as can be done with whole layers differ by less."""
MODEL_ERROR = 0.05
"""By which a played order is off: 3 % at most in nine real pipelines whose stages' true times were noted."""
MIN_MEASURED = 0.5
"""Of what the schedule implies has to be there as waiting."""


def pipeline_findings(
    bubbles: Sequence[Bubble], ranks: Sequence[RankRecord], numbers: Sequence[int], step_ns: float
) -> list[Finding]:
    """Return what the slowest of a job's pipelines shows: the others wait for it.

    ``step_ns`` : mean step of the job.
    """
    known = [bubble for bubble in bubbles if bubble.even is not None and bubble.implied is not None]
    if not known or step_ns <= 0:
        return []
    slowest = max(known, key=lambda bubble: float(bubble.span_ns.mean()))
    alike = [bubble for bubble in known if bubble.pipeline.rank_of == slowest.pipeline.rank_of]
    found = [_imbalance(slowest, alike, ranks, numbers, step_ns), _bubble(slowest, alike, numbers, step_ns)]
    return [finding for finding in found if finding is not None]


def _bubble(bubble: Bubble, alike: Sequence[Bubble], numbers: Sequence[int], step_ns: float) -> Finding | None:
    assert bubble.even is not None
    made = bubble.pipeline
    p, m, v = len(made.members), made.n_micro, made.n_chunks
    implied_ns = bubble.even.idle_share * bubble.even.span_ns
    now_ns = bubble.lasts_ns(made.orders, bubble.even_ns)
    gains = {name: now_ns - after for name, after in _options(bubble).items() if after > 0}
    gains = {name: gain for name, gain in gains.items() if gain >= MIN_GAIN * step_ns}
    if implied_ns < MIN_BUBBLE * step_ns or bubble.share < MIN_MEASURED * bubble.even.idle_share or not gains:
        return None
    # no more can come back than is waited
    most = float(bubble.bubble_ns.mean())
    # passes that are cut smaller take more than their part, which was not measured
    low_ns, high_ns = min(most, *gains.values()) / 2, min(most, max(gains.values()))
    books = f", by the schedule's formula {format_share(bubble.books_share)}" if bubble.books_share is not None else ""
    what = "; ".join(f"{name} would save {format_ns(min(gain, most))}" for name, gain in gains.items())
    share = bubble.share
    return _finding(
        BUBBLE,
        "Ranks wait for each other because of the pipeline's schedule",
        f"{_pipeline(bubble, alike)} ({made.schedule}, {format_count(m, 'micro-batch', 'micro-batches')}): a rank"
        f" stands idle for {format_ns(float(bubble.bubble_ns.mean()))} of its {format_ns(float(bubble.span_ns.mean()))}"
        f" per step ({format_share(share)}) until another stage is done; equal stages in this order would for"
        f" {format_share(bubble.even.idle_share)}{books}; {what}",
        bubble,
        numbers,
        (low_ns, high_ns, step_ns),
        "this schedule and others played through with the measured times of stages, messages and host;"
        " half of the lowest and the highest of those named",
        {
            "schedule": made.schedule,
            "n_ranks": p,
            "n_micro_batches": m,
            "n_chunks": v,
            "n_pipelines": len(alike),
            "bubble_share": round(share, 6),
            "even_share": round(bubble.even.idle_share, 6),
            **({"books_share": round(bubble.books_share, 6)} if bubble.books_share is not None else {}),
            "bubble_ms_per_step": ms(float(bubble.bubble_ns.mean())),
            "transfer_ms_per_step": ms(float(bubble.transfer_ns.mean())),
            "saved_ms": {name: ms(min(gain, most)) for name, gain in gains.items()},
        },
        fix=ONE_BY_ONE_FIX if made.schedule == ONE_BY_ONE else None,
    )


def _options(bubble: Bubble) -> dict[str, float]:
    """Return what could be done instead, and how long a step would take in ns (0: not possible)."""
    made = bubble.pipeline
    p, m, v = len(made.members), made.n_micro, made.n_chunks
    if made.schedule not in ("GPipe", "1F1B", "interleaved 1F1B", ONE_BY_ONE):
        return {}

    def times(parts: int, kinds: dict[str, tuple[str, float]]) -> dict[tuple[int, str], float]:
        """Return times with each rank's work cut into stages, its kinds into others."""
        out: dict[tuple[int, str], float] = {}
        for place in range(p):
            for kind, (of, share) in kinds.items():
                whole = sum(
                    time_ns
                    for (stage, what), time_ns in bubble.even_ns.items()
                    if what == of and made.rank_of[stage] == place
                )
                for chunk in range(parts):
                    out[chunk * p + place, kind] = whole * share / parts
        return out

    whole = {"F": ("F", 1.0), "B": ("B", 1.0)}
    half = {"F": ("F", 0.5), "B": ("B", 0.5)}
    split = {"F": ("F", 1.0), "I": ("B", 0.5), "W": ("B", 0.5)}
    ways = {"twice as many micro-batches, half as large": (order_of(made.schedule, p, 2 * m, v), times(v, half))}
    if made.schedule == ONE_BY_ONE:
        ways = {"1F1B": (order_of("1F1B", p, m, 1), times(1, whole))}
    if v == 1:
        ways["two stages on each rank, interleaved"] = (order_of("interleaved 1F1B", p, m, 2), times(2, whole))
        ways["a zero-bubble schedule"] = (order_of("zero bubble", p, m, 1), times(1, split))
    return {name: bubble.lasts_ns(orders, cut) if orders else 0.0 for name, (orders, cut) in ways.items()}


def _imbalance(
    bubble: Bubble, alike: Sequence[Bubble], ranks: Sequence[RankRecord], numbers: Sequence[int], step_ns: float
) -> Finding | None:
    made = bubble.pipeline
    place = max(range(len(bubble.rank_ns)), key=bubble.rank_ns.__getitem__)
    mean_ns = sum(bubble.rank_ns) / len(bubble.rank_ns)
    longest_ns = bubble.rank_ns[place]
    assert bubble.implied is not None
    assert bubble.even is not None
    # messages and the host hide some of the difference, or none
    gain_ns = max(bubble.even_gain_ns, bubble.implied.span_ns - bubble.even.span_ns)
    # what the other ranks wait is all that can come back
    others = [float(bubble.bubble_ns[at].mean()) for at in range(len(bubble.rank_ns)) if at != place]
    most_ns = sum(others) / len(others)
    gain_ns = min(gain_ns, most_ns)
    # one rank of many replicas is no stage that is too long but a rank that is late
    same = sum(other.rank_ns[place] >= MIN_LONGER * sum(other.rank_ns) / len(other.rank_ns) for other in alike)
    if longest_ns < MIN_LONGER * mean_ns or gain_ns < MIN_GAIN * step_ns or same * 2 <= len(alike):
        return None
    rank = numbers[made.members[place]]
    stages = [stage for stage, at in enumerate(made.rank_of) if at == place]
    name = f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
    usual_ns = sum(time_ns for at, time_ns in enumerate(bubble.rank_ns) if at != place) / (len(bubble.rank_ns) - 1)
    more, why = _why(ranks, made.members, place)
    return _finding(
        IMBALANCE,
        f"Pipeline stages are uneven: rank {rank}'s takes longest",
        f"{_pipeline(bubble, alike)} ({made.schedule}): {name} on rank {rank} {'take' if len(stages) > 1 else 'takes'}"
        f" {format_ns(longest_ns)} for a micro-batch, forward and back, those of the other ranks"
        f" {format_ns(usual_ns)} on average; {why}; with equal stages a step would be {format_ns(gain_ns)} shorter",
        bubble,
        numbers,
        (gain_ns / 2, min(gain_ns * (1 + MODEL_ERROR), most_ns), step_ns),
        "the recorded order played through with the measured times of the stages and with equal ones, and 5 %; low end:"
        " half of it, layers move whole",
        {
            "schedule": made.schedule,
            "slow_stage_rank": rank,
            "slow_stages": stages,
            "n_pipelines": len(alike),
            "n_pipelines_alike": same,
            "longest_ms": ms(longest_ns),
            "others_ms": ms(usual_ns),
            "times_as_many_calls": round(more, 4),
            "ms_by_rank": {str(numbers[at]): ms(t) for at, t in zip(made.members, bubble.rank_ns, strict=True)},
        },
        rank=rank,
    )


def _why(ranks: Sequence[RankRecord], members: Sequence[int], place: int) -> tuple[float, str]:
    """Return how many times as many calls the longest stage makes, weighted by their time, and what that says."""
    device = any(not phase for phase, _ in ranks[members[place]].paces)
    phases = ("",) if device else ("forward", "backward")
    others = [ranks[position].paces for at, position in enumerate(members) if at != place]
    mine_ns = usual_ns = 0.0
    for kind, (count, own_ns) in ranks[members[place]].paces.items():
        if kind[0] in phases:
            counts = sorted(paces.get(kind, (0, 0))[0] for paces in others)
            mine_ns += count * own_ns
            usual_ns += counts[len(counts) // 2] * own_ns
    more = mine_ns / usual_ns if usual_ns else 1.0
    if more >= MIN_LONGER:
        return more, f"it makes {more:.2g} times as many calls: it holds more layers"
    return more, "it makes no more calls than they do: each takes longer"


def _pipeline(bubble: Bubble, alike: Sequence[Bubble]) -> str:
    p, v = len(bubble.pipeline.members), bubble.pipeline.n_chunks
    stages = f"{p * v} stages on {p} ranks" if v > 1 else f"{p} stages"
    return f"{len(alike)} pipelines of {stages}" if len(alike) > 1 else f"a pipeline of {stages}"


def _finding(
    code: str,
    title: str,
    message: str,
    bubble: Bubble,
    numbers: Sequence[int],
    amounts_ns: tuple[float, float, float],
    method: str,
    evidence: dict[str, object],
    rank: int | None = None,
    fix: Fix | None = None,
) -> Finding:
    cost = Cost.of(
        *(ns / 1e6 for ns in (*amounts_ns, float(bubble.bubble_ns.mean()))), basis="modelled", method=method, grade="B"
    )
    members = tuple(numbers[position] for position in bubble.pipeline.members)
    pattern = lookup(code)
    return Finding(
        code=code,
        name=pattern.pattern.name,
        family="comm",
        title=title,
        severity=severity_of(cost, "likely"),
        certainty="likely",
        message=message,
        place=Place(lane=f"rank {rank}" if rank is not None else "", steps=bubble.pipeline.numbers),
        cost=cost,
        evidence=evidence,
        fix=fix or pattern.fix,
        n_events=bubble.pipeline.n_matched,
        ranks=RankSpread(
            len(members), len(numbers), cost.low_ms, cost.high_ms, (rank,) if rank is not None else members[:64]
        ),
    )
