"""``torchtriage run``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from torchtriage.cli.anonymising import anonymise_options
from torchtriage.cli.options import file_option, form_options, html_option, top_option, verbose_option
from torchtriage.cli.output import check_outputs, complain, present, save
from torchtriage.core.anonymous import current
from torchtriage.core.errors import TriageError, UsageError
from torchtriage.core.names import mask_secrets


class ScriptCommand(click.Command):
    """Everything from the script, or ``-m``, on is the script's own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take options before the script alone."""
        takes_value = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-m", "--"):
            at += 2 if args[at] in takes_value else 1
        words = args[at + 1 :] if args[at : at + 1] == ["--"] else args[at:]
        return super().parse_args(ctx, [*args[:at], "--", *words])


@click.command("run", cls=ScriptCommand)
@click.argument("words", nargs=-1, metavar="SCRIPT.py | -m MODULE | LAUNCHER …  [ARGS]…")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Steps to record for the cost.")
@click.option("--warmup", type=click.IntRange(0), metavar="N", help="Steps to skip at the start.")
@click.option("--exit-after", is_flag=True, help="End the script with exit code 0 once enough of it is recorded.")
@click.option(
    "--memory",
    is_flag=True,
    help="Also watch for memory leaks until the script ends: a verdict takes about 200 steps more"
    " than the recordings, so with --exit-after there is often none.",
)
@click.option(
    "--compile-log/--no-compile-log",
    default=True,
    help="Record torch.compile's log, to report graph breaks and recompilations with lines and fixes.",
)
@click.option("--out", metavar="DIR", type=click.Path(), help="Keep the recordings here  [default: a new folder]")
@form_options
@click.option("-o", "--output", metavar="FILE", type=click.Path(), help="Write the report to FILE instead.")
@html_option
@file_option("--folded", "Write the step's stacks to FILE for speedscope and flamegraph.pl.")
@top_option
@verbose_option
@click.option("--no-source", is_flag=True, help="Do not open source files: report lines as recorded.")
@anonymise_options
@click.option("-q", "--quiet", is_flag=True, help="Print only failures on stderr.")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    """Run a script unchanged, record its loop, and report what costs time, where, and how to fix it.

    The script behaves as under plain python: same output, same results, same exit code. Its
    training or inference loop is detected, timed without the profiler, and recorded twice for a few
    steps: lightly for the cost, then with shapes and stacks for the location. The report is printed
    when the script ends, however it ends; the exit code is the script's.

    \b
    torchtriage run train.py --epochs 3
    torchtriage run -m package.train
    torchtriage run torchrun --nproc-per-node 2 train.py
    torchtriage run --exit-after -o report.txt train.py
    torchtriage run --memory train.py
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.core.record.launch import end_like, find_command, launch

    what = find_command(words)
    check_outputs([given["output"], given["html"], given["folded"]])
    # names are of the folder we were called in, wherever the script goes
    files = {name: Path(given[name]).absolute() for name in ("output", "html", "folded") if given[name]}
    out = _folder(given["out"])
    names = {"steps": "light", "warmup": "warmup"}  # of the options, of the recorder's plan
    plan = {names[name]: given[name] for name in names if given[name] is not None}
    wants = {name: given[name] for name in ("exit_after", "memory", "compile_log")}
    code = launch(what, out, plan=plan, **wants, sample=True, while_running=_announcer(out, given["quiet"]))
    try:
        _report(out, shlex.join(mask_secrets(words)), code, files, given)
    except TriageError as error:
        complain(str(error))  # the exit code stays the script's
        _complain_of_watches(out)
        if given["out"] is None:
            _remove_if_empty(out)
    except BrokenPipeError:  # the reader of our output went away (| head): not our failure
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        complain(f"a bug in torchtriage: {type(error).__name__}: {error}")
    ctx.exit(end_like(code))


def _folder(name: str | None) -> Path:
    if name is None:
        stem = f"torchtriage-run-{time.strftime('%Y%m%d-%H%M%S')}"
        out = next(
            path for number in range(1000) if not (path := Path(stem + (f"-{number}" if number else ""))).exists()
        )
    else:
        out = Path(name)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError("expected a new or an empty folder for the recordings", where=name)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot be made: {error.strerror}", where=str(out)) from error
    return out.absolute()


def _complain_of_watches(out: Path) -> None:
    """Say what was seen beside the recordings, where there is no report to say it in."""
    from torchtriage.diagnose.runs.run_folder import find_recordings

    for recording in find_recordings(out):
        if recording.memory is not None:
            complain(str(recording.memory))
        if recording.compile_log is not None:
            complain(f"to see what torch.compile did: torchtriage compile {recording.compile_log}")


def _remove_if_empty(out: Path) -> None:
    recordings = ("*/*.json.gz", "*/*.pickle", "compile/*.log", "errors-*.txt")
    if not any(path for pattern in recordings for path in out.glob(pattern)):
        shutil.rmtree(out, ignore_errors=True)


def _announcer(out: Path, quiet: bool) -> Callable[[], None]:
    """Return what says once, while the script still runs, that all is recorded."""
    done = quiet

    def look() -> None:
        nonlocal done
        if done:
            return
        from torchtriage.diagnose.runs.run_folder import all_recorded

        done = all_recorded(out)
        if done:
            click.echo(
                f"torchtriage: recorded; the report follows when the script ends (at once: torchtriage analyze {out})",
                err=True,
            )

    return look


def _report(out: Path, what: str, code: int, files: dict[str, Path], options: dict[str, Any]) -> None:
    from torchtriage.api import traces
    from torchtriage.core.source.files import Sources
    from torchtriage.diagnose.runs.flame import folded
    from torchtriage.diagnose.runs.run_folder import source_roots
    from torchtriage.diagnose.verdict.options import Options
    from torchtriage.report import formats
    from torchtriage.report.json_report import JsonReport

    sources = None if options["no_source"] or current() is not None else ()
    judged = traces.analyze_run(out, command=what, exit_code=code, options=Options(sources=sources))
    report = JsonReport.of(judged.results, judged.jobs)
    quote = None if sources is None else Sources((*source_roots(out), Path.cwd())).quote
    if "html" in files:
        save(str(files["html"]), formats.page(report, quote).encode())
    if "folded" in files:
        accounts = [row.recorded.account for row in report.results if row.recorded and row.recorded.account]
        lines = [line for account in accounts for line in folded(account)]
        save(str(files["folded"]), "".join(f"{line}\n" for line in lines).encode())
    output = str(files["output"]) if "output" in files else None
    present(report, {**options, "html": None, "output": output}, quote=quote, top=options["top"])
