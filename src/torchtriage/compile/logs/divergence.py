"""What ranks did differently, where they should have done the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.result import Process
from torchtriage.core.units import format_ms

__all__ = ["divergence", "schedules"]


def schedules(logs: Sequence[ProcessLog]) -> dict[int, dict[str, str]]:
    """Return each rank's collectives by compile id, of its last process."""
    by_rank: dict[int, dict[str, str]] = {}
    for log in sorted(logs, key=lambda log: log.started):
        if log.schedules:
            by_rank[log.rank or 0] = log.schedules
    return by_rank


def divergence(logs: Sequence[ProcessLog], processes: Sequence[Process]) -> list[str]:
    """Return what ranks did differently; empty with one rank, or where all did the same."""
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
    spent: dict[int, float] = defaultdict(float)
    for process in processes:
        spent[process.rank or 0] += process.compile_ms
    low, high = min(spent.values()), max(spent.values())
    if high > 1.2 * low and high - low > 1000:
        slow = max(spent, key=lambda rank: spent[rank])
        differences.append(
            f"compile time: {format_ms(low)} to {format_ms(high)}, rank {slow} takes longest;"
            " the others wait for it at the next collective"
        )
    return differences
