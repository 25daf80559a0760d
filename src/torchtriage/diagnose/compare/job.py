"""Two recordings of one job: each rank with itself, then the job's step, which is the mean over its ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import log
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.anonymous import current
from torchtriage.core.errors import UsageError
from torchtriage.core.trace import Trace
from torchtriage.core.units import format_count
from torchtriage.diagnose.compare.attribute import attribute
from torchtriage.diagnose.compare.result import Comparison, RankChange, Unlike
from torchtriage.diagnose.compare.time_account import Account, Key
from torchtriage.diagnose.compare.verdict import ALL_FINDINGS, ByRank, ChangeEvidence, compare, drift_notes, evidence
from torchtriage.diagnose.compare.workload import limits, recordings, unlike
from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.merge import STRAGGLER, merge_notes
from torchtriage.diagnose.ranks.rank_record import build_record
from torchtriage.diagnose.ranks.rank_skeleton import rank_skeleton
from torchtriage.diagnose.verdict.verdict import diagnose_with_fixes


@dataclass(frozen=True, eq=False)
class JobEvidence:
    """What a comparison needs of a job: of each rank by its number, and of all together."""

    ranks: dict[int, ChangeEvidence]
    whole: ChangeEvidence


def gather_job(traces: Iterable[Trace], folder: str) -> JobEvidence:
    """Judge the ranks of one job and say where their mean step goes; each trace is dropped before the next is read.

    Raises UsageError: the traces are not the ranks of one job.
    """
    sides, records = [], []
    for trace in traces:
        judged, fixes = diagnose_with_fixes(trace, ALL_FINDINGS)
        sides.append(evidence(trace, judged))
        record = build_record(trace, judged.trace.path, judged)
        records.append(replace(record, skeleton=rank_skeleton(trace, judged, fixes)))
    jobs = detect_jobs(records)
    if len(jobs) != 1:
        raise UsageError(
            f"expected the ranks of one job, found {len(jobs):,} jobs in {format_count(len(sides), 'file')}",
            where=folder,
            hint="pass one file of each run, or folders that hold one recording of every rank",
        )
    (job,) = jobs
    ranks = {number: sides[at] for at, number in zip(job.positions, job.numbers, strict=True)}
    members = [ranks[number] for number in sorted(ranks)]
    first = members[0]
    facts = [side.result.trace for side in members]
    names = current()
    together = judge(records, job, min_share=0.0)
    result = replace(
        first.result,
        findings=together.findings,
        checked=together.checked,
        not_checked=together.not_checked,
        crashes=together.crashes,
        trace=replace(
            facts[0],
            path=folder if names is None else names.path(folder),
            n_events=sum(fact.n_events for fact in facts),
            size_bytes=sum(fact.size_bytes for fact in facts),
        ),
    )
    of_rank = {number: records[at].steps for at, number in zip(job.positions, job.numbers, strict=True)}
    steady = [of_rank[number].number[of_rank[number].steady] for number in sorted(ranks)]
    common = reduce(np.intersect1d, steady)
    members = [_over(side, np.isin(own, common)) for side, own in zip(members, steady, strict=True)]
    ranks = dict(zip(sorted(ranks), members, strict=True))
    accounts = [side.account for side in members if side.account is not None]
    about: dict[tuple[str, str], frozenset[Key]] = {}
    for side in members:
        for where, keys in side.about.items():
            # who waits for a straggler, and for what, is the whole step's
            about[where] = about.get(where, frozenset()) | (keys if where[0] != STRAGGLER else frozenset())
    work = replace(members[0].workload, notes=together.notes)
    account = _mean(accounts) if len(common) and len(accounts) == len(members) else None
    return JobEvidence(ranks, ChangeEvidence(result, work, account, about))


def _over(side: ChangeEvidence, judged: NDArray[np.bool_]) -> ChangeEvidence:
    """Return a rank's evidence over some of its steady steps: those that are steady on every rank."""
    account = side.account
    if account is None or judged.all():
        return side
    # what a key consists of is known over all steps together: its mean stands for these
    share = float(judged.mean())
    return replace(
        side,
        workload=replace(side.workload, n_steady=int(judged.sum())),
        account=replace(
            account,
            step_ns=account.step_ns[judged],
            time_ns=account.time_ns[:, judged],
            count=np.asarray(account.count * share, np.float64),
            parts=tuple({name: (ns * share, n * share) for name, (ns, n) in parts.items()} for parts in account.parts),
        ),
    )


