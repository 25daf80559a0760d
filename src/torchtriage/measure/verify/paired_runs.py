"""A fix on trial: both programs run in turns without the profiler until the answer is narrow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from torchtriage.core.errors import UsageError
from torchtriage.core.record.launch import Command, launch
from torchtriage.core.record.recorder import RECORDING_FILE
from torchtriage.core.record.timing import step_wall_ns
from torchtriage.core.stats.paired_interval import LEAST_PAIRS, Ratio, ratio_of_pairs
from torchtriage.core.units import NS_PER_MS
from torchtriage.measure.verify.result import ResultAgreement

__all__ = ["LEVEL", "ProgramRun", "Trial", "agreement", "record_once", "run_trial", "sample"]

LEVEL = 0.98
"""Of an interval looked at after each round: holds the truth in 95 % of trials (stats.pairs)."""
FEWEST_ROUNDS = 5
NARROW = 0.02
"""Rounds are added until the interval reaches no further than this from the ratio, each way."""
TOLERANCE = 0.01
"""Values this close are the same: sums in another order, fused kernels, other precision."""
SLACK = 2.0
"""... or values no further apart than so many times what two runs of one program are."""
LAST_WORDS = 12


@dataclass(frozen=True)
class ProgramRun:
    """One run of one program.

    ``step_ms`` : mean time of its timed steps, over the processes of a job; None where no loop was found.
    ``run_ms`` : of the whole process.
    """

    step_ms: float | None
    run_ms: float
    n_steps: int
    losses: tuple[float | None, ...]
    outputs: tuple[tuple[float | None, ...], ...]


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
    interval is within ``NARROW`` of it or there are ``most_rounds``.

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
        everywhere = all(sample.step_ms is not None for side in samples for sample in side)
        before_ms, after_ms = (
            tuple(sample.step_ms if everywhere and sample.step_ms else sample.run_ms for sample in side)
            for side in samples
        )
        ratio = ratio_of_pairs(np.array(before_ms), np.array(after_ms), level=LEVEL)
        per: Literal["step", "run"] = "step" if everywhere else "run"
        trial = Trial(per, tuple(samples[0]), tuple(samples[1]), tuple(firsts), before_ms, after_ms, ratio)
        reach = max(ratio.high / ratio.value - 1, 1 - ratio.low / ratio.value)
        if number + 1 >= FEWEST_ROUNDS and reach <= NARROW:
            break
    assert trial is not None
    return trial


def sample(command: Command, folder: Path, *, steps: int) -> ProgramRun:
    """Run a program once, without the profiler, and return its times and first answers.

    It is ended after ``steps`` timed steps; with 0 it runs to its own end and only the whole run counts. Its output
    goes into ``output.txt`` of the folder, its input is empty.

    Raises UsageError: it cannot be started, or failed.
    """
    # half of the steps before where the recordings would be, half after
    half = max(-(-steps // 2), 1)
    plan = {
        "light": 0,
        "heavy": 0,
        "timing_steps": half,
        "max_timing_steps": half,
        "min_timing_s": 0.0,
        "max_timing_s": 600.0,
    }
    begun = time.monotonic_ns()
    _run(command, folder, plan, exit_after=steps > 0)
    run_ms = (time.monotonic_ns() - begun) / NS_PER_MS
    recordings = [_read(path) for path in sorted(folder.glob(f"*/{RECORDING_FILE}"))]
    times = [
        (mean, len(step_ns))
        for recording in recordings
        if steps
        and (step_ns := recording["before"]["step_ns"] + recording["after"]["step_ns"])
        and (mean := step_wall_ns(step_ns, all_steps=recording["queued"]))
    ]
    answers = [_read(path) for path in sorted(folder.glob("answers-*.json"))]
    # several processes: those of a rank, in the order of their losses, say the same in any order
    losses = sorted((answer["losses"] for answer in answers), key=repr)
    outputs = sorted((answer["outputs"] for answer in answers), key=repr)
    return ProgramRun(
        step_ms=fmean(mean for mean, _ in times) / NS_PER_MS if times else None,
        run_ms=run_ms,
        n_steps=min((n for _, n in times), default=0),
        losses=tuple(value for run_losses in losses for value in run_losses),
        outputs=tuple(tuple(values) for run_outputs in outputs for values in run_outputs),
    )


def record_once(command: Command, folder: Path) -> None:
    """Record a program as ``torchtriage run`` does, and end it then.

    Raises UsageError: it cannot be started, or failed.
    """
    _run(command, folder, {}, exit_after=True)


def _run(command: Command, folder: Path, plan: dict[str, Any], *, exit_after: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.txt"
    code = launch(command, folder, plan=plan, exit_after=exit_after, answers=True, log=log)
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_WORDS:]
        output = "".join(f"\n    {line}" for line in last)
        raise UsageError(f"the program ended with exit code {code}{output}", where=str(command))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def agreement(before: Sequence[ProgramRun], after: Sequence[ProgramRun]) -> ResultAgreement:
    """Say whether both programs compute the same, given what runs of one of them differ by.

    The first losses are compared where both have some, else the first outputs (three numbers per tensor, see
    ``answers.py``). Values of several runs are represented by their median.
    """
    of: Any
    if all(sample.losses for sample in (*before, *after)):
        of, sides = "losses", [[sample.losses for sample in side] for side in (before, after)]
    elif all(sample.outputs for sample in (*before, *after)):
        of = "outputs"
        sides = [[sum(sample.outputs, ()) for sample in side] for side in (before, after)]
    else:
        reason = "in one of them no backward pass ran and no model was called"
        return ResultAgreement("nothing", "not compared", 0, None, None, reason)
    lengths = {len(run) for side in sides for run in side}
    if len(lengths) > 1 and of == "outputs":
        reason = "they call their models in other ways: outputs have other shapes"
        return ResultAgreement(of, "not compared", 0, None, None, reason)
    n = min(lengths)
    values = [np.array([[np.nan if v is None else v for v in run[:n]] for run in side], float) for side in sides]
    if not all((np.isnan(side) == np.isnan(values[0][:1])).all() for side in values):
        return ResultAgreement(of, "differ", n, None, None, "some are not finite in one of them only")
    finite = ~np.isnan(values[0][0])
    middle = [np.median(side[:, finite], axis=0) for side in values]
    worst = _apart(*middle)
    own = max(
        (_apart(run, mid) for side, mid in zip(values, middle, strict=True) for run in side[:, finite]), default=0.0
    )
    status: Any = "differ"
    if worst <= TOLERANCE:
        status = "same"
    elif worst <= SLACK * own:
        status = "within its own spread"
    return ResultAgreement(of, status, n, float(worst), float(own))


def _apart(first: Any, other: Any) -> float:
    scale = np.maximum(np.abs(first), np.abs(other))
    # values next to nothing beside their series differ by rounding alone
    floor = 1e-6 * float(scale.max(initial=0.0))
    apart = np.abs(first - other) / np.maximum(scale, max(floor, 1e-12))
    return float(apart.max(initial=0.0))
