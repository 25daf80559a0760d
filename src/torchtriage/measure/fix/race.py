"""Several changes of one program on trial at once: each round runs the program as it is, and with each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torchtriage.core.errors import TriageError
from torchtriage.core.stats.paired_interval import LEAST_PAIRS
from torchtriage.measure.fix.project import ProjectCopy
from torchtriage.measure.verify.agreement import agreement
from torchtriage.measure.verify.paired_runs import FEWEST_ROUNDS, ProgramRun, Trial, is_settled, sample, trial_of

MOST_ROUNDS = 9
HOPE = 0.97
"""What saves less than 3 % at best is not measured to the end."""


@dataclass(eq=False)
class Entrant:
    """A change on trial: the files it makes, by name in the project, and what is known of it so far.

    ``trial`` : None until there are rounds. ``error`` : why it failed. ``over`` : it has left the race.
    """

    files: dict[str, bytes]
    allow: bool = False
    trial: Trial | None = None
    error: str = ""
    over: bool = False
    runs: list[ProgramRun] = field(default_factory=list)


def race(
    copy: ProjectCopy,
    entrants: Sequence[Entrant],
    out: Path,
    *,
    steps: int,
    deadline_s: float,
    progress: Callable[[int, int], None],
    base_files: dict[str, bytes] | None = None,
) -> None:
    """Run all in turns until each is settled, failed, without hope, or the time is over.

    Where the time is too short for ``FEWEST_ROUNDS`` of all, the better half goes on alone after ``LEAST_PAIRS``.

    ``base_files`` : what the program that they are measured against is changed by already. ``steps`` : timed steps of a
    run; 0 for whole runs. ``deadline_s`` : on the monotonic clock; no round begins after it, once there are
    ``LEAST_PAIRS``, before which other results end no trial either. ``progress`` : called with the number of the round
    and of entrants still in it.

    Raises UsageError: the program as it is failed.
    """
    base: list[ProgramRun] = []
    firsts: list[Literal["before", "after"]] = []
    live = list(entrants)
    begun_s, n_runs = time.monotonic(), 0
    for number in range(MOST_ROUNDS):
        if not live or (number >= LEAST_PAIRS and time.monotonic() > deadline_s):
            break
        progress(number, len(live))
        folder = out / f"round{number + 1}"
        # the program as it is runs before the others in one round, after them in the next
        for place, entrant in enumerate([None, *live][:: -1 if number % 2 else 1]):
            if entrant is None:
                base.append(_run(copy, base_files or {}, folder / "before", steps))
            else:
                _run_changed(copy, entrant, folder / f"after{place + number % 2}", steps)
        firsts.append("after" if number % 2 else "before")
        n_runs += 1 + len(live)
        for entrant in live:
            if not entrant.error:
                entrant.trial = trial_of(base, entrant.runs, firsts)
                entrant.over = _is_over(entrant, entrant.trial, base)
        live = [entrant for entrant in live if not entrant.over]
        run_s = (time.monotonic() - begun_s) / n_runs
        needed_s = (FEWEST_ROUNDS - number - 1) * (1 + len(live)) * run_s
        if number + 1 >= LEAST_PAIRS and time.monotonic() + needed_s > deadline_s:
            for entrant in sorted(live, key=_ratio)[-(-len(live) // 2) :]:
                entrant.over = True
            live = [entrant for entrant in live if not entrant.over]


def _is_over(entrant: Entrant, trial: Trial, base: Sequence[ProgramRun]) -> bool:
    """Whether nothing more need be known: it is settled, without hope, or computes something else."""
    if len(trial.firsts) < LEAST_PAIRS:
        return False
    answers = agreement([run.answers for run in base], [run.answers for run in entrant.runs])
    differs = answers.status == "differ" and not entrant.allow
    return differs or trial.ratio.low > HOPE or is_settled(trial, LEAST_PAIRS)


def _ratio(entrant: Entrant) -> float:
    return entrant.trial.ratio.value if entrant.trial is not None else 1.0


def _run(copy: ProjectCopy, files: dict[str, bytes], out: Path, steps: int) -> ProgramRun:
    with copy.changed(files):
        return sample(copy.command, out, steps=steps, cwd=copy.cwd, extra_paths=copy.extra_paths)


def _run_changed(copy: ProjectCopy, entrant: Entrant, out: Path, steps: int) -> None:
    try:
        entrant.runs.append(_run(copy, entrant.files, out, steps))
    except TriageError as error:
        entrant.error, entrant.over = str(error), True
