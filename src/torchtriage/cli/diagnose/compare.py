"""``torchtriage compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchtriage.cli.anonymising import anonymise_options
from torchtriage.cli.options import (
    Finite,
    file_option,
    quiet_option,
    result_options,
    selection_of,
    selection_options,
    value_option,
)
from torchtriage.cli.output import check_outputs, complain, present, read_input
from torchtriage.cli.progress import reading
from torchtriage.core.errors import UsageError


@click.command("compare")
@click.argument("before", metavar="BEFORE", type=click.Path())
@click.argument("after", metavar="AFTER", type=click.Path())
@result_options
@file_option(
    "--promise", "Check the promises of this saved report on BEFORE instead of today's.", metavar="REPORT.json"
)
@value_option(
    "--fail-on-slower",
    Finite(0),
    "PCT",
    None,
    "Exit with 1 when the step is slower by more than PCT percent and more than the noise.",
)
@click.option(
    "--across",
    is_flag=True,
    help="Compare two kinds of device: split the difference into host, work of the same operators, and the rest.",
)
@anonymise_options
@selection_options
@quiet_option
@click.pass_context
def command(ctx: click.Context, /, before: str, after: str, **given: Any) -> None:
    """Explain what changed the step time between two runs, and whether it is more than noise.

    BEFORE and AFTER are traces of one workload, or two folders with the ranks of one job. The
    change in the mean steady step is split by cause and adds up to the nanosecond: which operators'
    kernels, waiting for the loader, the device, Python. Then come the findings that are gone, new or
    unchanged, and whether those gone saved what they promised. Runs that cannot be compared
    (different device without --across, model, sizes, mode or profiler options) are refused, with the
    reason.

    Exit codes: 0 fine, 1 slower by more than --fail-on-slower, 2 unlike or unusable input.
    """
    from torchtriage.api import traces

    check_outputs([given["output"], given["html"]], [before, after])
    promised = _promised(given["promise"], before) if given["promise"] else None
    with reading(f"{before} and {after}", quiet=given["quiet"]) as progress:
        result = traces.compare(
            before, after, promise=promised, across=given["across"], selection=selection_of(given), progress=progress
        )
    present(result, given)
    if not result.comparable:
        ctx.exit(2)
    limit, total = given["fail_on_slower"], result.total
    if limit is None or total is None or total.delta_ns <= limit / 100 * total.before_ns:
        return
    if total.told:
        ctx.exit(1)
    complain(f"--fail-on-slower {limit:g} cannot tell: the step is slower by more, but not significantly")


def _promised(path: str, before: str) -> Any:
    from torchtriage.report import json_report

    results = json_report.decode(read_input(path))
    name = Path(before).name
    named = [result for result in results if Path(result.trace.path).name == name]
    if len(results) == 1:
        return results[0]
    if len(named) != 1:
        raise UsageError(
            f"expected one result about {name}, found {len(named)} of {len(results)}",
            where=path,
            hint=f"write one with: torchtriage analyze {before} --json -o report.json",
        )
    return named[0]
