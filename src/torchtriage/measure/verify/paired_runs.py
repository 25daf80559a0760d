"""A fix on trial: both programs run in turns without the profiler until the answer is narrow."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from torchtriage.core.errors import UsageError
from torchtriage.core.record.launch import Command, launch
from torchtriage.core.record.printed_output import PRINTED_FILE
from torchtriage.core.record.recorder import RECORDING_FILE
from torchtriage.core.record.timing import ONE_THREAD, step_wall_ns
from torchtriage.core.stats.paired_interval import LEAST_PAIRS, Ratio, ratio_of_pairs
from torchtriage.core.stats.session_comparison import session_value
from torchtriage.core.units import NS_PER_MS
from torchtriage.measure.verify.agreement import Answer, read_answers

LEVEL = 0.98
"""Of an interval looked at after each round: holds the truth in 95 % of trials (simulated in the tests) ..."""
LEVEL_OF_NARROWEST = 0.99
"""... and of several, of which the narrowest is taken: it is narrow by chance, too."""
FEWEST_ROUNDS = 5
NARROW = 0.02
"""Rounds are added until the interval reaches no further than this from the ratio, each way ..."""
PLAIN = 0.25
"""... or than this share of the difference: far outside of what looking again could make of equal programs."""
LAST_WORDS = 12
INTERRUPTED = (-signal.SIGINT, -signal.SIGTERM)
"""How a program ends that somebody interrupts, together with us."""
OUTPUT_FILE = "output.txt"
MOST_PRINTED = 1 << 20
"""Bytes of a program's output that are looked at."""


@dataclass(frozen=True)
class ProgramRun:
    """One run of one program.

    ``step_ms`` : mean time of its timed steps, over the processes of a job; None where no loop was found. ``low_ms`` :
    the mean of its fastest tenth. ``run_ms`` : of the whole process. ``own_step_ms``, ``own_run_ms`` : without the wait
    for a processor, where only one thread computes; else None. ``printed`` : its output until it was ended.
    ``whole`` : it went on to its own end.
    """

    step_ms: float | None
    low_ms: float | None
    run_ms: float
    n_steps: int
    answers: tuple[Answer, ...]
    printed: str = ""
    own_step_ms: float | None = None
    own_run_ms: float | None = None
    whole: bool = True


@dataclass(frozen=True)
class Trial:
    """All rounds of both programs, and the ratio of their times, after over before."""

    per: Literal["step", "run"]
    before: tuple[ProgramRun, ...]
    after: tuple[ProgramRun, ...]
    firsts: tuple[Literal["before", "after"], ...]
    before_ms: tuple[float, ...]
    after_ms: tuple[float, ...]
    ratio: Ratio


def run_trial(
    before: Callable[[int], ProgramRun],
    after: Callable[[int], ProgramRun],
    *,
    most_rounds: int,
    progress: Callable[[int, Trial | None], None] = lambda _n, _trial: None,
) -> Trial:
    """Run both in turns and return what was measured.

    Who goes first changes from round to round. Rounds are added, ``FEWEST_ROUNDS`` at least, until the ratio's
    interval is within ``NARROW`` of it, or far from 1 for its width, or there are ``most_rounds``.

    ``before``, ``after`` : run the program once, given the number of the round. ``most_rounds`` : where to stop;
    ``LEAST_PAIRS`` or more. ``progress`` : called with the number of rounds done and what is known after each.
    """
    samples: tuple[list[ProgramRun], list[ProgramRun]] = ([], [])
    firsts: list[Literal["before", "after"]] = []
    trial: Trial | None = None
    for number in range(max(most_rounds, LEAST_PAIRS)):
        progress(number, trial)
        turns = [(before, samples[0]), (after, samples[1])]
        firsts.append("after" if number % 2 else "before")
        for run_side, runs in turns[:: -1 if number % 2 else 1]:
            runs.append(run_side(number))
        trial = trial_of(samples[0], samples[1], firsts)
        if is_settled(trial):
            break
    assert trial is not None
    return trial


def trial_of(
    before: Sequence[ProgramRun],
    after: Sequence[ProgramRun],
    firsts: Sequence[Literal["before", "after"]],
    *,
    whole: bool = False,
) -> Trial:
    """Return what rounds of runs say; ``firsts`` : who went first in each. ``whole`` : of whole runs, not of steps."""
    samples = before, after
    everywhere = not whole and all(sample.step_ms is not None for side in samples for sample in side)
    before_ms, after_ms = (
        tuple(sample.step_ms if everywhere and sample.step_ms else sample.run_ms for sample in side) for side in samples
    )
    ratio = _ratio(before_ms, after_ms, samples, whole=not everywhere)
    per: Literal["step", "run"] = "step" if everywhere else "run"
    return Trial(per, tuple(before), tuple(after), tuple(firsts), before_ms, after_ms, ratio)


def is_settled(trial: Trial, fewest: int = FEWEST_ROUNDS) -> bool:
    """Whether there were enough rounds, and the ratio's interval is narrow or far from 1 for its width."""
    ratio = trial.ratio
    reach = max(ratio.high / ratio.value - 1, 1 - ratio.low / ratio.value)
    return len(trial.firsts) >= fewest and reach <= max(NARROW, PLAIN * abs(ratio.value - 1))


