"""``torchtriage analyze``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from torchtriage.cli.config import read_config
from torchtriage.cli.progress import reading
from torchtriage.errors import TraceFormatError, UsageError
from torchtriage.finding import Result

__all__ = ["command"]

LEVELS = ("note", "low", "medium", "high")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?$", re.IGNORECASE)


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("--json", "form", flag_value="json", help="Print the versioned JSON document.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown for a PR comment.")
@click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0 for code scanning.")
@click.option("-o", "--output", metavar="FILE", help="Write what would be printed to FILE.")
@click.option("--html", metavar="FILE", help="Also write a self-contained page.")
@click.option(
    "--perfetto", metavar="FILE", help="Also write the trace with a findings track (.json[.gz])."
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show the N costliest findings.")
@click.option("--only", multiple=True, metavar="CODE", help="Run only this pattern (repeatable).")
@click.option("--skip", multiple=True, metavar="CODE", help="Leave this pattern out (repeatable).")
@click.option(
    "--min-share",
    type=click.FloatRange(0, 1),
    metavar="RATIO",
    help="Leave out findings that give back less than this share of a step.  [default: 0.01]",
)
@click.option(
    "--fail-on",
    type=click.Choice([*LEVELS, "never"]),
    help="Exit with 1 on a finding this severe or worse.  [default: never]",
)
@click.option("--cache", is_flag=True, help="Keep the columns beside the trace for next time.")
@click.option(
    "--max-bytes", metavar="SIZE", help="Refuse inputs that expand beyond this.  [default: 64G]"
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Judge PyTorch profiler traces.

    PATH is a trace (.json, .json.gz, .zip), a folder of them, or - for standard input. Prints a
    verdict in three lines, then the findings, costliest first: where, why, how many milliseconds
    per step a fix gives back, and the fix. Defaults come from [tool.torchtriage] in
    pyproject.toml.
    """
    from torchtriage import api

    config = read_config(Path.cwd())
    chosen = {
        key: options[key] if options.get(key) not in (None, ()) else config.get(key)
        for key in ("top", "only", "skip", "min_share", "fail_on", "max_bytes")
    }
    keywords: dict[str, Any] = {
        "only": tuple(chosen["only"] or ()),
        "skip": tuple(chosen["skip"] or ()),
        "cache": options["cache"],
    }
    if chosen["min_share"] is not None:
        keywords["min_share"] = float(chosen["min_share"])
    if chosen["max_bytes"] is not None:
        keywords["max_bytes"] = _size(str(chosen["max_bytes"]))
    if chosen["fail_on"] not in (None, "never", *LEVELS):
        raise UsageError(f"unknown level for fail-on: {chosen['fail_on']!r}")

    files = [Path(one) if one != "-" else one for one in _expand(paths, api)]
    if options["perfetto"] and (len(files) != 1 or files[0] == "-"):
        raise UsageError("--perfetto needs exactly one trace file")
    results: list[Result] = []
    unusable: list[TraceFormatError] = []
    for file in files:
        with reading(str(file), quiet=options["quiet"]) as progress:
            outcome = _attempt(partial(api.analyze, file, progress=progress, **keywords))
        if isinstance(outcome, Result):
            results.append(outcome)
        elif len(files) == 1:
            raise outcome
        else:
            # one bad file among many must not hide what the others say
            unusable.append(outcome)
    for one in unusable:
        click.echo(f"torchtriage: left out: {one}", err=True)
    if not results:
        raise TraceFormatError(f"none of the {len(files)} files is a readable trace")
    _write(results, files, options, chosen["top"])
    if _worst(results) >= _level(chosen["fail_on"]):
        sys.exit(1)
    if unusable or any(result.refused for result in results):
        sys.exit(2)


def _attempt(analyze: Callable[[], Result]) -> Result | TraceFormatError:
    try:
        return analyze()
    except TraceFormatError as error:
        return error


def _expand(paths: tuple[str, ...], api: Any) -> list[Any]:
    out: list[Any] = []
    for path in paths:
        out += ["-"] if path == "-" else api.find_traces([path])
    return list(dict.fromkeys(out))


def _write(
    results: list[Result], files: list[Any], options: dict[str, Any], top: int | None
) -> None:
    from torchtriage import api

    if options["html"]:
        from torchtriage.report import html_page

        _save(options["html"], html_page.render(results).encode(), files)
    if options["perfetto"]:
        _refuse_input(options["perfetto"], files)
        api.overlay(files[0], results[0], options["perfetto"])
        click.echo(f"wrote {options['perfetto']}: open it at https://ui.perfetto.dev", err=True)
    form = options["form"]
    if form is None:
        _print_terminal(results, files, options["output"], top)
        return
    data = _encoders()[form](results, top)
    if options["output"]:
        _save(options["output"], data, files)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _encoders() -> dict[str, Callable[[list[Result], int | None], bytes]]:
    from torchtriage.report import json_report, markdown, sarif

    return {
        "json": lambda results, _top: json_report.encode(results),
        "markdown": lambda results, top: markdown.render(results, top=top).encode(),
        "sarif": lambda results, _top: sarif.encode(results),
    }


def _print_terminal(
    results: list[Result], files: list[Any], output: str | None, top: int | None
) -> None:
    from rich.console import Console

    from torchtriage.report import terminal

    if output is None:
        terminal.write(results, Console(), top=top)
        return
    _save(output, (terminal.render(results, top=top).plain + "\n").encode(), files)


def _save(name: str, data: bytes, files: list[Any]) -> None:
    _refuse_input(name, files)
    try:
        Path(name).write_bytes(data)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be written: {error}", where=name) from error
    click.echo(f"wrote {name}", err=True)


def _refuse_input(name: str, files: list[Any]) -> None:
    target = Path(name)
    for file in files:
        if file != "-" and target.exists() and Path(file).exists() and target.samefile(file):
            raise UsageError("would overwrite the trace itself", where=name)


def _worst(results: list[Result]) -> int:
    levels = [LEVELS.index(one.severity) for result in results for one in result.findings]
    return max(levels, default=-1)


def _level(name: str | None) -> int:
    return len(LEVELS) if name in (None, "never") else LEVELS.index(str(name))


def _size(text: str) -> int:
    match = _SIZE.match(text.strip())
    if match is None:
        raise UsageError(f"expected a size such as 500M or 4G, found {text!r}")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * 1024**power)
