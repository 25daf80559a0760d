"""``torchtriage gate``: record samples, check a candidate, look along the commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.measure.gate_check import check, share
from torchtriage.cli.measure.gate_record import GateCommand, record, store_option
from torchtriage.cli.options import (
    html_option,
    json_option,
    markdown_option,
    output_option,
    quiet_option,
    result_options,
    value_option,
)
from torchtriage.cli.output import check_outputs, present, read_input
from torchtriage.core.errors import TraceFormatError, UsageError

if TYPE_CHECKING:
    from torchtriage.measure.gate.result import HistoryResult


class _Gate(GateCommand, click.Group):
    """Wrong usage of the gate itself ends with 3 too: 2 is a verdict."""


@click.group("gate", cls=_Gate)
def command() -> None:
    """Check a change for performance regressions, with exit codes for CI.

    Exit codes of check: 0 no regression, 1 regression, 2 undecided, 3 no verdict can be given.
    """


@click.command("history", cls=GateCommand)
@click.option("--branch", metavar="NAME", default="main", show_default=True, help="The branch to search.")
@click.option("--name", metavar="NAME", help="Only this benchmark.")
@click.option("--metric", "metrics", metavar="NAME", multiple=True, help="Only these metrics.")
@value_option("--min-change", str, "SHARE", "1%", "Leave out smaller changes of level.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest N runs.")
@store_option
@result_options
@quiet_option
def history(**given: Any) -> None:
    """Find the commits where a metric changed.

    Every stored run of the branch is a point, with the commits in git's order. A change is reported
    when noise does not explain it; for exact counts, every change is reported.

    Exit codes: 0 done, 3 no store, broken samples, wrong usage.
    """
    check_outputs([given["output"], given["html"]])
    present(_history(given), given)


def _history(given: dict[str, Any]) -> HistoryResult:
    from torchtriage.measure.gate.history import find_history
    from torchtriage.measure.gate.revision import commits_along
    from torchtriage.measure.gate.store import open_store

    branch = given["branch"]
    with open_store(given["store"], create=False) as store:
        entries = store.find(benchmark=given["name"], branch=branch, limit=given["last"])
        runs = store.load(entries, metrics=given["metrics"] or None)
        recorded = {series.metric for run in runs for series in run.series}
        unknown = [name for name in given["metrics"] if name not in recorded]
        newest = store.load(entries[:1]) if unknown else ()
    if not entries:
        raise UsageError(
            f"nothing is recorded on {branch}",
            where="--branch",
            hint="torchtriage gate record -- CMD, on its commits; --branch names another",
        )
    if unknown:
        known = sorted(series.metric for run in newest for series in run.series)
        raise UsageError(
            f"expected a metric that is recorded on {branch}, found {unknown[0]!r}",
            where="--metric",
            hint=f"metrics of the newest run: {', '.join(known[:8])}",
        )
    return find_history(
        [run for run in runs if run.series],
        branch=branch,
        min_change=share(given["min_change"]),
        order=commits_along(Path.cwd(), branch),
    )


@click.command("report", cls=GateCommand)
@click.argument("path", metavar="RESULT.json", type=click.Path())
@markdown_option
@json_option
@output_option
@html_option
@click.option("--annotations", is_flag=True, help="Print GitHub's ::error lines and nothing else.")
def report(path: str, **given: Any) -> None:
    """Render a result that check or history saved with --json.

    On the terminal, as Markdown, as a page, or as GitHub annotations.

    Exit codes: 0 done, whatever the verdict was; 3 no such result, or it cannot be written.
    """
    from torchtriage.measure.gate.result import GateResult
    from torchtriage.report import formats
    from torchtriage.report.documents.gate import workflow_commands

    check_outputs([given["output"], given["html"]], [path])
    data = read_input(path)
    try:
        result = formats.decode(data, "torchtriage-gate/1", "torchtriage-gate-history/1")
    except TraceFormatError as error:
        raise TraceFormatError(error.message, where=path, hint=error.hint) from error
    if not given["annotations"]:
        present(result, given)
    elif isinstance(result, GateResult):
        click.echo(workflow_commands(result), nl=False)
    else:
        raise UsageError("expected a check for --annotations, found a history", where=path)


for subcommand in (record, check, history, report):
    command.add_command(subcommand)
