"""COM066: ranks that do the same part of a job with another program."""

from __future__ import annotations

from collections import Counter

from torchtriage.core.finding import Finding
from torchtriage.core.names import visible
from torchtriage.core.units import format_share
from torchtriage.diagnose.ranks.job_patterns import RanksTogether, job_finding

__all__ = ["ranks_differ"]

MIN_SHARE = 0.05
"""Of a rank's computation in kinds of calls that the majority does not make."""
_NAMED = 3


def ranks_differ(job: RanksTogether) -> Finding | None:
    """Return which ranks run another program than the majority, None where none does or all have parts of their own."""
    if len(job.ranks) < 2:
        return None
    said = _versions(job)
    if not said and not _has_parts(job):
        said = _calls(job) or _inputs(job)
    if not said:
        return None
    who = sorted({at for at, _ in said})
    texts = list(dict.fromkeys(text for _, text in said))
    names = ", ".join(str(job.numbers[at]) for at in who[:8])
    message = f"rank{'s' * (len(who) > 1)} {names}: {'; '.join(texts[:_NAMED])}"
    return job_finding(
        job, "COM066", message, {"ranks": [job.numbers[at] for at in who[:64]], "differences": texts[:20]}, who
    )


def _has_parts(job: RanksTogether) -> bool:
    """Whether ranks do different parts by design: they send to each other, or exchange unevenly."""
    if any(rank.n_point_to_point for rank in job.ranks):
        return True
    exchanges = ("alltoall", "all_to_all", "_v")
    return any(any(word in name.lower() for word in exchanges) for rank in job.ranks for name in rank.collectives.names)


def _versions(job: RanksTogether) -> list[tuple[int, str]]:
    keys = {key for rank in job.ranks for key in rank.work.versions}
    out = []
    for key in sorted(keys):
        values = [rank.work.versions.get(key) for rank in job.ranks]
        usual, n = Counter(values).most_common(1)[0]
        if usual is None or None in values or n == len(values):
            continue
        out += [
            (at, f"{visible(key)} is {visible(str(value))}, not {visible(str(usual))}")
            for at, value in enumerate(values)
            if value != usual
        ]
    return out


def _calls(job: RanksTogether) -> list[tuple[int, str]]:
    """Return ranks with much time in calls that the majority does not make, and which."""
    device = all(rank.device for rank in job.ranks)
    times = []
    for rank in job.ranks:
        mine: Counter[str] = Counter()
        for (phase, name), (count, own_ns) in rank.paces.items():
            if bool(phase) != device and not name.startswith("autograd::"):
                mine[name] += count * own_ns
        times.append(mine)
    n_with = Counter(name for mine in times for name in mine)
    out = []
    for at, mine in enumerate(times):
        total = sum(mine.values())
        own = {name: spent for name, spent in mine.items() if 2 * n_with[name] < len(times) or n_with[name] == 1}
        share = sum(own.values()) / max(total, 1)
        if share >= MIN_SHARE:
            longest = max(own, key=lambda name: own[name])
            out.append(
                (
                    at,
                    f"{format_share(share)} of its computation is calls that most ranks do not make, above all"
                    f" {visible(longest[:80])}",
                )
            )
    # of two, each differs from the other
    return out


def _inputs(job: RanksTogether) -> list[tuple[int, str]]:
    out = []
    kinds = {kind for rank in job.ranks for kind in rank.work.inputs}
    for kind in sorted(kinds):
        values = [rank.work.inputs.get(kind) for rank in job.ranks]
        if None in values:
            continue
        types = [frozenset(text.rpartition("] ")[2] for text in value or ()) for value in values]
        usual, n = Counter(types).most_common(1)[0]
        if n < len(types) and 2 * n > len(types):
            out += [
                (at, f"inputs of {visible(kind)} are of other types") for at, one in enumerate(types) if one != usual
            ]
    return out
