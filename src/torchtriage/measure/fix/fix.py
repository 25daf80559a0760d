"""From a program to a patch: record it, try what its findings propose, and put together what is proved.

The program runs in a copy of its project only. A change is in the patch when the program is surely faster with it and
computes the same, alone and together with the others.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from torchtriage.core.errors import TraceFormatError, UsageError
from torchtriage.core.finding import Finding, Note
from torchtriage.core.record.launch import find_command, launch
from torchtriage.core.stats.paired_interval import LEAST_PAIRS
from torchtriage.core.units import format_count, format_ms
from torchtriage.core.version import __version__
from torchtriage.diagnose.lint.edits import Autofix, exact_diff
from torchtriage.diagnose.lint.edits import apply as apply_edits
from torchtriage.diagnose.runs.analyze import judge_run
from torchtriage.diagnose.runs.result import StepAccount
from torchtriage.diagnose.runs.run_folder import all_recorded
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.result import Result
from torchtriage.measure.fix.candidates import Candidate, Files, candidates_of
from torchtriage.measure.fix.model import ModelAnswer, ModelProposer, hottest_line
from torchtriage.measure.fix.project import ProjectCopy
from torchtriage.measure.fix.race import Entrant, race
from torchtriage.measure.fix.result import FIX_SCHEMA, Attempt, AttemptOutcome, FixResult, Unedited
from torchtriage.measure.fix.side_effects import effects_of, effects_sentences
from torchtriage.measure.verify.paired_runs import Trial, last_words, sample
from torchtriage.measure.verify.result import Verification
from torchtriage.measure.verify.verify import conclude

HEAT = 4
"""Changes on trial at once: more and the rounds, in which each runs once, last so long that the machine drifts."""
TIMED_S = 2.0
"""Of steps in each run: neighbours on the machine are most of what is measured in less."""
LONGEST_TIMED_S = 10.0
"""... where starting up takes so long that more steps cost little."""
FEWEST_STEPS, MOST_STEPS = 8, 200
GROWN = 5
"""Times the fastest of a run's first steps that a recorded step takes, from which whole runs are timed."""
ELSEWHERE = 2.0
"""Times a timed step that a finding's step takes: what it costs is not in the steps that are timed."""
FEWEST_RUNS = 6
"""That the budget must have time for, so that whole runs are compared in the place of steps; else those must not be
much shorter than runs are."""
WORTH = 0.01
"""A change is in the patch when at least this share of the time is surely saved."""
HALF = 0.5
MUCH = 0.2
"""Of the time that a patch saves, so that what was too small to tell is tried once more on top of it."""
LONG_RUN_S = 120.0
"""Of a program that is ended once it is recorded, and never run to its end again."""
TIME_OVER = "time ran out"


@dataclass(frozen=True)
class Wanted:
    """What the user asks for.

    ``only`` : codes or names of findings. ``allow`` : take what changes results on purpose, and what cannot be
    compared. ``budget_s`` : after it nothing new is tried.
    """

    only: frozenset[str] = frozenset()
    allow: bool = False
    budget_s: float = 600.0


@dataclass
class _Try:
    """A change on its way through the trials."""

    candidate: Candidate
    entrant: Entrant
    outcome: AttemptOutcome = "not tried"
    reason: str = TIME_OVER
    verification: Verification | None = None

    @property
    def keeps_promise(self) -> bool:
        """Whether it saves half of what the finding surely promises, or most of the time."""
        cost = self.candidate.finding.cost
        promised = cost.share_low if cost is not None and cost.per != "window" else 0.0
        return self.outcome == "faster alone" and self.saves >= min(HALF * promised, HALF)

    @property
    def saves(self) -> float:
        """The share of the time that it saves."""
        return 1 - self.verification.ratio if self.verification is not None else 0.0


class FixInterrupted(KeyboardInterrupt):
    """Somebody ended it; ``result`` : what was known by then, without a patch."""

    def __init__(self, result: FixResult) -> None:
        super().__init__()
        self.result = result


