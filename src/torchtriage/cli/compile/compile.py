"""``torchtriage compile``."""

from __future__ import annotations

from typing import Any

import click

from torchtriage.cli.options import fail_on_option, fails, file_option, quiet_option, result_options
from torchtriage.cli.output import check_outputs, complain, present
from torchtriage.cli.progress import read, reading_many
from torchtriage.core.errors import UsageError


@click.command("compile")
@click.argument("paths", nargs=-1, required=True, metavar="LOG…", type=click.Path())
@file_option("--trace", "A trace of the same program: what each break and recompilation costs in it.")
@file_option("--eager", "A trace of the program without torch.compile: after how many steps compiling pays off.")
@result_options
@fail_on_option
@quiet_option
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], **given: Any) -> None:
    """Analyse torch.compile logs: graph breaks, recompilations, compile time.

    LOG is a file or a folder that TORCH_TRACE wrote, of one process or of many ranks and restarts,
    plain or gzip; or the text of TORCH_LOGS=graph_breaks,recompiles,guards; or - for standard
    input. torch is not needed, and nothing in a log is executed. Prints a verdict in three lines,
    then each distinct graph break with its cause, line and fix, each kind of recompilation with the
    guard that failed and its fix, functions, compile time by phase, Inductor's output, caches,
    guards, and differences between ranks. Every log entry is accounted for.

    Exit codes: 0 fine, 1 findings at --fail-on or worse, 2 unusable input or usage.
    """
    from torchtriage.compile.logs.judge import judge
    from torchtriage.compile.logs.read import read_logs

    if given["eager"] and not given["trace"]:
        raise UsageError("--eager needs --trace to compare with")
    inputs = [*paths, *filter(None, (given["trace"], given["eager"]))]
    check_outputs([given["output"], given["html"]], inputs)
    with reading_many(len(paths), quiet=given["quiet"]) as progress:
        logs, refused = read_logs(paths, progress)
    for error in refused:
        complain(f"left out: {error}")
    result = judge(logs)
    if given["trace"]:
        from torchtriage.compile.logs.join import join

        trace = read(given["trace"], quiet=given["quiet"])
        eager = read(given["eager"], quiet=given["quiet"]) if given["eager"] else None
        result = join(result, trace, given["trace"], eager=eager)
    if given["html"]:
        from torchtriage.compile.logs.drawings import with_drawings

        result = with_drawings(result, logs)
    from torchtriage.report.documents.compile import CompileReport

    present(CompileReport(result.schema, result.version, result), given)
    if fails(result.findings, given["fail_on"]):
        ctx.exit(1)
    if refused:
        ctx.exit(2)
