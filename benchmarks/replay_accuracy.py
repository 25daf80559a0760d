"""Predicted against measured: what replay promises, held against runs with the fix in place.

    python benchmarks/replay_accuracy.py             # random programs, emulated device, exact time
    python benchmarks/replay_accuracy.py --threads   # the same on threads that really sleep
    python benchmarks/replay_accuracy.py --real      # scripts really run here; for torch in an
        environment of its own: --torch-python /opt/torch/bin/python

Prints Markdown; ``docs/accuracy.md`` holds the figures with date and machine class.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

import cpu_pairs
import numpy as np
from emulator import Program, Run, ThreadClock, VirtualClock
from random_programs import Fix, deep_program, fixes, mixed_program, questions, random_program

import torchtriage
from torchtriage.core.trace import Trace, read_trace
from torchtriage.diagnose import replay
from torchtriage.diagnose.calibration import margins, step_noise, widened

TIE = 0.02
"""Fixes this close, as a share of the step, are equally good."""


# -- scores ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One fix of one program, in ns per steady step.

    ``noise_ns`` : two standard errors of the measured saving, from the steps' own spread. ``step_noise`` : what the
    recording before the fix tells of it, as a share of the step.
    ``refused`` : the model itself says that the recording does not allow numbers.
    """

    program: str
    fix: str
    kind: str
    before_ns: float
    after_ns: float
    noise_ns: float
    saving_ns: float
    low_ns: float
    high_ns: float
    naive_ns: float
    step_noise: float
    refused: bool = False

    @property
    def true_ns(self) -> float:
        """The measured saving."""
        return self.before_ns - self.after_ns

    @property
    def error(self) -> float:
        """Predicted after-step over the measured one, less one."""
        return (self.before_ns - self.saving_ns) / self.after_ns - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured saving, give or take its noise, is in the promised interval."""
        return self.low_ns - self.noise_ns <= self.true_ns <= self.high_ns + self.noise_ns

    @property
    def is_inside_printed(self) -> bool:
        """Whether the measured saving, give or take nothing, is in the interval as printed."""
        shares = self.low_ns / self.before_ns, self.high_ns / self.before_ns
        low, high = widened(*shares, margins("replay"), self.step_noise)
        return max(low, 0.0) <= self.true_ns / self.before_ns <= high

    def as_naive(self) -> Case:
        """Return the case as summing durations would have it."""
        naive = self.naive_ns
        return Case(**{**vars(self), "saving_ns": naive, "low_ns": naive, "high_ns": naive})


@dataclass(frozen=True)
class Scores:
    """How well promises were kept; shares are 0-1, counts say out of how many.

    Programs whose recording the model refuses to judge are left out, and counted.
    """

    n_refused: int
    n_cases: int
    error_median: float
    error_p95: float
    error_max: float
    n_large: int
    """Savings over 5 % of the step."""
    within_15: float
    n_small: int
    """True savings under 2 % of the step."""
    false_promises: float
    n_programs: int
    best_named: float
    n_pairs: int
    """Pairs of fixes of one program whose savings differ by over 3 % of the step."""
    order_right: float
    inside: float
    inside_printed: float
    """Of promises over 1 % of the step; smaller ones are not printed."""
    inside_strictly: float
    """Without the allowance for the measurement's noise."""
    inside_calibrated: float
    """Of promises over 1 % of the step: in the interval as printed, without allowance."""


