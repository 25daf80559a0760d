"""``torchtriage analyze``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.anonymising import anonymise_options
from torchtriage.cli.config import with_config
from torchtriage.cli.options import (
    POSITIVE,
    Finite,
    fail_on_option,
    fails,
    file_option,
    form_options,
    html_option,
    made_of,
    output_option,
    quiet_option,
    reading_options,
    selection_of,
    selection_options,
    top_option,
    value_option,
    verbose_option,
)
from torchtriage.cli.output import check_outputs, complain, present, save
from torchtriage.cli.progress import reading, reading_many
from torchtriage.core.anonymous import current
from torchtriage.core.errors import UsageError
from torchtriage.core.finding import Quote
from torchtriage.core.timing import measured, part, part_times
from torchtriage.core.units import format_ms, format_share
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.options import BYS, DEFAULTS, Options
from torchtriage.diagnose.verdict.result import Result

if TYPE_CHECKING:
    from torchtriage.report.json_report import JsonReport

_BESIDE = ("capture", "compile_log", "execution_trace")
"""Options that name what else was recorded of the one trace's process."""


MAX_NAMED = 20
"""Files that could not be read."""


def _once(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> str:
    if len(value) > 1:
        raise click.BadParameter(f"expected one of {' and '.join(value)}: a report has one such table")
    return value[0]


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=click.Path())
@form_options
@output_option
@html_option
@file_option("--perfetto", "Also write the trace, or a job's ranks on one clock, with findings (.json[.gz]).")
@top_option
@verbose_option
@click.option("--only", multiple=True, metavar="CODE", help="Run only this pattern (repeatable).")
@click.option("--skip", multiple=True, metavar="CODE", help="Skip this pattern (repeatable).")
@value_option(
    "--min-share",
    Finite(0, 1),
    "RATIO",
    DEFAULTS.min_share,
    "Leave out findings that save less than this share of a step.",
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="QUESTION",
    help="Predict the effect of a change: gpu*0.5, cpu*0.5, comm=0, no-sync, launch=0 (repeatable).",
)
@value_option(
    "--by", click.Choice(BYS), None, (DEFAULTS.by,), "What to break device time down by.", multiple=True, callback=_once
)
@file_option(
    "--capture", "Recording in which the replayed graphs were captured (ROCm), for --by operator, module or line."
)
@file_option(
    "--compile-log",
    "torch.compile's log of the recorded program (TORCH_TRACE), for the lines that compiled graphs compute.",
    metavar="PATH",
)
@file_option(
    "--execution-trace",
    "ExecutionTraceObserver (Chakra) file of the same process and steps: adds its operators' inputs.",
    metavar="PATH",
)
@value_option(
    "--peak",
    str,
    "DEVICE|RATES",
    "",
    "Peak rates of a device without a known name: MI300X, or fp32=67,half=989,memory=3.35 (dense TFLOP/s, TB/s).",
)
@selection_options
@value_option("--step-ms", POSITIVE, "MS", None, "Step time without the profiler; savings are scaled to it.")
@file_option(
    "--source",
    "Look for the recorded program's source here too, for exact lines (repeatable).",
    metavar="DIR",
    dest="sources",
)
@click.option("--no-source", is_flag=True, help="Do not open source files: report lines as recorded.")
@click.option(
    "--detector", is_flag=True, help="Also run the learned detector, for suspicious windows that no finding explains."
)
@fail_on_option
@reading_options
@value_option(
    "--engine",
    click.Choice(["local", "ray"]),
    None,
    "local",
    "Where many ranks are read: this machine or a Ray cluster.",
)
@value_option("--max-seconds", POSITIVE, "S", None, "Of many files, leave out one that takes longer than this.")
@anonymise_options
@click.option(
    "--timing", is_flag=True, help="Also print on stderr how long each part of the analysis took; one file only."
)
@quiet_option
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], **given: Any) -> None:
    """Analyse PyTorch profiler traces.

    PATH is a trace (also of Nsight Systems, JAX or ROCm: docs/inputs.md), a folder of them, a folder that torchtriage
    run made, a pattern, a URL (s3://…), or - for standard input. Prints on one screen where the time goes and the
    largest certain savings: how many milliseconds per step a fix saves, where, why, and the fix; -v prints everything.
    Traces that are ranks of one job get one verdict: which rank makes the others wait, and each finding once.

    Defaults of --fail-on, --max-bytes, --min-share, --only, --peak, --skip and --top come from
    [tool.torchtriage] in the nearest pyproject.toml.
    """
    from torchtriage.api import traces
    from torchtriage.report.json_report import JsonReport

    options = with_config(ctx, given, Path.cwd())
    if current() is not None:
        _check_anonymous(options)
        options["no_source"] = True  # the recorded places have other names, and source is private
    sources = None if options["no_source"] else options["sources"]
    asked = made_of(Options, options, sources=sources, selection=selection_of(options))
    run = _run_folder(paths)
    if run and asked.selection is not None:
        raise UsageError("no part of a run's recordings can be selected", hint="pass one of the traces in the folder")
    files = [] if run else traces.find_traces(paths)
    if options["perfetto"] and (not files or "-" in files or any("://" in str(file) for file in files)):
        raise UsageError("--perfetto needs exactly one trace file, or those of a job's ranks")
    for name in _BESIDE:
        if options[name] and (len(files) != 1 or options["engine"] != "local" or "://" in str(files[0])):
            raise UsageError(f"--{name.replace('_', '-')} needs exactly one trace file")
    if options["timing"] and len(files) != 1:
        raise UsageError("--timing needs exactly one trace file", hint="many are analysed in several processes")
    check_outputs([options[name] for name in ("output", "html", "perfetto")], files)

    with measured() as seconds, part("other"):
        results, jobs, n_unusable = _judge(run or files, asked, options)
        timing = part_times(seconds) if options["timing"] else ()
        with part("rendering"):
            _report(JsonReport.of(results, jobs, timing), files, options, _quote(options, run))
    if options["timing"]:
        click.echo("\n".join(_time_lines(seconds)), err=True)
    from torchtriage.report.words import outside

    single = outside(results, jobs)  # ranks of a job do not count again
    judged: list[Result | JobResult] = [*jobs, *single]
    if asked.step_ms is not None:
        _complain_of_step(judged, asked.step_ms)
    if fails((finding for subject in judged for finding in subject.findings), options["fail_on"]):
        ctx.exit(1)
    if n_unusable or any(result.refused for result in results):
        ctx.exit(2)