@dataclass
class _Fixing:
    copy: ProjectCopy
    out: Path
    wanted: Wanted
    tell: Callable[[str], None]
    files: Files = field(init=False)
    begun_s: float = field(default_factory=time.monotonic)
    spendable: float = 1.0
    complete: bool = True
    steps: int = 40
    step_ms: float = 0.0
    run_s: float = 0.0
    timed_ms: float = 0.0
    first_s: float = 0.0
    tries: list[_Try] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = Files(self.copy.root, self.copy.script)

    @property
    def command(self) -> str:
        """The command, as the user gave it."""
        return str(find_command(self.copy.words)).replace(f"{sys.executable} ", "", 1)

    @property
    def deadline_s(self) -> float:
        return self.begun_s + self.spendable * self.wanted.budget_s

    @cached_property
    def timed_steps(self) -> int:
        """Steps of a run that last ``TIMED_S``, or half as long as its start: early ones may be shorter than recorded.

        0, whole runs, where no steps were recorded, or those are so much longer that they are of another loop, or grow
        with the run.
        """
        if self.complete and not self.step_ms:
            return 0
        copy, out = self.copy, self.out / "first"
        with copy.changed({}):
            run = sample(copy.command, out, steps=self.steps, cwd=copy.cwd, extra_paths=copy.extra_paths)
        self.timed_ms, self.first_s = run.step_ms or 0.0, run.run_ms / 1000
        if not run.step_ms or not run.low_ms:
            return self.steps
        if self.complete and self.step_ms > GROWN * run.low_ms:
            return 0
        if run.n_steps < self.steps:
            return self.steps  # the loop has no more
        start_up_s = self.first_s - run.n_steps * run.step_ms / 1000
        timed_s = min(max(TIMED_S, start_up_s / 2), LONGEST_TIMED_S)
        return max(self.steps, min(round(1000 * timed_s / run.step_ms), MOST_STEPS))

    def measured(self, candidate: Candidate) -> Candidate:
        """Return a change that is measured on whole runs where the steps that can be timed do not hold its time."""
        cost = candidate.finding.cost
        if cost is None or candidate.per_run or not self.complete or not self.timed_steps:
            return candidate
        elsewhere = cost.per == "window" or cost.of_ms > ELSEWHERE * self.timed_ms > 0
        short = FEWEST_RUNS * self.run_s <= self.wanted.budget_s or self.run_s <= 2 * self.first_s
        return replace(candidate, per_run=True) if elsewhere and short else candidate

    def record(self) -> Result:
        """Record the program in the copy, and return what is found."""
        folder = self.out / "recording"
        folder.mkdir(parents=True)
        log = folder / "output.txt"
        begun_s = time.monotonic()

        def ended_early() -> int | None:
            passed_s = time.monotonic() - begun_s
            if self.complete and passed_s > LONG_RUN_S and all_recorded(folder):
                self.complete = False
                return int(signal.SIGINT)
            return int(signal.SIGKILL) if not self.complete and passed_s > 1.25 * LONG_RUN_S else None

        code = launch(
            self.copy.command,
            folder,
            plan={},
            compile_log=True,
            sample=True,
            effects=True,
            log=log,
            cwd=self.copy.cwd,
            extra_paths=self.copy.extra_paths,
            while_running=ended_early,
        )
        self.run_s = time.monotonic() - begun_s
        if code in (-signal.SIGINT, -signal.SIGTERM) and self.complete:
            raise KeyboardInterrupt
        if code and self.complete:
            raise UsageError(
                f"the program ended with exit code {code} in a copy of its project{last_words(log)}",
                where=self.command,
                hint="does it need files outside of the project? use --project with a folder that holds them",
            )
        try:
            _, results = judge_run(folder, Options(sources=()), command=self.command, exit_code=code, pid=None)
        except TraceFormatError as error:
            raise UsageError(f"nothing to fix was recorded: {error}", where=self.command) from error
        result = results[0]
        self.step_ms = (result.recorded.step_ms if result.recorded is not None else None) or 0.0
        if self.step_ms:
            self.steps = min(max(round(1000 * TIMED_S / self.step_ms), FEWEST_STEPS), MOST_STEPS)
        return result

    def attempt(self, candidates: Sequence[Candidate]) -> list[_Try]:
        """Try the changes alone: for each finding the first one, and the next where that does not keep the promise."""
        tries = [_Try(item, Entrant(self.contents([item])[0], bool(item.changes))) for item in candidates]
        self.tries += tries
        self._work(tries)
        return tries

    def _work(self, waiting: Sequence[_Try]) -> None:
        while waiting and time.monotonic() < self.deadline_s:
            # what saves time once a run is measured on whole runs; the others on steps
            first = waiting[0].candidate
            heat: list[_Try] = []
            for row in waiting:
                others = [other.candidate.finding for other in heat]
                alike = row.candidate.per_run == first.per_run and row.candidate.finding.saves == first.finding.saves
                if alike and row.candidate.finding not in others and len(heat) < HEAT:
                    heat.append(row)
            self._heat(heat, 0 if first.per_run else self.timed_steps)
            waiting = self._without_mended([row for row in waiting if row not in heat])

    def _without_mended(self, waiting: Sequence[_Try]) -> list[_Try]:
        mended = [row.candidate.finding for row in self.tries if row.keeps_promise]
        for row in waiting:
            if row.candidate.finding in mended:
                row.outcome, row.reason = "not needed", ""
        return [row for row in waiting if row.candidate.finding not in mended]

    def ask(self, model: ModelProposer, findings: Iterable[Finding], account: StepAccount | None = None) -> None:
        """Try what a model proposes for findings without a change that helps; what is dropped says why.

        Where no finding is left in the project it is asked about the line that takes most of a step. Where what it
        proposes is of no use, it is asked once more, with the reason.
        """
        mended = [row.candidate.finding for row in self.tries if row.keeps_promise]
        placed = [item for item in findings if item.saves and self.files.paths_of(item)]
        open_ones = [item for item in placed if not any(item is other for other in mended)]
        if not open_ones and account is not None and not self.wanted.only:
            open_ones = hottest_line(account, self.files)
        tried = self._try(lambda: model.propose(open_ones, self.files, account))
        again = [
            (answer, fate) for answer, row in tried if (fate := answer.fate(row.outcome, row.reason, row.verification))
        ]
        if again:
            self._try(lambda: model.propose_again(again))
        self._work(self._without_mended([row for row in self.tries if row.reason == TIME_OVER]))

    def _try(self, propose: Callable[[], Sequence[ModelAnswer]]) -> list[tuple[ModelAnswer, _Try]]:
        asked_s = time.monotonic()
        if asked_s > self.deadline_s:
            return []
        answers = propose()
        self.begun_s += time.monotonic() - asked_s  # the budget is for trials
        good = [answer for answer in answers if not answer.reason]
        tried = list(zip(good, self.attempt([self.measured(answer.candidate) for answer in good]), strict=True))
        dropped = [
            (answer, _Try(answer.candidate, Entrant({}), "dropped", answer.reason))
            for answer in answers
            if answer.reason
        ]
        self.tries += [row for _, row in dropped]
        return [*tried, *dropped]

    def _heat(self, heat: Sequence[_Try], steps: int) -> None:
        if steps == 0 and not self.complete:
            for row in heat:
                row.reason = f"it saves time once per run, and a run takes more than {format_ms(1000 * LONG_RUN_S)}"
            return
        for row in heat:
            self.tell(f"trying: {row.candidate.what}, for {row.candidate.finding.code}")
        self._race([row.entrant for row in heat], per_run=steps == 0)
        for row in heat:
            self._conclude(row)

    def interrupt(self) -> None:
        """Mark what is not measured to its end, with what is known of it."""
        time_left = time.monotonic() < self.deadline_s
        for row in [row for row in self.tries if row.outcome == "not tried"]:
            entrant = row.entrant
            n = len(entrant.trial.firsts) if entrant.trial is not None else 0
            if entrant.over or n >= LEAST_PAIRS:
                self._conclude(row)
            if n and not entrant.over and row.outcome != "results differ":
                row.outcome, row.reason = "undecided", f"interrupted after {format_count(n, 'round')}"
            elif time_left and row.reason == TIME_OVER:
                row.reason = "interrupted"

    def _conclude(self, row: _Try) -> None:
        entrant = row.entrant
        if entrant.error or entrant.trial is None:
            row.outcome, row.reason = ("failed", entrant.error) if entrant.error else (row.outcome, row.reason)
            return
        row.verification = conclude(
            entrant.trial, before=self.command, after=f"{self.command}, changed", allow=entrant.allow
        )
        row.outcome, row.reason = judged(row.verification, allow=self.wanted.allow)
        if row.outcome == "faster alone" and row.candidate.changes and not self.wanted.allow:
            row.outcome, row.reason = "not allowed", "--allow accepts it"

    def together(self) -> tuple[list[_Try], Verification | None]:
        """Return the changes that are in the patch, and what it saves as a whole."""
        chosen, whole = self._combined(best_of_each(self.tries, self.contents))
        if whole is None or whole.ratio > 1 - MUCH:
            return chosen, whole
        # what was lost in the time that is saved now may show
        small: list[_Try] = []
        for row in sorted(self.tries, key=lambda row: -row.saves):
            alike = not small or row.candidate.per_run == small[0].candidate.per_run
            if row.outcome in ("no difference", "undecided") and alike and self._fits([*chosen, *small], row):
                small.append(row)
        more = self._beside(chosen, small[:HEAT]) if time.monotonic() < self.deadline_s else []
        return self._combined([*chosen, *more]) if more else (chosen, whole)

    def _combined(self, chosen: list[_Try]) -> tuple[list[_Try], Verification | None]:
        while len(chosen) > 1:
            whole = self._whole(chosen)
            best = max(chosen, key=lambda row: row.saves)
            if whole is not None and 1 - whole.ratio > best.saves - WORTH:
                return chosen, whole
            # they get in each other's way: without the last, which saves least
            chosen[-1].outcome, chosen[-1].reason = "faster alone", "saves nothing on top of the others"
            chosen = chosen[:-1]
        return chosen, chosen[0].verification if chosen else None

    def _whole(self, chosen: Sequence[_Try]) -> Verification | None:
        contents, _ = self.contents([row.candidate for row in chosen])
        whole = _Try(chosen[0].candidate, Entrant(contents, any(row.entrant.allow for row in chosen)))
        self.tell(f"trying: {len(chosen)} changes together")
        self._race([whole.entrant], per_run=all(row.candidate.per_run for row in chosen), more_s=60.0)
        self._conclude(whole)
        return whole.verification if whole.outcome == "faster alone" else None

    def _fits(self, chosen: Sequence[_Try], row: _Try) -> bool:
        """Whether a change can be made on top of others, and mends something else."""
        together = [*(other.candidate for other in chosen), row.candidate]
        mended = [other.candidate.finding for other in chosen]
        return row.candidate.finding not in mended and len(self.contents(together)[1]) == len(together)

    def _beside(self, chosen: Sequence[_Try], rows: Sequence[_Try]) -> list[_Try]:
        """Return the changes that save time on top of those that are chosen."""
        below = [other.candidate for other in chosen]
        again = [
            _Try(row.candidate, Entrant(self.contents([*below, row.candidate])[0], row.entrant.allow)) for row in rows
        ]
        for row in again:
            self.tell(f"trying on top: {row.candidate.what}, for {row.candidate.finding.code}")
        if again:
            self._race([row.entrant for row in again], per_run=again[0].candidate.per_run, base=self.contents(below)[0])
        more = []
        for row, retried in zip(rows, again, strict=True):
            self._conclude(retried)
            if retried.outcome == "faster alone":
                row.verification, row.reason = retried.verification, "measured on top of the others"
                more.append(row)
        return more

    def _race(
        self, entrants: Sequence[Entrant], *, per_run: bool, base: dict[str, bytes] | None = None, more_s: float = 0.0
    ) -> None:
        race(
            self.copy,
            entrants,
            self.out / f"race-{time.monotonic_ns()}",
            steps=0 if per_run else self.timed_steps,
            deadline_s=max(self.deadline_s, time.monotonic() + more_s),
            progress=lambda number, n: self.tell(f"round {number + 1}: the program, and {n} changed"),
            base_files=base,
        )

    def contents(self, candidates: Iterable[Candidate]) -> tuple[dict[str, bytes], list[Candidate]]:
        """Return the files that changes make together, and the changes that fit with those before them."""
        edits: dict[str, list[Autofix]] = {}
        fitting = []
        for candidate in candidates:
            wanted = {path: Autofix(group, candidate.what) for path, group in candidate.edits.items()}
            tried = {path: [*edits.get(path, []), fix] for path, fix in wanted.items()}
            if all(wanted[path] in apply_edits(self.files.text(path), group)[1] for path, group in tried.items()):
                edits |= tried
                fitting.append(candidate)
        texts = {path: apply_edits(self.files.text(path), group)[0] for path, group in edits.items()}
        return {path: self.files.encoded(path, text) for path, text in texts.items()}, fitting

    def patch(self, candidates: Iterable[Candidate]) -> str:
        """Return changes as one unified diff of the project."""
        contents, _ = self.contents(candidates)
        parts = []
        for path, data in sorted(contents.items()):
            before = self.files.encoded(path, self.files.text(path))
            parts.append(exact_diff(self.files.decoded(path, before), self.files.decoded(path, data), path))
        return "".join(parts)


