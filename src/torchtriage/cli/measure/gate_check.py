"""``torchtriage gate check``."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.measure.gate_record import (
    GateCommand,
    check_measured,
    measure,
    samples_option,
    setup_option,
    store_option,
    timeout_option,
)
from torchtriage.cli.options import file_option, quiet_option, result_options, value_option
from torchtriage.cli.output import check_outputs, complain, present

if TYPE_CHECKING:
    from torchtriage.core.samples import Run
    from torchtriage.measure.gate.baseline_selection import Sides
    from torchtriage.measure.gate.result import GateResult
    from torchtriage.measure.gate.row_verdict import GateLimits

STATISTICS = ("median", "mean", "p95", "p99")


def share(text: str) -> float:
    """Return ``3%`` or ``0.03`` as 0.03.

    Raises click.UsageError: it is neither.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(?:e(-?\d+))?(\s*%)?", text.strip(), re.ASCII)
    value = float(text.strip().rstrip("% ")) / (100 if found[3] else 1) if found else -1.0
    if found and not found[3] and value >= 1:
        # 5 for 5 % would allow six times the time
        raise click.UsageError(f"expected a share such as 3% or 0.03, found {text!r}: {text}%?")
    if not 0 <= value <= 10:
        raise click.UsageError(f"expected a share such as 3% or 0.03, found {text!r}")
    return value


def _limit(text: str) -> tuple[str, float]:
    name, equals, number = text.rpartition("=")
    if equals and not name:
        raise click.UsageError(f"expected 3% or NAME=3%, found {text!r}")
    return name, share(number)


