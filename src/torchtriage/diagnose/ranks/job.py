"""One verdict for several ranks: who waits for whom, and every finding once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.finding import Cost, Finding, NotChecked, Note, rank_order
from torchtriage.core.names import visible
from torchtriage.core.units import format_count, format_ms, format_ns, format_range, format_share, ms
from torchtriage.core.version import __version__
from torchtriage.diagnose.ranks.across_ranks import FINDERS, across_ranks
from torchtriage.diagnose.ranks.job_detection import NOT_JUDGED, Job
from torchtriage.diagnose.ranks.job_patterns import RanksTogether
from torchtriage.diagnose.ranks.job_replay import JobReplay
from torchtriage.diagnose.ranks.joint_cost import all_cost, with_joint_gain
from torchtriage.diagnose.ranks.joint_savings import JointSavings
from torchtriage.diagnose.ranks.late_among_groups import agreed, late_among_groups
from torchtriage.diagnose.ranks.match import END_SKEW_NS, GroupMatch, Matches, has_own_sizes, match
from torchtriage.diagnose.ranks.merge import (
    EXPOSED,
    STRAGGLER,
    merge_checks,
    merge_findings,
    merge_notes,
    only_waits,
    scaled,
)
from torchtriage.diagnose.ranks.metric_exchange import EXCHANGES, with_exposed
from torchtriage.diagnose.ranks.pipeline_finding import PIPELINES
from torchtriage.diagnose.ranks.pipeline_job import job_pipelines
from torchtriage.diagnose.ranks.process_groups import process_groups
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.result import CollectiveSummary, JobResult, JobStep, RankSummary
from torchtriage.diagnose.ranks.slow_link import SLOW_LINK, slow_links
from torchtriage.diagnose.ranks.straggler import Waiting, find_straggler, waiting
from torchtriage.diagnose.ranks.straggler_finding import in_doubt, straggler_finding, with_reasons
from torchtriage.diagnose.verdict.options import DEFAULTS
from torchtriage.diagnose.verdict.result import SCHEMA, Answer
from torchtriage.diagnose.verdict.verdict_text import by_some, growth_first

OF_JOB = (STRAGGLER, *PIPELINES, *FINDERS, SLOW_LINK)
"""Codes of what is looked for in the ranks together."""
_NOT_MATCHED = ("group-not-judged", "no-collectives", "no-waiting")
"""Codes of notes that say why waiting for collectives is not known."""
_SIZES = "record operators and their shapes on every rank (record_shapes=True)"
_WHOLE_STEPS = "record 5 or more whole steps at the same time on every rank"
MAX_COLLECTIVES = 200
LATE_SHARE = 0.01
"""Of a step, that the others wait in equal collectives if each is like this one: below, nobody is last."""
FIRST_WAIT_NS = 1_000_000
"""More waiting than this in the first collective is worth a note."""


def judge(
    records: Sequence[RankRecord],
    job: Job,
    *,
    min_share: float,
    codes: Collection[str] = OF_JOB,
    what_if: Sequence[str] = (),
    unprofiled_ms: float | None = None,
) -> JobResult:
    """Judge the ranks of one job together; ``job.positions`` says which of the records they are.

    ``min_share`` : leave out findings whose high end is below this share of the job's step (0-1). ``codes`` : what to
    look for that only several ranks show. ``what_if`` : questions that the records bring the replay for.
    ``unprofiled_ms`` : time of a step without the profiler, which the ranks' savings are scaled to, and then waiting as
    well.
    """
    ranks = [records[at] for at in job.positions]
    numbers = job.numbers
    results = [rank.result for rank in ranks]
    matches = match(ranks, numbers)
    pipes = job_pipelines(ranks, numbers, matches, job.world_size)
    # what stages wait for each other is the pipeline's, and no straggler's
    waits = waiting(pipes.ranks, matches)
    straggler = find_straggler(pipes.ranks, matches, waits) if STRAGGLER in codes else None
    refused = all(result.refused for result in results)
    measured = waits.n_judged > 0
    # without steps each rank's window stands for one
    has_steps = any(result.summary is not None and result.summary.n_steady_steps for result in results)
    steady = waits.steady
    n_steady = max(int(steady.sum()), 1)
    scale = unprofiled_ms * 1e6 / waits.step_ns if unprofiled_ms and waits.step_ns else 1.0
    wait_ms = [ms(float(item)) for item in waits.wait_ns[:, steady].sum(axis=1) / n_steady * scale]
    step_ms = ms(waits.step_ns * scale)
    joint = JointSavings(
        [rank.skeleton if measured and scale == 1.0 else None for rank in ranks],
        matches,
        [np.searchsorted(rank.steps.number, waits.step[steady]) for rank in ranks],
        n_point_to_point=sum(rank.n_point_to_point for rank in ranks),
        wait_ns=float(waits.wait_ns[:, steady].mean()) if measured else 0.0,
    )
    if straggler is not None:
        straggler = with_joint_gain(straggler, joint)
    findings = merge_findings(results, numbers, wait_ms, step_ms, judged=measured or bool(pipes.bubbles), joint=joint)
    findings = pipes.without_waiting(findings, waits.step, scale)
    findings += [one for one in pipes.findings(numbers, waits.step_ns, scale) if one.code in codes]
    own_notes = _own_notes(ranks, numbers, matches, waits, pipelines=bool(pipes.bubbles))
    notes = [*job.notes, *own_notes, *pipes.notes(), *merge_notes([result.notes for result in results], numbers)]
    gone: list[Finding] = []
    if measured and only_waits(results, wait_ms, step_ms):
        gone = [finding for finding in findings if finding.code == EXPOSED]
        if straggler is None:
            notes.append(
                Note(
                    "no-rank-late",
                    "info",
                    f"ranks wait for each other for up to {format_ms(max(wait_ms))} of {format_ms(step_ms)} per step;"
                    " no rank is late throughout",
                    evidence={"wait_ms": round(max(wait_ms), 6)},
                )
            )
    if straggler is not None and not refused:
        # exposed communication that is all waiting is the straggler's
        gone += [
            finding for finding in findings if finding.family == "comm" and finding.cost and finding.cost.high_ms == 0
        ]
    findings = [finding for finding in findings if finding not in gone]
    if straggler is not None and not refused:
        found = straggler_finding(pipes.ranks, numbers, straggler, waits, has_steps=has_steps)
        found = scaled(found, scale)
        findings.append(replace(found, also_explains=tuple(dict.fromkeys(item.code for item in gone))))
    late = straggler.position if straggler is not None else None
    together = RanksTogether(ranks, numbers, matches, waits, late, scale, has_steps)
    through = late_among_groups(together) if STRAGGLER in codes and not refused else None
    if through is not None:
        through = scaled(through, scale)
        one_group = [finding for finding in findings if finding.code == STRAGGLER]
        findings = [finding for finding in findings if finding.code != STRAGGLER]
        findings.append(agreed(one_group, through))
        late = numbers.index(through.evidence["late_rank"])
        together = replace(together, late=late)
    doubtful = (STRAGGLER, *FINDERS, SLOW_LINK) if any(note.code in NOT_JUDGED for note in job.notes) else ()
    findings = with_reasons(findings)
    if measured and not refused:
        findings = across_ranks(together, codes, findings)
        findings += [scaled(link, scale) for link in (slow_links(together) if SLOW_LINK in codes else [])]
    findings = [in_doubt(finding) if finding.code in doubtful else finding for finding in findings]
    if measured and not refused:
        findings = with_exposed(findings, results, wait_ms, step_ms)
    # what is left out of a trace's own report never gets here, so a finding without time stays
    findings = [
        finding
        for finding in findings
        if finding.cost is None or finding.cost.high_ms == 0 or finding.cost.share_high >= min_share
    ]
    findings.sort(key=rank_order)
    answered = {*((*FINDERS, SLOW_LINK) if measured else ()), *pipes.checked}.intersection(codes)
    checked, not_checked, crashes = merge_checks(results, numbers, answered)
    if STRAGGLER in checked and not measured and all(finding.code != STRAGGLER for finding in findings):
        # nobody's lateness is known, whatever each rank's own recording was looked at for
        checked = tuple(code for code in checked if code != STRAGGLER)
        missing = ("collectives of all ranks that match",)
        advice = next((note.fix for note in own_notes if note.code in _NOT_MATCHED), _WHOLE_STEPS)
        # where stages alone wait for each other, the pipeline is judged for that
        if not pipes.bubbles or any(len(rank.collectives) for rank in ranks):
            item = NotChecked(STRAGGLER, "rank-straggler", missing, advice)
            not_checked = tuple(sorted((*not_checked, item), key=lambda entry: entry.code))
    blind = any(len(rank.collectives) and not rank.exchanges.known for rank in ranks)
    if EXCHANGES in checked and blind and all(finding.code != EXCHANGES for finding in findings):
        checked = tuple(code for code in checked if code != EXCHANGES)
        item = NotChecked(EXCHANGES, "metric-exchange-in-step", ("sizes of collectives",), _SIZES)
        not_checked = tuple(sorted((*not_checked, item), key=lambda entry: entry.code))
    # what nobody's lateness costs is only replayed where the ranks wait in a way that the replay knows
    known = through is None and (straggler is None or straggler.off_ns is not None)
    result = JobResult(
        schema=SCHEMA,
        version=__version__,
        verdict=("", "", ""),
        healthy=not refused
        and not any(entry.left_out for entry in not_checked)
        and min_share <= DEFAULTS.min_share
        and (measured or bool(pipes.bubbles))
        and all((result.healthy or result.findings) and not result.crashes for result in results)
        and all(finding.severity == "note" for finding in findings)
        and all(note.level == "info" for note in notes),
        refused=refused,
        basis=job.basis,
        world_size=job.world_size,
        ranks=_rank_summaries(ranks, numbers, matches, waits, pipes.waits_ns),
        step_ms=step_ms or None,
        n_steady_steps=int(steady.sum()) if has_steps else 0,
        steps=_steps(numbers, waits),
        collectives=_collectives(ranks, numbers, matches, waits),
        n_matches=sum(len(group) for group in matches.groups if not group.fault),
        notes=tuple(notes),
        findings=tuple(findings),
        not_checked=not_checked,
        crashes=crashes,
        what_ifs=_answers(ranks, matches, waits, what_if),
        joint_cost=_together(results, findings, wait_ms, step_ms, late, joint if known else None),
        checked=checked,
        pipelines=pipes.summaries(numbers),
        process_groups=process_groups(ranks, numbers, matches, waits),
    )
    return replace(result, verdict=_verdict(result, matches, min_share, ms(waits.step_ns)))


# -- the picture ---------------------------------------------------------------------------------


def _rank_summaries(
    ranks: Sequence[RankRecord], numbers: Sequence[int], matches: Matches, waits: Waiting, stages_ns: Sequence[int]
) -> tuple[RankSummary, ...]:
    n_matched = np.bincount(matches.rank, minlength=len(ranks)).tolist()
    steps = waits.step[waits.steady]
    n = max(len(steps), 1)
    out = []
    for position, (rank, number) in enumerate(zip(ranks, numbers, strict=True)):
        at = np.searchsorted(rank.steps.number, steps)
        wall = int((rank.steps.end_ns - rank.steps.start_ns)[at].sum()) // n
        compute, comm, copy, _ = (rank.steps.parts_ns[at].sum(axis=0) // n).tolist()
        wait = min(int(waits.wait_ns[position, waits.steady].sum()) // n, comm)
        # what it waits for stages: inside a kernel that receives, and where nothing is enqueued
        in_comm = min(stages_ns[position], comm - wait) if rank.device else 0
        comm -= wait + in_comm
        idle = wall - compute - comm - copy - wait - in_comm
        in_idle = min(stages_ns[position] - in_comm, max(idle, 0))
        wait += in_comm + in_idle
        out.append(
            RankSummary(
                rank=number,
                path=rank.path,
                host=rank.host,
                verdict=rank.result.verdict[1] if not rank.result.refused else rank.result.verdict[0],
                refused=rank.result.refused,
                n_findings=len(rank.result.findings),
                n_steps=len(steps),
                wall_ns=wall,
                compute_ns=compute,
                comm_ns=comm,
                wait_ns=wait,
                copy_ns=copy,
                idle_ns=idle - in_idle,
                caused_wait_ns=int(waits.blame_ns[position, waits.steady].sum()) // n,
                clock_offset_ns=int(matches.offset_ns[position]),
                n_collectives=len(rank.collectives),
                n_matched=n_matched[position],
            )
        )
    return tuple(out)


def _steps(numbers: Sequence[int], waits: Waiting) -> tuple[JobStep, ...]:
    out = []
    for at, number in enumerate(waits.step.tolist()):
        blame = waits.blame_ns[:, at]
        worst = int(blame.argmax())
        out.append(
            JobStep(
                number=number,
                steady=bool(waits.steady[at]),
                wall_ns=round(float(waits.wall_ns[:, at].mean())),
                wait_ns=round(float(waits.wait_ns[:, at].mean())),
                late_rank=numbers[worst] if blame[worst] > 0 else None,
                late_wait_ns=int(blame[worst]),
            )
        )
    return tuple(out)


def _collectives(
    ranks: Sequence[RankRecord], numbers: Sequence[int], matches: Matches, waits: Waiting
) -> tuple[CollectiveSummary, ...]:
    steps = waits.step[waits.steady]
    out = []
    for group in matches.groups:
        use = np.flatnonzero(np.isin(group.step, steps) & ~group.begins)
        if group.fault or not len(use):
            continue
        wait = group.start_ns.max(axis=1)[:, None] - group.start_ns
        transfer = np.maximum(group.transfer_ns, 0)
        late = group.late
        table: dict[tuple[str, int], list[int]] = {}
        for at in use.tolist():
            table.setdefault((group.name[at], int(group.nelems[at])), []).append(at)
        kinds: dict[tuple[str, int], list[int]] = {}
        for (name, nelems), some in table.items():
            # a size that most steps lack is one of many: what it exchanges depends on the data
            varies = has_own_sizes(name) and 2 * len(distinct(group.step[some])) <= len(steps)
            kinds.setdefault((name, -1 if varies else nelems), []).extend(some)
        for (name, nelems), some in kinds.items():
            n_per_step = len(some) / len(steps)
            # the last one never waits: the mean is over the others
            mean_wait = wait[some].sum(axis=1) / (len(group.members) - 1)
            matters = mean_wait * n_per_step >= LATE_SHARE * waits.step_ns
            count = np.bincount(late[some][matters], minlength=len(group.members))
            out.append(
                CollectiveSummary(
                    group=group.group.name,
                    name=name,
                    nelems=nelems if nelems >= 0 else None,
                    n_ranks=len(group.members),
                    n_per_step=round(n_per_step, 3),
                    transfer_ns=round(float(transfer[some].mean())),
                    wait_ns=round(float(mean_wait.mean())),
                    max_wait_ns=int(wait[some].max()),
                    late_rank=numbers[group.members[int(count.argmax())]] if count.any() else None,
                    late_share=round(float(count.max() / len(some)), 6),
                    **_bandwidth(ranks, group, some),
                )
            )
    out.sort(key=lambda item: (-item.n_per_step * (item.wait_ns + item.transfer_ns), item.group, item.name))
    return tuple(out[:MAX_COLLECTIVES])


def _bandwidth(ranks: Sequence[RankRecord], group: GroupMatch, some: list[int]) -> dict[str, Any]:
    """Return what :class:`CollectiveSummary` says of the bandwidth of one kind, nothing where it is not known."""
    tables = [ranks[position].collectives for position in group.members.tolist()]
    places = list(zip(tables, group.index[some].T, strict=True))
    size = np.array([table.size_bytes[at] for table, at in places])
    factor, n_ranks = tables[0].bus_factor[places[0][1][0]], int(tables[0].n_ranks[places[0][1][0]])
    transfer_ns = float(group.transfer_ns[some].sum())
    device = all(ranks[position].device for position in group.members.tolist())
    if not device or (size <= 0).any() or np.isnan(factor) or transfer_ns <= 0:
        return {}
    # every rank of an all-to-all has a size of its own
    rate = float(size.mean(axis=0).sum()) / transfer_ns
    return {
        "size_bytes": round(float(size.mean())),
        "algorithm_gbps": round(rate, 3),
        "bus_gbps": round(rate * float(factor), 3),
        "n_missing": max(n_ranks - len(tables), 0),
    }


# -- words ---------------------------------------------------------------------------------------


def _own_notes(
    ranks: Sequence[RankRecord], numbers: Sequence[int], matches: Matches, waits: Waiting, *, pipelines: bool
) -> list[Note]:
    notes = []
    moved = np.flatnonzero(matches.offset_ns)
    if len(moved):
        notes.append(
            Note(
                "clock-offset",
                "info",
                f"the clocks of the ranks are up to {format_ns(int(np.ptp(matches.offset_ns)))} apart: aligned on"
                " the ends of their collectives",
                evidence={"offset_ns": {str(numbers[at]): int(matches.offset_ns[at]) for at in moved[:64].tolist()}},
            )
        )
    for group in matches.groups:
        name = visible(group.group.name) or "without a name"
        if group.fault:
            notes.append(
                Note(
                    "group-not-judged",
                    "warn",
                    f"process group {name} of {len(group.members)} ranks: {group.fault}; its waiting is not analysed",
                    "record the same whole steps on every rank, with a PyTorch that writes process"
                    " groups (2.4 or newer)",
                    {"n_matches": len(group), "n_unmatched": group.n_unmatched},
                )
            )
        elif group.unmatched:
            notes.append(
                Note(
                    "collectives-unmatched",
                    "warn",
                    f"process group {name}: {'; '.join(group.unmatched)}: {group.n_unmatched} collectives are left out",
                    "start the profiler at the same step on every rank",
                    {"n_unmatched": group.n_unmatched},
                )
            )
        wide = group.end_skew_ns > END_SKEW_NS
        if not group.fault and wide.any() and not all(ranks[at].device for at in group.members.tolist()):
            notes.append(
                Note(
                    "end-skew",
                    "info",
                    f"process group {name}: {int(wide.sum())} of {len(wide)} matched collectives"
                    f" end more than {format_ns(END_SKEW_NS)} apart (median"
                    f" {format_ns(float(np.median(group.end_skew_ns)))}): host threads woke up late;"
                    " waiting is taken from starts",
                )
            )
    if matches.alone:
        names = ", ".join(visible(item.name) or "?" for item in matches.alone[:4])
        notes.append(
            Note(
                "group-alone",
                "info",
                f"{len(matches.alone)} process group{'s' * (len(matches.alone) > 1)} ({names}) with"
                " one recorded rank: nothing to compare",
            )
        )
    first = _first_wait_ns(matches, waits)
    if first > FIRST_WAIT_NS:
        notes.append(
            Note(
                "first-collective",
                "warn",
                f"the first collective of the recording lasts up to {format_ns(first)} longer on"
                " some ranks: the profiler did not start everywhere at once; that is in the step"
                " and its communication, and not counted as waiting",
                "record 5 or more steps: the first is then left out",
                {"wait_ns": first},
            )
        )
    if pipelines and not waits.n_judged:
        return notes
    if not sum(len(rank.collectives) for rank in ranks):
        notes.append(
            Note(
                "no-collectives",
                "warn",
                "no collective in any rank's recording: who waits for whom is not known",
                "record the work of the devices on all ranks, collectives included",
            )
        )
    elif not waits.n_judged:
        notes.append(
            Note(
                "no-waiting",
                "warn",
                "no matched collective lies in a steady step: who waits for whom is not known",
                _WHOLE_STEPS,
            )
        )
    return notes


def _first_wait_ns(matches: Matches, waits: Waiting) -> int:
    longest = 0
    for group in matches.groups:
        first = group.begins & np.isin(group.step, waits.step[waits.steady])
        if not group.fault and first.any():
            spread = group.start_ns[first].max(axis=1) - group.start_ns[first].min(axis=1)
            longest = max(longest, int(spread.max()))
    return longest


def _answers(
    ranks: Sequence[RankRecord], matches: Matches, waits: Waiting, questions: Sequence[str]
) -> tuple[Answer, ...]:
    wall = ms(waits.step_ns)
    replays = [rank.replay for rank in ranks if rank.replay is not None]
    if not questions or not wall:
        return ()
    if len(replays) < len(ranks) or not waits.n_judged:
        return tuple(
            Answer(question, "step", wall, reason="collectives could not be matched") for question in questions
        )
    steps = waits.step[waits.steady]
    joint = JobReplay(replays, matches, [np.searchsorted(rank.steps.number, steps) for rank in ranks])
    out = []
    for index, text in enumerate(questions):
        after = None if joint.reason else joint.ask(index)
        if after is None:
            reason = joint.reason or "nothing in the recordings is that"
            out.append(Answer(text, "step", wall, reason=reason))
            continue
        saving = ms(joint.step_ns - after)
        # how far each rank's own model doubts its own answer
        own = [rank.result.what_ifs[index] for rank in ranks if index < len(rank.result.what_ifs)]
        middle = np.array([a.saving_ms or 0.0 for a in own])
        below = float((middle - [a.low_ms or 0.0 for a in own]).max(initial=0.0))
        above = float(([a.high_ms or 0.0 for a in own] - middle).max(initial=0.0))
        out.append(
            Answer(
                text,
                "step",
                wall,
                after_ms=ms(after),
                saving_ms=saving,
                low_ms=round(saving - below, 6),
                high_ms=round(saving + above, 6),
                naive_ms=max((a.naive_ms or 0.0 for a in own), default=None),
            )
        )
    return tuple(out)


def _together(
    results: Sequence[Any],
    findings: Sequence[Finding],
    wait_ms: Sequence[float],
    step_ms: float,
    late: int | None,
    joint: JointSavings | None,
) -> Cost | None:
    costs = [finding.cost for finding in findings if finding.cost is not None and finding.cost.high_ms > 0]
    if not costs or not step_ms:
        return None
    gain_high = next((finding.cost.high_ms for finding in findings if finding.code == STRAGGLER and finding.cost), 0.0)
    # every rank of a pipeline has its waiting to win
    stages_high = sum(finding.cost.high_ms for finding in findings if finding.code in PIPELINES and finding.cost)
    ceilings = []
    for position, (result, wait) in enumerate(zip(results, wait_ms, strict=True)):
        own = (result.joint_cost.high_ms if result.joint_cost else 0.0) + stages_high
        if position == late:
            own += gain_high
        ceilings.append(own + wait)
    low = max(cost.low_ms for cost in costs)
    high = min(sum(cost.high_ms for cost in costs), min(ceilings), step_ms)
    best = max(cost.high_ms for cost in costs)
    # all of them give no less than any
    most = "what the slowest rank could save" if high >= best else "its high end"
    high = max(high, best)
    bound = Cost.of(
        low,
        high,
        step_ms,
        sum(cost.naive_ms for cost in costs),
        per=costs[0].per,
        basis="bounded",
        method=f"at least the largest single saving; at most {most}",
        grade="C",
    )
    if joint is None:
        return bound
    replayed = all_cost(joint, results, bound, step_ms, unawaited=-1 if late is None else late)
    if replayed is None:
        return bound
    low = max(replayed.low_ms, low)
    high = max(min(replayed.high_ms, *ceilings), best, low)
    return replayed.saving(low, high, of_ms=step_ms)


def checked_clause(result: JobResult) -> str:
    """Return how many patterns were checked, as the verdict says it."""
    n_missing = len(result.not_checked)
    missing = f", {n_missing} not checked" if n_missing else ""
    return f"{len(result.checked)} patterns checked on every rank{missing}"


def saving_sentence(result: JobResult, min_share: float) -> str:
    """Return what costs the job most, as its verdict says it."""
    return growth_first(result.findings, _largest_saving(result, min_share))


def _largest_saving(result: JobResult, min_share: float) -> str:
    if result.findings and result.findings[0].grave:
        return f"{result.findings[0].title} ({result.findings[0].code}): {result.findings[0].message}."
    timed = [finding for finding in result.findings if finding.cost is not None and finding.cost.high_ms > 0]
    if timed:
        first = timed[0]
        cost = first.cost
        assert cost is not None
        per = "per step" if cost.per == "step" else "in the window"
        amount = format_range(format_ms(cost.low_ms), format_ms(cost.high_ms), from_zero=cost.low_ms <= 0)
        return f"Largest saving: {first.title} ({first.code}), {amount} of {format_ms(cost.of_ms)} {per}."
    if result.findings:
        return f"{result.findings[0].title} ({result.findings[0].code})."
    by = by_some(result.checked, result.not_checked)
    return f"Nothing found{by} that saves {format_share(min_share)} of a step or more."


def _verdict(result: JobResult, matches: Matches, min_share: float, recorded_ms: float) -> tuple[str, str, str]:
    n = len(result.ranks)
    if result.refused:
        first = next(note for note in result.notes if note.level == "refuse")
        fix = f"{first.fix[:1].upper()}{first.fix[1:]}." if first.fix else "Record the ranks again."
        return f"No verdict: {first.message}.", fix, f"{n} ranks were read."
    wall = sum(rank.wall_ns for rank in result.ranks)
    # computation may lie where a file without all rows shows none
    idle = "without rows" if result.lacks_rows else "idle"
    parts = [
        (word, sum(getattr(rank, name) for rank in result.ranks) / max(wall, 1))
        for word, name in (
            ("computing", "compute_ns"),
            ("waiting for other ranks", "wait_ns"),
            ("exposed communication", "comm_ns"),
            ("exposed copies", "copy_ns"),
            (idle, "idle_ns"),
        )
    ]
    split = ", ".join(f"{format_share(part)} {word}" for word, part in parts if part >= 0.005)
    in_steps = result.n_steady_steps or result.step_ms is None
    over = format_count(result.n_steady_steps, "common steady step") if in_steps else "one window"
    of = f"of {format_ms(recorded_ms)}"
    if result.step_ms and result.step_ms != recorded_ms:
        # the parts are those of the recording
        of, split = "as recorded", f"{split}; {format_ms(result.step_ms)} per step without the profiler"
    where = f"{n} ranks of one job, {over} {of}: {split}."
    saving = saving_sentence(result, min_share)
    limits = [note.message for note in result.notes if note.level == "warn"]
    if limits:
        return where, saving, f"Limited trust: {'; '.join(limits[:2])}."
    skews = [group.end_skew_ns for group in matches.groups if len(group.end_skew_ns) and not group.fault]
    ends = f", ending within {format_ns(float(np.median(np.concatenate(skews))))} of each other" if skews else ""
    groups = sum(1 for group in matches.groups if not group.fault)
    matched = f"{result.n_matches} collectives matched in {groups} process group{'s' * (groups != 1)}{ends}"
    n_sends, n_pipes = sum(pipe.n_matched for pipe in result.pipelines), len(result.pipelines)
    sends = f"{format_count(n_sends, 'send')} in {format_count(n_pipes, 'pipeline')}" if n_pipes else ""
    if sends:
        matched = f"{matched}, {sends}" if result.n_matches else f"{sends} matched"
    trust = f"{matched}; {checked_clause(result)}"
    return where, saving, f"{trust}."
