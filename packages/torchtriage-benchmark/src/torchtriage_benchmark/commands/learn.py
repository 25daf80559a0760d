"""``torchtriage benchmark learn``: train the detector on the benchmark, and compare it with others."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchtriage.cli.options import value_option
from torchtriage.cli.output import check_outputs
from torchtriage.cli.progress import counting
from torchtriage_benchmark.commands import labels as labelling

if TYPE_CHECKING:
    from torchtriage_benchmark.training.training_set import Example

_folder = click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
_seed = value_option("--seed", int, None, 0, "Seed of all random choices.")
_jobs = value_option("--jobs", click.IntRange(min=1), None, 1, "Recordings to read in parallel.")
_quiet = click.option("-q", "--quiet", is_flag=True, help="No progress line.")


@click.group("learn")
def command() -> None:
    """Train the detector on recordings of the benchmark, and compare systems.

    Training data and results: docs/benchmark.md.
    """


@command.command("train")
@_folder
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The weights; their card is written beside them (.md).",
)
@value_option(
    "--labels",
    click.Choice(["windows", "recordings"]),
    None,
    "windows",
    "Learn from which windows are faulty, or which recordings.",
)
@_seed
@_jobs
@_quiet
def train(folder: Path, out: Path, labels: str, seed: int, jobs: int, quiet: bool) -> None:
    """Train the detector on FOLDER's recordings, and write its weights and their card.

    Learns from the train split, calibrates on validation; the card reports its scores on test. The
    same recordings and seed give the same file. Needs scikit-learn; the weights need numpy only.

    Exit codes: 0 trained, 2 unusable recordings.
    """
    from torchtriage_benchmark.training.boosting import fit, needs_sklearn
    from torchtriage_benchmark.training.leaderboard import card
    from torchtriage_benchmark.training.training_set import learned

    needs_sklearn()
    check_outputs([str(out), str(out.with_suffix(".md"))])
    found = _examples(folder, jobs, quiet)
    detector = fit(
        learned(found, "train"),
        learned(found, "validation"),
        seed=seed,
        labels="recordings" if labels == "recordings" else "windows",
    )
    data = detector.to_bytes()
    out.write_bytes(data)
    told = card(detector, found, len(data))
    out.with_suffix(".md").write_text(told, encoding="utf-8")
    click.echo(told, nl=False)
    click.echo(f"written to {out}", err=True)


@command.command("table")
@_folder
@click.option("--system", "systems", multiple=True, metavar="NAME", help="Only this one (repeatable).")
@_seed
@_jobs
@_quiet
def table(folder: Path, systems: tuple[str, ...], seed: int, jobs: int, quiet: bool) -> None:
    """Print the benchmark's table: every system, newly trained, on the splits it did not learn from.

    Without torch the network is left out, with a note.

    Exit codes: 0 printed, 2 unusable recordings or no such system.
    """
    from torchtriage.core.errors import UsageError
    from torchtriage_benchmark.training.baselines import SYSTEMS
    from torchtriage_benchmark.training.leaderboard import table as make

    for name in systems:
        if name not in SYSTEMS:
            raise UsageError(f"expected a system, found {name}", hint=f"one of {', '.join(SYSTEMS)}")
    names = systems or tuple(SYSTEMS)
    if not systems and find_spec("torch") is None:
        names = tuple(name for name in names if name != "network")
        click.echo("left out: network, which needs torch (torchtriage[torch])", err=True)
    found = _examples(folder, jobs, quiet)
    done = itertools.count(1)
    with counting(f"of {len(names)} systems", quiet=quiet) as progress:
        click.echo(make(found, names, seed=seed, report=lambda _: progress(next(done))))


def _examples(folder: Path, jobs: int, quiet: bool) -> list[Example]:
    from torchtriage_benchmark.training.training_set import examples

    with counting("recordings read", quiet=quiet) as progress:
        return examples(folder, jobs=jobs, report=progress)


for _one in (labelling.iterate, labelling.audit, labelling.veto):
    command.add_command(_one)
