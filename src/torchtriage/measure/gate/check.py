"""The verdict on a candidate against its baseline, whole: sides, machines, rows, culprits.

What cannot be compared (no baseline, unlike machines, other units, values that are no measurements) is an answer of
its own, exit code 3, and never passes as fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from torchtriage.core.finding import Note
from torchtriage.core.samples import COMPARABLE, Run, Series, Session
from torchtriage.core.units import format_count, format_share
from torchtriage.core.version import __version__
from torchtriage.measure.gate import formatting
from torchtriage.measure.gate.baseline_level import newest_level
from torchtriage.measure.gate.result import (
    EXIT_CODES,
    GATE_SCHEMA,
    Culprit,
    GateResult,
    HostNoise,
    MetricRow,
    Outcome,
    Side,
    Stopping,
)
from torchtriage.measure.gate.revision import UNCOMMITTED
from torchtriage.measure.gate.row_verdict import LEAST_REPEATS, TIMED, GateLimits, MetricMatch, judge_rows
from torchtriage.measure.gate.run import HOST, INTERLEAVING, SIDE
from torchtriage.measure.gate.session_stats import SessionTable

if TYPE_CHECKING:
    from torchtriage.measure.gate.root_cause import Read

ORDER = ("regression", "refused", "inconclusive", "improvement", "same")
NOISY = 0.05
"""Share of the wall time without the CPU, or of values 1.5 times the median of their session, from which a host is
called noisy."""
SLOW = 1.5
SHORT_S = 0.5
"""A session that measures for less falls into one moment of its host, whole."""
SHORT_SESSIONS = "short-sessions"
UNKNOWN = "unknown"
OWN = frozenset({"command", "committed_at_s", HOST, INTERLEAVING, SIDE, UNCOMMITTED, "torchtriage"})
"""Names in a run's environment that differ from run to run by nature."""


def check(
    before: Sequence[Run],
    after: Sequence[Run],
    limits: GateLimits,
    *,
    labels: tuple[str, str] = ("the baseline", "the candidate"),
    unlike_machines: bool = False,
    stopping: Stopping | None = None,
    look: tuple[float, float] | None = None,
    read: Read | None = None,
    notes: Sequence[Note] = (),
) -> GateResult:
    """Compare a candidate with its baseline.

    ``before``, ``after`` : all runs of each side, of one or several benchmarks. ``limits`` : what is asked for.
    ``labels`` : how people call the two sides. ``unlike_machines`` : compare although the machines are unlike.
    ``stopping`` : how an interleaved measurement ended. ``look`` : what a growing sample may spend at this look of
    ``limits.alpha`` and ``limits.miss``. ``read`` : gives the evidence of a kept trace. ``notes`` : what is known
    about how the runs were found.

    Raises SampleError: a run holds what nothing can be concluded from; UsageError: a limit names what is not there.
    """
    for run in chain(before, after):
        run.check()
    sides = tuple(_side(runs, label) for runs, label in zip((before, after), labels, strict=True))
    notes = list(notes)
    if not any(note.level == "refuse" for note in notes):
        notes[:0] = list(_absent(before, after, labels)) or list(_unlike(before, after, allowed=unlike_machines))
    matches: list[MetricMatch] = []
    rows: tuple[MetricRow, ...] = ()
    culprits: list[Culprit] = []
    if not any(note.level == "refuse" for note in notes):
        matches = list(_matches(before, after))
        spent = limits if look is None else replace(limits, alpha=look[0], miss=look[1])
        rows = tuple(
            sorted(
                judge_rows(matches, spent),
                key=lambda row: (row.verdict != "regression", not row.decides, ORDER.index(row.verdict)),
            )
        )
        notes += _trust(matches, sides)
        notes += _short(matches, rows)
        notes += _differences(before, after, labels)
        for culprit in _culprits(rows, before, after, read):
            (culprits if isinstance(culprit, Culprit) else notes).append(culprit)  # type: ignore[arg-type]
    outcome = _outcome(rows)
    paired = bool(matches) and all(match.paired for match in matches if match.before and match.after)
    result = GateResult(
        schema=GATE_SCHEMA,
        version=__version__,
        outcome=outcome,
        exit_code=EXIT_CODES[outcome],
        verdict=("", "", ""),
        design="interleaved" if paired else "stored",
        alpha=limits.alpha,
        correction="Benjamini and Hochberg over all rows, intervals widened accordingly",
        before=sides[0] if before else None,
        after=sides[1] if after else None,
        rows=rows,
        culprits=tuple(culprits),
        notes=tuple(notes),
        stopping=stopping,
    )
    return replace(result, verdict=_verdict(result, labels))


