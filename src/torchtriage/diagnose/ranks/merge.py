"""The findings of many ranks as those of one job.

The ranks of a job run in step: one that gets faster waits longer for the others. So a job saves no
more than the smallest, over its ranks, of what a rank saves itself and what it waits for others.
Where they can be replayed together, that says how much it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torchtriage.core.finding import SEVERITIES, Cost, Crash, Finding, NotChecked, Note, RankSpread
from torchtriage.core.units import format_ms
from torchtriage.diagnose.patterns import lookup
from torchtriage.diagnose.patterns.comm.comm_exposed import MIN_SHARE
from torchtriage.diagnose.ranks.joint_cost import finding_cost
from torchtriage.diagnose.ranks.joint_savings import JointSavings
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import severity_of

MAX_NAMED = 64
STRAGGLER, EXPOSED = "COM036", "COM035"
_PER_STEP = re.compile(r"( of [\d.,]+ (?:ns|µs|ms|s)) per step\b")


def merge_findings(
    results: Sequence[Result],
    numbers: Sequence[int],
    wait_ms: Sequence[float],
    step_ms: float,
    *,
    judged: bool,
    joint: JointSavings | None = None,
) -> list[Finding]:
    """Return equal findings of the ranks as one, with what the job would save.

    ``wait_ms`` : how long each rank waits for others with nothing beside it, per step. ``step_ms`` : the job's step.
    ``judged`` : waiting was measured between ranks, so what one rank alone guesses is left out. ``joint`` : the ranks
    replayed together.
    """
    groups: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    several = {
        code for result in results for code, n in Counter(finding.code for finding in result.findings).items() if n > 1
    }
    for position, result in enumerate(results):
        for place, finding in enumerate(result.findings):
            if judged and finding.code == STRAGGLER:
                continue
            key = _key(finding) if finding.code in several else (finding.code,)
            groups.setdefault(key, []).append((position, place))
    return [_merged(found, results, numbers, wait_ms, step_ms, joint) for found in groups.values()]


def only_waits(results: Sequence[Result], wait_ms: Sequence[float], step_ms: float) -> bool:
    """Return whether what the ranks expose of communication is little beyond what they wait for each other."""
    shares = [
        float(finding.evidence.get("share_of_step", 1.0)) - (wait / step_ms if step_ms else 0.0)
        for result, wait in zip(results, wait_ms, strict=True)
        for finding in result.findings
        if finding.code == EXPOSED
    ]
    return max(shares, default=1.0) < MIN_SHARE


def _key(finding: Finding) -> tuple[Any, ...]:
    """Return what tells findings of one code apart where a rank has several: their place."""
    place, frame = finding.place, finding.place.frame
    where = (frame.file, frame.function) if frame else place.ops[-1:]
    return (finding.code, where)


def _middle(cost: Cost | None) -> float:
    return (cost.low_ms + cost.high_ms) / 2 if cost is not None else 0.0


def _merged(
    places: list[tuple[int, int]],
    results: Sequence[Result],
    numbers: Sequence[int],
    wait_ms: Sequence[float],
    step_ms: float,
    joint: JointSavings | None,
) -> Finding:
    of_rank: dict[int, list[int]] = {}
    for at, place in places:
        of_rank.setdefault(at, []).append(place)
    by_rank = {at: [results[at].findings[place] for place in mine] for at, mine in of_rank.items()}
    found = [(at, finding) for at, mine in by_rank.items() for finding in mine]
    # the costliest of the ranks stands for all; the first of equals, so that runs repeat
    position, chosen = max(found, key=lambda item: (_middle(item[1].cost), -item[0]))
    middles = [sum(_middle(item.cost) for item in mine) for mine in by_rank.values()]
    cost = _job_cost(by_rank, chosen, wait_ms, step_ms)
    if joint is not None and cost is not None and cost.high_ms > 0 and chosen.family != "comm":
        cost = finding_cost(joint, results, of_rank, cost, step_ms) or cost
    spread = RankSpread(
        n_with=len(by_rank),
        n_ranks=len(numbers),
        low_ms=round(min(middles), 6),
        high_ms=round(max(middles), 6),
        ranks=tuple(numbers[at] for at in sorted(by_rank)[:MAX_NAMED]),
    )
    severity = min((item.severity for _, item in found), key=SEVERITIES.index)
    message = name_step(chosen.message, step_ms, f"per step of rank {numbers[position]}")
    if cost is not None and chosen.cost is not None and chosen.cost.high_ms > 0:
        severity = severity_of(cost, chosen.certainty)
        if cost.high_ms == 0:
            severity = "note"
            gains = "one of the ranks gains nothing" if len(by_rank) == len(numbers) else "no other rank waits for it"
            message += f"; {gains}, so the job's step stays as long"
    return replace(
        chosen,
        place=replace(chosen.place, steps=_step_numbers(chosen, results[position])),
        message=message,
        severity=severity,
        cost=cost,
        evidence={**chosen.evidence, "shown_rank": numbers[position]},
        ranks=spread,
        # one rank's trace asks for the others'
        fix=lookup(EXPOSED).fix if chosen.code == EXPOSED else chosen.fix,
    )


def name_step(message: str, step_ms: float, name: str) -> str:
    """Return a message that calls a step by this name wherever it takes a share of another than ``step_ms``."""
    same = f" of {format_ms(step_ms)}"
    return _PER_STEP.sub(lambda found: f"{found[1]} {'per step' if found[1] == same else name}", message)


def _step_numbers(finding: Finding, result: Result) -> tuple[int, ...]:
    """Return a place's steps by the numbers in their names: equal on all ranks, unlike places."""
    if result.summary is None:
        return finding.place.steps
    named = {step.index: step.name.rpartition("#")[2] for step in result.summary.steps}
    numbers = [named.get(index, "") for index in finding.place.steps]
    if not all(number.isdecimal() for number in numbers):
        return finding.place.steps
    return tuple(map(int, numbers))