@click.command("check", cls=GateCommand)
@click.argument("words", nargs=-1, metavar="[[BASELINE] CANDIDATE | -- COMMAND…]", type=click.UNPROCESSED)
@click.option(
    "--base",
    metavar="REVISION",
    help="The baseline: a branch or a commit with stored samples."
    " [default: what ran in alternation with the candidate, else main]",
)
@value_option("--candidate", str, "REVISION", "HEAD", "The commit or branch with stored samples to check.")
@value_option(
    "--runs",
    click.IntRange(1),
    "N",
    10,
    "Newest stored runs of the baseline to use; three or more show its noise floor.",
)
@value_option(
    "--against", str, "REVISION", None, "Measure now: COMMAND here and in a checkout of this revision, in alternation."
)
@click.option("--before", metavar="COMMAND", help="Measure now: this command against COMMAND.")
@click.option("--after", metavar="COMMAND", help="COMMAND as one string, with --before.")
@value_option(
    "--pairs",
    click.IntRange(3),
    "N",
    20,
    "Measure no more than N pairs of processes (7 or more at --alpha 1%), fewer once the answer is clear.",
    dest="sessions",
)
@click.option(
    "--max-regress",
    multiple=True,
    metavar="[NAME=]SHARE",
    help="The smallest regression that matters, such as 3%; NAME is a metric or a kind"
    " (latency, throughput, memory, compile_time, count, accuracy). [default: 3% of times and"
    " throughput, 1% of memory, 10% of compile time, 0.5% of accuracy, any of counts]",
)
@value_option("--alpha", str, "SHARE", "1%", "How often a check of equal programs may fail, all metrics together.")
@value_option(
    "--statistic",
    click.Choice(STATISTICS),
    None,
    (),
    "Also wait for a verdict on this of every latency; without it mean, P95 and P99 only fail"
    " a check where a regression is certain.",
    dest="statistics",
    multiple=True,
)
@click.option("--name", metavar="NAME", help="Name of the benchmark; of stored ones, only this.")
@samples_option
@value_option("--warm-up", click.IntRange(0), "N", 1, "Processes of each side to run first without counting them.")
@timeout_option
@setup_option
@file_option("--trace", "A profiler trace that COMMAND writes, to explain what changed in a regression.", dest="traces")
@click.option("--unlike-machines", is_flag=True, help="Compare even though the machines differ.")
@store_option
@result_options
@click.option("--annotations", is_flag=True, help="Also print GitHub's ::error lines.")
@quiet_option
@click.pass_context
def check(ctx: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    """Compare a candidate with its baseline.

    \b
    torchtriage gate check --against main -- python bench.py
    torchtriage gate check --before "python old.py" --after "python new.py"
    torchtriage gate check --base main
    torchtriage gate check before.jsonl after.jsonl

    The first two measure now, alternating both programs in fresh processes until the answer is clear.
    The third compares what gate record has stored, the fourth compares files: torchtriage's,
    pytest-benchmark's or asv's; a folder of files is one run, with a session per file. One file is
    compared with the store, or, if gate record --against wrote it, its two sides in pairs.

    The verdict comes from a confidence interval on the ratio, over processes, corrected for the
    number of metrics. Mean and tail latencies are watched; the classical tests (Welch,
    Mann-Whitney, Cohen's d) are printed next to it but do not affect the verdict.

    Exit codes: 0 no regression, 1 regression, 2 undecided (with the pairs still needed), 3 no
    verdict: no baseline, different machines or units, broken samples, a failing command, wrong usage.
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.measure.gate.check import check as judge
    from torchtriage.measure.gate.row_verdict import least_pairs

    limits = _limits(given)
    live = bool(given["against"] or given["before"])
    words = _words(words, given, live=live)
    if live and given["sessions"] < (least := least_pairs(limits)):
        raise click.UsageError(
            f"expected --pairs {least} or more, found {given['sessions']}: fewer cannot show a"
            f" regression at --alpha {given['alpha']}"
        )
    check_outputs([given["output"], given["html"]], [] if live else words)
    if live:
        result = _live(words, given, limits)
    else:
        sides = _sides(words, given)
        unlike, notes = given["unlike_machines"], sides.notes
        result = judge(sides.before, sides.after, limits, labels=sides.labels, unlike_machines=unlike, notes=notes)
    present(result, given)
    if given["annotations"]:
        from torchtriage.report.documents.gate import workflow_commands

        # beside a document on standard output they would break it
        document = given["form"] is not None and not given["output"]
        click.echo(workflow_commands(result), nl=False, err=document)
    ctx.exit(result.exit_code)


def _limits(given: dict[str, Any]) -> GateLimits:
    from torchtriage.measure.gate.row_verdict import GateLimits

    alpha = share(given["alpha"])
    if not 0 < alpha < 0.5:
        raise click.UsageError(f"expected --alpha above 0 and below 50%, found {given['alpha']!r}")
    return GateLimits(alpha=alpha, max_regress=tuple(map(_limit, given["max_regress"])), statistics=given["statistics"])


def _words(words: tuple[str, ...], given: dict[str, Any], *, live: bool) -> tuple[str, ...]:
    check_measured(given)
    for name, idle in (("base", live or len(words) > 1), ("candidate", live or bool(words))):
        if idle and given[name] not in (None, "HEAD"):
            raise click.UsageError(f"--{name} is for stored samples: {given[name]!r} would not be compared")
    if given["after"] and not given["before"]:
        raise click.UsageError("--after COMMAND needs --before COMMAND")
    if given["after"]:
        if words:
            raise click.UsageError("expected COMMAND once, found it after --after and after --")
        try:
            return tuple(shlex.split(given["after"]))
        except ValueError as error:
            raise click.UsageError(f"--after cannot be split into words: {error}") from error
    if live and not words:
        raise click.UsageError("expected a command: torchtriage gate check --against main -- python bench.py")
    if not live and len(words) > 2:
        raise click.UsageError(
            f"expected a baseline's and a candidate's file, found {len(words)} words; a command"
            " needs --against REVISION or --before COMMAND"
        )
    for name in ("traces", "samples"):
        if not live and given[name]:
            option = "trace" if name == "traces" else name
            raise click.UsageError(f"--{option} is for --against and --before")
    return words


# -- measured now ------------------------------------------------------------------------------


def _live(words: Sequence[str], given: dict[str, Any], limits: GateLimits) -> GateResult:
    from torchtriage.measure.gate.check import check as judge
    from torchtriage.measure.gate.sequential_run import Looks

    after = f"{given['after'] or shlex.join(words)}"
    labels = (given["against"] or given["before"], "this work" if given["against"] else after)
    looks = Looks(limits, given["sessions"])
    # what git says of this checkout is right
    given = {**given, "imports": (), "commit": None, "branch": None, "parent": None}
    with contextlib.ExitStack() as checkouts:
        before, candidate = measure(words, given, checkouts, enough=looks.enough)
        return judge([before], [candidate], limits, labels=labels, look=looks.spent, stopping=looks.stopping)


# -- stored, or in files -------------------------------------------------------------------------


def _sides(words: Sequence[str], given: dict[str, Any]) -> Sides:
    from torchtriage.measure.gate.baseline_selection import Sides, find_baseline, find_sides, sides_of
    from torchtriage.measure.gate.store import open_store

    # of what ran in turns with something else, only the work itself is a side
    read = [sides_of([run for run in _read(name) if given["name"] in (None, run.benchmark)]) for name in words]
    names = [Path(name).name for name in words]
    if len(words) == 2:
        return Sides(tuple(read[0][1]), tuple(read[1][1]), (names[0], names[1]))
    if words and read[0][0] and given["base"] is None:
        before = read[0][0]
        label = before[0].branch or before[0].commit[:10] or "the earlier program"
        return Sides(tuple(before), tuple(read[0][1]), (label, names[0]))
    with open_store(given["store"], create=False) as store:
        if words:
            base, now = given["base"] or "main", read[0][1]
            baseline, notes = find_baseline(store, now, base, n_runs=given["runs"], folder=Path.cwd())
            return Sides(baseline, tuple(now), (base, names[0]), notes)
        return find_sides(
            store,
            candidate=given["candidate"],
            base=given["base"],
            benchmark=given["name"],
            n_runs=given["runs"],
            folder=Path.cwd(),
        )


def _read(name: str) -> tuple[Run, ...]:
    from torchtriage.measure.gate.importers import read_sessions

    path = Path(name)
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    if not files:
        from torchtriage.core.errors import SampleError

        raise SampleError("expected JSON files in this folder, found none", where=name)
    imported = read_sessions(files)
    for note in imported.notes:
        complain(note)
    return imported.runs
