"""One result out of two recordings of a loop: what it costs from the light, where from the heavy.

The heavy recording sees more (shapes, stacks, modules), so its findings are the list; the light one
disturbs the step less, so where both made a finding its cost is the light one's. Both are scaled to
the step time measured without a profiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from torchtriage.core.finding import Cost, Finding, Place, rank_order
from torchtriage.diagnose.ranks.merge import name_step, on_ranks
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import Result
from torchtriage.memory.leaks.growth_test import CODE as LEAK
from torchtriage.memory.leaks.leak_report import WatchReport

NEAR = 0.02
"""Costs scaled by less than this do not mention it."""
HEAVY_ONLY = "seen only in the heavy recording, scaled to the step without a profiler"


Judged = TypeVar("Judged", Result, JobResult)


def join(light: Judged, heavy: Judged) -> Judged:
    """Return the light result with the places of the heavy one, and the findings only it has.

    The verdict is still the light one's.
    """
    if heavy.refused:
        return light
    if light.refused:  # its reason is no reason against the heavy one
        return heavy
    findings = join_findings(light, heavy)
    checked = sorted({*light.checked, *heavy.checked})
    not_checked = {entry.code: entry for entry in (*light.not_checked, *heavy.not_checked)}
    crashes = {crash.code: crash for crash in (*light.crashes, *heavy.crashes)}
    known: set[str] = {note.code for note in light.notes}
    return replace(
        light,
        findings=findings,
        notes=(*light.notes, *(note for note in heavy.notes if note.code not in known and note.level == "warn")),
        checked=tuple(checked),
        not_checked=tuple(not_checked[code] for code in sorted(set(not_checked) - set(checked))),
        crashes=tuple(crashes.values()),
        joint_cost=_joint(light.joint_cost, heavy.joint_cost, findings),
        healthy=light.healthy and heavy.healthy,
    )


def scaled(result: Judged, step_ms: float | None) -> Judged:
    """Return the result with all costs out of a step of ``step_ms``, where they are not already.

    A message that takes its share of another step says that this one is as recorded.

    Replay does so by what the profiler cost each operator and frame; where it was refused, or could
    not explain the whole difference, the rest is in proportion.
    """
    if not step_ms:
        return result
    if not isinstance(result, JobResult) and result.replay is not None:
        result = replace(result, replay=replace(result.replay, unprofiled_step_ms=step_ms))
    return replace(
        result,
        findings=tuple(
            replace(
                finding,
                cost=_scaled(finding.cost, step_ms),
                message=name_step(finding.message, step_ms, "per recorded step"),
            )
            for finding in result.findings
        ),
        joint_cost=_scaled(result.joint_cost, step_ms),
    )


def _scaled(cost: Cost | None, step_ms: float) -> Cost | None:
    if cost is None or cost.per != "step":
        return cost
    factor = step_ms / cost.of_ms
    scaling = "in proportion to the unprofiled step" if abs(factor - 1) > NEAR else ""
    return replace(
        cost,
        low_ms=round(cost.low_ms * factor, 6),
        high_ms=round(cost.high_ms * factor, 6),
        naive_ms=round(cost.naive_ms * factor, 6),
        of_ms=round(step_ms, 6),
        together_ms=None if cost.together_ms is None else round(cost.together_ms * factor, 6),
        method="; ".join(filter(None, [cost.method, scaling])),
    )


def with_leaks(result: Judged, seen: WatchReport | None, found: Sequence[Finding]) -> Judged:
    """Return the result with leaks among its findings, alone or with their cause.

    Where the watch has an answer, growth of memory is judged by that, and not by a recording of a few steps; where a
    leak was found without one, on its ranks.
    """
    known = {*result.checked, *(entry.code for entry in result.not_checked if not entry.left_out)}
    answered = seen is not None and seen.answer != "too early"
    if not (answered or found) or LEAK not in known:
        return result
    grow = {rank for leak in found for rank in _ranks(leak)}
    findings: list[Finding] = [
        _elsewhere(finding, grow) if finding.code == LEAK else finding
        for finding in result.findings
        if finding.code != LEAK or not (answered or _ranks(finding) <= grow)
    ]
    added: list[Finding] = []
    for leak in found:
        cause = next((finding for finding in findings if _is_cause(finding, leak)), None)
        if cause is not None:  # that memory grows by it on some ranks says nothing of the others, nor of its time
            findings.remove(cause)
            leak = replace(leak, message=leak.message + _where(leak, cause), cost=cause.cost, ranks=cause.ranks)
        added.append(leak)
    return replace(
        result,
        findings=tuple(sorted([*findings, *added], key=rank_order)),
        healthy=result.healthy and not found,
        checked=tuple(sorted({*result.checked, LEAK})),
        not_checked=tuple(entry for entry in result.not_checked if entry.code != LEAK),
    )


def _is_cause(finding: Finding, leak: Finding) -> bool:
    """Return whether a finding is the cause of a leak, and stands for both."""
    if finding.code != leak.code or leak.code == LEAK or not _ranks(leak) <= _ranks(finding):
        return False
    mine, its = finding.place.frame, leak.place.frame
    return mine is None or (its is not None and (mine.file, mine.line) == (its.file, its.line))


def _elsewhere(finding: Finding, ranks: set[int]) -> Finding:
    """Return a finding without these ranks."""
    spread = finding.ranks
    assert spread is not None
    left = tuple(rank for rank in spread.ranks if rank not in ranks)
    return replace(finding, ranks=replace(spread, n_with=spread.n_with - len(spread.ranks) + len(left), ranks=left))


def _where(leak: Finding, cause: Finding) -> str:
    """Return on which ranks memory grows, where its cause is on more."""
    of_leak, of_cause = leak.ranks, cause.ranks
    if of_leak is None or of_cause is None or of_leak.n_with == of_cause.n_with:
        return ""
    return f"; memory grows {on_ranks(of_leak.ranks, of_leak.n_ranks)}"


def _ranks(finding: Finding) -> set[int]:
    return {*finding.ranks.ranks} if finding.ranks is not None else set()


def join_findings(light: Judged, heavy: Judged) -> tuple[Finding, ...]:
    """Return the findings of both, costliest first, each once.

    A finding of both is the heavy one, at the light one's cost; where several places of the heavy
    one are a single one in the light, they share its cost as they share their own. Of one alone:

    - the light one's stays if the heavy recording could not judge its code, or if it is not of
      every step: two or three heavy ones may have none. Else, seen with shapes and stacks, the same
      time turned out to be something else.
    - the heavy one's stays if the light recording could not judge its code, or it is certain. Where
      it could, undisturbed, the time was the profiler's own.
    """
    out: list[Finding] = []
    for code in dict.fromkeys(finding.code for finding in (*heavy.findings, *light.findings)):
        ours = [finding for finding in light.findings if finding.code == code]
        theirs = [finding for finding in heavy.findings if finding.code == code]
        if not theirs:
            out += [finding for finding in ours if code not in heavy.checked or _seldom(finding, light)]
        elif not ours or _kinds(ours).isdisjoint(_kinds(theirs)):  # where both are, stacks have shown another fault
            sure = bool(ours) or code not in light.checked
            added = [finding for finding in theirs if sure or finding.certainty == "certain"]
            out += [_on_light_clock(_heavy_only(finding), []) for finding in added]
        else:
            for some_ours, some_theirs in _groups(ours, theirs):
                merged = _shared(some_ours, some_theirs) if some_ours else [_heavy_only(their) for their in some_theirs]
                out += [_on_light_clock(item, some_ours) for item in merged]
    return tuple(sorted(out, key=rank_order))


def _seldom(finding: Finding, result: Result | JobResult) -> bool:
    summary = result if isinstance(result, JobResult) else result.summary
    return summary is not None and 0 < len(finding.place.steps) < summary.n_steady_steps


def _kinds(findings: Sequence[Finding]) -> set[object]:
    """Return which of the faults they are that a pattern distinguishes, if it does."""
    return {finding.evidence.get("kind") for finding in findings}


def _groups(light: list[Finding], heavy: list[Finding]) -> list[tuple[list[Finding], list[Finding]]]:
    """Pair findings of one code: by their operators first, then whatever is left of both."""
    pairs: list[tuple[list[Finding], list[Finding]]] = []
    left, right = list(light), list(heavy)
    for chain in dict.fromkeys(finding.place.ops for finding in heavy):
        ours = [finding for finding in left if finding.place.ops == chain]
        if ours:
            pairs.append((ours, [finding for finding in right if finding.place.ops == chain]))
            left = [finding for finding in left if finding.place.ops != chain]
            right = [finding for finding in right if finding.place.ops != chain]
    if right:
        pairs.append((left, right))
    return pairs


def _shared(light: list[Finding], heavy: list[Finding]) -> list[Finding]:
    """Return the heavy findings with the light ones' costs, shared as their own are."""
    costs = [finding.cost for finding in light if finding.cost is not None]
    whole = sum(finding.cost.high_ms for finding in heavy if finding.cost is not None)
    if not costs or not whole:
        return heavy
    low, high = sum(cost.low_ms for cost in costs), sum(cost.high_ms for cost in costs)
    naive = sum(cost.naive_ms for cost in costs)
    out = []
    for finding in heavy:
        if finding.cost is None:
            out.append(finding)
            continue
        part = finding.cost.high_ms / whole
        first = costs[0]
        cost = replace(
            first.saving(low * part, high * part),
            naive_ms=round(naive * part, 6),
            together_ms=first.together_ms if len(heavy) == len(costs) == 1 else None,
            calibration=first.calibration if len(heavy) == len(costs) == 1 else None,
        )
        severity = light[0].severity if len(heavy) == 1 else finding.severity
        out.append(replace(finding, cost=cost, severity=severity))
    return out