def judged(verification: Verification, *, allow: bool) -> tuple[AttemptOutcome, str]:
    """Return what became of a change that was measured, and why it is in no patch."""
    if verification.outcome != "faster":
        return verification.outcome, ""
    if 1 - verification.ratio_high < WORTH:
        return "no difference", "the low end of its saving is below 1 %"
    if verification.answers.status == "not compared" and not allow:
        return "not compared", verification.answers.reason
    return "faster alone", ""


def best_of_each(
    tries: Iterable[_Try], contents: Callable[[list[Candidate]], tuple[dict[str, bytes], list[Candidate]]]
) -> list[_Try]:
    """Return the best change for each finding, the one that saves most first, as far as they fit with each other."""
    chosen: list[_Try] = []
    for row in sorted(tries, key=lambda row: -row.saves):
        if row.outcome != "faster alone":
            continue
        if any(row.candidate.finding is other.candidate.finding for other in chosen):
            row.reason = "another change for the same finding saves more"
            continue
        together = [*(other.candidate for other in chosen), row.candidate]
        if len(contents(together)[1]) < len(together):
            row.reason = "changes the same lines as one that saves more"
            continue
        chosen.append(row)
    return chosen


def fix(
    copy: ProjectCopy,
    out: Path,
    wanted: Wanted,
    *,
    model: ModelProposer | None = None,
    apply: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> FixResult:
    """Return the patch that makes a program faster, with the proof.

    ``copy`` : of the project, with the command. ``out`` : a folder for recordings and measurements. ``model`` :
    asked for a change of each finding that nothing else mends. ``apply`` : write the patch into the project. ``tell`` :
    called with a line of text on what is done next.

    Raises UsageError: the program fails, nothing of it could be recorded, or its files were changed meanwhile;
    FixInterrupted, with what is known by then, where somebody ends it once changes are on trial.
    """
    fixing = _Fixing(copy, out, wanted, tell)
    tell(f"recording {fixing.command} in a copy of {copy.project}")
    recorded = fixing.record()
    fixing.begun_s = time.monotonic()  # the budget is for trials
    effects = effects_of(out / "recording", copy, copy.restore())
    for sentence in effects_sentences(effects):
        tell(sentence)
    findings = [finding for finding in recorded.findings if _wanted(finding, wanted.only)]
    candidates, without = candidates_of(findings, fixing.files)
    chosen: list[_Try] = []
    whole: Verification | None = None
    interrupted = False
    try:
        if model is not None:
            fixing.spendable = HALF  # known changes leave time for those of the model
        fixing.attempt(list(map(fixing.measured, candidates)))
        fixing.spendable = 1.0
        if model is not None:
            fixing.ask(model, findings, recorded.recorded.account if recorded.recorded is not None else None)
        chosen, whole = fixing.together()
    except KeyboardInterrupt:
        if not fixing.tries:
            raise
        interrupted = True
        fixing.interrupt()
    for row in chosen:
        row.outcome = "in the patch"
    contents, in_patch = fixing.contents(row.candidate for row in chosen)
    result = FixResult(
        schema=FIX_SCHEMA,
        version=__version__,
        verdict=(),
        command=fixing.command,
        project=copy.project.name,
        attempts=tuple(_attempt(row, fixing) for row in fixing.tries),
        unedited=tuple(
            Unedited(finding.code, finding.name, *_place(finding, fixing.files), finding.cost)
            for finding in without
            if finding.saves and all(row.candidate.finding is not finding for row in fixing.tries)
        ),
        patch=fixing.patch(in_patch),
        together=whole,
        effects=effects,
        applied=tuple(_written(copy.project, contents, fixing.files)) if apply and not interrupted else (),
        notes=tuple(_notes(fixing, recorded)),
    )
    if interrupted:
        raise FixInterrupted(replace(result, verdict=("Interrupted: no patch.",)))
    return replace(result, verdict=_verdict(result))


def _written(project: Path, contents: dict[str, bytes], files: Files) -> Iterable[str]:
    """Write files of the project, none where one was changed by someone else meanwhile; return their names."""
    for name in contents:
        original = project / name
        if not original.is_file() or original.read_bytes() != files.encoded(name, files.text(name)):
            hint = "nothing was written; run fix again"
            raise UsageError("was changed while its fix was being tried", where=str(original), hint=hint)
    fresh: dict[Path, Path] = {}
    try:
        for name, data in contents.items():
            target = (project / name).resolve()
            fresh[target] = target.with_name(f".{target.name}.torchtriage")
            fresh[target].write_bytes(data)
            shutil.copymode(target, fresh[target])
        for target, path in fresh.items():
            path.replace(target)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(project)) from error
    finally:
        for path in fresh.values():
            path.unlink(missing_ok=True)
    return contents


