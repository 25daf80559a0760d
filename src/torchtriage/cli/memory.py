"""``torchtriage memory``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.output import check_outputs, complain, save
from torchtriage.cli.progress import doing, reading
from torchtriage.errors import TriageError

if TYPE_CHECKING:
    from torchtriage.memory.result import MemoryResult
    from torchtriage.trace import Trace

__all__ = ["command"]

LEVELS = ("note", "low", "medium", "high")


@click.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="SNAPSHOT…", type=click.Path())
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(),
    help="A trace of the same program, with_stack=True: what checkpointing would cost per step.",
)
@click.option("--json", "form", flag_value="json", help="Print the versioned JSON document.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown for a PR comment.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Write what would be printed to FILE.",
)
@click.option("--html", metavar="FILE", type=click.Path(), help="Also write a self-contained page.")
@click.option(
    "--fail-on",
    type=click.Choice([*LEVELS, "never"]),
    default="never",
    show_default=True,
    help="Exit with 1 on a finding this severe or worse.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], **given: Any) -> None:
    """Judge memory snapshots of the CUDA caching allocator.

    SNAPSHOT is a file of torch.cuda.memory._dump_snapshot(), plain, gzip or zip, or - for standard
    input; also what prof.export_memory_timeline() writes as JSON, the memory_watch.json of a live
    watch, and a trace recorded with profile_memory=True. Nothing in a file is ever executed. Prints
    a verdict in three lines, then per device who held what at the peak, by line, phase and purpose,
    why reserved memory was free, and for each failed allocation why it failed; then findings.

    Exit codes: 0 fine, 1 findings at --fail-on or worse, 2 unusable input or usage.
    """
    check_outputs([given["output"], given["html"]], paths)
    trace = _trace(given["trace"], given["quiet"])
    results: list[MemoryResult] = []
    n_unusable = 0
    for path in paths:
        try:
            results.append(_judge(path, given["quiet"], trace))
        except TriageError as unusable:  # noqa: PERF203 - one bad file must not hide the others
            if len(paths) == 1:
                raise
            n_unusable += 1
            complain(f"left out: {unusable}")
    if results:
        _report(results, given)
    severities = {one.severity for result in results for one in result.findings}
    if given["fail_on"] != "never" and severities & {*LEVELS[LEVELS.index(given["fail_on"]) :]}:
        ctx.exit(1)
    if n_unusable:
        ctx.exit(2)


def _trace(path: str | None, quiet: bool) -> Trace | None:
    if path is None:
        return None
    from torchtriage.trace import read_trace

    with reading(path, quiet=quiet) as progress:
        return read_trace(path, progress=progress)


def _judge(path: str, quiet: bool, trace: Trace | None) -> MemoryResult:
    from torchtriage.memory.categories import CategoryTimeline, judge_categories
    from torchtriage.memory.read import read_memory
    from torchtriage.memory.snapshot import Snapshot
    from torchtriage.memory.verdict import judge, judge_trace
    from torchtriage.trace import Trace

    began_s = time.monotonic()
    with reading(path, quiet=quiet) as progress:
        told = read_memory(path, progress)
    if isinstance(told, Snapshot):
        with doing(path, quiet=quiet, since_s=began_s) as stage:
            return judge(told, stage, trace=trace)
    if isinstance(told, CategoryTimeline):
        return judge_categories(told)
    if isinstance(told, Trace):
        return judge_trace(told, path)
    from torchtriage.memory.watched import judge_watch

    return judge_watch(told)


def _report(results: list[MemoryResult], given: dict[str, Any]) -> None:
    if given["html"]:
        from torchtriage.report.memory import html_page

        save(given["html"], html_page.render(results).encode())
    if given["form"] is None and given["output"] is None:
        from rich.console import Console

        from torchtriage.report.memory import terminal

        terminal.write(results, Console())
        return
    data = _encode(results, given["form"])
    if given["output"]:
        save(given["output"], data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _encode(results: list[MemoryResult], form: str | None) -> bytes:
    from torchtriage.report.memory import json_report, markdown, terminal

    if form == "json":
        return json_report.encode(results)
    if form == "markdown":
        return markdown.render(results).encode()
    return (terminal.render(results).plain + "\n").encode()
