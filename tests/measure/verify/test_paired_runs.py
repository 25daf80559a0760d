"""What is told from rounds of two programs, without running any."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields, replace

import jsonschema
import numpy as np
import pytest
from tests.report import forms

from torchtriage.core.finding import Cost, Finding, Fix, Frame, Place
from torchtriage.diagnose.verdict.result import Result
from torchtriage.measure.verify.agreement import read_answers
from torchtriage.measure.verify.paired_runs import ProgramRun, Trial, run_trial
from torchtriage.measure.verify.verify import conclude

LOSSES = read_answers(
    {"epsilon": 0.0, "events": [{"kind": "loss", "tensors": [{"shape": [], "values": [loss]}]} for loss in (1.0, 0.5)]}
)


def took(step_ms: float | None, *, low_ms: float | None = None, run_ms=1000.0) -> ProgramRun:
    return ProgramRun(step_ms, low_ms or step_ms, run_ms, 40, LOSSES)


def programs(before_ms: float, after_ms: float, noise: float, seed: int = 0):
    rng = np.random.default_rng(seed)

    def program(mean):
        return lambda _number: took(mean * float(np.exp(rng.normal(0, noise))))

    return program(before_ms), program(after_ms)


def trial_of(before_ms=50.0, after_ms=40.0, noise=0.01, most_rounds=12):
    return run_trial(*programs(before_ms, after_ms, noise), most_rounds=most_rounds)


def test_quiet_programs_are_known_after_five_rounds():
    trial = trial_of(noise=0.002)
    assert len(trial.before) == len(trial.after) == 5
    assert trial.ratio.value == pytest.approx(0.8, rel=0.01)
    assert trial.ratio.low < 0.8 < trial.ratio.high


def test_noisy_ones_get_all_the_rounds_there_are():
    assert len(trial_of(noise=0.2, most_rounds=9).before) == 9


def test_who_goes_first_changes_every_round():
    order = []
    run_trial(
        lambda n: order.append(("before", n)) or took(50),
        lambda n: order.append(("after", n)) or took(40 + n / 10),
        most_rounds=3,
    )
    names = [name for name, _ in order]
    assert names == ["before", "after", "after", "before", "before", "after"]


def test_without_steps_on_both_sides_whole_runs_are_compared():
    times = itertools.count(2000.0, 1.0)
    trial = run_trial(lambda _n: took(50.0, run_ms=next(times)), lambda _n: took(None), most_rounds=3)
    assert trial.per == "run"
    assert trial.before_ms[0] == 2000.0
    result = conclude(trial, before="a", after="b")
    assert [note.code for note in result.notes] == ["whole-runs"]


OUTPUTS = {
    n: read_answers({"epsilon": 0.0, "events": [{"kind": "output", "tensors": [{"shape": [n, 10], "values": [1.0]}]}]})
    for n in (1, 16)
}


def classifying(n: int, *, step_ms: float, run_ms: float, n_steps: int = 40, whole: bool = False):
    """Return a program that classifies ``n`` pictures in each step."""
    return lambda _number: ProgramRun(step_ms, step_ms, run_ms, n_steps, OUTPUTS[n], whole=whole)


def test_steps_that_hold_another_amount_of_work_are_not_compared():
    single = classifying(1, step_ms=27.5, run_ms=4000.0)
    batches = classifying(16, step_ms=533.0, run_ms=9000.0)
    cut = conclude(run_trial(single, batches, most_rounds=3), before="a", after="b")
    assert (cut.outcome, cut.per, cut.told) == ("undecided", "run", False)
    assert cut.verdict[0].startswith("Undecided: their steps cannot be compared")
    assert [note.code for note in cut.notes] == ["other-steps"]
    # what was ended early may be the slower one for sure, and never the faster one
    over = classifying(16, step_ms=533.0, run_ms=3000.0, n_steps=7, whole=True)
    faster = conclude(run_trial(single, over, most_rounds=3), before="a", after="b")
    assert faster.verdict[0].startswith("Faster: 3.00 s per run instead of 4.00 s, 1.33 times as fast")
    assert faster.notes[1].message.endswith("it takes even longer")
    longer = classifying(16, step_ms=533.0, run_ms=5000.0, n_steps=7, whole=True)
    assert conclude(run_trial(single, longer, most_rounds=3), before="a", after="b").outcome == "undecided"


def test_whole_runs_are_compared_where_one_has_far_fewer_steps():
    single = classifying(1, step_ms=27.5, run_ms=5000.0, n_steps=30, whole=True)
    batches = classifying(16, step_ms=533.0, run_ms=3000.0, n_steps=2, whole=True)
    result = conclude(run_trial(single, batches, most_rounds=3), before="a", after="b")
    assert (result.outcome, result.per) == ("faster", "run")
    assert [note.code for note in result.notes] == ["other-steps", "whole-runs"]
    # as many steps to the end: pictures of a step are classified at once or singly
    at_once = classifying(16, step_ms=20.0, run_ms=5000.0, n_steps=29, whole=True)
    assert conclude(run_trial(single, at_once, most_rounds=3), before="a", after="b").per == "step"


def test_the_steps_of_each_program_are_counted():
    long, short = (lambda _number, n=n: replace(took(40), n_steps=n) for n in (40, 12))
    result = conclude(run_trial(long, short, most_rounds=3), before="a", after="b")
    assert (result.n_steps, result.n_steps_after) == (120, 36)
    assert "120 and 36 timed steps" in forms.terminal(result).plain
    assert "120 and" in forms.terminal(forms.decode(forms.encode(result), "verification")).plain


def test_times_that_say_another_ratio_are_not_taken_for_its_source():
    result = conclude(queued(10.0, 7.0, whole=False), before="a", after="b")
    assert abs(result.after_ms / result.before_ms - result.ratio) > 0.01 * result.ratio
    assert " ms, and where other programs disturb least, 1.4" in result.verdict[0]
    equal = conclude(queued(10.0, 10.0, whole=False), before="a", after="b")
    assert " ms; where other programs disturb least, anything from 2.2 % less to " in equal.verdict[0]


# -- the verdict -----------------------------------------------------------------------------------


def test_a_faster_program_says_by_how_much():
    result = conclude(trial_of(), before="a", after="b")
    assert result.told
    assert result.verdict[0].startswith("Faster: ")
    assert result.saved_low_ms < 10 < result.saved_high_ms
    assert result.outcome == "faster"
    assert result.verdict[1] == "Results agree: 2 losses are equal."
    assert result.verdict[2] == "Promise not checked: the programs were not recorded."


def test_equal_programs_are_not_told_apart():
    result = conclude(trial_of(50.0, 50.0, 0.08), before="a", after="b")
    assert not result.told
    assert result.outcome == "undecided"
    assert result.verdict[0].startswith("Undecided: ")
    quiet = conclude(trial_of(50.0, 50.0, 0.002), before="a", after="b")
    assert quiet.outcome == "no difference"
    assert quiet.verdict[0].startswith("No difference: ")


def test_a_slower_program_is_called_slower():
    result = conclude(trial_of(50.0, 60.0), before="a", after="b")
    assert result.verdict[0].startswith("SLOWER: ")
    assert result.saved_ms < 0


def printing(trial: Trial, before: str, after: str, *, noted: bool = True) -> Trial:
    sides = (
        tuple(replace(run, printed=text, answers=run.answers if noted else ()) for run in runs)
        for runs, text in ((trial.before, before), (trial.after, after))
    )
    return replace(trial, **dict(zip(("before", "after"), sides, strict=True)))


def test_printed_numbers_are_one_more_witness():
    agree = conclude(printing(trial_of(), "accuracy 0.83\n", "accuracy 0.83\n"), before="a", after="b")
    assert agree.verdict[1] == "Results agree: 2 losses are equal. 1 printed number agrees."
    differ = conclude(printing(trial_of(), "accuracy 0.83\n", "accuracy 0.41\n"), before="a", after="b")
    assert differ.verdict[1] == (
        "Results DIFFER, first in printed line 1: accuracy 0.41 instead of 0.83, though the first losses agree."
    )
    assert differ.outcome == "results differ"
    assert differ.answers.printed.status == "differ"
    jsonschema.validate(json.loads(forms.encode(differ)), forms.schema("verification"))
    assert forms.decode(forms.encode(differ), "verification") == differ
    other = conclude(printing(trial_of(), "accuracy 0.83\n", "mean accuracy 0.41\n"), before="a", after="b")
    assert other.verdict[1] == "Results agree: 2 losses are equal. Printed lines differ and are not compared."
    assert other.outcome == "faster"


def test_printed_numbers_judge_programs_of_which_nothing_else_is_known():
    alone = printing(trial_of(), "mean score 0.83\n", "mean score 0.83\n", noted=False)
    reason = "in one program nothing trains and no model is called"
    assert conclude(alone, before="a", after="b").verdict[1] == (
        f"Results agree as far as they are printed: 1 number is the same, and {reason}."
    )
    silent = conclude(printing(trial_of(), "", "", noted=False), before="a", after="b")
    assert silent.verdict[1] == f"Results not compared: {reason}."
    assert [note.code for note in silent.notes] == ["ended-early"]


def neighbours(after_ms: float, *, seed: int, most_rounds: int = 12):
    """Run a trial against 10 ms beside neighbours that add 0 to 120 % to the mean and next to nothing to the best."""
    rng = np.random.default_rng(seed)

    def program(mean: float):
        return lambda _number: took(mean * rng.uniform(1, 2.2), low_ms=mean * rng.uniform(1, 1.03))

    return run_trial(program(10.0), program(after_ms), most_rounds=most_rounds)


@pytest.mark.parametrize("alike", [0.0, 0.6])
def test_the_narrowest_of_several_measures_misses_as_seldom_as_the_page_says(alike: float):
    rng = np.random.default_rng(4)

    def run(_number: int) -> ProgramRun:
        shared, own = rng.normal(0, 0.02), rng.normal(0, 0.02, 3)
        step_ms, low_ms, own_ms = 10 * np.exp(alike**0.5 * shared + (1 - alike) ** 0.5 * own)
        return ProgramRun(step_ms, low_ms, 1000.0, 40, LOSSES, own_step_ms=own_ms)

    ratios = [run_trial(run, run, most_rounds=12).ratio for _ in range(800)]
    assert sum(not ratio.low <= 1 <= ratio.high for ratio in ratios) <= 40


def test_the_fastest_steps_tell_what_neighbours_hide():
    slower = [neighbours(13.0, seed=seed, most_rounds=6) for seed in range(40)]
    assert sum(trial.ratio.low > 1 for trial in slower) >= 38
    assert all(trial.ratio.value == pytest.approx(1.3, abs=0.05) for trial in slower if trial.ratio.low > 1)
    small = [neighbours(9.0, seed=seed) for seed in range(40)]
    assert sum(trial.ratio.high < 1 for trial in small) >= 38


def queued(before_ms: float, after_ms: float, *, whole: bool, seed: int = 1, known: bool = True) -> Trial:
    """Return runs on a machine whose neighbours make them up to twice as long, which it tells where it is ``known``."""
    rng = np.random.default_rng(seed)

    def program(ms: float):
        def run(_number: int) -> ProgramRun:
            own = ms * rng.uniform(1, 1.03) if known else None
            longer = ms * rng.uniform(1.4, 2.2)
            if whole:
                return ProgramRun(None, None, longer, 0, LOSSES, own_run_ms=own)
            return ProgramRun(longer, longer / 1.1, 1000.0, 40, LOSSES, own_step_ms=own)

        return run

    return run_trial(program(before_ms), program(after_ms), most_rounds=5)


@pytest.mark.parametrize("whole", [False, True])
def test_time_without_the_wait_for_a_processor_tells_what_neighbours_hide(whole: bool):
    trial = queued(10.0, 7.0, whole=whole)
    assert 0.67 < trial.ratio.low < trial.ratio.high < 0.73
    trial = queued(10.0, 7.0, whole=whole, known=False)
    assert trial.ratio.high > trial.ratio.low + 0.2
    equal = [queued(10.0, 10.0, whole=whole, seed=seed) for seed in range(100)]
    assert sum(trial.ratio.high < 1 or trial.ratio.low > 1 for trial in equal) <= 5


def test_equal_programs_are_rarely_called_different():
    trials = [neighbours(10.0, seed=seed) for seed in range(200)]
    assert sum(trial.ratio.high < 1 or trial.ratio.low > 1 for trial in trials) <= 10


def test_what_happens_now_and_then_is_not_lost_with_the_slow_steps():
    rng = np.random.default_rng(0)
    trial = run_trial(
        lambda _n: took(20.0 * rng.uniform(1, 1.05), low_ms=10.0 * rng.uniform(1, 1.01)),
        lambda _n: took(10.0 * rng.uniform(1, 1.05), low_ms=10.0 * rng.uniform(1, 1.01)),
        most_rounds=6,
    )
    assert trial.ratio.value == pytest.approx(0.5, abs=0.05)


def test_short_runs_that_decide_nothing_are_said_to_be_short():
    result = conclude(trial_of(20.0, 20.0, 0.05), before="a", after="b")
    assert [note.code for note in result.notes] == ["short-runs"]
    assert not conclude(trial_of(50.0, 50.0, 0.05), before="a", after="b").notes


def test_the_report_shows_every_round_and_fits_its_width():
    result = conclude(trial_of(), before="python a.py", after="python b.py " + "x" * 200)
    text = forms.terminal(result).plain
    assert max(map(len, text.splitlines())) <= 80
    assert "●" in text
    assert "python a.py" in text


def test_the_document_follows_its_schema():
    result = conclude(trial_of(), before="a", after="b")
    jsonschema.validate(json.loads(forms.encode(result)), forms.schema("verification"))
    assert forms.decode(forms.encode(result), "verification") == result


def found(naive_ms: float) -> Result:
    """Return a result with one finding that costs so much of a step of 50 ms."""
    share = naive_ms / 50
    cost = Cost(naive_ms / 2, naive_ms, "step", 50.0, share / 2, share, naive_ms, "modelled", "", "B")
    place = Place(frame=Frame("a.py", 1, "main"))
    fix = Fix("")
    finding = Finding("HST020", "python-bound", "host", "", "high", "likely", "", place, cost, {}, fix)
    facts = dict.fromkeys((field.name for field in fields(Result)), ())
    return Result(**{**facts, "findings": (finding,)})


def test_a_finding_of_which_little_is_left_keeps_its_promise_but_for_the_rest():
    result = conclude(trial_of(50.0, 35.0), before="a", after="b", results=(found(20.0), found(2.0)))
    assert result.findings[0].status == "stayed"
    assert (result.promise.low_ms, result.promise.high_ms) == (8.0, 19.0)
    assert result.promise.holds


def test_a_finding_of_which_half_is_left_was_not_fixed():
    result = conclude(trial_of(50.0, 45.0), before="a", after="b", results=(found(20.0), found(10.0)))
    assert result.promise is None
    assert result.verdict[2] == "Nothing was promised: no finding with a cost is gone."
