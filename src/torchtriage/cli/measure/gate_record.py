"""``torchtriage gate record``, and how commands of the gate fail: with exit code 3."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.options import POSITIVE, file_option, quiet_option, value_option
from torchtriage.cli.output import check_outputs, complain, save
from torchtriage.cli.progress import counting
from torchtriage.core.errors import TriageError, UsageError

if TYPE_CHECKING:
    from torchtriage.core.samples import Run, Series
    from torchtriage.measure.gate.revision import GitRevision
    from torchtriage.measure.gate.run import BenchmarkProgram, MeasuredProcess

EXIT_INFRASTRUCTURE = 3
"""Nothing could be measured or judged; 1 and 2 are verdicts of the gate."""
SHOWN = 8

store_option = click.option(
    "--store",
    metavar="PLACE",
    help="Where samples are stored: an SQLite file or a postgresql:// URL."
    " [default: $TORCHTRIAGE_STORE, else .torchtriage/gate.db]",
)

samples_option = click.option(
    "--samples", is_flag=True, help="COMMAND reports its own samples instead of being timed as a whole."
)
timeout_option = value_option("--timeout", POSITIVE, "S", 600.0, "End a process that runs longer.")
setup_option = value_option("--setup", str, "COMMAND", None, "Run this once in the checkout of --against, to build it.")


class GateCommand(click.Command):
    """A command whose wrong usage ends with 3: click's own 2 would read as a verdict."""

    def make_context(self, *given: Any, **named: Any) -> click.Context:
        """Parse the arguments."""
        try:
            return super().make_context(*given, **named)
        except click.UsageError as error:
            _end_with_3(error)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what cannot be done is one line, and 3."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _end_with_3(error)
            if error.ctx is None:
                vars(error).update(ctx=ctx, cmd=ctx.command)
            raise
        except (TriageError, OSError) as error:
            complain(str(error))
            ctx.exit(EXIT_INFRASTRUCTURE)


def _end_with_3(error: click.UsageError) -> None:
    # a constant of click's classes: what shows the error stays as it is
    vars(error)["exit_code"] = EXIT_INFRASTRUCTURE


@click.command("record", cls=GateCommand)
@click.argument("words", nargs=-1, metavar="[-- COMMAND…]", type=click.UNPROCESSED)
@click.option("--name", metavar="NAME", help="Name of the benchmark. [default: the command]")
@value_option(
    "--sessions", click.IntRange(1), "N", 10, "Fresh processes to run; rounds of both with --against and --before."
)
@value_option("--warm-up", click.IntRange(0), "N", 1, "Processes to run first without counting them, to fill caches.")
@samples_option
@timeout_option
@value_option(
    "--against", str, "REVISION", None, "Also run COMMAND in a checkout of this revision, in alternation: A B B A."
)
@click.option("--before", metavar="COMMAND", help="Also run this other command, in alternation.")
@setup_option
@file_option(
    "--import",
    "Store this file's samples (torchtriage, pytest-benchmark or asv); several files are sessions of one run.",
    dest="imports",
)
@file_option("--trace", "Store a copy of this trace with the samples, to explain a regression.", dest="traces")
@click.option("--commit", metavar="ID", help="The commit. [default: git's]")
@click.option("--branch", metavar="NAME", help="The branch. [default: git's or CI's]")
@click.option("--parent", metavar="ID", help="The commit before. [default: git's]")
@store_option
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Also write the samples to FILE, JSON lines that gate check and --import read.",
)
@quiet_option
def record(words: tuple[str, ...], **given: Any) -> None:
    """Run a benchmark as fresh processes, or import its samples, and store them.

    COMMAND runs --sessions times. Each process is timed as a whole (wall time, CPU time, peak memory); with
    --samples it prints {"metric": "step", "unit": "s", "values": [0.1, 0.1]} as a
    line of its own, or writes such lines to the file $TORCHTRIAGE_SAMPLES. The samples are
    stored with the commit, the machine, its environment, and whether it was quiet.

    With --against main the same command also runs in a checkout of main, in alternation, each side
    with its own modules first on its path, so that drift of the machine affects both. torchtriage
    gate check compares them in pairs.

    Exit codes: 0 stored, 3 not: a failing command, unusable samples, no store, wrong usage.
    """
    _check_usage(words, given)
    check_outputs([given["output"]], given["imports"])
    _record(words, given)


