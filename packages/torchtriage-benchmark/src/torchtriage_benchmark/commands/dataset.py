"""``torchtriage benchmark dataset record``, ``synthesize``, ``fetch`` and ``verify``."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchtriage.cli.learn.dataset import folder_option
from torchtriage.cli.options import POSITIVE, value_option
from torchtriage.cli.progress import counting
from torchtriage.core.errors import UsageError

if TYPE_CHECKING:
    from torchtriage_benchmark.training.baselines import System
    from torchtriage_benchmark.training.training_set import Example


@click.command("record")
@folder_option
@value_option("--count", click.IntRange(min=1), None, 600, "Programs to record.")
@click.option(
    "--part",
    type=click.Choice(["eager", "compiled", "ranks", "lookalikes"]),
    help="Record only this part. [default: all, each with its share of --count]",
)
@value_option("--seed", int, None, 0, "Seed that selects the programs.")
@value_option("--jobs", click.IntRange(min=1), None, 1, "Parallel recordings, of one thread each.")
@value_option("--timeout", POSITIVE, "S", 300.0, "Time limit of a recording.")
@click.option("-q", "--quiet", is_flag=True, help="No progress line.")
def record(folder: Path, count: int, part: str | None, seed: int, jobs: int, timeout: float, quiet: bool) -> None:
    """Record the benchmark's programs, except those already recorded.

    Needs torch, transformers and diffusers, and a C++ compiler for the part "compiled". The same
    count and seed give the same programs everywhere; a larger count only adds programs.

    Exit codes: 0 all recorded, 1 some failed, 2 unusable.
    """
    from torchtriage_benchmark.recording.checksums import check_plan, write_index
    from torchtriage_benchmark.recording.plan import plan, whole
    from torchtriage_benchmark.recording.record import record as record_all

    check_plan(folder, seed)
    items = plan(count, seed, part) if part else whole(count, seed)
    done = itertools.count(1)
    with counting(f"of {len(items):,} recorded", quiet=quiet) as progress:
        outcomes = record_all(items, folder, jobs=jobs, timeout_s=timeout, report=lambda _: progress(next(done)))
    failed = [outcome for outcome in outcomes if outcome.failure]
    if len(failed) < len(outcomes):
        write_index(folder, seed)
    n_kept = sum(outcome.kept for outcome in outcomes)
    click.echo(f"{len(outcomes) - n_kept - len(failed)} recorded, {n_kept} were there, {len(failed)} failed: {folder}")
    for recording in failed:
        item = recording.item
        click.echo(f"  {item.id} {item.family} {item.mode} {item.code or 'clean'}: {recording.failure}", err=True)
    click.get_current_context().exit(int(bool(failed)))


@click.command("synthesize")
@folder_option
@value_option("--count", click.IntRange(min=1), None, 300, "Timelines to make.")
@value_option("--seed", int, None, 0, "Seed that selects devices and faults.")
@click.option("-q", "--quiet", is_flag=True, help="No progress line.")
def synthesize(folder: Path, count: int, seed: int, quiet: bool) -> None:
    """Make GPU timelines from the folder's CPU recordings, except those already made.

    For faults that occur only on a GPU, where none is available: kernels, copies, queues and waits
    come from a model of the device. Needs no torch. The same recordings, count and seed give the
    same bytes.

    Exit codes: 0 all made, 1 some failed, 2 unusable.
    """
    from torchtriage_benchmark.recording.checksums import write_index
    from torchtriage_benchmark.synthetic.synthesize import synthesize as make_all
    from torchtriage_benchmark.synthetic.synthesize import synthetic_plan

    items = synthetic_plan(count, seed)
    done = itertools.count(1)
    with counting(f"of {len(items):,} made", quiet=quiet) as progress:
        outcomes = make_all(items, folder, report=lambda _: progress(next(done)))
    failed = [outcome for outcome in outcomes if outcome.failure]
    if len(failed) < len(outcomes):
        write_index(folder)
    n_kept = sum(outcome.kept for outcome in outcomes)
    click.echo(f"{len(outcomes) - n_kept - len(failed)} made, {n_kept} were there, {len(failed)} failed: {folder}")
    for item in failed:
        click.echo(f"  {item.item.id} from {item.item.source}: {item.failure}", err=True)
    click.get_current_context().exit(int(bool(failed)))


@click.command("verify")
@folder_option
def verify(folder: Path) -> None:
    """Report recordings that differ from their index or from the planned programs.

    Exit codes: 0 none differ, 1 some do, 2 no index.
    """
    from torchtriage_benchmark.recording.checksums import differences

    found = list(differences(folder))
    for line in found:
        click.echo(line)
    click.echo(f"{len(found)} differences in {folder}" if found else f"{folder} is as recorded")
    click.get_current_context().exit(int(bool(found)))


@click.command("fetch")
@folder_option
@value_option(
    "--from",
    click.Path(path_type=Path),
    None,
    None,
    "Take the recordings from this folder, by checksum, and download nothing.",
    dest="local",
)
@value_option("--index", click.Path(path_type=Path), None, "benchmarks/devices", "Folder of the index and the labels.")
@click.option("-q", "--quiet", is_flag=True, help="No progress line.")
def fetch(folder: Path, local: Path | None, index: Path, quiet: bool) -> None:
    """Get the recordings of real accelerators, except those already there.

    Downloads each from the public repository that published it, at its commit, and checks it. About
    300 MB; what breaks off goes on when it is run again. Their licences are those of their
    repositories, and some state none: do not pass them on.

    Exit codes: 0 all there, 1 some cannot be had, 2 unusable.
    """
    from torchtriage_benchmark.devices.fetch import fetch as fetch_all
    from torchtriage_benchmark.devices.index import read_index, read_labels

    entries = read_index(index)
    labels, done = read_labels(index / "labels.toml"), itertools.count(1)
    with counting(f"of {len(entries)} recordings", quiet=quiet) as progress:
        outcomes = fetch_all(entries, labels, folder, local=local, report=lambda _: progress(next(done)))
    failed = [outcome for outcome in outcomes if outcome.failure]
    n_kept = sum(outcome.kept for outcome in outcomes)
    click.echo(f"{len(outcomes) - n_kept - len(failed)} fetched, {n_kept} were there, {len(failed)} missing: {folder}")
    for recording in failed:
        click.echo(f"  {recording.id} {recording.failure}", err=True)
    click.get_current_context().exit(int(bool(failed)))


COMMANDS: dict[str, click.Command] = {"record": record, "synthesize": synthesize, "fetch": fetch, "verify": verify}


def trained(system: str, folder: Path) -> tuple[list[Example], System]:
    """Return a system trained on the folder's recordings, and those of split test, which it has not seen.

    Raises UsageError: there is no such system.
    """
    from torchtriage_benchmark.training.baselines import SYSTEMS
    from torchtriage_benchmark.training.training_set import examples

    if system not in SYSTEMS:
        raise UsageError(
            f"expected a system or a file of predictions, found {system}", hint=f"one of {', '.join(SYSTEMS)}"
        )
    items = examples(folder)
    return [item for item in items if item.split == "test"], SYSTEMS[system](items, 0)
