"""``torchtriage lint``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from torchtriage.cli.config import with_config
from torchtriage.cli.options import (
    fail_on_option,
    fails,
    file_option,
    form_options,
    output_option,
    quiet_option,
    value_option,
)
from torchtriage.cli.output import check_outputs, complain, emit, present
from torchtriage.cli.progress import counting
from torchtriage.core.errors import UsageError
from torchtriage.diagnose.lint.result import LintResult
from torchtriage.diagnose.verdict.result import Result

CONFIG = ("exclude", "fail-on", "only", "skip")


@click.command("lint")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=click.Path())
@click.option("--concise", "form", flag_value="concise", help="One line each: path:line:col: CODE.")
@form_options
@output_option
@click.option("--fix", is_flag=True, help="Apply the safe edits, shown as a diff otherwise.")
@file_option(
    "--trace", "Compare with a trace, or the folder of torchtriage run: what both show is certain.", metavar="TRACE"
)
@click.option("--only", multiple=True, metavar="CODE", help="Run only this rule (repeatable).")
@click.option("--skip", multiple=True, metavar="CODE", help="Skip this rule (repeatable).")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip matching paths in folders (repeatable).")
@click.option("--notes", is_flag=True, help="Also show remarks: possible improvements that are not faults.")
@fail_on_option
@value_option("--stdin-filename", str, "NAME", "<stdin>", "What to call the source that - reads from standard input.")
@quiet_option
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], **given: Any) -> None:
    """Find slow PyTorch code in its source, with exact lines. Needs no torch.

    PATH is a Python file, a notebook, a folder, or - for standard input. Source alone is a hint:
    with --trace each finding says whether a recording confirms it, and what it costs there.

    A comment allows a finding: # torchtriage: allow SYN001. Defaults of --exclude, --fail-on,
    --only and --skip come from [tool.torchtriage.lint] in the nearest pyproject.toml.
    """
    options = with_config(ctx, given, Path.cwd(), table="lint", keys=CONFIG)
    if "-" in paths and len(paths) > 1:
        raise UsageError("- must be the only path: standard input is one source")
    check_outputs([options["output"]], [path for path in paths if path != "-"])
    result = _look(paths, options)
    if options["trace"]:
        from torchtriage.diagnose.lint.trace_match import join

        for trace in _traces(options["trace"]):
            result = join(result, trace)
    _report(result, options)
    if fails(result.findings, options["fail_on"]):
        ctx.exit(1)
    looked = result.n_files - result.n_without_torch - len({item.file for item in result.odd})
    if result.odd and looked <= 0:
        ctx.exit(2)


def _traces(path: str) -> tuple[Result, ...]:
    from torchtriage.api import traces

    if Path(path).is_dir():
        return traces.analyze_run(path).results
    return (traces.analyze(path),)


def _look(paths: tuple[str, ...], options: dict[str, Any]) -> LintResult:
    from torchtriage.diagnose.lint import lint, lint_text

    keywords = {name: options[name] for name in ("only", "skip", "notes")}
    if paths == ("-",):
        data = sys.stdin.buffer.read()
        return lint_text(data, options["stdin_filename"], **keywords)
    with counting("files", quiet=options["quiet"]) as progress:
        return lint(paths, exclude=options["exclude"], fix=options["fix"], progress=progress, **keywords)


def _report(result: LintResult, options: dict[str, Any]) -> None:
    from torchtriage.report.documents import lint

    form, output = options["form"], options["output"]
    if form == "concise":
        if not output:
            for patch in result.patches:
                outcome = "fixed" if patch.applied else "--fix fixes"
                complain(f"{patch.file}: {outcome} {', '.join(patch.codes)}")
        emit(lint.concise(result).encode("utf-8", "backslashreplace"), output)
    elif form == "sarif":
        emit(lint.sarif(result), output)
    else:
        present(result, options, quote=_quote, fixing=options["fix"])


def _quote(file: str, line: int) -> str:
    import linecache

    return linecache.getline(file, line)
