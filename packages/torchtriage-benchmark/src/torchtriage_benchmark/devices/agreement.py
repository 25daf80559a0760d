"""How far the blind readers of the device part agree, before anything is settled: Cohen's kappa.

``python -m torchtriage_benchmark.devices.agreement`` prints the table of docs/benchmark.md, from
``benchmarks/devices/readings`` and the fetched recordings, whose windows it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from torchtriage.cli.learn.dataset import folder_option
from torchtriage.core.trace import read_trace
from torchtriage.learn.dataset.recordings import RECORDING, faulty, judged_windows
from torchtriage_benchmark.devices.index import intervals_ns, rank, read_labels

Label = Mapping[str, Any]
Answers = tuple[Sequence[str], Sequence[str]]
RESAMPLED = 400
JUDGED = ("faulty", "healthy")


@dataclass(frozen=True)
class Agreement:
    """How far two readers agree on one question. ``n`` : recordings; ``low``, ``high`` : 95 %, drawn anew from them."""

    asked: str
    n: int
    share: float
    kappa: float
    low: float
    high: float


def kappa(answers: Sequence[Answers]) -> tuple[float, float]:
    """Return the share of equal answers, and Cohen's kappa; a pair of sequences for each recording."""
    first, second = (np.array([item for pair in answers for item in pair[side]], object) for side in (0, 1))
    if not len(first):
        return np.nan, np.nan
    same = float((first == second).mean())
    chance = sum(float((first == item).mean() * (second == item).mean()) for item in {*first, *second})
    return same, (same - chance) / (1 - chance) if chance < 1 else np.nan


def pairs(readings: Sequence[Mapping[str, Label]]) -> dict[str, tuple[Label, Label]]:
    """Return the two labels of each recording that two readers have labelled."""
    said = {key: [labels[key] for labels in readings if key in labels] for labels in readings for key in labels}
    return {key: (both[0], both[1]) for key, both in sorted(said.items()) if len(both) == 2}


def agreements(both: Mapping[str, tuple[Label, Label]], folder: Path | None) -> Iterator[Agreement]:
    """Yield the agreement on the state, on the first fault's code, and on windows where recordings are at hand."""
    yield _of("state", [((first["state"],), (second["state"],)) for first, second in both.values()])
    ill = {key: pair for key, pair in both.items() if pair[0]["state"] == pair[1]["state"] == "faulty"}
    firsts = [(first["faults"][0], second["faults"][0]) for first, second in ill.values()]
    yield _of("first fault, exact", [((first["code"],), (second["code"],)) for first, second in firsts])
    yield _of("first fault, accepted", [((first["code"],), (_as(first, second),)) for first, second in firsts])
    if folder is not None:
        yield _of("windows", list(_windows(both, folder)))
        yield _of("windows of what both call faulty", list(_windows(ill, folder)))


def _as(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the second fault's code, the first's where either reader accepts it for the other's."""
    same = second["code"] in first.get("or", ()) or first["code"] in second.get("or", ())
    return str(first["code"] if same else second["code"])


def _windows(both: Mapping[str, tuple[Label, Label]], folder: Path) -> Iterator[Answers]:
    for key, (first, second) in both.items():
        if first["state"] not in JUDGED or second["state"] not in JUDGED:
            continue
        # of a job the windows of the rank that the first reader names
        path = folder / key / f"rank{rank(first) if first.get('faults') else rank(second)}.json.gz"
        path = path if path.exists() else folder / f"{key}{RECORDING}"
        if path.exists():
            windows_ns = judged_windows(read_trace(path))
            marks = [
                faulty(windows_ns, intervals_ns(label, rank(first))).astype(str).tolist() for label in (first, second)
            ]
            yield marks[0], marks[1]


def _of(asked: str, answers: Sequence[Answers]) -> Agreement:
    rng = np.random.default_rng(0)
    share, found = kappa(answers)
    drawn = [
        kappa([answers[at] for at in rng.integers(0, len(answers), len(answers))])[1]
        for _ in range(RESAMPLED if answers else 0)
    ]
    known = [item for item in drawn if not np.isnan(item)]
    low, high = np.quantile(known, [0.025, 0.975]) if known else (np.nan, np.nan)
    return Agreement(asked, len(answers), share, found, float(low), float(high))


@click.command()
@click.option("--index", type=click.Path(path_type=Path), default="benchmarks/devices", help="Folder of the readings.")
@folder_option
def main(index: Path, folder: Path) -> None:
    """Print how far the readers agree."""
    both = pairs([read_labels(path) for path in sorted((index / "readings").glob("*.toml"))])
    click.echo("| question | recordings | equal | kappa |\n|:--|--:|--:|--:|")
    for agreement in agreements(both, folder if folder.exists() else None):
        click.echo(
            f"| {agreement.asked} | {agreement.n} | {agreement.share:.2f} |"
            f" {agreement.kappa:.2f} ({agreement.low:.2f}-{agreement.high:.2f}) |"
        )


if __name__ == "__main__":
    main()
