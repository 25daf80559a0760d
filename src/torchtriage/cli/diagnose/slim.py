"""``torchtriage slim``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from torchtriage.cli.options import POSITIVE, file_option, output_option, quiet_option, value_option
from torchtriage.cli.output import check_outputs, read_input, save
from torchtriage.cli.progress import reading_many
from torchtriage.core.errors import UsageError
from torchtriage.core.selection import Selection


@click.command("slim")
@click.argument("path", metavar="TRACE", type=click.Path())
@output_option
@click.option("--steps", metavar="N[-M]", help="Keep these steps, by the numbers in their names: 3-5.")
@click.option("--window", metavar="BEGIN-END", help="Keep this window, from the first event: 1.2s-1.8s, 300ms-450ms.")
@value_option("--max-mb", POSITIVE, "N", None, "Leave out more until it fits: steps, then Python frames, then shapes.")
@value_option("--factor", POSITIVE, "N", None, "The same, until it is N times smaller.")
@click.option("--anonymise", is_flag=True, help="Replace private names and paths with stable pseudonyms.")
@file_option("--key", "Key file of the pseudonyms, created if missing; keep it to yourself.")
@file_option("--restore", "Translate TRACE, a report, back with this key file.", metavar="KEY")
@quiet_option
def command(path: str, **given: Any) -> None:
    """Write a smaller trace that gets the same verdict, to share it.

    TRACE is a trace, or a folder with those of a job's ranks. What no rule reads is always left out. With --anonymise
    your own names (users, machines, files, functions, classes, kernels) become pseudonyms, while PyTorch's, CUDA's
    and ROCm's stay; the key file translates a report back (--restore).
    """
    output = given["output"]
    if given["restore"]:
        _restore(path, given["restore"], output)
        return
    if output is None:
        raise UsageError("expected a file to write to", hint="-o small.json.gz")
    if given["max_mb"] and given["factor"]:
        raise UsageError("expected --max-mb or --factor, found both")
    if given["key"] and not given["anonymise"]:
        raise UsageError("--key needs --anonymise")
    from torchtriage.api import share
    from torchtriage.core.trace.anonymise import Anonymiser

    if not Path(path).is_dir():
        check_outputs([output], [path])
    opened = share.open_key(given["key"], output) if given["anonymise"] else nullcontext()
    with opened as pseudonyms, reading_many(1, quiet=given["quiet"]) as starting:
        done = share.slim(
            path,
            output,
            selection=Selection(steps=given["steps"], window=given["window"]),
            max_mb=given["max_mb"],
            factor=given["factor"],
            names=None if pseudonyms is None else Anonymiser(pseudonyms[0]),
            starting=starting,
        )
    click.echo(f"wrote {output}: {share.size_line(done)}")
    for what in done.dropped:
        click.echo(f"  left out {what}")
    if pseudonyms is not None:
        names, key = pseudonyms
        click.echo(f"  {len(names.names):,} names have pseudonyms, and {key} says which: keep it to yourself")
    if not done.small_enough:
        raise UsageError("it cannot get as small as asked: everything that may go is gone", where=output)


def _restore(path: str, key: str, output: str | None) -> None:
    from torchtriage.core.trace.pseudonyms import Pseudonyms, restore

    check_outputs([output], [path, key])
    text = restore(read_input(path).decode("utf-8", "replace"), Pseudonyms.load(key).names)
    if output:
        save(output, text.encode())
    else:
        click.echo(text, nl=False)