def _ratio(
    before_ms: tuple[float, ...], after_ms: tuple[float, ...], samples: tuple[Sequence[ProgramRun], ...], *, whole: bool
) -> Ratio:
    """Return after over before, of the mean steps or, where that is known better, of the fastest tenth.

    Neighbours on the machine only ever add time. The fastest steps say nothing of what happens now and then: where the
    two do not fit each other, the mean counts. Which is taken never depends on who is faster. Another one is the time
    without the wait for a processor; of whole runs it is the only other one.
    """
    if whole:
        others = [[[run.own_run_ms for run in side] for side in samples]]
    else:
        others = [
            [[run.low_ms for run in side] for side in samples],
            [[run.own_step_ms for run in side] for side in samples],
        ]
    others = [sides for sides in others if all(ms for side in sides for ms in side)]
    level = LEVEL_OF_NARROWEST if others else LEVEL
    best = mean = ratio_of_pairs(np.array(before_ms), np.array(after_ms), level=level)
    for before, after in others:
        other = ratio_of_pairs(np.array(before), np.array(after), level=level)
        fits = other.low <= mean.high and mean.low <= other.high
        best = other if fits and other.high / other.low < best.high / best.low else best
    return best


def sample(
    command: Command, folder: Path, *, steps: int, cwd: Path | None = None, extra_paths: Sequence[str] = ()
) -> ProgramRun:
    """Run a program once, without the profiler, and return its times and first answers.

    It is ended after ``steps`` timed steps; with 0 it runs to its own end and only the whole run counts. Its output
    goes into ``output.txt`` of the folder, its input is empty. ``cwd``, ``extra_paths`` : as for ``launch``.

    Raises UsageError: it cannot be started, or failed.
    """
    # half of the steps before where the recordings would be, half after
    half = max(-(-steps // 2), 1)
    plan = {
        "light": 0,
        "heavy": 0,
        "early_light": 0,
        "early_heavy": 0,
        "calls": 0,
        "timing_steps": half,
        "max_timing_steps": half,
        "min_timing_s": 0.0,
        "max_timing_s": 600.0,
    }
    begun, begun_cpu_s = time.monotonic_ns(), _cpu_s()
    queued_ms = [0.0]

    def look() -> None:
        queued_ms.append(max(queued_ms[-1], _queued_ms()))

    _run(command, folder, plan, exit_after=steps > 0, cwd=cwd, extra_paths=extra_paths, while_running=look)
    run_ms = (time.monotonic_ns() - begun) / NS_PER_MS
    cpu_ms = 1000 * (_cpu_s() - begun_cpu_s)
    own_run_ms = run_ms - queued_ms[-1]
    recordings = [_read(path) for path in sorted(folder.glob(f"*/{RECORDING_FILE}"))]
    times = [
        (mean, session_value(np.array(step_ns, np.float64), "low"), len(step_ns))
        for recording in recordings
        if steps
        and (step_ns := recording["before"]["step_ns"] + recording["after"]["step_ns"])
        and (mean := step_wall_ns(step_ns, all_steps=recording["queued"]))
    ]
    # several processes: those of a rank, in the order of what they say, whatever their numbers
    answers = sorted((_read(path) for path in folder.glob("answers-*.json")), key=repr)
    return ProgramRun(
        step_ms=fmean(mean for mean, *_ in times) / NS_PER_MS if times else None,
        low_ms=fmean(low for _, low, _ in times) / NS_PER_MS if times else None,
        run_ms=run_ms,
        n_steps=min((n for *_, n in times), default=0),
        answers=tuple(answer for document in answers for answer in read_answers(document)),
        printed=_printed(folder),
        own_step_ms=_own_step_ms(recordings),
        own_run_ms=own_run_ms if cpu_ms <= ONE_THREAD * own_run_ms else None,
        whole=not any(folder.glob(PRINTED_FILE.format(pid="*"))),
    )


def _own_step_ms(recordings: Sequence[Any]) -> float | None:
    """Return the mean over the timed steps of a run's one process; None of several, or where a device works behind."""
    if len(recordings) != 1 or recordings[0]["queued"]:
        return None
    own_ns = [recordings[0][stage]["own_ns"] for stage in ("before", "after") if recordings[0][stage]["step_ns"]]
    return fmean(own_ns) / NS_PER_MS if own_ns and all(own_ns) else None


def _cpu_s() -> float:
    """Return the processor time of all processes that were started and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _queued_ms() -> float:
    """Return how long the program that runs now has waited for a processor; 0 where the system does not tell."""
    try:
        children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in children) / NS_PER_MS
    except (OSError, ValueError, IndexError):
        return 0.0


def _printed(folder: Path) -> str:
    """Return what a program printed, standard output and error, until the first of its processes was ended."""
    ends = [int(path.read_text(encoding="utf-8")) for path in folder.glob(PRINTED_FILE.format(pid="*"))]
    with (folder / OUTPUT_FILE).open("rb") as file:
        return file.read(min([*ends, MOST_PRINTED])).decode("utf-8", errors="replace")


def record_once(command: Command, folder: Path) -> None:
    """Record a program as ``torchtriage run`` does, and end it then.

    Raises UsageError: it cannot be started, or failed.
    """
    _run(command, folder, {}, exit_after=True)


def _run(command: Command, folder: Path, plan: dict[str, Any], *, exit_after: bool, **where: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / OUTPUT_FILE
    code = launch(command, folder, plan=plan, exit_after=exit_after, answers=True, log=log, **where)
    if code in INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise UsageError(f"the program ended with exit code {code}{last_words(log)}", where=str(command))


def last_words(log: Path) -> str:
    """Return the last lines of what a program wrote, each on a line of its own."""
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_WORDS:]
    return "".join(f"\n    {line}" for line in last)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