def _outcome(rows: Sequence[MetricRow]) -> Outcome:
    if any(row.verdict == "regression" for row in rows):
        return "regression"
    verdicts = {row.verdict for row in rows if row.decides}
    if not verdicts or "refused" in verdicts:
        return "infrastructure"
    return "inconclusive" if "inconclusive" in verdicts else "fine"


def _side(runs: Sequence[Run], label: str) -> Side:
    newest = _newest(runs) if runs else None
    fingerprints = dict.fromkeys(run.machine.fingerprint for run in runs)
    return Side(
        label=label,
        commits=tuple(dict.fromkeys(run.commit for run in runs if run.commit)),
        branch=newest.branch if newest is not None else "",
        n_runs=len(runs),
        recorded_from_s=min((run.recorded_at_s for run in runs), default=0.0),
        recorded_to_s=max((run.recorded_at_s for run in runs), default=0.0),
        machine=newest.machine.fields if newest is not None else (),
        fingerprint=" ".join(fingerprints) or UNKNOWN,
        host=_host(runs),
    )


def _host(runs: Sequence[Run]) -> HostNoise:
    """Return how often the processes of a side were kept from running."""
    timed = [series for run in runs for series in run.series if series.kind in TIMED]
    wall = cpu = 0.0
    for session in (session for series in timed for session in series.sessions):
        if session.cpu_values is not None:
            values = np.asarray(session.values)
            wall += float(values.sum())
            # several threads have more CPU time than wall time: not a sign of a quiet host
            cpu += float(np.minimum(values, session.cpu_values).sum())
    off_cpu = 1 - cpu / wall if wall else None
    shares = [SessionTable(part).slow_share(SLOW) for part in timed]
    n_values = sum(n for _, n in shares)
    slow_share = sum(n for n, _ in shares) / n_values if n_values else 0.0
    declared = [dict(run.environment).get(HOST, "") for run in runs]
    if any(text.startswith(("quiet", "noisy")) for text in declared):
        why = dict.fromkeys(text.partition(": ")[2] for text in declared if text.startswith("noisy"))
        return HostNoise(off_cpu, slow_share, bool(why), tuple(filter(None, why)))
    reasons = []
    if off_cpu is not None and off_cpu >= NOISY:
        reasons.append(f"the processes were off the CPU for {format_share(off_cpu)} of the time")
    if slow_share >= NOISY:
        reasons.append(f"{format_share(slow_share)} of the values took 1.5 times the median")
    return HostNoise(off_cpu, slow_share, bool(reasons), tuple(reasons))


def _absent(before: Sequence[Run], after: Sequence[Run], labels: tuple[str, str]) -> Iterator[Note]:
    if not after:
        yield Note("no-candidate", "refuse", f"nothing is recorded for {labels[1]}", "torchtriage gate record -- CMD")
    if not before:
        yield Note(
            "no-baseline",
            "refuse",
            f"nothing is recorded for {labels[0]}, so there is nothing to compare with",
            "record it on that commit: torchtriage gate record -- CMD; or measure both now:"
            " torchtriage gate check --against REV -- CMD",
        )


def _unlike(before: Sequence[Run], after: Sequence[Run], *, allowed: bool) -> Iterator[Note]:
    """Say where machines are not known to be alike; refuse unless that is allowed."""
    differing: dict[str, list[str]] = {}
    untold = False
    for benchmark in dict.fromkeys(run.benchmark for run in after):
        by_machine, other = (
            {run.machine.fingerprint: run for run in runs if run.benchmark == benchmark} for runs in (before, after)
        )
        if by_machine and by_machine.keys() != other.keys():
            message = _differing(_newest(by_machine.values()), _newest(other.values()))
            differing.setdefault(message, []).append(benchmark)
        untold |= UNKNOWN in by_machine and by_machine.keys() == other.keys()
    if untold:
        yield Note(
            "machine",
            "warn",
            "the samples do not name their machine: both sides are assumed to have run on the same one",
        )
    n_benchmarks = len({run.benchmark for run in after})
    for what, names in differing.items():
        of = "" if len(names) == n_benchmarks else f" of {', '.join(names[:4])}"
        message = f"the two sides{of} ran on different machines ({what})"
        if allowed:
            yield Note("machine", "warn", f"{message}: they may explain the change")
        else:
            yield Note(
                "machine",
                "refuse",
                message,
                "measure both on one machine: torchtriage gate check --against REV -- CMD; or"
                " accept it: --unlike-machines",
            )