def _check_usage(words: Sequence[str], given: dict[str, Any]) -> None:
    if bool(words) == bool(given["imports"]):
        found = "both" if words else "neither"
        raise click.UsageError(
            f"expected a command after -- or --import FILE, found {found}: torchtriage gate record -- python bench.py"
        )
    check_measured(given)
    for name in ("against", "before", "samples"):
        if given["imports"] and given[name] not in (None, False):
            raise click.UsageError(f"--{name} needs a command, not --import")


def check_measured(given: dict[str, Any]) -> None:
    """Refuse options of a measurement that exclude each other.

    Raises click.UsageError: they do.
    """
    if not given["timeout"] <= threading.TIMEOUT_MAX:
        raise click.UsageError(f"expected seconds for --timeout, found {given['timeout']}")
    if given["against"] is not None and given["before"] is not None:
        raise click.UsageError("--against and --before exclude each other")
    if given["setup"] is not None and given["against"] is None:
        raise click.UsageError("--setup is for the checkout of --against")
    if given["before"] is not None and given["traces"]:
        raise click.UsageError("--trace with --before: both commands would write the same file")


def _record(words: Sequence[str], given: dict[str, Any]) -> None:
    from torchtriage.measure.gate.importers import encode_runs
    from torchtriage.measure.gate.revision import UNCOMMITTED
    from torchtriage.measure.gate.run import SIDE
    from torchtriage.measure.gate.store import open_store

    # before anything is measured: minutes would be lost
    with open_store(given["store"]) as store, contextlib.ExitStack() as checkouts:
        runs = _import(given) if given["imports"] else measure(words, given, checkouts)
        if given["output"]:
            save(given["output"], encode_runs([_lasting(run, given) for run in runs]))
        for run in runs:
            new = store.add(run)
            click.echo(_summary(run, store.name, new=new))
        if any(UNCOMMITTED in (facts := dict(run.environment)) and SIDE not in facts for run in runs):
            complain("recorded with uncommitted changes: left out of a baseline that has enough other runs")
    click.echo("next: torchtriage gate check")


def _lasting(run: Run, given: dict[str, Any]) -> Run:
    """Return a run without traces in a checkout that is about to go; the store has copies."""
    from torchtriage.measure.gate.run import SIDE

    gone = given["against"] and dict(run.environment).get(SIDE) == "before"
    return replace(run, traces=()) if gone else run


def _import(given: dict[str, Any]) -> list[Run]:
    from torchtriage.core.machine import gather_machine
    from torchtriage.measure.gate.importers import read_sessions

    here = _revision(given).run(given["name"] or "", gather_machine())
    imported = read_sessions(given["imports"], here=here)
    for note in imported.notes:
        complain(note)
    traces = _traces(given["traces"], Path())
    return [replace(run, traces=run.traces + traces) for run in imported.runs]