def score(cases: Sequence[Case]) -> Scores:
    """Return the scores of a set of cases."""
    n_refused = len({case.program for case in cases if case.refused})
    cases = [case for case in cases if not case.refused]
    errors = np.abs([case.error for case in cases])
    large = [case for case in cases if case.true_ns > 0.05 * case.before_ns]
    small = [case for case in cases if case.true_ns < 0.02 * case.before_ns]
    programs: dict[str, list[Case]] = {}
    for case in cases:
        programs.setdefault(case.program, []).append(case)
    pairs = [
        (one, other)
        for group in programs.values()
        for one, other in itertools.combinations(group, 2)
        if abs(one.true_ns - other.true_ns) > 0.03 * one.before_ns
    ]
    return Scores(
        n_refused=n_refused,
        n_cases=len(cases),
        error_median=float(np.median(errors)),
        error_p95=float(np.percentile(errors, 95)),
        error_max=float(errors.max()),
        n_large=len(large),
        within_15=_share(abs(it.saving_ns - it.true_ns) <= 0.15 * it.true_ns for it in large),
        n_small=len(small),
        false_promises=_share(it.saving_ns > 0.05 * it.before_ns for it in small),
        n_programs=len(programs),
        best_named=_share(map(_best_is_named, programs.values())),
        n_pairs=len(pairs),
        order_right=_share((one.true_ns > other.true_ns) == (one.saving_ns > other.saving_ns) for one, other in pairs),
        inside=_share(case.is_inside for case in cases),
        inside_printed=_share(it.is_inside for it in cases if it.high_ns > 0.01 * it.before_ns),
        inside_strictly=_share(case.low_ns <= case.true_ns <= case.high_ns for case in cases),
        inside_calibrated=_share(it.is_inside_printed for it in cases if it.high_ns > 0.01 * it.before_ns),
    )


def _best_is_named(group: Sequence[Case]) -> bool:
    named = max(group, key=lambda case: case.saving_ns)
    return named.true_ns >= max(case.true_ns for case in group) - TIE * named.before_ns


def _share(flags: Iterable[bool]) -> float:
    held = [bool(flag) for flag in flags]
    return sum(held) / len(held) if held else float("nan")


# -- emulator ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """How many programs of each family, and the seed of the first of each."""

    n_random: int = 50
    n_mixed: int = 20
    n_deep: int = 4
    first: int = 0

    def programs(self) -> Iterator[tuple[str, int, Program]]:
        """Yield (name, seed, program)."""
        for family, make, count in (
            ("random", random_program, self.n_random),
            ("mixed", mixed_program, self.n_mixed),
            ("deep", deep_program, self.n_deep),
        ):
            for seed in range(self.first, self.first + count):
                yield f"{family} {seed}", seed, make(seed)


def cases(
    name: str, seed: int, program: Program, known: Sequence[Fix], run: Callable[[Program, int], Trace]
) -> list[Case]:
    """Run a program as it is and with each of its fixes, and predict each from the first run."""
    try:
        before = run(program, seed)
    except DisturbedError:
        return []
    model = replay.model(before)
    promised = model.predict_many([fix.edits(before) for fix in known])
    out = []
    for index, (fix, one) in enumerate(zip(known, promised, strict=True)):
        try:
            after = run(fix.program, 1000 * (seed + 1) + index)
        except DisturbedError:
            continue
        out.append(
            Case(
                name,
                fix.name,
                fix.kind,
                before.steps.wall_ns,
                after.steps.wall_ns,
                2 * float(np.hypot(_standard_error_ns(before), _standard_error_ns(after))),
                one.saving_ns,
                one.low_ns,
                one.high_ns,
                one.naive_ns,
                step_noise(before),
                not model.quality.accepted,
            )
        )
    return out


def _standard_error_ns(trace: Trace) -> float:
    steps = trace.steps
    wall = (steps.end_ns - steps.start_ns)[steps.steady]
    return float(wall.std(ddof=1) / np.sqrt(len(wall))) if len(wall) > 1 else 0.0


def in_virtual_time(program: Program, seed: int) -> Trace:
    """Return the recording of a program run in virtual time."""
    return Run(program, VirtualClock(), seed=seed).trace()


class DisturbedError(Exception):
    """The machine disturbed every attempt to run a program."""