def _newest(runs: Iterable[Run]) -> Run:
    return max(runs, key=lambda run: run.recorded_at_s)


def _differing(before: Run, after: Run) -> str:
    fields, other = dict(before.machine.fields), dict(after.machine.fields)
    differ = [
        f"{name} {fields.get(name, 'not recorded')} / {other.get(name, 'not recorded')}"
        for name in sorted(COMPARABLE)
        if fields.get(name) != other.get(name)
    ]
    return "; ".join(differ) or "one side was recorded on several machines"


def _matches(before: Sequence[Run], after: Sequence[Run]) -> Iterator[MetricMatch]:
    """Return both sides of every metric; the sessions of a side's runs are put together."""
    for benchmark in dict.fromkeys(run.benchmark for run in chain(after, before)):
        sides = [
            sorted((run for run in runs if run.benchmark == benchmark), key=lambda run: run.recorded_at_s)
            for runs in (before, after)
        ]
        noisy = any(dict(run.environment).get(HOST, "").startswith("noisy") for run in sides[1])
        metrics = dict.fromkeys(series.metric for runs in reversed(sides) for run in runs for series in run.series)
        for metric in metrics:
            commits, known = zip(*(_of(metric, runs) for runs in sides), strict=True)
            rounds = [_rounds(series) for series in known]
            common = sorted(set(rounds[0]) & set(rounds[1])) if _in_turns(*sides) else []
            if common:
                first, other = (
                    replace(series[0], sessions=tuple(by_round[n] for n in common))
                    for series, by_round in zip(known, rounds, strict=True)
                )
                yield MetricMatch(benchmark, first, other, paired=True)
            else:
                repeats, earlier = newest_level(list(zip(commits[0], known[0], strict=True)))
                first, other = _joined(repeats), _joined(known[1])
                yield MetricMatch(benchmark, first, other, repeats, earlier, noisy=noisy)


def _of(metric: str, runs: Sequence[Run]) -> tuple[list[str], list[Series]]:
    known = [(run.commit, series) for run in runs for series in run.series if series.metric == metric]
    alike = [(commit, series) for commit, series in known if series.measures == known[-1][1].measures]
    return [commit for commit, _ in alike], [series for _, series in alike]


def _joined(series: Sequence[Series]) -> Series | None:
    if not series:
        return None
    return replace(series[-1], sessions=tuple(chain(*(part.sessions for part in series))))


def _in_turns(before: Sequence[Run], after: Sequence[Run]) -> bool:
    names = {dict(run.environment).get(INTERLEAVING, "") for run in chain(before, after)}
    return len(names) == 1 and "" not in names


def _rounds(series: Sequence[Series]) -> dict[int, Session]:
    if len(series) != 1:
        return {}
    by_round = {session.round: session for session in series[0].sessions if session.round is not None}
    return by_round if len(by_round) == len(series[0].sessions) else {}


def _trust(matches: Sequence[MetricMatch], sides: Sequence[Side]) -> Iterator[Note]:
    for side in sides:
        if side.host.noisy:
            yield Note(
                "noisy-host",
                "warn",
                f"the host was noisy while {side.label} ran: {'; '.join(side.host.reasons)}",
                "close other programs, pin threads",
            )
    stored = [match for match in matches if match.before and match.after and not match.paired]
    cut = [match for match in stored if match.earlier]
    if cut and cut[0].after is not None:
        more = f", and {len(cut) - 1} more" if len(cut) > 1 else ""
        yield Note(
            "level",
            "info",
            f"the level of {sides[0].label} changed: {cut[0].benchmark} {cut[0].after.metric} is"
            f" compared with its newest {format_count(len(cut[0].repeats), 'run')}{more}",
        )
    few = [
        match for match in stored if not match.knows_floor and match.before is not None and match.before.kind in TIMED
    ]
    if few:
        n = format_count(len(few[0].repeats) + len(few[0].earlier), "run")
        yield Note(
            "noise-floor",
            "warn",
            f"{n} cannot show how much recordings of the baseline differ: 5 % is assumed for timings",
            f"record the baseline {LEAST_REPEATS} times or more, or measure both in alternation:"
            " torchtriage gate check --against REV -- CMD",
        )