def _check_anonymous(options: dict[str, Any]) -> None:
    """Refuse what would put names into the report that no trace holds."""
    for name in ("perfetto", *_BESIDE):
        if options[name]:
            raise UsageError(
                f"--{name.replace('_', '-')} writes or quotes a file as it is, which --anonymise cannot change",
                hint="write an anonymous trace first: torchtriage slim TRACE --anonymise -o small.json.gz",
            )
    if options["engine"] != "local":
        raise UsageError("--anonymise needs --engine local: the key does not leave this process")


def _run_folder(paths: tuple[str, ...]) -> Path | None:
    """Return the folder of a run's recordings, where that alone is asked for."""
    folder = Path(paths[0])
    if len(paths) > 1 or not folder.is_dir():
        return None
    from torchtriage.diagnose.runs.run_folder import find_recordings

    # a trace may have such a name, too
    return folder if any("pid" in recording.facts for recording in find_recordings(folder)) else None


def _judge(
    files: list[str | Path] | Path, asked: Options, options: dict[str, Any]
) -> tuple[list[Result], list[JobResult], int]:
    """Return results, jobs, and how many files had none: one bad file must not hide the others.

    ``files`` : traces, or the folder of a run.
    """
    from torchtriage.api import traces

    if isinstance(files, Path):
        run = traces.analyze_run(files, options=asked)
        return list(run.results), list(run.jobs), 0
    if len(files) == 1 and options["engine"] == "local" and "://" not in str(files[0]):
        with reading(str(files[0]), quiet=options["quiet"]) as progress:
            beside = {name: options[name] for name in _BESIDE}
            result = traces.analyze(files[0], progress=progress, **beside, **vars(asked))
        # standard input is gone by now
        if files[0] == "-" or any(beside.values()) or not result.holds_ranks:
            return [result], [], 0
    with reading_many(len(files), quiet=options["quiet"]) as starting:
        report = traces.analyze_ranks(
            files, engine=options["engine"], max_seconds=options["max_seconds"], starting=starting, **vars(asked)
        )
    for error in report.unreadable[:MAX_NAMED]:
        complain(f"left out: {error}")
    if len(report.unreadable) > MAX_NAMED:
        complain(f"left out: {len(report.unreadable) - MAX_NAMED:,} more")
    if options["perfetto"]:
        traces.overlay_job(report, options["perfetto"], max_bytes=options["max_bytes"])
    return list(report.results), list(report.jobs), len(report.unreadable)


def _complain_of_step(judged: Sequence[Result | JobResult], step_ms: float) -> None:
    """Say what savings are scaled to where that is another step than was asked for."""
    for subject in judged:
        if isinstance(subject, JobResult):
            name, reached, n_steps = f"job of {len(subject.ranks)} ranks", subject.step_ms, subject.n_steady_steps
        elif subject.replay is None or subject.summary is None:
            continue  # refused
        elif not subject.replay.accepted:
            complain(f"{subject.trace.path}: savings are not scaled to --step-ms {step_ms:g}: {subject.replay.reason}")
            continue
        else:
            name, reached = subject.trace.path, subject.replay.unprofiled_step_ms
            n_steps = subject.summary.n_steady_steps
        if reached and abs(reached - step_ms) > 0.01 * step_ms:
            whole = "step" if n_steps else "window"
            why = f"the recorded {whole} is shorter"
            if reached > step_ms:
                why = "nothing but the profiler's own cost can be taken off"
            complain(
                f"{name}: --step-ms {step_ms:g} is not reached: {why}, so savings are scaled to a {whole} of"
                f" {format_ms(reached)}"
            )


def _time_lines(seconds: Mapping[str, float]) -> Iterator[str]:
    times = part_times(seconds)
    yield f"{sum(time.seconds for time in times):.3f} s in all, of which"
    for time in times:
        yield f"{time.seconds:9.3f} s {format_share(time.share):>6}  {time.name}"


def _report(report: JsonReport, files: list[str | Path], options: dict[str, Any], quote: Quote | None) -> None:
    from torchtriage.report import formats

    if options["html"]:
        save(options["html"], formats.page(report, quote).encode())
    if options["perfetto"]:
        if len(files) == 1:
            from torchtriage.api import traces

            traces.overlay(files[0], report.results[0], options["perfetto"], max_bytes=options["max_bytes"])
        click.echo(f"wrote {options['perfetto']}: open it at https://ui.perfetto.dev", err=True)
    present(report, {**options, "html": None}, quote=quote, top=options["top"])


def _quote(options: dict[str, Any], run: Path | None) -> Quote | None:
    if options["no_source"]:
        return None
    from torchtriage.core.source.files import Sources

    roots: list[str] = []
    if run:
        from torchtriage.diagnose.runs.run_folder import source_roots

        roots = source_roots(run)
    return Sources((*options["sources"], *roots, Path.cwd())).quote
