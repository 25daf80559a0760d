"""``torchtriage dataset``: the open benchmark: record it, take recordings out, score systems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.progress import counting
from torchtriage.errors import UsageError

if TYPE_CHECKING:
    from torchtriage.dataset.record import Outcome
    from torchtriage.dataset.score import Figure

__all__ = ["command"]

_folder = click.option(
    "--dir",
    "folder",
    default="benchmark",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the recordings are.",
)


@click.group("dataset")
def command() -> None:
    """Programs with known faults: record them, take recordings out, score systems.

    What is in it and how it is scored: docs/benchmark.md.
    """


@command.command("record")
@_folder
@click.option("--count", default=600, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--part",
    type=click.Choice(["eager", "compiled", "ranks", "lookalikes"]),
    help="Only this one; without, all parts have their share of --count.",
)
@click.option("--seed", default=0, show_default=True, help="Chooses the programs.")
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu"]))
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1),
              help="Recordings at a time; each has one thread.")  # fmt: skip
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for one of them.")
@click.option("-q", "--quiet", is_flag=True, help="No progress line.")
def record(
    folder: Path,
    count: int,
    part: str | None,
    seed: int,
    device: str,
    jobs: int,
    timeout: float,
    quiet: bool,
) -> None:
    """Record the benchmark's programs; what is there already is kept.

    Needs torch, transformers and diffusers, and a C++ compiler for the part "compiled". The same
    count and seed give the same programs everywhere; a longer part begins with the shorter one.

    Exit codes: 0 all recorded, 1 some failed, 2 unusable.
    """
    from torchtriage.dataset.index import write_index
    from torchtriage.dataset.plan import plan, whole
    from torchtriage.dataset.record import record as record_all

    items = plan(count, seed, part) if part else whole(count, seed)
    done: list[Outcome] = []
    with counting(f"of {len(items):,} recorded", quiet=quiet) as progress:

        def told(outcome: Outcome) -> None:
            done.append(outcome)
            if progress is not None:
                progress(len(done))

        outcomes = record_all(items, folder, device=device, jobs=jobs, timeout_s=timeout, told=told)
    failed = [one for one in outcomes if one.failure]
    if len(failed) < len(outcomes):
        write_index(folder, seed)
    n_kept = sum(one.kept for one in outcomes)
    click.echo(
        f"{len(outcomes) - n_kept - len(failed)} recorded, {n_kept} were there, "
        f"{len(failed)} failed: {folder}"
    )
    for one in failed:
        item = one.item
        click.echo(
            f"  {item.id} {item.family} {item.mode} {item.code or 'clean'}: {one.failure}", err=True
        )
    click.get_current_context().exit(int(bool(failed)))


@command.command("synthesize")
@_folder
@click.option("--count", default=180, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, help="Chooses devices and faults.")
@click.option("-q", "--quiet", is_flag=True, help="No progress line.")
def synthesize(folder: Path, count: int, seed: int, quiet: bool) -> None:
    """Make GPU timelines from the folder's CPU recordings; what is there already is kept.

    For faults that only a device has, where none is at hand: kernels, copies, queues and waits
    from a model of the device. Needs no torch. The same recordings, count and seed give the same
    bytes.

    Exit codes: 0 all made, 1 some failed, 2 unusable.
    """
    from torchtriage.dataset.index import write_index
    from torchtriage.dataset.synthesize import synthesize as make_all
    from torchtriage.dataset.synthesize import synthetic_plan

    items = synthetic_plan(count, seed)
    n_done = 0
    with counting(f"of {len(items):,} made", quiet=quiet) as progress:

        def told(_: object) -> None:
            nonlocal n_done
            n_done += 1
            if progress is not None:
                progress(n_done)

        outcomes = make_all(items, folder, told=told)
    failed = [one for one in outcomes if one.failure]
    if len(failed) < len(outcomes):
        write_index(folder)
    n_kept = sum(one.kept for one in outcomes)
    click.echo(
        f"{len(outcomes) - n_kept - len(failed)} made, {n_kept} were there, "
        f"{len(failed)} failed: {folder}"
    )
    for one in failed:
        click.echo(f"  {one.item.id} from {one.item.source}: {one.failure}", err=True)
    click.get_current_context().exit(int(bool(failed)))


@command.command("export")
@_folder
@click.argument("number")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Instead of NUMBER.json.")
@click.option("--parquet", type=click.Path(path_type=Path),
              help="Write a table, a row an event, there instead; needs pyarrow.")  # fmt: skip
def export(folder: Path, number: str, output: Path | None, parquet: Path | None) -> None:
    """Write recording NUMBER as the profiler's JSON, without its label.

    Exit codes: 0 written, 2 no such recording.
    """
    from torchtriage.dataset.items import kept
    from torchtriage.dataset.parquet import write_parquet

    item = next((one for one in kept(folder) if one.id == number), None)
    if item is None:
        raise UsageError(f"expected a recording's number, found {number}", where=str(folder))
    path = parquet or output or Path(f"{number}.json")
    if parquet:
        write_parquet(item.document(), parquet)
    else:
        path.write_text(json.dumps(item.document()), encoding="utf-8")
    click.echo(f"written to {path}", err=True)


@command.command("verify")
@_folder
def verify(folder: Path) -> None:
    """Say where recordings differ from their index, or from the programs that are planned.

    Exit codes: 0 nowhere, 1 somewhere, 2 no index.
    """
    from torchtriage.dataset.index import differences

    found = list(differences(folder))
    for line in found:
        click.echo(line)
    click.echo(f"{len(found)} differences in {folder}" if found else f"{folder} is as recorded")
    click.get_current_context().exit(int(bool(found)))


@command.command("windows")
@_folder
def windows(folder: Path) -> None:
    """Print every recording's windows as JSON: beginnings and ends in ns on the trace's clock.

    Exit codes: 0 printed, 2 no recordings.
    """
    from torchtriage.dataset.items import kept

    click.echo(json.dumps({one.id: one.windows_ns.tolist() for one in kept(folder)}))


@command.command("score")
@_folder
@click.argument("system")
@click.option("--predictions", type=click.Path(path_type=Path),
              help="Also write what the system says.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="No progress line.")
def score(folder: Path, system: str, predictions: Path | None, quiet: bool) -> None:
    """Score SYSTEM: "rules", our patterns; a system that learns; or a JSON file of predictions.

    Systems that learn, such as "detector", are trained first and scored on split test alone, which
    they have not seen: torchtriage learn table names them. Prints a Markdown table: all recordings,
    each split, each fault.

    Exit codes: 0 scored, 2 unusable input.
    """
    from torchtriage.dataset.items import kept
    from torchtriage.dataset.predictions import Predictions, read_predictions
    from torchtriage.dataset.score import score as score_all
    from torchtriage.training.examples import examples
    from torchtriage.training.systems import SYSTEMS

    learns = system in SYSTEMS and system != "rules"
    items: list[Any] = [*examples(folder)] if learns else [*kept(folder)]
    if system in SYSTEMS:
        says = SYSTEMS[system](items, 0)
        if learns:
            items = [one for one in items if one.split == "test"]
        said = {}
        with counting(f"of {len(items):,} judged", quiet=quiet) as progress:
            for one in items:
                said[one.id] = says(one)
                if progress is not None:
                    progress(len(said))
        found = Predictions(system, said)
    else:
        found = read_predictions(Path(system))
    if predictions is not None:
        predictions.write_text(found.to_json(), encoding="utf-8")
    columns = ("auroc", "auprc", "type_accuracy", "macro_f1", "detected", "quiet", "not_severe",
               "overlap", "line_accuracy", "saving")  # fmt: skip
    heads = (found.system, "recordings", *(one.replace("_", " ") for one in columns))
    click.echo(f"| {' | '.join(heads)} |")
    click.echo(f"|:--|{'--:|' * (len(columns) + 1)}")
    for row in score_all(items, found):
        cells = (row.group, str(row.n_items), *(_cell(getattr(row, name)) for name in columns))
        click.echo(f"| {' | '.join(cells)} |")
        if row.missing:
            click.echo(f"{row.group}: {row.missing} recordings have no prediction", err=True)


def _cell(figure: Figure) -> str:
    if figure.n == 0 or figure.value != figure.value:
        return "-"
    return f"{figure.value:.2f} ({figure.low:.2f}-{figure.high:.2f})"
