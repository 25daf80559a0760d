"""``torchtriage memory``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.options import fail_on_option, fails, file_option, quiet_option, result_options
from torchtriage.cli.output import check_outputs, complain, present
from torchtriage.cli.progress import doing, read, reading
from torchtriage.core.errors import TriageError, UsageError

if TYPE_CHECKING:
    from torchtriage.core.trace import Trace
    from torchtriage.memory.snapshot.result import MemoryResult


@click.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="SNAPSHOT…", type=click.Path())
@file_option("--trace", "A trace of the same program, with_stack=True: what checkpointing would cost per step.")
@result_options
@fail_on_option
@quiet_option
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], **given: Any) -> None:
    """Analyse memory snapshots of the CUDA caching allocator.

    SNAPSHOT is a file of torch.cuda.memory._dump_snapshot(), plain, gzip or zip, or - for standard
    input; also what prof.export_memory_timeline() writes as JSON, the memory_watch.json of a live
    watch, and a trace recorded with profile_memory=True. Nothing in a file is ever executed. Prints
    a verdict in three lines, then for each device what held memory at the peak, by line, phase and
    purpose, why reserved memory was free, and why each failed allocation failed; then the findings.

    Exit codes: 0 fine, 1 findings at --fail-on or worse, 2 unusable input or usage.
    """
    check_outputs([given["output"], given["html"]], paths)
    _check_inputs(paths, given["form"])
    trace = None if given["trace"] is None else read(given["trace"], quiet=given["quiet"])
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
        from torchtriage.report.documents.memory import MemoryReport

        present(MemoryReport(results[0].schema, results[0].version, tuple(results)), given)
    if fails((finding for result in results for finding in result.findings), given["fail_on"]):
        ctx.exit(1)
    if n_unusable:
        ctx.exit(2)


def _check_inputs(paths: tuple[str, ...], form: str | None) -> None:
    """Refuse a name that is meant for what is written: ``--json out.json``."""
    ending = {"json": ".json", "markdown": ".md"}.get(form or "", "")
    for path in paths:
        if ending and path.endswith(ending) and not Path(path).exists():
            raise UsageError(
                "expected a snapshot, found no such file",
                where=path,
                hint=f"--{form} prints; to write a file: --{form} -o {path}",
            )


def _judge(path: str, quiet: bool, trace: Trace | None) -> MemoryResult:
    from torchtriage.core.trace import Trace
    from torchtriage.memory.snapshot.categories import CategoryTimeline, judge_categories
    from torchtriage.memory.snapshot.read import read_memory
    from torchtriage.memory.snapshot.snapshot import Snapshot
    from torchtriage.memory.snapshot.verdict import judge, judge_trace

    began_s = time.monotonic()
    with reading(path, quiet=quiet) as progress:
        memory = read_memory(path, progress)
    if isinstance(memory, Snapshot):
        with doing(path, quiet=quiet, since_s=began_s) as stage:
            return judge(memory, stage, trace=trace)
    if isinstance(memory, CategoryTimeline):
        return judge_categories(memory)
    if isinstance(memory, Trace):
        return judge_trace(memory, path)
    from torchtriage.memory.leaks.leak_report import judge_watch

    return judge_watch(memory)
