"""COM066: ranks that do the same part of a job with another program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from torchtriage.core.finding import Finding
from torchtriage.core.names import visible
from torchtriage.diagnose.ranks.job_patterns import RanksTogether, job_finding

MIN_SHARE = 0.05
"""Of a rank's computation, or of its kinds of calls, that the majority does not make."""
MIN_KINDS = 5
"""Kinds of calls in every step that only a minority makes: writing a log takes fewer."""
_NAMED = 3
_PRODUCT = re.compile(r"(?i)mm\b|linear|conv|matmul|attention|Kernel")
_FLOATS = re.compile(r"\b(double|float|c10::Half|c10::BFloat16|c10::Float8\w*)\b")


def ranks_differ(job: RanksTogether) -> Finding | None:
    """Return which ranks run another program than the majority, None where none does or all have parts of their own."""
    if len(job.ranks) < 2:
        return None
    said = _versions(job)
    if not said and not _has_parts(job):
        said = [*_calls(job), *_inputs(job)]
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
    """Return ranks that make calls in every step which the majority does not make, many or long ones, and which."""
    device = all(rank.device for rank in job.ranks)
    n_steps = int(job.waits.steady.sum())
    made = []
    for rank in job.ranks:
        mine: dict[str, int] = {}
        for (phase, name), (count, own_ns) in rank.paces.items():
            if bool(phase) != device and count >= n_steps and not name.startswith("autograd::"):
                mine[name] = mine.get(name, 0) + count * own_ns
        made.append(mine)
    n_with = Counter(name for mine in made for name in mine)
    out = []
    for at, mine in enumerate(made):
        own = {name: spent for name, spent in mine.items() if 2 * n_with[name] < len(made)}
        share = sum(own.values()) / max(sum(mine.values()), 1)
        if own and (share >= MIN_SHARE or len(own) >= max(MIN_KINDS, MIN_SHARE * len(mine))):
            longest = sorted(own, key=lambda name: -own[name])[:_NAMED]
            names = ", ".join(visible(name[:60]) for name in longest)
            out.append((at, f"{len(own)} kinds of calls in every step that most ranks do not make ({names})"))
    return out


def _inputs(job: RanksTogether) -> list[tuple[int, str]]:
    """Return ranks whose products are of other types than those of the majority, or of the ranks that are not late."""
    out = []
    kinds = {kind for rank in job.ranks for kind in rank.work.inputs}
    for kind in sorted(kinds):
        values = [rank.work.inputs.get(kind) for rank in job.ranks]
        if None in values or not _PRODUCT.search(kind):
            continue
        types = [frozenset(_FLOATS.findall(" ".join(value or ()))) for value in values]
        usual = _usual(job, types)
        if usual is not None:
            out += [
                (at, f"{visible(kind)} computes in {' and '.join(sorted(floats))}, not {' and '.join(sorted(usual))}")
                for at, floats in enumerate(types)
                if floats != usual and floats and usual
            ]
    return out


def _usual(job: RanksTogether, values: Sequence[frozenset[str]]) -> frozenset[str] | None:
    """Return what more than half of the ranks have; of two the one that is not late."""
    if len(values) == 2 and job.late is not None:
        return values[1 - job.late]
    usual, n = Counter(values).most_common(1)[0]
    return usual if 2 * n > len(values) else None