class OnThreads:
    """Runs programs on threads, again when the machine disturbed the run, and counts that.

    A run is disturbed when the sleeps that lasted over ``LATE_NS`` too long add up to 1 % of the
    judged time. Recordings stay in ``folder``, so that a better model can be held against the same
    truth.
    """

    ATTEMPTS, LATE_NS = 6, 100_000

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, program: Program, seed: int) -> Trace:
        """Return the recording of the first undisturbed run; DisturbedError without one."""
        path = self.folder / f"{seed}-{zlib.crc32(repr(program).encode()):08x}.json.gz"
        if not path.exists():
            path.write_bytes(self._run(program, seed))
        if not path.stat().st_size:
            raise DisturbedError
        return read_trace(path)

    def _run(self, program: Program, seed: int) -> bytes:
        late_ns: list[int] = []
        found = b""
        while not found and len(late_ns) < self.ATTEMPTS:
            clock = ThreadClock(program.stretch)
            run = Run(program, clock, seed=seed)
            steps = run.trace().steps
            late = np.array(clock.late_ns)
            late_ns.append(int(np.median(late) * program.stretch))
            excess = late[late * program.stretch > self.LATE_NS].sum()
            if excess <= 0.01 * steps.wall_ns * steps.n_steady:
                found = gzip.compress(run.json(), 1)
        with (self.folder / "runs.jsonl").open("a") as log:
            log.write(json.dumps([bool(found), *late_ns]) + "\n")
        return found

    def __str__(self) -> str:
        """Say how often the machine disturbed a run, over all recordings of the folder."""
        rows = [json.loads(line) for line in (self.folder / "runs.jsonl").read_text().splitlines()]
        late_ns = [ns for row in rows for ns in row[1:]]
        return (
            f"{len(rows)} recordings of {len(late_ns)} runs: the others were disturbed and"
            f" repeated; {sum(not row[0] for row in rows)} left out after {self.ATTEMPTS} attempts;"
            f" a sleep lasted {median(late_ns) / 1e3:.0f} us too long (median)"
        )


def emulated(sample: Sample, run: Callable[[Program, int], Trace]) -> list[Case]:
    """Return the cases of all programs."""
    return [
        case
        for name, seed, program in sample.programs()
        for case in cases(name, seed, program, fixes(program, seed), run)
    ]


def asked(sample: Sample) -> list[Case]:
    """Return the cases of what may be asked by hand of the same programs."""
    return [
        case
        for name, seed, program in sample.programs()
        for case in cases(name, seed, program, questions(program), in_virtual_time)
    ]


# -- workers ------------------------------------------------------------------------------------


def more_workers(trace: Trace, workers: int) -> tuple[float, float, float] | None:
    """Return what so many workers save by replay, ms per step: low, high and the default model's.

    None where batches are not loaded on the main thread.
    """
    rows = np.flatnonzero(trace.matching(r"_SingleProcessDataLoaderIter\.__next__$"))
    if not len(rows):
        return None
    one = replay.model(trace).predict([replay.Edit("parallel", rows, 1 / workers)])
    return one.low_ns / 1e6, one.high_ns / 1e6, one.saving_ns / 1e6


def _interval(promise: tuple[float, ...] | None, true_ms: float) -> str:
    """Return two cells: low - high (best guess), and whether the truth is in there."""
    if promise is None:
        return "- | -"
    low, high = promise[:2]
    guess = f" ({promise[2]:,.1f})" if len(promise) > 2 else ""
    return f"{low:,.1f} - {high:,.1f}{guess} | {'yes' if low <= true_ms <= high else 'no'}"