def measure(
    words: Sequence[str],
    given: dict[str, Any],
    checkouts: contextlib.ExitStack,
    *,
    enough: Callable[[Run, Run], bool] | None = None,
) -> list[Run]:
    """Run a benchmark as its options say, and return a run, or one of each side.

    ``enough`` : is given both sides after every round; the last one if it returns True.

    Raises TriageError: a process failed, or handed over what are no samples.
    """
    from torchtriage.core.machine import gather_machine
    from torchtriage.measure.gate.revision import checked_out
    from torchtriage.measure.gate.run import (
        INTERLEAVING,
        SIDE,
        BenchmarkProgram,
        assemble,
        find_program,
        paths_of,
        run_in_turns,
        run_sessions,
        versions,
    )

    revision = _revision(given)
    program = BenchmarkProgram(
        find_program(words),
        Path.cwd(),
        samples=given["samples"],
        timeout_s=given["timeout"],
        paths=paths_of(revision.root or Path.cwd()),
    )
    benchmark = given["name"] or str(replace(program, arguments=tuple(words)))
    mark = secrets.token_hex(8)
    n, warm_up = given["sessions"], given["warm_up"]

    assembled = partial(assemble, benchmark=benchmark, machine=gather_machine())

    def run_of(
        measured: Sequence[MeasuredProcess], program: BenchmarkProgram, revision: GitRevision, side: str = ""
    ) -> Run:
        environment = {**versions(program), **({INTERLEAVING: mark, SIDE: side} if side else {})}
        traces = _traces(given["traces"], program.folder)
        run, noise = assembled(measured, program=program, revision=revision, environment=environment, traces=traces)
        if noise.status == "noisy":
            complain(f"the host was noisy{f' ({side})' if side else ''}: {'; '.join(noise.reasons)}")
        return run

    if given["against"] is None and given["before"] is None:
        with counting("processes", quiet=given["quiet"]) as progress:
            measured = run_sessions(program, n, warm_up=warm_up, progress=progress)
        return [run_of(measured, program, revision)]

    other, other_revision = program, revision
    if given["against"] is not None:
        folder, other_revision = checkouts.enter_context(checked_out(given["against"], Path.cwd()))
        assert other_revision.root is not None
        program = replace(program, side="this work")
        other = replace(program, folder=folder, paths=paths_of(other_revision.root), side=given["against"])
        if given["setup"]:
            _set_up(given["setup"], other)
    else:
        program = replace(program, side="after")
        other = replace(program, arguments=find_program(_split(given["before"])), side="before")
    with counting("rounds", quiet=given["quiet"]) as progress:

        def on_round(*sides: Sequence[MeasuredProcess]) -> bool:
            progress(len(sides[0]))
            if enough is None:
                return False
            marks = {INTERLEAVING: mark}
            before, _ = assembled(sides[0], program=other, revision=other_revision, environment=marks)
            after, _ = assembled(sides[1], program=program, revision=revision, environment=marks)
            return enough(before, after)

        sides = run_in_turns(other, program, most_rounds=n, warm_up=warm_up, enough=on_round)
    return [run_of(sides[0], other, other_revision, "before"), run_of(sides[1], program, revision, "after")]


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"expected a command as in a shell: {error}", where=command) from error


def _revision(given: dict[str, Any]) -> GitRevision:
    from torchtriage.measure.gate.revision import find_revision

    revision = find_revision(Path.cwd())
    if revision.problem and not given["commit"]:
        complain(f"the commit is not known: {revision.problem}\n  try: --commit, --branch")
    if given["commit"] and given["commit"] != revision.commit:
        # what git says is of another commit
        revision = replace(revision, commit=given["commit"], parent=None, committed_at_s=None, uncommitted=False)
    return replace(revision, branch=given["branch"] or revision.branch, parent=given["parent"] or revision.parent)


def _traces(names: Sequence[str], folder: Path) -> tuple[str, ...]:
    out = []
    for name in names:
        path = folder / name
        if path.is_file():
            out.append(str(path.absolute()))
        else:
            complain(f"left out: {path}: no such trace was written")
    return tuple(out)


def _set_up(command: str, program: BenchmarkProgram) -> None:
    from torchtriage.measure.gate.run import BenchmarkProgram, run_once

    shell = ("cmd", "/c", command) if os.name == "nt" else ("sh", "-c", command)
    run_once(BenchmarkProgram(shell, program.folder, paths=program.paths))


def _summary(run: Run, place: str, *, new: bool) -> str:
    from torchtriage.measure.gate.run import SIDE

    n = max(len(item.sessions) for item in run.series)
    side = dict(run.environment).get(SIDE)
    at = f" at {run.commit[:12]}" if run.commit else " at no commit"
    on = f" on {run.branch}" if run.branch else ""
    did = f"stored in {place}" if new else f"already in {place}"
    which = f" ({side})" if side else ""
    lines = [f"{run.benchmark}{which}{at}{on}: {n} session{'' if n == 1 else 's'}, {did}"]
    lines += [f"  {_range_text(item)}" for item in run.series[:SHOWN]]
    if len(run.series) > SHOWN:
        lines.append(f"  and {len(run.series) - SHOWN} more metrics")
    return "\n".join(lines)


def _range_text(series: Series) -> str:
    from torchtriage.measure.gate import formatting as words

    middles = [statistics.median(session.values) for session in series.sessions]
    low, middle, high = (
        words.amount(item, series.unit) for item in (min(middles), statistics.median(middles), max(middles))
    )
    return f"{series.metric}: {middle}" + (f" ({low} to {high})" if low != high else "")