def _short(matches: Sequence[MetricMatch], rows: Sequence[MetricRow]) -> Iterator[Note]:
    """Say where sessions are short and more of them are asked for."""
    waiting = {(row.benchmark, row.metric) for row in rows if row.decides and row.verdict == "inconclusive" and row.low}
    for match in matches:
        series = match.after
        if series is None or (match.benchmark, series.metric) not in waiting:
            continue
        length = float(np.median([sum(session.values) for session in series.sessions]))
        length_s = formatting.seconds(length, series.unit)
        if series.kind in TIMED and length_s is not None and length_s < SHORT_S:
            yield Note(
                SHORT_SESSIONS,
                "warn",
                f"{match.benchmark} {series.metric} is measured for {formatting.amount(length_s, 's')} in each process:"
                " a longer disturbance of the host affects all of it",
                f"let each process work for {SHORT_S:g} s or more before running more pairs",
            )


def _differences(before: Sequence[Run], after: Sequence[Run], labels: tuple[str, str]) -> Iterator[Note]:
    """Say what else than the code of the two commits differs, and where it does not."""
    lacks = sorted({run.benchmark for run in before} - {run.benchmark for run in after})
    if lacks:
        more = f" and {len(lacks) - 4} more" if len(lacks) > 4 else ""
        yield Note(
            "missing",
            "warn",
            f"recorded for {labels[0]} and not for {labels[1]}: {', '.join(lacks[:4])}{more}",
            "record it too: did its job fail? --name NAME checks only one benchmark",
        )
    if min(run.recorded_at_s for run in before) > max(run.recorded_at_s for run in after) > 0:
        yield Note("later", "info", f"all runs of {labels[0]} were recorded later than {labels[1]}")
    commits, other = ({run.commit for run in runs if run.commit} for runs in (before, after))
    commands, others = ({dict(run.environment).get("command", "") for run in runs} for runs in (before, after))
    edited = [run for run in before if UNCOMMITTED in dict(run.environment)]
    if not all(INTERLEAVING in dict(run.environment) for run in edited):
        yield Note(
            "uncommitted",
            "warn",
            f"{len(edited)} of {format_count(len(before), 'run')} of {labels[0]} recorded with uncommitted changes:"
            " what they measured is in no commit",
            f"record {LEAST_REPEATS} without them, and they are left out: torchtriage gate record -- CMD",
        )
    if any(UNCOMMITTED in dict(run.environment) for run in after):
        yield Note("uncommitted", "info", "the candidate is its commit with uncommitted changes")
    elif commits & other and commands == others:
        both = formatting.commit(min(commits & other))
        yield Note("same-commit", "info", f"both sides are the same commit, {both}")
    if differ := environment_changes(before, after):
        yield Note("environment", "warn", f"not only the code differs: {differ[:400]}")


def environment_changes(before: Sequence[Run], after: Sequence[Run]) -> str:
    """Return where the environments of the newest runs differ, beside what differs by nature."""
    facts, other = (dict(_newest(runs).environment) for runs in (before, after))
    return "; ".join(
        f"{name} {facts[name]} / {other[name]}"
        for name in sorted(facts.keys() & other.keys() - OWN)
        if facts[name] != other[name]
    )


def _culprits(
    rows: Sequence[MetricRow], before: Sequence[Run], after: Sequence[Run], read: Read | None
) -> Iterator[Culprit | Note]:
    """Name what changed in the benchmarks that regressed, where traces of both sides were kept."""
    for benchmark in dict.fromkeys(row.benchmark for row in rows if row.verdict == "regression"):
        # the newest run's first
        traces = [
            [
                path
                for run in sorted(runs, key=lambda run: -run.recorded_at_s)
                if run.benchmark == benchmark
                for path in run.traces
            ]
            for runs in (before, after)
        ]
        if any(traces):
            # reads traces: half a second to import
            from torchtriage.measure.gate.root_cause import name_culprit

            yield name_culprit(benchmark, *traces, read=read)