def _job_cost(
    by_rank: dict[int, list[Finding]], chosen: Finding, wait_ms: Sequence[float], step_ms: float
) -> Cost | None:
    if chosen.cost is None:
        return None

    def smallest(what: str) -> float:
        own = [
            sum(float(getattr(item.cost, what)) for item in by_rank.get(at, ()) if item.cost)
            for at in range(len(wait_ms))
        ]
        # exposed communication holds the waiting already; what some ranks exchange for longer, others wait for
        held = range(len(own)) if chosen.code == EXPOSED else by_rank if chosen.family == "comm" else ()
        extra = [0.0 if at in held else wait for at, wait in enumerate(wait_ms)]
        least = min(mine + more for mine, more in zip(own, extra, strict=True))
        return min(least, max(own), step_ms)

    low, high = smallest("low_ms"), smallest("high_ms")
    return replace(
        chosen.cost.saving(min(low, high), high, of_ms=step_ms),
        together_ms=None,
        calibration=None,
        naive_ms=round(max(item.cost.naive_ms for mine in by_rank.values() for item in mine if item.cost), 6),
        method="smallest over the ranks of what each saves and waits"
        + (f"; {chosen.cost.method}" if chosen.cost.method else ""),
    )


def scaled(finding: Finding, scale: float) -> Finding:
    """Return a finding with its cost in times without the profiler, ``scale`` times the recorded ones."""
    cost = finding.cost
    if cost is None or scale == 1.0:
        return finding
    low, high, of, naive = (round(value * scale, 6) for value in (cost.low_ms, cost.high_ms, cost.of_ms, cost.naive_ms))
    cost = replace(cost, low_ms=low, high_ms=high, of_ms=of, naive_ms=naive, basis="bounded", grade="C")
    return replace(finding, cost=replace(cost, method=f"{cost.method}; scaled to the step without the profiler"))


# -- what is said beside findings ----------------------------------------------------------------


def merge_notes(
    of_rank: Iterable[Sequence[Note]],
    numbers: Sequence[int],
    alike: Callable[[Note], Hashable] = lambda note: (note.code, note.level),
    much: Callable[[Note], float] = lambda note: note.evidence.get("share", 0),
) -> list[Note]:
    """Return the ranks' notes, those of equal codes (or what ``alike`` tells them by) as one, saying on which ranks.

    ``much`` : how much of it a rank has; the one with most speaks for all.
    """
    found: dict[Hashable, list[tuple[int, Note]]] = {}
    for number, own in zip(numbers, of_rank, strict=True):
        for note in own:
            found.setdefault(alike(note), []).append((number, note))
    out = []
    for notes in found.values():
        number, first = max(notes, key=lambda item: much(item[1]))
        ranks = list(dict.fromkeys(item for item, _ in notes))
        where = on_ranks(ranks, len(numbers))
        same = len({note.message for _, note in notes}) == 1
        if same and len(ranks) == len(numbers):
            # what it counts is one rank's
            where = f"on each of {len(ranks)} ranks"
        which = "" if same else f", as rank {number}:"
        level = first.level
        # one rank that cannot be judged does not stop the others
        if level == "refuse" and len(ranks) < len(numbers):
            level = "warn"
        out.append(
            replace(
                first,
                level=level,
                message=f"{where}{which or ':'} {first.message}" if where or which else first.message,
                evidence={**first.evidence, "ranks": ranks[:MAX_NAMED]},
            )
        )
    return out


def on_ranks(ranks: Sequence[int], n_ranks: int) -> str:
    """Return on which of a job's ranks something is, in words."""
    if len(ranks) == n_ranks:
        return f"on all {n_ranks} ranks"
    if len(ranks) == 1:
        return f"on rank {ranks[0]}"
    named = ", ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]}, …, {ranks[-1]}"
    return f"on {len(ranks)} of {n_ranks} ranks ({named})"


def merge_checks(
    results: Sequence[Result], numbers: Sequence[int], of_job: Collection[str] = ()
) -> tuple[tuple[str, ...], tuple[NotChecked, ...], tuple[Crash, ...]]:
    """Return what ran on every rank, what did not run on some, and what failed on any.

    ``of_job`` : what ran on the ranks together.
    """
    checked = set.intersection(*(set(result.checked) for result in results)) | set(of_job)
    missing: dict[str, list[NotChecked]] = {}
    crashes: dict[tuple[str, str], list[int]] = {}
    for number, result in zip(numbers, results, strict=True):
        for unchecked in result.not_checked:
            if unchecked.code in of_job:
                continue
            missing.setdefault(unchecked.code, []).append(unchecked)
        for crash in result.crashes:
            crashes.setdefault((crash.code, crash.error), []).append(number)
    not_checked = []
    for code in sorted(missing):
        some = missing[code]
        part = f" on {len(some)} of {len(numbers)} ranks" if len(some) < len(numbers) else ""
        not_checked.append(replace(some[0], missing=tuple(f"{need}{part}" for need in some[0].missing)))
    failed = [
        Crash(code, f"{error} ({on_ranks(ranks, len(numbers))})") for (code, error), ranks in sorted(crashes.items())
    ]
    return tuple(sorted(checked)), tuple(not_checked), tuple(failed)
