"""Bandwidths of collectives, as one rank sees them and as all ranks together do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtriage.core.names import elide, visible
from torchtriage.core.units import format_bytes, format_count, format_ns, format_range
from torchtriage.diagnose.ranks.result import CollectiveSummary
from torchtriage.diagnose.verdict.result import BusBandwidth, CollectiveRow
from torchtriage.report import blocks as b

N_ROWS = 8
WIDTH = 40
"""Characters of a name."""


def table(bandwidth: BusBandwidth | None, per: str) -> Iterator[b.Block]:
    """Return what the collectives of one recording reach; ``per`` : what their number is given over."""
    if bandwidth is None:
        return
    shown = bandwidth.rows[:N_ROWS]
    columns = ("collective", "size", "ranks", "per step" if per == "step" else "number", "mean", "algorithm", "bus")
    rows = [_row(row, named(row, bandwidth)) for row in shown]
    yield b.Table(columns, rows, align="lrrrrrr", drop=(5, 2, 4, 3, 1), fit=True)
    yield b.Lines([b.dim(words(bandwidth))], tight=bool(shown))


def words(bandwidth: BusBandwidth) -> str:
    """Return what the bandwidths are, and what has none."""
    texts = []
    if bandwidth.rows:
        more = bandwidth.n_rows - min(len(bandwidth.rows), N_ROWS)
        rest = f" {format_count(more, 'more row')} in the JSON." if more else ""
        texts.append(
            "Bandwidths as in nccl-tests, for the fastest collective of each row: kernel time includes waiting for"
            f" other ranks, so the link does at least that.{rest}"
        )
    if bandwidth.n_unchecked:
        part = f" of {bandwidth.n_unchecked:,} of {bandwidth.n_collectives:,} collectives" if bandwidth.rows else ""
        texts.append(f"Bus bandwidth{part} not checked: {bandwidth.unchecked}.")
    return " ".join(texts)


def named(row: CollectiveRow, bandwidth: BusBandwidth) -> str:
    """Return what a row is called, with its process group where there are several."""
    several = len({row.group for row in bandwidth.rows}) > 1
    return visible(f"{row.name} in {row.group}" if several and row.group else row.name)


def size(row: CollectiveRow) -> str:
    """Return the sizes of a row: ``64.0 MiB``, ``12.5-48.0 MiB``."""
    return format_range(format_bytes(row.least_bytes), format_bytes(row.most_bytes), from_zero=False)


def reached(collective: CollectiveSummary) -> str:
    """Return the bus bandwidth of equal collectives of a job, empty where it is not known."""
    if collective.bus_gbps is None:
        return ""
    return f"{'at least ' if collective.n_missing else ''}{format_gbps(collective.bus_gbps)}"


def format_gbps(gbps: float) -> str:
    """Return a bandwidth: ``190 GB/s``, ``0.42 GB/s``."""
    return f"{gbps:,.0f} GB/s" if gbps >= 99.95 else f"{gbps:.3g} GB/s"


def _row(row: CollectiveRow, name: str) -> Sequence[b.Text]:
    return (
        elide(name, WIDTH),
        size(row),
        f"{row.n_ranks:,}",
        format_count(row.n_per_step),
        format_ns(row.mean_ns),
        format_gbps(row.algorithm_gbps),
        format_gbps(row.bus_gbps),
    )