# -- scripts run here --------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One round of a pair, ms per step: under the profiler, and without it.

    ``promised`` : by the finding, None without one. ``promised_real`` : the same, told what a step
    takes without the profiler. ``replayed`` : for exactly this fix, where edits can say it.
    """

    before_ms: float
    after_ms: float
    promised: tuple[float, ...] | None
    real_before_ms: float
    real_after_ms: float
    promised_real: tuple[float, ...] | None
    replayed: tuple[float, ...] | None


def run_pair(pair: cpu_pairs.Pair, python: str, folder: Path) -> Measured:
    """Run both scripts of a pair, and read the promise from the first one's recording.

    What is in ``folder`` already is read, not run.
    """
    step_ms: dict[str, float] = {}
    for state in ("before", "after"):
        out = folder / state / "steps.json"
        if not out.exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            _run_script(pair, state, python, out, folder / state / "rank%r.json.gz")
        step_ms[state] = json.loads(out.read_text())["step_ms"]
    before, after = (torchtriage.load(folder / state / "rank0.json.gz") for state in step_ms)
    return Measured(
        before.steps.wall_ns / 1e6,
        after.steps.wall_ns / 1e6,
        _promise(pair, folder / "before", None),
        step_ms["before"],
        step_ms["after"],
        _promise(pair, folder / "before", step_ms["before"]),
        more_workers(before, pair.workers) if pair.workers else None,
    )


def _promise(pair: cpu_pairs.Pair, folder: Path, step_ms: float | None) -> tuple[float, ...] | None:
    paths = sorted(folder.glob("rank*.json.gz"))
    if pair.ranks == 1:
        findings = torchtriage.analyze(paths[0], step_ms=step_ms).findings
    else:
        findings = torchtriage.analyze_ranks(paths, step_ms=step_ms).jobs[0].findings
    costs = [one.cost for one in findings if one.code == pair.code and one.cost]
    if not costs:
        return None
    return sum(one.low_ms for one in costs), sum(one.high_ms for one in costs)


def _run_script(pair: cpu_pairs.Pair, state: str, python: str, out: Path, trace: Path) -> None:
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": str(pair.ranks)}
    processes = [
        subprocess.Popen(
            [python, cpu_pairs.__file__, pair.name, state, out, trace],
            env=os.environ | places | {"RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(pair.ranks)
    ]
    for process in processes:
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{pair.name} {state} failed:\n{errors.decode()}")


def print_real(python: str, rounds: int, folder: Path) -> None:
    """Run every pair, the rounds interleaved, and print the medians."""
    found: dict[str, list[Measured]] = {pair.name: [] for pair in cpu_pairs.PAIRS}
    for index in range(rounds):
        for pair in cpu_pairs.PAIRS:
            found[pair.name].append(run_pair(pair, python, folder / f"{pair.name}-{index}"))
    print(
        "| pair | finding | under the profiler | saved | promised | inside | without it | saved | promised | inside |"
    )
    print("|---|---|--:|--:|--:|---|--:|--:|--:|---|")
    for pair in cpu_pairs.PAIRS:
        one = _median(found[pair.name])
        saved, real = one.before_ms - one.after_ms, one.real_before_ms - one.real_after_ms
        print(
            f"| {pair.what} | {pair.code} | {one.before_ms:.1f} -> {one.after_ms:.1f} ms"
            f" | {saved:.1f} | {_interval(one.promised, saved)}"
            f" | {one.real_before_ms:.1f} -> {one.real_after_ms:.1f} ms"
            f" | {real:.1f} | {_interval(one.promised_real, real)} |"
        )
    print("\n| exactly this fix, under the profiler | saved | replay | inside |")
    print("|---|--:|--:|---|")
    for pair in cpu_pairs.PAIRS:
        one = _median(found[pair.name])
        saved = one.before_ms - one.after_ms
        if one.replayed:
            print(f"| {pair.what} | {saved:.1f} ms | {_interval(one.replayed, saved)} |")


def _median(rounds: Sequence[Measured]) -> Measured:
    return Measured(
        *(
            _medians(values) if name.startswith(("promised", "replayed")) else median(values)
            for name, values in (
                (field.name, [getattr(one, field.name) for one in rounds]) for field in fields(Measured)
            )
        )
    )


def _medians(promises: Sequence[tuple[float, ...] | None]) -> tuple[float, ...] | None:
    """Return the median of each end, None where most rounds promise nothing."""
    given = [one for one in promises if one is not None]
    if 2 * len(given) <= len(promises):
        return None
    return tuple(median(ends) for ends in zip(*given, strict=True))


# -- tables ------------------------------------------------------------------------------------


def print_scores(found: Sequence[Case], *, worst: int = 0) -> None:
    """Print the scores beside those of summing durations, and the cases furthest off."""
    ours, naive = score(found), score([case.as_naive() for case in found])
    rows = [
        (f"error of the step after the fix: median ({ours.n_cases} fixes)", "error_median"),
        ("- 95th percentile", "error_p95"),
        ("- largest", "error_max"),
        (f"saving within 15 % of measured ({ours.n_large} over 5 % of the step)", "within_15"),
        (f"promised > 5 % of the step, true < 2 % ({ours.n_small} such small savings)", "false_promises"),
        (f"best fix named ({ours.n_programs} programs, ties within 2 %)", "best_named"),
        (f"order of two fixes right ({ours.n_pairs} pairs > 3 % of the step apart)", "order_right"),
        ("measured saving inside the interval as printed, of promises over 1 % of the step", "inside_calibrated"),
        ("- not calibrated, give or take the measurement's noise", "inside_printed"),
        ("- the same, of all", "inside"),
        ("- not calibrated, of all, give or take nothing", "inside_strictly"),
    ]
    print("| | replay | sum of durations |\n|---|--:|--:|")
    for label, name in rows:
        print(f"| {label} | {getattr(ours, name):.1%} | {getattr(naive, name):.1%} |")
    if ours.n_refused:
        print(f"\n{ours.n_refused} programs more were refused")
    if worst:
        print("\n| program | fix | step before | after | predicted | interval | error |")
        print("|---|---|--:|--:|--:|--:|--:|")
        for case in sorted(found, key=lambda case: -abs(case.error))[:worst]:
            print(
                f"| {case.program} | {case.fix} | {case.before_ns / 1e3:,.0f} us"
                f" | {case.after_ns / 1e3:,.0f} | {(case.before_ns - case.saving_ns) / 1e3:,.0f}"
                f" | {(case.before_ns - case.high_ns) / 1e3:,.0f} -"
                f" {(case.before_ns - case.low_ns) / 1e3:,.0f} | {case.error:+.1%} |"
            )


def main(arguments: Sequence[str]) -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what-if", action="store_true", help="questions instead of fixes")
    parser.add_argument("--threads", action="store_true", help="run on threads that really sleep")
    parser.add_argument(
        "--recordings",
        type=Path,
        default=Path(tempfile.gettempdir(), "torchtriage-accuracy"),
        help="where real runs are kept, to be read instead of run the next time",
    )
    parser.add_argument("--random", type=int, default=Sample.n_random, help="programs drawn")
    parser.add_argument("--mixed", type=int, default=Sample.n_mixed, help="of the rarer kinds")
    parser.add_argument("--deep", type=int, default=Sample.n_deep, help="that fill the queue")
    parser.add_argument("--first-seed", type=int, default=Sample.first, help="other programs")
    parser.add_argument("--worst", type=int, default=10, help="cases to list")
    parser.add_argument("--real", action="store_true", help="run the scripts of cpu_pairs.py")
    parser.add_argument("--torch-python", default=sys.executable, help="runs those scripts")
    parser.add_argument("--rounds", type=int, default=3, help="times each script runs")
    given = parser.parse_args(arguments)
    if given.real:
        _take_priority()
        print_real(given.torch_python, given.rounds, given.recordings)
        return
    began = time.perf_counter()
    run: Callable[[Program, int], Trace] = in_virtual_time
    if given.threads:
        _take_priority()
        run = OnThreads(given.recordings)
    sample = Sample(given.random, given.mixed, given.deep, given.first_seed)
    if given.what_if:
        print_scores(asked(sample), worst=given.worst)
        return
    print_scores(emulated(sample, run), worst=given.worst)
    print(f"\n{time.perf_counter() - began:,.0f} s")
    if isinstance(run, OnThreads):
        print(run)


def _take_priority() -> None:
    """Ask for real-time scheduling: the threads mostly sleep, and should wake on time."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except (OSError, AttributeError):
        print("no real-time scheduling: other programs may disturb the runs", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
