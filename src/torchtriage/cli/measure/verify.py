"""``torchtriage verify``."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from torchtriage.cli.options import json_option, output_option, value_option
from torchtriage.cli.output import check_outputs, present
from torchtriage.core.errors import UsageError

EXIT_CODES = {"faster": 0, "slower": 1, "no difference": 3, "results differ": 4, "undecided": 5}


@click.command("verify")
@click.argument("scripts", nargs=-1, metavar="[BEFORE.py AFTER.py]", type=click.Path())
@click.option("--before", metavar="CMD", help="The command before the fix.")
@click.option("--after", metavar="CMD", help="The command after it.")
@value_option("--steps", click.IntRange(0), "N", 40, "End each run after N timed steps; 0 compares whole runs.")
@value_option(
    "--rounds", click.IntRange(3), "N", 12, "Maximum runs of each program; five are enough if they agree to 2 %."
)
@click.option("--no-record", is_flag=True, help="Do not record the promised saving first.")
@click.option("--allow", is_flag=True, help="Different results are intended: say how they differ, and judge the time.")
@click.option("--out", metavar="DIR", type=click.Path(), help="Keep the measurements here.")
@json_option
@output_option
@click.option("-q", "--quiet", is_flag=True, help="No progress output.")
@click.pass_context
def command(ctx: click.Context, /, scripts: tuple[str, ...], **given: Any) -> None:
    """Prove a fix: run two versions of a script in alternation and measure the saving.

    Both are recorded once, to know what saving the finding promised, and then run in alternation
    without the profiler until the difference is known to 2 %. Gradients and updates of their first
    steps (or, where nothing trains, outputs) must agree to rounding, and so must the numbers that
    they print. The programs read no input; their output is kept in --out.

    \b
    torchtriage verify train.py train_fixed.py
    torchtriage verify --before "python train.py --workers 0" --after "python train.py --workers 4"

    Exit codes: 0 faster, 1 slower, 2 a program failed, 3 no difference, 4 other results, 5 undecided.
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.api import traces

    commands = _commands(scripts, given["before"], given["after"])
    check_outputs([given["output"]])
    out = Path(given["out"] or tempfile.mkdtemp(prefix="torchtriage-verify-")).absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("expected a new or an empty folder", where=str(out))
    try:
        result = traces.verify(
            *commands,
            out=out,
            steps=given["steps"],
            rounds=given["rounds"],
            record=not given["no_record"],
            allow=given["allow"],
            progress=None if given["quiet"] else lambda text: click.echo(text, err=True),
        )
    finally:
        if not given["out"]:
            shutil.rmtree(out, ignore_errors=True)
    present(result, given)
    ctx.exit(EXIT_CODES[result.outcome])


def _commands(scripts: tuple[str, ...], before: str | None, after: str | None) -> tuple[list[str], list[str]]:
    if len(scripts) == 2 and before is None and after is None:
        return [scripts[0]], [scripts[1]]
    if not scripts and before and after:
        try:
            return shlex.split(before), shlex.split(after)
        except ValueError as error:
            raise UsageError(f"cannot be split into words: {error}") from error
    raise UsageError(
        "expected two scripts, or --before and --after",
        hint='torchtriage verify --before "python train.py" --after "python train_fixed.py"',
    )