def compare_jobs(before: JobEvidence, after: JobEvidence, *, across: bool = False) -> Comparison:
    """Compare two recordings of one job; refused where any rank is unlike its partner."""
    reasons: list[Unlike] = []
    if before.ranks.keys() != after.ranks.keys():
        sides = [", ".join(map(str, sorted(job.ranks))) for job in (before, after)]
        reasons.append(
            Unlike(
                "ranks",
                f"other ranks were recorded: {sides[0]} before, {sides[1]} after",
                sides[0],
                sides[1],
                "record the same ranks of both runs",
            )
        )
    for number in sorted(before.ranks.keys() & after.ranks.keys()):
        for reason in unlike(before.ranks[number].workload, after.ranks[number].workload, across=across):
            if reason.code not in {known.code for known in reasons}:
                reasons.append(replace(reason, message=f"rank {number}: {reason.message}"))
    for side, job in (("before", before), ("after", after)):
        if not reasons and job.whole.account is None:
            reasons.append(
                Unlike(
                    "steps",
                    f"no step of the run {side} is steady on every rank: they recorded others, or warmed up in them",
                    *(("none", "") if side == "before" else ("", "none")),
                    "record 5 or more whole steps at the same time on every rank",
                )
            )
    if reasons:
        return compare(before.whole, after.whole, across=across, by_rank=ByRank(tuple(reasons)))
    numbers = sorted(before.ranks)
    changes, notes = [], []
    for number in numbers:
        one, other = before.ranks[number].account, after.ranks[number].account
        assert one is not None
        assert other is not None
        changes.append(attribute(one, other, across=across))
    # a time of the job counts as changed by the mean of the ranks
    slack = {domain: fmean(change.slack[domain] for change in changes) for domain in changes[0].slack}
    for number, change in zip(numbers, changes, strict=True):
        # what the recordings themselves lack was judged for the ranks together
        own = limits(*(replace(job.ranks[number].workload, notes=()) for job in (before, after)))
        notes.append((*own, *drift_notes(replace(change, slack=slack))))
    together = (
        *merge_notes(
            notes,
            numbers,
            lambda note: (note.code, note.evidence.get("domain", note.message)),
            lambda note: abs(log(note.evidence.get("drift", 1.0))),
        ),
        *recordings(before.whole.workload, after.whole.workload),
    )
    result = compare(before.whole, after.whole, across=across, by_rank=ByRank((), together, tuple(changes)))
    ranks = (RankChange(number, change.total) for number, change in zip(numbers, changes, strict=True))
    return replace(result, ranks=tuple(ranks))


def _mean(accounts: Sequence[Account]) -> Account:
    """Return the mean of the ranks' accounts of the same steps; what rounding leaves is the step's."""
    n = len(accounts)
    rows: dict[Key, list[tuple[Account, int]]] = defaultdict(list)
    for account in accounts:
        for at, key in enumerate(account.keys):
            rows[key].append((account, at))
    time_ns = np.stack([np.sum([account.time_ns[at] for account, at in some], axis=0) // n for some in rows.values()])
    parts = []
    for some in rows.values():
        sums: dict[str, tuple[float, float]] = {}
        for account, at in some:
            for name, (ns, count) in account.parts[at].items():
                old = sums.get(name, (0, 0))
                sums[name] = old[0] + ns, old[1] + count
        parts.append({name: (ns / n, count / n) for name, (ns, count) in sums.items()})
    return replace(
        accounts[0],
        keys=tuple(rows),
        step_ns=time_ns.sum(axis=0),
        time_ns=time_ns,
        count=np.array([sum(float(account.count[at]) for account, at in some) / n for some in rows.values()]),
        first_ns=np.array([min(int(account.first_ns[at]) for account, at in some) for some in rows.values()], np.int64),
        parts=tuple(parts),
    )
