"""Predicted against measured: what replay promises, held against runs with the fix in place.

    python benchmarks/replay_accuracy.py             # random programs, emulated device, exact time
    python benchmarks/replay_accuracy.py --threads   # the same on threads that really sleep
    python benchmarks/replay_accuracy.py --pairs     # public recordings before and after a fix
    python benchmarks/replay_accuracy.py --real      # scripts really run here, needs torch

Prints Markdown; ``docs/accuracy.md`` holds the figures with date and machine class.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from emulator import Program, Run, ThreadClock, VirtualClock
from random_programs import deep_program, fixes, random_program

from torchtriage import replay
from torchtriage.trace import Trace

N_PROGRAMS, N_DEEP = 50, 4
TIE = 0.02
"""Fixes this close, as a share of the step, are equally good."""


# -- scores ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One fix of one program, in ns per steady step.

    ``noise_ns`` : two standard errors of the measured saving, from the steps' own spread.
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

    def as_naive(self) -> Case:
        """Return the case as summing durations would have it."""
        naive = self.naive_ns
        return Case(**{**vars(self), "saving_ns": naive, "low_ns": naive, "high_ns": naive})


@dataclass(frozen=True)
class Scores:
    """How well promises were kept; shares are 0-1, counts say out of how many."""

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


def score(cases: Sequence[Case]) -> Scores:
    """Return the scores of a set of cases."""
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
        order_right=_share(
            (one.true_ns > other.true_ns) == (one.saving_ns > other.saving_ns)
            for one, other in pairs
        ),
        inside=_share(case.is_inside for case in cases),
    )


def _best_is_named(group: Sequence[Case]) -> bool:
    named = max(group, key=lambda case: case.saving_ns)
    return named.true_ns >= max(case.true_ns for case in group) - TIE * named.before_ns


def _share(flags: Iterable[bool]) -> float:
    held = [bool(flag) for flag in flags]
    return sum(held) / len(held) if held else float("nan")


# -- emulator ----------------------------------------------------------------------------------


def programs(n_random: int, n_deep: int) -> Iterator[tuple[str, int, Program]]:
    """Yield (name, seed, program) of the random steps, then of those that fill the queue."""
    for seed in range(n_random):
        yield f"random {seed}", seed, random_program(seed)
    for seed in range(n_deep):
        yield f"deep {seed}", seed, deep_program(seed)


def cases(
    name: str, seed: int, program: Program, run: Callable[[Program, int], Trace]
) -> list[Case]:
    """Run a program as it is and with each of its fixes, and predict each from the first run."""
    before = run(program, seed)
    known = fixes(program, seed)
    promised = replay.model(before).predict_many([fix.edits(before) for fix in known])
    out = []
    for index, (fix, one) in enumerate(zip(known, promised, strict=True)):
        after = run(fix.program, 1000 * (seed + 1) + index)
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


class OnThreads:
    """Runs programs on threads, again when the machine disturbed the run, and counts that.

    A run is disturbed when a single sleep lasted so much too long that the mean steady step is off
    by 1 %, or 1 in 20 sleeps was over 1 us late (in the recording's time).
    """

    ATTEMPTS = 4

    def __init__(self, stretch: int) -> None:
        self.stretch = stretch
        self.n_runs = self.n_disturbed = self.n_kept_disturbed = 0
        self.late_ns: list[float] = []

    def __call__(self, program: Program, seed: int) -> Trace:
        """Return the recording of the first undisturbed run, of the least disturbed without one."""
        tried: list[tuple[int, Trace]] = []
        for _ in range(self.ATTEMPTS):
            clock: ThreadClock = ThreadClock(self.stretch)
            trace = Run(program, clock, seed=seed).trace()
            self.n_runs += 1
            late = np.array(clock.late_ns)
            worst, usual = int(late.max()), float(np.percentile(late, 95))
            self.late_ns.append(float(np.median(late)))
            if worst <= 0.01 * trace.steps.wall_ns * trace.steps.n_steady and usual <= 1_000:
                return trace
            self.n_disturbed += 1
            tried.append((worst, trace))
        self.n_kept_disturbed += 1
        return min(tried, key=lambda one: one[0])[1]


def emulated(n_random: int, n_deep: int, run: Callable[[Program, int], Trace]) -> list[Case]:
    """Return the cases of all programs."""
    return [
        case
        for name, seed, program in programs(n_random, n_deep)
        for case in cases(name, seed, program, run)
    ]


# -- tables ------------------------------------------------------------------------------------


def print_scores(found: Sequence[Case], *, worst: int = 0) -> None:
    """Print the scores beside those of summing durations, and the cases furthest off."""
    ours, naive = score(found), score([case.as_naive() for case in found])
    rows = [
        (f"error of the step after the fix: median ({ours.n_cases} fixes)", "error_median"),
        ("- 95th percentile", "error_p95"),
        ("- largest", "error_max"),
        (f"saving within 15 % of measured ({ours.n_large} over 5 % of the step)", "within_15"),
        (
            f"promised > 5 % of the step, true < 2 % ({ours.n_small} such small savings)",
            "false_promises",
        ),
        (f"best fix named ({ours.n_programs} programs, ties within 2 %)", "best_named"),
        (f"order of two fixes right ({ours.n_pairs} pairs > 3 % of the step apart)", "order_right"),
        ("measured saving inside the promised interval", "inside"),
    ]
    print("| | replay | sum of durations |\n|---|--:|--:|")
    for label, name in rows:
        print(f"| {label} | {getattr(ours, name):.1%} | {getattr(naive, name):.1%} |")
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
    parser.add_argument("--threads", action="store_true", help="run on threads that really sleep")
    parser.add_argument("--stretch", type=int, default=100, help="ns slept per emulated ns")
    parser.add_argument("--programs", type=int, default=N_PROGRAMS, help="random programs to run")
    parser.add_argument("--deep", type=int, default=N_DEEP, help="programs that fill the queue")
    parser.add_argument("--worst", type=int, default=10, help="cases to list")
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    run: Callable[[Program, int], Trace] = in_virtual_time
    if given.threads:
        _take_priority()
        run = OnThreads(given.stretch)
    print_scores(emulated(given.programs, given.deep, run), worst=given.worst)
    print(f"\n{time.perf_counter() - began:,.0f} s")
    if isinstance(run, OnThreads):
        print(
            f"{run.n_runs} runs, {run.n_disturbed} disturbed and repeated,"
            f" {run.n_kept_disturbed} times the least disturbed of {run.ATTEMPTS} was taken;"
            f" sleeps {np.median(run.late_ns):.0f} ns late (median, recording's time)"
        )


def _take_priority() -> None:
    """Ask for real-time scheduling: the threads mostly sleep, and should wake on time."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except (OSError, AttributeError):
        print("no real-time scheduling: other programs may disturb the runs", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
