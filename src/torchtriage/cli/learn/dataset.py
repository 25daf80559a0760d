"""``torchtriage benchmark dataset``: the open benchmark: record it, take recordings out, score systems."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.options import value_option
from torchtriage.cli.output import check_outputs
from torchtriage.cli.progress import counting
from torchtriage.core.errors import UsageError

if TYPE_CHECKING:
    from torchtriage.learn.dataset.predictions import Prediction
    from torchtriage.learn.dataset.recordings import DatasetItem

_MAKING = {
    "record": "Record the benchmark's programs.",
    "synthesize": "Make GPU timelines from the CPU recordings.",
    "fetch": "Get the recordings of real accelerators.",
    "verify": "Say where recordings differ from their index.",
}
"""What each does, for the list of commands where the distribution is not installed."""

folder_option = value_option(
    "--dir", click.Path(path_type=Path), None, "benchmark", "Where the recordings are.", dest="folder"
)


def not_installed(error: ModuleNotFoundError) -> Exception:
    """Return what to raise where the distribution torchtriage-benchmark cannot be imported."""
    if error.name is None or error.name.partition(".")[0] != "torchtriage_benchmark":
        return error
    return UsageError(
        "this command needs the package torchtriage-benchmark, which is not installed",
        hint="in a clone of the repository: pip install ./packages/torchtriage-benchmark",
    )


def _missing(name: str, error: Exception) -> click.Command:
    def refuse(**_: object) -> None:
        raise error

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    any_option = {"ignore_unknown_options": True}
    return click.Command(name, any_option, refuse, [words], _MAKING[name], add_help_option=False)


class _Dataset(click.Group):
    """Commands that make recordings are those of the distribution torchtriage-benchmark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_MAKING])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MAKING:
            return super().get_command(ctx, cmd_name)
        try:
            from torchtriage_benchmark.commands.dataset import COMMANDS
        except ModuleNotFoundError as error:
            return _missing(cmd_name, not_installed(error))
        return COMMANDS[cmd_name]


@click.group("dataset", cls=_Dataset)
def command() -> None:
    """Record programs with known faults, export recordings, and score systems on them.

    Contents and scoring: docs/benchmark.md. The subcommands record, synthesize, fetch and verify
    need the package torchtriage-benchmark: pip install ./packages/torchtriage-benchmark from a clone.
    """


@command.command("export")
@folder_option
@click.argument("number")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to this file instead of NUMBER.trace.json."
)
@value_option(
    "--parquet",
    click.Path(path_type=Path),
    None,
    None,
    "Write a Parquet table to this file instead, one row per event; needs pyarrow.",
)
def export(folder: Path, number: str, output: Path | None, parquet: Path | None) -> None:
    """Write recording NUMBER as the profiler's JSON, without its label.

    Exit codes: 0 written, 2 no such recording.
    """
    from torchtriage.learn.dataset.parquet import write_parquet
    from torchtriage.learn.dataset.recordings import dataset_items

    items = list(dataset_items(folder))
    item = next((item for item in items if item.id == number), None)
    if item is None:
        raise UsageError(f"expected a recording's number, found {number}", where=str(folder))
    path = parquet or output or Path(f"{number}.trace.json")  # NUMBER.json holds its label
    check_outputs([str(path)], _files(items))
    if parquet:
        write_parquet(item.document(), parquet)
    else:
        path.write_text(json.dumps(item.document()), encoding="utf-8")
    click.echo(f"written to {path}", err=True)


@command.command("windows")
@folder_option
def windows(folder: Path) -> None:
    """Print every recording's windows as JSON: start and end in ns on the trace's clock.

    Exit codes: 0 printed, 2 no recordings.
    """
    from torchtriage.learn.dataset.recordings import dataset_items

    click.echo(json.dumps({item.id: item.windows_ns.tolist() for item in dataset_items(folder)}))


@command.command("score")
@folder_option
@click.argument("system")
@click.option("--predictions", type=click.Path(path_type=Path), help="Also write the system's answers.")
@click.option("-q", "--quiet", is_flag=True, help="No progress line.")
def score(folder: Path, system: str, predictions: Path | None, quiet: bool) -> None:
    """Score SYSTEM: "rules" (the patterns), a learned system, or a JSON file of predictions.

    Learned systems, such as "detector", are trained first and scored only on the test split, which
    they have not seen; torchtriage benchmark learn table lists them. Prints a Markdown table: all recordings,
    each split, each fault.

    Exit codes: 0 scored, 2 unusable input.
    """
    from torchtriage.learn.dataset.predictions import Predictions, read_predictions, rules
    from torchtriage.learn.dataset.recordings import dataset_items
    from torchtriage.learn.dataset.score import Score
    from torchtriage.learn.dataset.score import score as score_all

    items: list[Any] = list(dataset_items(folder))
    check_outputs([str(predictions) if predictions else None], [system, *_files(items)])
    says: Callable[[Any], Prediction] | None = rules if system == "rules" else None
    if says is None and not Path(system).is_file():
        try:
            from torchtriage_benchmark.commands.dataset import trained
        except ModuleNotFoundError as error:
            raise not_installed(error) from None
        items, says = trained(system, folder)
    if says is not None:
        answers = {}
        with counting(f"of {len(items):,} judged", quiet=quiet) as progress:
            for item in items:
                answers[item.id] = says(item)
                progress(len(answers))
        found = Predictions(system, answers)
    else:
        found = read_predictions(Path(system))
    if predictions is not None:
        predictions.write_text(found.to_json(), encoding="utf-8")
    columns = [field.name for field in fields(Score)][3:]  # before them the group, and how many it has
    heads = (found.system, "recordings", *(column.replace("_", " ") for column in columns))
    click.echo(f"| {' | '.join(heads)} |")
    click.echo(f"|:--|{'--:|' * (len(columns) + 1)}")
    for row in score_all(items, found):
        cells = (row.group, str(row.n_items), *(str(getattr(row, name)) for name in columns))
        click.echo(f"| {' | '.join(cells)} |")
        if row.missing:
            click.echo(f"{row.group}: {row.missing} recordings have no prediction", err=True)


def _files(items: Iterable[DatasetItem]) -> list[Path]:
    return [path for item in items for path in (item.path, item.path.with_suffix(".json"))]
