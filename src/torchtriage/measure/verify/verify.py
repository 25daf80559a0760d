"""What a fix on trial came to: the time saved, whether the results agree, the promise kept or not.

The sentences are here; how the runs are made and what follows from them, in ``paired_runs.py``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from statistics import geometric_mean

from torchtriage.core.finding import Finding, Note
from torchtriage.core.stats.paired_interval import Ratio
from torchtriage.core.units import NS_PER_MS, format_count, format_ms, format_range, format_share
from torchtriage.core.version import __version__
from torchtriage.diagnose.compare.findings import keep_promise, match
from torchtriage.diagnose.compare.result import FindingChange, Promise, TimeChange
from torchtriage.diagnose.verdict.result import Result
from torchtriage.measure.verify.agreement import agreement
from torchtriage.measure.verify.paired_runs import NARROW, ProgramRun, Trial, trial_of
from torchtriage.measure.verify.printed_agreement import LINES_DIFFER, printed_agreement, with_printed
from torchtriage.measure.verify.result import VERIFICATION_SCHEMA, Outcome, ResultAgreement, Round, Verification

REST = 0.25
LONG_ENOUGH_S = 1.0
"""Of timed steps in one run: below, a neighbour on the machine is most of what is measured."""
ENDED_EARLY = "the programs were stopped before their final output: --steps 0 runs them to the end and compares it"
ROUNDING = 0.01
"""What two times, as they are shown, may say another ratio by."""
FAR_FEWER = 0.75
"""Of the timed steps: a loop is found a few steps earlier or later by chance."""
WHOLE_RUNS = "whole runs are compared, not steps: start-up and imports dilute the difference"
OTHER_STEPS = "a step does a different amount of work in each program: steps cannot be compared"
LONGER_STILL = "whole runs are compared, not steps, and the slower one was stopped early: it takes even longer"
CUT_RUNS = "their steps cannot be compared, and not every run reached its end: --steps 0 compares whole runs"


def conclude(
    trial: Trial,
    *,
    before: str,
    after: str,
    results: tuple[Result, Result] | None = None,
    scripts: tuple[str, str] = ("", ""),
    allow: bool = False,
) -> Verification:
    """Return the verdict on a trial.

    ``trial`` : what was measured. ``before``, ``after`` : the commands, as shown. ``results`` : what was found in a
    recording of each: the findings that are gone are the promise. ``scripts`` : file names of two scripts that are
    two versions of one, so that places can be compared. ``allow`` : other results are intended.
    """
    answers = _agreement(trial)
    other_steps = trial.per == "step" and _other_steps(trial, answers)
    if other_steps:
        trial = trial_of(trial.before, trial.after, trial.firsts, whole=True)
    per = trial.per
    before_ms, after_ms = (geometric_mean(times) for times in (trial.before_ms, trial.after_ms))
    ratio = trial.ratio
    saved = [before_ms * (1 - end) for end in (ratio.value, ratio.high, ratio.low)]
    significant = ratio.high < 1 or ratio.low > 1
    whole = [all(run.whole for run in side) for side in (trial.before, trial.after)]
    # what was ended early takes longer still: that the other one is faster holds
    comparable = per == "step" or all(whole) or (significant and whole[ratio.value < 1])
    significant = significant and comparable
    change = TimeChange(
        before_ns=round(before_ms * NS_PER_MS),
        after_ns=round(after_ms * NS_PER_MS),
        delta_ns=-round(saved[0] * NS_PER_MS),
        low_ns=-round(saved[2] * NS_PER_MS),
        high_ns=-round(saved[1] * NS_PER_MS),
        told=significant,
    )
    findings: tuple[FindingChange, ...] = ()
    promise: Promise | None = None
    if results is not None and per == "step":
        findings = match(results[0], _renamed(results[1], scripts))
        promise = keep_promise(tuple(map(_mostly_gone, findings)), change, lambda _: None)
    notes = [Note("other-steps", "warn", OTHER_STEPS)] if other_steps else []
    if per == "run" and comparable:
        notes.append(Note("whole-runs", "warn", WHOLE_RUNS if all(whole) else LONGER_STILL))
    if answers.status == "not compared" and per == "step":
        notes.append(Note("ended-early", "info", ENDED_EARLY))
    outcome = _outcome(ratio, differ=answers.status == "differ" and not allow, comparable=comparable)
    if outcome == "undecided" and per == "step":
        timed_s = before_ms * trial.before[0].n_steps / 1000
        if timed_s < LONG_ENOUGH_S:
            notes.append(Note("short-runs", "warn", f"each run times {timed_s:.2g} s of steps: give more --steps"))
    out = Verification(
        schema=VERIFICATION_SCHEMA,
        version=__version__,
        verdict=("", "", ""),
        outcome=outcome,
        allowed=allow,
        before=before,
        after=after,
        per=per,
        before_ms=round(before_ms, 6),
        after_ms=round(after_ms, 6),
        ratio=round(ratio.value, 6),
        ratio_low=round(ratio.low, 6),
        ratio_high=round(ratio.high, 6),
        saved_ms=round(saved[0], 6),
        saved_low_ms=round(saved[1], 6),
        saved_high_ms=round(saved[2], 6),
        told=significant,
        rounds=tuple(
            Round(round(old_ms, 6), round(new_ms, 6), first)
            for old_ms, new_ms, first in zip(trial.before_ms, trial.after_ms, trial.firsts, strict=True)
        ),
        n_steps=sum(run.n_steps for run in trial.before),
        answers=answers,
        promise=promise,
        findings=findings,
        notes=tuple(notes),
        n_steps_after=sum(run.n_steps for run in trial.after),
    )
    allowed = " That was allowed." if allow and answers.status == "differ" else ""
    speed = _speed(out) if comparable else f"Undecided: {CUT_RUNS}."
    verdict = (speed, f"{_computed(answers)}{_printed(answers)}{allowed}", _promise(promise, results is not None))
    return replace(out, verdict=verdict)


def _agreement(trial: Trial) -> ResultAgreement:
    sides = (trial.before, trial.after)
    noted = [answer for run in chain(*sides) for answer in run.answers]
    printed = printed_agreement(
        *([run.printed for run in side] for side in sides),
        trains=not noted or any(answer.kind != "output" for answer in noted),
        epsilon=max((answer.epsilon for answer in noted), default=0.0),
    )
    before, after = ([run.answers for run in side] for side in sides)
    whole = (all(run.whole for run in trial.before), all(run.whole for run in trial.after))
    return with_printed(agreement(before, after, whole), printed)


def _other_steps(trial: Trial, answers: ResultAgreement) -> bool:
    """Whether a step holds another amount of work in each program, such as one picture and sixteen.

    Where one runs to its end with far fewer steps; until then, where the first outputs are of other leading sizes.
    """
    if answers.status in ("same", "within its own spread") and answers.of != "printed":
        return False
    sides = sorted((trial.before, trial.after), key=lambda side: max(run.n_steps for run in side))
    whole = [all(run.whole for run in side) for side in sides]
    if whole[0] and max(run.n_steps for run in sides[0]) < FAR_FEWER * min(run.n_steps for run in sides[1]):
        return True
    if all(whole) or answers.status != "not compared":
        return False
    sizes = [{size for run in side if (size := _leading_size(run)) is not None} for side in sides]
    return all(sizes) and sizes[0].isdisjoint(sizes[1])


def _leading_size(run: ProgramRun) -> int | None:
    """Return how many rows the first output of a model has; None where something trains."""
    first = run.answers[0] if run.answers else None
    shapes = first.shapes if first is not None and first.kind == "output" else ()
    return shapes[0][0] if shapes and shapes[0] else None


def _outcome(ratio: Ratio, *, differ: bool, comparable: bool) -> Outcome:
    if differ:
        return "results differ"
    if not comparable:
        return "undecided"
    if ratio.high < 1:
        return "faster"
    if ratio.low > 1:
        return "slower"
    return "no difference" if max(ratio.high - 1, 1 - ratio.low) <= NARROW else "undecided"


def _renamed(result: Result, scripts: tuple[str, str]) -> Result:
    """Return the result on the script after with places in the script before."""
    old, new = scripts
    if not old or old == new:
        return result

    def moved(finding: Finding) -> Finding:
        frame = finding.place.frame
        if frame is None or not frame.file.endswith(new):
            return finding
        file = frame.file[: -len(new)] + old
        return replace(finding, place=replace(finding.place, frame=replace(frame, file=file)))

    return replace(result, findings=tuple(map(moved, result.findings)))


def _mostly_gone(finding: FindingChange) -> FindingChange:
    old, new = finding.before, finding.after
    if finding.status != "stayed" or old is None or new is None or new.naive_ms > REST * old.naive_ms:
        return finding
    saved = replace(old, low_ms=max(old.low_ms - new.high_ms, 0.0), high_ms=max(old.high_ms - new.low_ms, 0.0))
    return replace(finding, status="went", before=saved)


def _speed(verification: Verification) -> str:
    times = f"{format_ms(verification.after_ms)} per {verification.per} instead of {format_ms(verification.before_ms)}"
    source = ""
    if abs(verification.after_ms / verification.before_ms - verification.ratio) > ROUNDING * verification.ratio:
        # the ratio is of the fastest steps, or of the time without the wait for a processor
        source = "where other programs disturb least, "
    ends = f"{1 / verification.ratio_high:.3g}-{1 / verification.ratio_low:.3g}"
    if not verification.told:
        known = "No difference" if verification.outcome == "no difference" else "Undecided"
        less, more = _percent(verification.ratio_low), _percent(verification.ratio_high)
        return f"{known}: {times}; {source}anything from {-less} % less to {more} % more is possible."
    times = f"{times}, and {source}" if source else f"{times}, "
    if verification.ratio < 1:
        saved = f"{format_ms(verification.saved_ms)} saved"
        return f"Faster: {times}{1 / verification.ratio:.3g} times as fast ({ends}), {saved}."
    lost = f"{_percent(verification.ratio_low)} to {_percent(verification.ratio_high)} %"
    return f"SLOWER: {times}{lost} more."


def _percent(ratio: float) -> float:
    return float(f"{100 * (ratio - 1):.1f}")


def _computed(answers: ResultAgreement) -> str:
    if answers.status == "not compared":
        return f"Results not compared: {answers.reason}."
    what = _what(answers)
    if answers.of == "printed":
        if answers.status == "differ":
            return f"Results DIFFER, first in printed {answers.first}: {answers.reason}."
        verb = "is" if answers.n == 1 else "are"
        return f"Results agree as far as they are printed: {what} {verb} the same, and {answers.reason}."
    if answers.status == "differ":
        details = [answers.reason] if answers.reason else []
        if answers.worst is not None:
            details.insert(0, f"by {_tiny(answers.worst)}")
            details += [f"runs of one program by {_tiny(answers.own)}"] if answers.own else []
        return f"Results DIFFER, first in {answers.first}: {', '.join(details)}."
    if not answers.worst:
        return f"Results agree: {what} are equal."
    if answers.status == "same":
        return f"Results agree to rounding: {what} differ by at most {_tiny(answers.worst)}."
    return (
        f"Results agree as closely as runs of one program do: {what} differ by at most {_tiny(answers.worst)}, runs of"
        f" one program by {_tiny(answers.own or 0)}."
    )


def _what(answers: ResultAgreement) -> str:
    if answers.of == "steps":
        return f"{answers.n} gradients and updates of the first steps"
    if answers.of == "printed":
        return format_count(answers.n, "number")
    return format_count(answers.n, answers.of.removesuffix("s"), answers.of)


def _printed(answers: ResultAgreement) -> str:
    """Return what is printed, where something else was judged."""
    printed = answers.printed
    if answers.of == "printed":
        return ""
    if printed.status == "same":
        return f" {format_count(printed.n, 'printed number')} agree{'s' if printed.n == 1 else ''}."
    if printed.status == "differ":
        return f" Printed numbers differ, first in {printed.first}: {printed.reason}."
    return " Printed lines differ and are not compared." if printed.reason == LINES_DIFFER else ""


def _tiny(share: float) -> str:
    return format_share(share) if share >= 1e-4 else f"1e{math.ceil(math.log10(share))}"


def _promise(promise: Promise | None, recorded: bool) -> str:
    if promise is None:
        return (
            "Nothing was promised: no finding with a cost is gone."
            if recorded
            else "Promise not checked: the programs were not recorded."
        )
    span = format_range(format_ms(promise.low_ms), format_ms(promise.high_ms), from_zero=promise.low_ms <= 0)
    codes = ", ".join(promise.codes)
    return f"Promised {span} per step for {codes}; {format_ms(promise.measured_ms)} saved: {promise.outcome}."
