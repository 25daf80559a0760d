"""What ranks did differently, where they should have done the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.core.units import format_ms

ALIKE = 0.5
"""Share of the functions of the smaller of two logs that both compiled, from which on they are of one program. Ranks
of a job share nearly all, stages of a pipeline the loop around them; unrelated programs a library's function or two."""


def jobs(logs: Sequence[ProcessLog]) -> list[list[ProcessLog]]:
    """Return the logs of one program together: the ranks of a job and their restarts, or the runs of a script.

    Processes without a rank are no ranks of a job, whatever they compiled. A log without a function is of the largest.
    """
    found: list[tuple[bool, set[tuple[str, str]], list[ProcessLog]]] = []
    empty: list[ProcessLog] = []
    for log in logs:
        functions = {ran.function[:2] for ran in log.compilations if ran.name}
        is_rank = log.rank is not None
        if not functions:
            empty.append(log)
            continue
        for ranks, known, members in found:
            if ranks == is_rank and len(known & functions) >= ALIKE * min(len(known), len(functions)):
                known |= functions
                members.append(log)
                break
        else:
            found.append((is_rank, functions, [log]))
    for log in empty:
        alike = [members for ranks, _, members in found if ranks == (log.rank is not None)]
        if alike:
            max(alike, key=len).append(log)
        else:
            found.append((log.rank is not None, set(), [log]))
    return [members for _, _, members in found]


def schedules(logs: Sequence[ProcessLog]) -> dict[int, dict[str, str]]:
    """Return each rank's collectives by compile id, of its last process; of the logs of one job."""
    by_rank: dict[int, dict[str, str]] = {}
    for log in sorted(logs, key=lambda log: log.started):
        if log.schedules:
            by_rank[log.rank or 0] = log.schedules
    return by_rank


def divergence(logs: Sequence[ProcessLog]) -> list[str]:
    """Return what ranks of a job did differently; empty with one rank, or where all did the same."""
    by_rank: dict[int, list[ProcessLog]] = defaultdict(list)
    for log in logs:
        by_rank[log.rank or 0].append(log)
    if len(by_rank) < 2:
        return []

    def compare(what: str, of: Callable[[ProcessLog], object]) -> None:
        values = {rank: repr([of(log) for log in group]) for rank, group in by_rank.items()}
        usual = Counter(values.values()).most_common(1)[0][0]
        odd = [rank for rank, value in sorted(values.items()) if value != usual]
        if odd:
            others = ", ".join(f"rank {rank}: {values[rank][1:-1]}" for rank in odd[:4])
            differences.append(f"{what}: {usual[1:-1]}, but {others}"[:400])

    differences: list[str] = []
    compare("compilations", lambda log: len(log.compilations) if log.form != "text" else None)
    compare("graph breaks", lambda log: log.n_break_records)
    compare("recompilations", lambda log: log.n_recompile_records)
    compare(
        "cache hits and misses",
        lambda log: {
            name: tuple(log.caches[name, what] for what in ("hit", "miss", "bypass"))
            for name in sorted({name for name, _ in log.caches})
        },
    )
    compare("graphs", lambda log: dict(sorted(log.n_graphs.items())))
    spent: dict[int, float] = {}
    for rank, group in by_rank.items():
        spent[rank] = sum(ran.total_ns for log in group for ran in log.compilations) / 1e6
    low, high = min(spent.values()), max(spent.values())
    if high > 1.2 * low and high - low > 1000:
        slow = max(spent, key=lambda rank: spent[rank])
        differences.append(
            f"compile time: {format_ms(low)} to {format_ms(high)}, rank {slow} takes longest;"
            " the others wait for it at the next collective"
        )
    return differences
