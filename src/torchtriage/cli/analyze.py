"""``torchtriage analyze``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from torchtriage.cli.config import with_config
from torchtriage.cli.output import check_outputs, complain, print_report, save
from torchtriage.cli.progress import reading, reading_many
from torchtriage.errors import UsageError
from torchtriage.finding import JobResult, Quote, Result

__all__ = ["command"]

LEVELS = ("note", "low", "medium", "high")
FILE = click.Path()


def _size(_ctx: click.Context, _param: click.Parameter, value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", str(value).strip(), re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"expected a size such as 500M or 4G, found {value!r}")
    return int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=click.Path())
@click.option("--json", "form", flag_value="json", help="Print the versioned JSON document.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown for a PR comment.")
@click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0 for code scanning.")
@click.option(
    "-o", "--output", metavar="FILE", type=FILE, help="Write what would be printed to FILE."
)
@click.option("--html", metavar="FILE", type=FILE, help="Also write a self-contained page.")
@click.option(
    "--perfetto",
    metavar="FILE",
    type=FILE,
    help="Also write the trace with a findings track (.json[.gz]).",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show the N costliest findings.")
@click.option("--only", multiple=True, metavar="CODE", help="Run only this pattern (repeatable).")
@click.option("--skip", multiple=True, metavar="CODE", help="Leave this pattern out (repeatable).")
@click.option(
    "--min-share",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    metavar="RATIO",
    help="Leave out findings that give back less than this share of a step.",
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="QUESTION",
    help="Ask what a change would give: gpu*0.5, cpu*0.5, comm=0, no-sync, launch=0 (repeatable).",
)
@click.option(
    "--step-ms",
    type=click.FloatRange(0, min_open=True),
    metavar="MS",
    help="Time of a step without the profiler: savings are scaled to it.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="DIR",
    type=click.Path(),
    help="Look for the recorded program's source here too, for exact lines (repeatable).",
)
@click.option("--no-source", is_flag=True, help="Open no source file: lines as recorded.")
@click.option(
    "--fail-on",
    type=click.Choice([*LEVELS, "never"]),
    default="never",
    show_default=True,
    help="Exit with 1 on a finding this severe or worse.",
)
@click.option("--cache", is_flag=True, help="Keep the columns beside the trace for next time.")
@click.option(
    "--max-bytes",
    metavar="SIZE",
    default="64G",
    show_default=True,
    callback=_size,
    help="Refuse inputs that expand beyond this.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Read many ranks on this machine, or on a Ray cluster.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], **given: Any) -> None:
    """Judge PyTorch profiler traces.

    PATH is a trace (.json, .json.gz, .zip), a folder of them, a pattern, a URL (s3://…), or - for
    standard input. Prints a verdict in three lines, then the findings, costliest first: where, why,
    how many milliseconds per step a fix gives back, and the fix. Traces that are ranks of one job
    get one verdict: who makes the others wait, and each finding once.

    Defaults of --fail-on, --max-bytes, --min-share, --only, --skip and --top come from
    [tool.torchtriage] in the nearest pyproject.toml.
    """
    from torchtriage import api
    from torchtriage.replay import parse_what_if

    options = with_config(ctx, given, Path.cwd())
    for question in options["what_if"]:
        parse_what_if(question)
    for code in (*options["only"], *options["skip"]):
        api.explain(code)
    files = _expand(paths, api.find_traces)
    if options["perfetto"] and (len(files) != 1 or files[0] == "-" or "://" in str(files[0])):
        raise UsageError("--perfetto needs exactly one trace file")
    check_outputs([options[name] for name in ("output", "html", "perfetto")], files)

    results, jobs, n_unusable = _judge(files, options)
    _report(results, jobs, files, options)
    severities = {one.severity for result in _speaking(results, jobs) for one in result.findings}
    if options["fail_on"] != "never" and severities & {*LEVELS[LEVELS.index(options["fail_on"]) :]}:
        ctx.exit(1)
    if n_unusable or any(result.refused for result in results):
        ctx.exit(2)


def _expand(
    paths: tuple[str, ...], find: Callable[[list[str]], list[str | Path]]
) -> list[str | Path]:
    out: list[str | Path] = []
    for path in paths:
        out += [path] if path == "-" else find([path])
    return list(dict.fromkeys(out))


def _judge(
    files: list[str | Path], options: dict[str, Any]
) -> tuple[list[Result], list[JobResult], int]:
    """Return results, jobs, and how many files had none: one bad file must not hide the others."""
    from torchtriage import api

    names = ("only", "skip", "min_share", "what_if", "step_ms", "cache", "max_bytes")
    keywords = {name: options[name] for name in names}
    keywords["sources"] = None if options["no_source"] else options["sources"]
    if len(files) == 1 and options["engine"] == "local" and "://" not in str(files[0]):
        with reading(str(files[0]), quiet=options["quiet"]) as progress:
            return [api.analyze(files[0], progress=progress, **keywords)], [], 0
    with reading_many(len(files), quiet=options["quiet"]) as starting:
        report = api.analyze_ranks(files, engine=options["engine"], starting=starting, **keywords)
    for error in report.unreadable:
        complain(f"left out: {error}")
    return list(report.results), list(report.jobs), len(report.unreadable)


def _speaking(results: list[Result], jobs: list[JobResult]) -> list[Result | JobResult]:
    """Return whose findings count: jobs, and the results that are of no job."""
    from torchtriage.report import words

    return [*jobs, *words.outside(results, jobs)]


def _report(
    results: list[Result],
    jobs: list[JobResult],
    files: list[str | Path],
    options: dict[str, Any],
) -> None:
    if options["html"]:
        from torchtriage.report import html_page

        save(options["html"], html_page.render(results, jobs, quote=_quote(options)).encode())
    if options["perfetto"]:
        from torchtriage import api

        api.overlay(files[0], results[0], options["perfetto"], max_bytes=options["max_bytes"])
        click.echo(f"wrote {options['perfetto']}: open it at https://ui.perfetto.dev", err=True)
    if options["form"] is None and options["output"] is None:
        print_report(results, jobs=jobs, top=options["top"], quote=_quote(options))
        return
    data = _encode(results, jobs, options)
    if options["output"]:
        save(options["output"], data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _quote(options: dict[str, Any]) -> Quote | None:
    """Return what shows source lines beside findings, on this machine's screen or page."""
    if options["no_source"]:
        return None
    from torchtriage.source import Sources

    return Sources((*options["sources"], Path.cwd())).quote


def _encode(results: list[Result], jobs: list[JobResult], options: dict[str, Any]) -> bytes:
    form, top = options["form"], options["top"]
    from torchtriage.report import json_report, markdown, sarif, terminal

    if form == "json":
        return json_report.encode(results, jobs)
    if form == "sarif":
        return sarif.encode(results, jobs)
    if form == "markdown":
        return markdown.render(results, jobs=jobs, top=top).encode()
    text = terminal.render(results, jobs=jobs, top=top, quote=_quote(options)).plain
    return (text + "\n").encode()
