"""Replay every recording from its causes alone and print the table of docs/accuracy.md.

python benchmarks/replay_quality.py [FOLDER]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torchtriage as tt
from torchtriage.core.errors import TraceFormatError
from torchtriage.diagnose.replay.predict import ReplayModel

DATA = Path(os.environ.get("TORCHTRIAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))


class Row(NamedTuple):
    """One recording's figures."""

    name: str
    device: str
    n_rows: int
    n_steps: int
    model: ReplayModel
    build_s: float
    load_s: float


def measure(folder: Path) -> Iterator[Row]:
    """Yield the figures of every readable recording below a folder."""
    for path in sorted(folder.rglob("*.json*")):
        start = time.perf_counter()
        try:
            trace = tt.load(path)
        except TraceFormatError:
            continue
        if len(trace) < 3:
            continue
        loaded = time.perf_counter()
        built = ReplayModel(trace)
        device = trace.devices[0].name if trace.devices else ""
        yield Row(
            path.relative_to(folder).as_posix(),
            device or ("CPU" if trace.is_host_only else trace.origin.vendor),
            len(trace),
            len(trace.steps),
            built,
            time.perf_counter() - loaded,
            loaded - start,
        )


def table(rows: list[Row]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| recording | device | events → nodes | steps | step ms | strict | unexplained | pinned | replay |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|:--|",
    ]
    for row in rows:
        quality = row.model.quality
        size = f"{row.n_rows:,} → {quality.n_nodes:,} | {row.n_steps or 'window'}"
        lines.append(
            f"| {row.name} | {row.device} | {size} | {row.model.step_ns / 1e6:,.1f} |"
            f" {_percent(quality.strict_error)} | {_percent(quality.unexplained)} |"
            f" {_percent(quality.pinned)} |"
            f" {'yes' if quality.accepted else 'refused: ' + quality.reason} |"
        )
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %".replace("-0.00", "0.00")


def summary(rows: list[Row]) -> str:
    """Return what the table adds up to."""
    accepted = [row for row in rows if row.model.quality.accepted]
    good = [row for row in accepted if abs(row.model.quality.strict_error) <= 0.01]
    gpu = [row for row in accepted if row.model.trace.devices]
    gpu_good = [row for row in gpu if abs(row.model.quality.strict_error) <= 0.01]
    return (
        f"{len(good)} of {len(accepted)} accepted recordings within 1 % ({len(gpu_good)} of"
        f" {len(gpu)} with a GPU), {len(rows) - len(accepted)} of {len(rows)} refused"
    )


if __name__ == "__main__":
    found = list(measure(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / "traces"))
    print(table(found))
    print()
    print(summary(found))