def _verdict(result: GateResult, labels: tuple[str, str]) -> tuple[str, str, str]:
    first = {"regression": _regressed, "fine": _fine, "inconclusive": _undecided, "infrastructure": _refused}[
        result.outcome
    ]
    return (*first(result, labels[0]), _how(result))


def _regressed(result: GateResult, base: str) -> tuple[str, str]:
    worse = [row for row in result.rows if row.verdict == "regression"]
    more = f" and {len(worse) - 1} more" if len(worse) > 1 else ""
    first = f"Regression against {base}: {formatting.row_name(worse[0])}{more}."
    why = f"{worse[0].sentence[:1].upper()}{worse[0].sentence[1:]}."
    if result.culprits:
        why += f" {result.culprits[0].sentence}"
    return first, why


def _fine(result: GateResult, base: str) -> tuple[str, str]:
    decided = [row for row in result.rows if row.decides]
    better = [row for row in decided if row.verdict == "improvement"]
    more = f", {len(better)} better" if better else ""
    first = f"No regression against {base}: {format_count(len(decided), 'metric')} analysed{more}."
    worst = max(decided, key=_worst)
    return first, f"Closest to a regression: {formatting.row_name(worst)}, {worst.sentence}."


def _worst(row: MetricRow) -> float:
    ends = [end for end in (row.low, row.high, row.ratio) if end is not None]
    if not ends or (row.low is None and row.ratio == 1):
        return 0.0
    return (max(ends) if row.better == "lower" else 1 / min(ends)) / (1 + row.max_regress)


def _undecided(result: GateResult, base: str) -> tuple[str, str]:
    decided = [row for row in result.rows if row.decides]
    waiting = [row for row in decided if row.verdict == "inconclusive"]
    needed = max((row.pairs_needed or 0 for row in waiting), default=0)
    more = ""
    if needed:
        there = min(side.n_sessions for row in waiting for side in (row.before, row.after) if side)
        n = max(needed - there, 1)
        what = "pair" if result.design == "interleaved" else "session"
        a_side = "" if result.design == "interleaved" else " a side"
        more = f"; about {n} more {what}{'' if n == 1 else 's'}{a_side} would decide"
    if any(note.code == SHORT_SESSIONS for note in result.notes):
        more += "; the sessions are short, try longer ones first"
    first = f"Undecided against {base}: {len(waiting)} of {format_count(len(decided), 'metric')}{more}."
    return first, f"{formatting.row_name(waiting[0])}: {waiting[0].sentence}."


def _refused(result: GateResult, base: str) -> tuple[str, str]:
    for note in result.notes:
        if note.level == "refuse":
            return f"No verdict: {note.message}.", f"Try: {note.fix}."
    bad = [row for row in result.rows if row.verdict == "refused" and row.decides]
    if not bad:
        return "No verdict: no metric exists on both sides.", "Try: record the same benchmark on both."
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return (
        f"No verdict: {formatting.row_name(bad[0])}{more} cannot be evaluated.",
        f"{bad[0].sentence[:1].upper()}{bad[0].sentence[1:]}.",
    )


def _how(result: GateResult) -> str:
    rows = [row for row in result.rows if row.before is not None and row.after is not None]
    if not rows:
        return "Nothing was compared."
    n_before, n_after = (min(getattr(row, name).n_sessions for row in rows) for name in ("before", "after"))
    if result.design == "interleaved":
        how = f"{format_count(n_after, 'interleaved pair')} of fresh processes"
    else:
        how = f"{n_before} and {n_after} stored sessions, side by side"
    if result.stopping is not None:
        how += f" ({result.stopping.reason})"
    sure = f"equal programs fail at most {formatting.short(result.alpha)} of checks"
    noisy = [side.label for side in (result.before, result.after) if side and side.host.noisy]
    host = f"; the host was noisy ({', '.join(noisy)})" if noisy else ""
    return f"{how}; {sure}{host}."