def _heavy_only(finding: Finding) -> Finding:
    if finding.cost is None or not finding.cost.high_ms:
        return finding
    method = "; ".join(filter(None, [finding.cost.method, HEAVY_ONLY]))
    return replace(finding, cost=replace(finding.cost, method=method, together_ms=None))


def _on_light_clock(finding: Finding, light: list[Finding]) -> Finding:
    """Return a heavy finding whose times are those of the light recording, which the report shows.

    Where the light one has none of its own, or several, there are no times to show.
    """
    times = light[0].place if len(light) == 1 else Place()
    place = replace(
        finding.place, intervals_ns=times.intervals_ns, examples=times.examples, lane=times.lane or finding.place.lane
    )
    return replace(finding, place=place)


def _joint(light: Cost | None, heavy: Cost | None, findings: Sequence[Finding]) -> Cost | None:
    """Return what all give back together: no more than their sum, or than the heavy replay says.

    The heavy recording knows all findings, the light one some of them.
    """
    costs = [finding.cost for finding in findings if finding.cost is not None and finding.cost.high_ms > 0]
    most = max((item for item in (light, heavy) if item is not None), key=lambda cost: cost.high_ms, default=None)
    if most is None or not costs:
        return None
    high = min(most.high_ms, sum(cost.high_ms for cost in costs), most.of_ms)
    return replace(most.saving(min(most.low_ms, high), high), calibration=None)