def _wanted(finding: Finding, only: Collection[str]) -> bool:
    if finding.severity == "note" and not finding.saves:
        return False
    return not only or finding.code in only or finding.name in only


def _attempt(row: _Try, fixing: _Fixing) -> Attempt:
    finding = row.candidate.finding
    trial = row.entrant.trial
    return Attempt(
        finding.code,
        finding.name,
        *_place(finding, fixing.files),
        promise=finding.cost,
        edit=row.candidate.edit,
        what=row.candidate.what,
        changes=row.candidate.changes,
        diff=fixing.patch([row.candidate]),
        outcome=row.outcome,
        reason=row.reason,
        trial=row.verification,
        start_up_ms=_start_up_ms(trial) if trial is not None and trial.per == "step" else None,
    )


def _start_up_ms(trial: Trial) -> float | None:
    """Return how much longer runs take beside their steps; None where it is not so in each round."""
    extra = [
        (after.run_ms - after.n_steps * (after.step_ms or 0)) - (before.run_ms - before.n_steps * (before.step_ms or 0))
        for before, after in zip(trial.before, trial.after, strict=True)
    ]
    return round(fmean(extra), 3) if min(extra) > 0 else None


def _place(finding: Finding, files: Files) -> tuple[str, int]:
    frame = finding.place.frame
    return (files.path_of(frame) or frame.file, frame.line) if frame is not None else ("", 0)


def _notes(fixing: _Fixing, result: Result) -> Iterable[Note]:
    if not fixing.complete:
        yield Note("long-run", "info", f"the recorded run was stopped after {format_ms(1000 * LONG_RUN_S)}")
    if fixing.copy.cwd == Path.cwd():
        yield Note(
            "outside", "warn", "the current folder is not in the project: files that the program writes there stay"
        )
    yield from (note for note in result.notes if note.level == "refuse")


def _verdict(result: FixResult) -> tuple[str, ...]:
    if result.together is None:
        n = sum(attempt.trial is not None for attempt in result.attempts)
        left = sum(attempt.outcome == "not tried" for attempt in result.attempts)
        tried = f"{format_count(n, 'change')} tried, none is proven" if n else "no finding has a change to try"
        if left:
            tried = f"{tried}, {left} not tried" if n else f"{format_count(left, 'change')} not tried"
        return (f"No patch: {tried}.",)
    n = sum(attempt.outcome == "in the patch" for attempt in result.attempts)
    return (f"{format_count(n, 'change')} in the patch. {result.together.verdict[0]}", result.together.verdict[1])
