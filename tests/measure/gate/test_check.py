"""Verdict, exit code and reason for everything a gate can be given."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.conftest import DATA
from tests.measure.gate.sides import HOST, LIMITS, OTHER, constant, first, run, series, timed

from torchtriage.core.errors import SampleError, TraceFormatError, UsageError
from torchtriage.core.samples import Machine, Run, Series, Session
from torchtriage.core.stats.session_comparison import session_value
from torchtriage.diagnose.compare.verdict import ChangeEvidence
from torchtriage.measure.gate.check import check
from torchtriage.measure.gate.result import GateResult
from torchtriage.measure.gate.row_verdict import GateLimits
from torchtriage.measure.gate.session_stats import SessionTable


def judge(before: Series, after: Series, limits: GateLimits = LIMITS, **given: Any) -> GateResult:
    return check([run(before)], [run(after, commit="b" * 40)], limits, **given)


# -- timings -------------------------------------------------------------------------------------


def test_equal_programs_are_fine() -> None:
    result = judge(timed(seed=1), timed(seed=2))
    assert (result.outcome, result.exit_code, result.design) == ("fine", 0, "interleaved")
    assert result.verdict[0] == "No regression against the baseline: 1 metric analysed."


def test_a_slower_program_is_a_regression_with_its_interval() -> None:
    result = judge(timed(seed=1), timed(1.2, seed=2))
    row = first(result)
    assert result.exit_code == 1
    assert row.statistic == "low"
    assert row.ratio == pytest.approx(1.2, rel=0.02)
    assert row.low is not None
    assert row.high is not None
    assert 1.15 < row.low < 1.2 < row.high < 1.25
    assert "+20" in result.verdict[1]
    assert "12 interleaved pairs" in result.verdict[2]


def test_a_faster_program_is_fine_and_said_to_be_better() -> None:
    result = judge(timed(seed=1), timed(0.8, seed=2))
    assert result.exit_code == 0
    assert {row.verdict for row in result.rows if row.decides} == {"improvement"}
    assert "1 better" in result.verdict[0]


def test_too_noisy_to_tell_says_how_many_more() -> None:
    result = judge(timed(seed=1, noise=0.05), timed(1.02, seed=2, noise=0.05))
    row = first(result)
    assert (result.outcome, result.exit_code) == ("inconclusive", 2)
    assert row.pairs_needed is not None
    assert row.pairs_needed > 12
    assert f"about {row.pairs_needed - 12} more pairs would decide" in result.verdict[0]
    assert "would decide, if the estimate holds" in row.sentence


def pairs(*differences: float) -> GateResult:
    """Return the verdict on pairs that differ by these shares, around no drift at all."""
    before = [10 + i / 1000 for i in range(len(differences))]
    after = [one * (1 + share) for one, share in zip(before, differences, strict=True)]
    sides = (series([[one] for one in side], unit="s") for side in (before, after))
    return judge(*sides)


@pytest.mark.parametrize(
    ("middle", "said"), [(0.06, "worse, by 3 % or more"), (0.035, "worse; the estimate is beyond 3 %")]
)
def test_by_3_percent_or_more_is_said_where_the_interval_says_so(middle: float, said: str) -> None:
    told = first(pairs(*(middle + 0.002 * i for i in range(-6, 7))))
    assert told.verdict == "regression"
    assert told.sentence.endswith(said)


def test_an_estimate_at_the_limit_is_said_to_need_more_than_pairs() -> None:
    near = first(pairs(*(0.029 + 0.01 * i for i in range(-6, 7))))
    assert near.verdict == "inconclusive"
    assert near.pairs_needed is None
    assert near.sentence.endswith("the estimate is too close to 3 %")


def test_medians_that_contradict_the_pairs_are_not_printed_as_a_change() -> None:
    # the middle process of either side is of another round
    before = [10.0, 10.1, 10.2, 10.3, 20.0, 20.1, 20.2, 20.3, 20.4]
    after = [one * 1.02 for one in before]
    after[4] = 10.5
    sides = [series([[one] for one in side]) for side in (before, after)]
    told = first(judge(*sides))
    assert "20.0 ms before, +2.0 % pair by pair (" in told.sentence
    assert " to 10" not in told.sentence
    # nor where the interval is so wide that it holds what they say
    noisy = [one * factor for one, factor in zip(before, [0.6, 1.3, 0.7, 1.2, 0.99, 0.6, 1.2, 0.7, 1.1], strict=True)]
    sides = [series([[one] for one in side]) for side in (before, noisy)]
    assert "% pair by pair (" in first(judge(*sides)).sentence
    # nothing to tell where they agree
    assert "pair by pair" not in first(judge(timed(seed=1), timed(seed=2))).sentence


@pytest.mark.parametrize("paired", [True, False])
def test_too_few_sessions_say_how_many_it_takes(paired: bool) -> None:
    sides = [timed(factor, n=4, seed=i, rounds=paired) for i, factor in enumerate((1.0, 1.5))]
    told = first(judge(*sides))
    least = 7 if paired else 5
    assert told.verdict == "inconclusive"
    assert told.sentence.endswith(f"at least {least} {'pairs' if paired else 'sessions per side'} are needed")
    assert told.pairs_needed == least
    few = [replace(side, sessions=side.sessions[:2]) for side in sides]
    assert f"at least {least} fresh processes" in first(judge(*few)).sentence


def test_the_pairs_that_are_named_would_mostly_have_told() -> None:
    rng = np.random.default_rng(3)
    asked = told = 0
    for _ in range(40):
        shares = np.expm1(rng.normal(np.log(1.02), 0.04, 400))
        row = first(pairs(*shares[:10]))
        if row.verdict == "inconclusive" and row.pairs_needed:
            asked += 1
            told += first(pairs(*shares[: row.pairs_needed])).verdict != "inconclusive"
    assert asked > 15
    # from 10 pairs, it is as estimated only roughly
    assert told / asked >= 0.6


def test_a_change_below_the_limit_is_no_regression() -> None:
    before, after = timed(seed=1, noise=0.002), timed(1.01, seed=2, noise=0.002)
    assert judge(before, after).exit_code == 0
    strict = GateLimits(max_regress=(("", 0.005),))
    assert judge(before, after, strict).exit_code == 1


@pytest.mark.parametrize("name", ["latency", "encode"])
def test_a_limit_may_name_a_kind_or_a_metric(name: str) -> None:
    before, after = (timed(f, seed=s, metric="encode") for f, s in ((1.0, 1), (1.06, 2)))
    assert judge(before, after).exit_code == 1
    assert judge(before, after, GateLimits(max_regress=((name, 0.10),))).exit_code == 0


def test_a_limit_for_what_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a kind"):
        judge(timed(), timed(), GateLimits(max_regress=(("latnecy", 0.1),)))


def test_throughput_falls_when_it_gets_worse() -> None:
    def rate(factor: float, seed: int) -> Series:
        slow = timed(factor, seed=seed)
        values = [[1000 / value for value in session.values] for session in slow.sessions]
        return series(values, "rate", unit="1/s", better="higher", kind="throughput")

    worse, better = judge(rate(1, 1), rate(1.2, 2)), judge(rate(1.2, 1), rate(1, 2))
    assert (worse.exit_code, better.exit_code) == (1, 0)
    row = first(worse)
    assert row.ratio == pytest.approx(1 / 1.2, rel=0.02)
    assert row.low is not None
    assert row.high is not None
    assert row.low < row.ratio < row.high < 1


def test_only_the_tail_got_slower() -> None:
    rng = np.random.default_rng(5)

    def tail(height: float) -> Series:
        values = 10 * np.exp(rng.normal(0, 0.005, (20, 200)))
        values[:, ::8] *= height
        return series(values.tolist())

    result = judge(tail(1.0), tail(2.0))
    worse = {row.statistic for row in result.rows if row.verdict == "regression"}
    assert worse == {"mean", "p95", "p99"}
    assert result.exit_code == 1
    (p95,) = [row for row in result.rows if row.statistic == "p95"]
    assert p95.after is not None
    assert p95.after.low is not None
    assert p95.after.low < p95.after.value


def test_tails_are_refused_without_enough_values() -> None:
    result = judge(timed(n_values=19, seed=1), timed(n_values=99, seed=2))
    told = {row.statistic: row for row in result.rows}
    assert told["p95"].verdict == "refused"
    assert told["p95"].sentence == "needs 20 values in each session, found 19 in one"
    assert told["p99"].sentence == "needs 100 values in each session, found 19 in one"
    assert told["p95"].ratio is None
    assert result.exit_code == 0
    asked = judge(timed(n_values=19), timed(n_values=19, seed=2), GateLimits(statistics=("p95",)))
    assert asked.exit_code == 3
    assert "P95 cannot be evaluated" in asked.verdict[0]


def test_what_people_ask_for_is_reported_and_never_decides() -> None:
    # iterations of one process differ by far less than processes: d is huge, nothing is shown
    result = judge(timed(seed=1, noise=0.04), timed(seed=4, noise=0.04))
    row = first(result)
    assert row.classic is not None
    assert row.classic.cohen_d is not None
    assert row.classic.welch_p is not None
    assert row.verdict != "regression"


def test_what_is_equal_is_not_closest_to_a_regression() -> None:
    breaks = constant(3, "count", n=12)
    sides = [run(breaks, timed(seed=i)) for i in (1, 2)]
    said = check(sides[:1], sides[1:], LIMITS).verdict[1]
    assert said.startswith("Closest to a regression: mlp latency, typical, 10.0 ms")


# -- memory, compile time, counts, accuracy ------------------------------------------------------


@pytest.mark.parametrize(("after", "code"), [(1000, 0), (1009, 0), (1011, 1), (900, 0)])
def test_memory_is_exact_where_it_never_varies(after: float, code: int) -> None:
    result = judge(constant(1000, "memory"), constant(after, "memory"))
    assert result.exit_code == code
    assert first(result).level is None


def test_device_memory_that_was_none_before_is_a_regression() -> None:
    assert judge(constant(0, "memory"), constant(0, "memory")).exit_code == 0
    assert judge(constant(0, "memory"), constant(4096, "memory")).exit_code == 1
    varied = series([[1e6 + 1000 * i] for i in range(7)], "memory", unit="B", kind="memory")
    grown = judge(constant(0, "memory", 7), varied)
    assert grown.exit_code == 1
    assert first(grown).sentence == "0 B to 977 KiB … 982 KiB, median 0 B to 979 KiB: higher"
    assert judge(varied, constant(0, "memory", 7)).exit_code == 0


def test_memory_that_is_none_now_and_then_seldom_fails() -> None:
    """Three times none and three times some happen to equal programs once in 64."""
    few = series([[0.0]] * 3, "memory", unit="B", kind="memory")
    some = series([[4096.0 * i] for i in (1, 2, 3)], "memory", unit="B", kind="memory")
    told = judge(few, some)
    assert told.exit_code == 2
    assert "at least 7 sessions per side are needed" in first(told).sentence


def test_memory_that_varies_has_an_interval() -> None:
    rng = np.random.default_rng(3)

    def peak(factor: float) -> Series:
        values = 1e9 * factor * np.exp(rng.normal(0, 0.001, (12, 1)))
        return series(values.tolist(), "peak", unit="B", kind="memory")

    assert judge(peak(1.0), peak(1.02)).exit_code == 1
    assert judge(peak(1.0), peak(1.0)).exit_code == 0


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ([3], [3], 0),
        ([3], [4], 1),
        ([0], [1], 1),
        ([3, 4], [4, 3], 0),
        ([3, 4], [5], 1),
        ([3, 4], [3, 3, 3, 5], 2),
        ([0, 4], [5, 6], 1),
        ([5], [2], 0),
        ([5, 6], [2, 3], 0),
    ],
)
@pytest.mark.parametrize("better", ["lower", "higher"])
def test_any_rise_of_a_count_counts(before: list[int], after: list[int], code: int, better: str) -> None:

    def side(values: list[int]) -> Series:
        of = [[10 - value if better == "higher" else value] for value in values * (16 // len(values))]
        return series(of, "graph breaks", unit="1", kind="count", better=better)

    assert judge(side(before), side(after)).exit_code == code


@pytest.mark.parametrize("limit", [0.0, 0.1])
def test_equal_counts_are_equal_where_more_is_better(limit: float) -> None:
    passed = constant(10, "count", better="higher")
    limits = GateLimits(max_regress=(("count", limit),))
    assert judge(passed, passed, limits).exit_code == 0
    assert judge(passed, constant(5, "count", better="higher"), limits).exit_code == 1
    some = series([[10, 9, 10]] * 5, "count", unit="1", kind="count", better="higher")
    told = first(judge(passed, some, limits))
    assert told.after is not None
    assert told.after.value == 9


def test_a_count_of_few_processes_is_no_verdict() -> None:
    result = judge(constant(100, "count", n=1), constant(101, "count", n=1))
    assert result.exit_code == 2
    assert "at least 3 fresh processes per side" in first(result).sentence


@pytest.mark.parametrize("n", [3, 5])
def test_counts_that_vary_keep_the_error_rate_over_all_rows(n: int) -> None:
    rng = np.random.default_rng(n)

    def side() -> Run:
        return run(
            *(
                series([[value] for value in values], f"k{i}", unit="1", kind="count", rounds=False)
                for i, values in enumerate(rng.poisson(1000, (8, n)))
            )
        )

    failed = sum(check([side()], [side()], LIMITS).exit_code == 1 for _ in range(60))
    # 1 % is hardly one of them
    assert failed <= 3


def test_compile_time_has_a_limit_of_its_own() -> None:
    rng = np.random.default_rng(8)

    def seconds(factor: float) -> Series:
        values = 20 * factor * np.exp(rng.normal(0, 0.02, (10, 1)))
        return series(values.tolist(), "compile", unit="s", kind="compile_time")

    assert judge(seconds(1), seconds(1.05)).exit_code == 0
    assert judge(seconds(1), seconds(1.3)).exit_code == 1


def test_accuracy_that_falls_is_a_regression() -> None:
    higher = {"better": "higher"}
    before = constant(0.912, "accuracy", **higher)
    assert judge(before, constant(0.850, "accuracy", **higher)).exit_code == 1
    assert judge(before, constant(0.912, "accuracy", **higher)).exit_code == 0
    assert judge(before, constant(0.930, "accuracy", **higher)).exit_code == 0
    varied = series([[0.5 + i / 100] for i in range(7)], "accuracy", unit="1", kind="accuracy", **higher)
    assert judge(constant(0, "accuracy", 7, **higher), varied).exit_code == 0
    fallen = judge(varied, constant(0, "accuracy", 7, **higher))
    assert fallen.exit_code == 1
    assert first(fallen).sentence.endswith(": lower")


def test_an_error_that_was_none_is_higher_however_small_it_is() -> None:
    small = series([[1e-17 * (1 + i / 10)] for i in range(7)], "accuracy", unit="1", kind="accuracy")
    grown = judge(constant(0, "accuracy", 7), small)
    assert grown.exit_code == 1
    assert first(grown).sentence.endswith(": higher")


# -- many metrics --------------------------------------------------------------------------------


def test_two_hundred_equal_metrics_raise_no_alarm() -> None:
    def side(seed: int) -> Run:
        return run(*(timed(seed=seed + i, n=16, metric=f"m{i}", n_values=5) for i in range(200)))

    result = check([side(1000)], [side(5000)], LIMITS)
    assert [row.metric for row in result.rows if row.verdict == "regression"] == []
    assert result.exit_code in (0, 2)


def test_what_got_better_makes_no_alarm_likelier() -> None:
    def side(*columns: list[float]) -> Run:
        return run(
            *(series([[one] for one in column], f"m{i}", kind="compile_time") for i, column in enumerate(columns))
        )

    before = [10 + i / 100 for i in range(12)]
    better = [one / 2 for one in before]
    # 12 pairs of which the seventh in size went the other way: p = 0.0046
    doubtful = [one * (1 + (-0.07 if i == 7 else 0.01 * i)) for i, one in enumerate(before, 1)]
    any_ = GateLimits(max_regress=(("", 0.0),))
    alone = check([side(before)], [side(doubtful)], any_)
    assert alone.exit_code == 1
    many = check([side(*[before] * 11)], [side(doubtful, *[better] * 10)], any_)
    verdicts = [row.verdict for row in many.rows]
    assert verdicts.count("improvement") == 10
    assert many.exit_code == 2, many.verdict


def test_one_of_two_hundred_is_found() -> None:
    def side(seed: int, slow: float) -> Run:
        return run(
            *(timed(slow if i == 7 else 1.0, seed=seed + i, n=20, metric=f"m{i}", n_values=5) for i in range(200))
        )

    result = check([side(1000, 1.0)], [side(5000, 1.05)], LIMITS)
    worse = [(row.metric, row.statistic) for row in result.rows if row.verdict == "regression"]
    assert ("m7", "low") in worse
    assert {metric for metric, _ in worse} == {"m7"}


@pytest.mark.parametrize("statistic", ["low", "mean", "median", "p95", "p99", "peak"])
def test_sessions_are_summed_up_as_the_statistics_say(statistic: Any) -> None:
    rng = np.random.default_rng(2)
    ragged = [rng.exponential(3, n) for n in (100, 140, 100, 101, 1000)]
    found = SessionTable(series([one.tolist() for one in ragged])).values(statistic)
    assert found == pytest.approx([session_value(one, statistic) for one in ragged])


# -- what is no comparison -----------------------------------------------------------------------


def test_unlike_machines_are_not_compared_in_silence() -> None:
    before, after = run(timed(seed=1), machine=OTHER), run(timed(seed=2))
    result = check([before], [after], LIMITS)
    assert (result.exit_code, result.rows) == (3, ())
    assert "cpu Example 9900 / Example 9000" in result.verdict[0]
    allowed = check([before], [after], LIMITS, unlike_machines=True)
    assert allowed.exit_code == 0
    assert any(note.code == "machine" and note.level == "warn" for note in allowed.notes)


def test_machines_are_compared_benchmark_by_benchmark() -> None:
    def side(seed: int, *machines: Machine) -> list[Run]:
        return [
            run(timed(seed=seed + i), benchmark=name, machine=machine)
            for i, (name, machine) in enumerate(zip("xy", machines, strict=True))
        ]

    result = check(side(1, HOST, OTHER), side(3, OTHER, HOST), LIMITS)
    assert (result.exit_code, result.rows) == (3, ())
    assert "cpu Example 9000 / Example 9900" in result.verdict[0]
    one = check(side(1, HOST, HOST), side(3, OTHER, HOST), LIMITS)
    assert one.exit_code == 3
    assert "the two sides of x ran on different machines" in one.verdict[0]
    assert check(side(1, HOST, OTHER), side(3, HOST, OTHER), LIMITS).exit_code == 0


def test_an_untold_machine_is_said() -> None:
    sides = [run(timed(seed=seed), machine=Machine()) for seed in (1, 2)]
    result = check(sides[:1], sides[1:], LIMITS)
    assert any(note.code == "machine" for note in result.notes)
    assert check([run(timed(seed=1), machine=HOST)], sides[1:], LIMITS).exit_code == 3


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_missing_side_is_no_verdict(side: str) -> None:
    runs = {"before": [run(timed())], "after": [run(timed())], side: []}
    result = check(runs["before"], runs["after"], LIMITS, labels=("main", "HEAD"))
    assert (result.outcome, result.exit_code) == ("infrastructure", 3)
    assert "nothing is recorded for" in result.verdict[0]
    assert "gate record" in result.verdict[1]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (timed(), timed(unit="us"), "unit differs: ms before, us after"),
        (timed(), timed(kind="compile_time"), "kind differs"),
        (timed(), timed(better="higher"), "better differs"),
        (timed(), series([[10.0] * 30] * 12), "real timings vary"),
        (constant(2.5, "count"), constant(2.5, "count"), "not whole numbers"),
        (series([[1.0], [0.0]], kind="accuracy", unit="1"), constant(1, "accuracy"), "of zero"),
    ],
)
def test_what_is_no_measurement_is_refused(before: Series, after: Series, said: str) -> None:
    after = replace(after, metric=before.metric)
    result = judge(before, after)
    assert (result.exit_code, first(result).verdict) == (3, "refused")
    assert said in first(result).sentence
    assert first(result).ratio is None


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_broken_numbers_are_an_error_with_their_place(value: float) -> None:
    bad = series([[1.0, value], [1.0, 1.1]])
    with pytest.raises(SampleError, match="session 1"):
        judge(timed(), bad)


def test_one_session_is_never_a_verdict() -> None:
    result = judge(timed(n=1, n_values=1000), timed(2.0, n=1, n_values=1000, seed=2))
    assert (result.outcome, result.exit_code) == ("inconclusive", 2)
    assert "values of one process say nothing" in first(result).sentence
    assert first(result).low is None


def test_a_metric_that_went_is_refused_and_one_that_came_is_not() -> None:
    one, other = timed(seed=1), timed(seed=2, metric="other")
    both, alone = run(one, other), run(timed(seed=3))
    went = check([both], [alone], LIMITS)
    assert went.exit_code == 3
    assert "missing from the candidate" in first(went).sentence
    came = check([alone], [both], LIMITS)
    assert came.exit_code == 0
    assert any("new" in row.sentence for row in came.rows)


def test_another_benchmark_has_no_baseline() -> None:
    result = check([run(timed())], [run(timed(), benchmark="resnet")], LIMITS)
    assert result.exit_code == 3


# -- the host ------------------------------------------------------------------------------------


def test_a_noisy_host_is_declared() -> None:
    quiet = timed(seed=1)
    robbed = replace(
        quiet,
        sessions=tuple(
            replace(session, cpu_values=tuple(value * 0.7 for value in session.values)) for session in quiet.sessions
        ),
    )
    result = judge(robbed, timed(seed=2))
    assert result.before is not None
    assert result.before.host.off_cpu == pytest.approx(0.3)
    assert "noisy" in result.verdict[2]
    assert any(note.code == "noisy-host" for note in result.notes)
    clean = judge(quiet, timed(seed=2))
    assert "noisy" not in clean.verdict[2]
    for status, noisy in (("quiet", False), ("noisy: others used 2.1 of 4 cores", True)):
        told = check([run(robbed, environment=(("host", status),))], [run(timed(seed=2))], LIMITS)
        assert told.before is not None
        assert told.before.host.noisy is noisy
    assert any("others used 2.1 of 4 cores" in note.message for note in told.notes)


def test_what_else_differs_is_said() -> None:
    sides = [run(timed(seed=i), environment=(("torch", f"2.{i}"), ("side", str(i)))) for i in (1, 2)]
    (note,) = [one for one in check(sides[:1], sides[1:], LIMITS).notes if one.code == "environment"]
    assert note.message == "not only the code differs: torch 2.1 / 2.2"


# -- culprit -------------------------------------------------------------------------------------


def traced(factor: float, seed: int, *paths: str) -> Run:
    return run(timed(factor, seed=seed), traces=paths)


def test_without_a_regression_no_trace_is_read() -> None:
    def never(path: str) -> ChangeEvidence:
        raise AssertionError(path)

    before, after = traced(1, 1, "a.json"), traced(1, 2, "b.json")
    assert check([before], [after], LIMITS, read=never).culprits == ()


def test_a_trace_that_cannot_be_read_is_said() -> None:
    def broken(path: str) -> ChangeEvidence:
        raise TraceFormatError("expected JSON, found nothing", where=path)

    before, after = traced(1, 1, "a.json"), traced(1.3, 2, "b.json")
    result = check([before], [after], LIMITS, read=broken)
    assert result.exit_code == 1
    assert any("a.json: expected JSON" in note.message for note in result.notes)
    one_sided = check([before], [traced(1.3, 2)], LIMITS, read=broken)
    assert any(note.code == "culprit" for note in one_sided.notes)


@pytest.mark.data
def test_the_culprit_of_batches_that_are_no_longer_loaded_beside_the_step() -> None:
    paths = [str(DATA / "traces" / "cv" / f"resnet50_v100_train_workers{n}.json.gz") for n in (4, 0)]
    result = check([traced(1, 1, "gone.json", paths[0])], [traced(1.3, 2, paths[1])], LIMITS)
    (culprit,) = result.culprits
    assert culprit.causes[0].startswith("DataLoader wait went from ")
    assert any(one.startswith("DAT018 ") for one in culprit.came)
    assert "DataLoader wait" in result.verdict[1]
    assert culprit.after == "resnet50_v100_train_workers0.json.gz"


def test_sessions_that_are_short_are_told_beside_the_pairs_they_would_take() -> None:
    def told(unit: str) -> tuple[str, dict[str, str]]:
        before, after = (
            run(timed(one, seed=seed, noise=0.05, n_values=7, unit=unit)) for seed, one in ((1, 1), (2, 1.02))
        )
        result = check([before], [after], LIMITS)
        assert result.exit_code == 2
        return result.verdict[0], {note.code: note.message for note in result.notes}

    headline, notes = told("ms")
    assert headline.endswith(" more pairs would decide; the sessions are short, try longer ones first.")
    assert notes["short-sessions"].startswith("mlp latency is measured for 7")
    headline, notes = told("s")
    assert headline.endswith(" more pairs would decide.")
    assert "short-sessions" not in notes


# -- real sessions -------------------------------------------------------------------------------


@pytest.mark.data
def test_real_sessions_of_equal_programs_never_fail_and_ten_percent_always_does() -> None:
    arms: dict[str, list[Session]] = {}
    with (DATA / "anomaly" / "aa" / "sessions.jsonl").open() as lines:
        for line in lines:
            one = json.loads(line)
            session = Session(tuple(one["latency_us"][one["warmup"] :]), round=one["round"])
            arms.setdefault(one["arm"], []).append(session)

    def outcomes(arm: str, n: int) -> list[str]:
        found = []
        for begin in range(0, 60 - n + 1, 5):
            before, after = (
                run(Series("latency", "us", "lower", "latency", tuple(arms[one][begin : begin + n])))
                for one in ("A", arm)
            )
            found.append(check([before], [after], LIMITS).outcome)
        return found

    assert "regression" not in outcomes("A2", 10) + outcomes("A2", 20)
    assert set(outcomes("+10%", 10)) == {"regression"}
