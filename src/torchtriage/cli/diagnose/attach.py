"""``torchtriage attach``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from torchtriage.cli.options import POSITIVE, file_option, result_options, top_option, value_option
from torchtriage.cli.output import check_outputs, complain, present
from torchtriage.core.names import visible


def _ranks(_ctx: click.Context, _param: click.Parameter, value: str | None) -> frozenset[int] | None:
    if value is None:
        return None
    found: set[int] = set()
    for part in value.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or len(low + high) > 12:
            raise click.BadParameter(f"expected ranks such as 0,3 or 0-7, found {value!r}")
        if dash and not 0 <= int(high) - int(low) < 100_000:
            raise click.BadParameter(f"expected ranks such as 0,3 or 0-7, found {value!r}")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


@click.command("attach")
@click.argument("target", metavar="TARGET")
@value_option("--seconds", POSITIVE, "S", 5.0, "Record for this long.")
@value_option("--steps", click.IntRange(1, 1000), "N", None, "Record this many steps instead, where steps are counted.")
@click.option("--ranks", metavar="LIST", callback=_ranks, help="Only these ranks: 0,3 or 0-7.")
@file_option("--dir", "The folder where the job writes its traces  [default: a new one]", metavar="DIR")
@file_option("--dumps", "Flight recorder dumps of the job: a folder, or how their names begin.", metavar="PATH")
@value_option("--timeout", POSITIVE, "S", 60.0, "Wait this long for a step, for the traces, for each answer.")
@click.option("--stacks", is_flag=True, help="No recording: the stacks of all ranks, and what they wait for.")
@click.option("--allow-remote", is_flag=True, help="Allow TARGET on another machine.")
@result_options
@top_option
@click.option("-q", "--quiet", is_flag=True, help="Print only failures on stderr.")
@click.pass_context
def command(ctx: click.Context, /, target: str, **given: Any) -> None:
    """Record a running job without a restart, and analyse it; or say what it waits for.

    TARGET is what the job offers: the URL of vLLM or SGLang, of the debug server of torch.distributed (port 25999) or
    of dynolog (port 1778), or the pid of a process, or of its launcher, that made a tt.sample. Where nothing moves, the
    stacks of all ranks are shown, equal ones once, and which rank is missing in which collective.

    \b
    torchtriage attach http://localhost:8000 --dir /mnt/traces --seconds 3
    torchtriage attach localhost:25999
    torchtriage attach 4711 --steps 5 --ranks 0-3
    torchtriage attach 4711 --stacks
    torchtriage attach /tmp/nccl_trace_rank_

    Only this machine is asked, unless --allow-remote. The token that a server wants is taken from TORCHTRIAGE_TOKEN.
    Exits with 1 where nothing moves.
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.diagnose.attach.attach import STILL, Wish, attach
    from torchtriage.diagnose.attach.result import HangResult

    check_outputs([given["output"], given["html"]])
    wish = Wish(
        seconds=given["seconds"],
        steps=given["steps"],
        ranks=given["ranks"],
        folder=Path(given["dir"]) if given["dir"] is not None else None,
        dumps=Path(given["dumps"]) if given["dumps"] else None,
        timeout_s=given["timeout"],
        allow_remote=given["allow_remote"],
        token=os.environ.get("TORCHTRIAGE_TOKEN", ""),
        only_stacks=given["stacks"],
    )
    try:
        found = attach(target, wish)
    except KeyboardInterrupt as error:
        if error.args:
            complain(str(error))
        raise
    if isinstance(found, HangResult):
        present(found, given)
        ctx.exit(1 if found.waits or any(note.code == STILL for note in found.notes) else 0)
    if not given["quiet"]:
        click.echo(f"captured: {visible(found.cost)}", err=True)
        click.echo("\n".join(f"  {path}" for path in found.files), err=True)
    ctx.exit(_analyze([str(path) for path in found.files], given))


def _analyze(files: list[str], given: dict[str, Any]) -> int:
    """Analyse what was recorded as ``torchtriage analyze`` does, and return its exit code."""
    from torchtriage.cli.diagnose.analyze import command as analyze

    words = [f"--{given['form']}"] if given["form"] else []
    for name in ("output", "html", "top"):
        words += [f"--{name}", str(given[name])] if given[name] else []
    words += ["--quiet"] if given["quiet"] else []
    return analyze.main([*words, "--", *files], standalone_mode=False) or 0
