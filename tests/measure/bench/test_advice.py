"""The order of settings, ties, and what is advised, from sessions whose truth is known."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest
from measure.bench.sessions import cold, measured, plan, session

from torchtriage.measure.bench.advice import all_settled, compare
from torchtriage.measure.bench.measurements import Measurements
from torchtriage.measure.bench.plan import BenchPlan
from torchtriage.measure.bench.result import BenchResult, OtherSize, Setting
from torchtriage.measure.bench.summary import summarise
from torchtriage.report.documents import bench as words


def bench(times: dict[str, float], seed: int = 0, **more: float) -> Measurements:
    of = plan(list(times))
    steps = {setting: times[setting.mode] for setting in of.settings}
    return measured(of, steps, np.random.default_rng(seed), **more)  # type: ignore[arg-type]


def row(found: Measurements, mode: str):  # type: ignore[no-untyped-def]
    return next(row for row in summarise(found).rows if row.setting.mode == mode)


MODES = ("eager", "default", "reduce-overhead", "max-autotune")


@pytest.mark.parametrize("factors", [(1.0, 1.0, 1.02, 1.05), (1.05, 1.0, 1.12, 1.2)])
def test_order_is_true_from_a_gap_of_5_percent_on_and_a_tie_below_3(factors: tuple[float, ...]) -> None:
    """Sessions differ by 0.4 %, turns are disturbed by 10 %: 60 benchmarks, no pair wrong."""
    wrong = 0
    for seed in range(60):
        times = dict(zip(MODES, (10 * factor for factor in factors), strict=True))
        found = bench(times, seed)
        for number in range(6, 11):
            if all_settled(found):
                break
            more = bench(times, 1000 * number + seed, rounds=1)
            found.rounds[number] = more.rounds[1]
        for one, other in combinations(found.plan.settings, 2):
            told = compare(found, one, other)
            assert told is not None
            quick, slow = sorted((one, other), key=lambda way: times[way.mode])
            gap = times[slow.mode] / times[quick.mode]
            if gap >= 1.0499:
                wrong += told.tie or told.faster != quick.name
            elif gap <= 1.03:
                wrong += not told.tie
    assert wrong == 0


def test_a_gap_that_two_rounds_show_is_no_order_yet() -> None:
    found = bench({"eager": 10.0, "default": 5.0}, rounds=2)
    told = compare(found, *found.plan.settings)
    assert told is not None
    assert told.tie
    assert not told.resolved
    assert not all_settled(found)


def test_wild_sessions_are_a_tie_that_is_not_resolved() -> None:
    found = bench({"eager": 10.0, "default": 9.0}, seed=1, between=0.3)
    told = compare(found, *found.plan.settings)
    assert told is not None
    assert told.tie
    assert not told.resolved
    result = summarise(found)
    assert "not resolved" in " ".join(note.message for note in result.notes)
    assert "whether anything is faster was not resolved" in result.verdict[0]
    assert "not distinguishable" in result.advice[0].why
    assert result.rows[1].pays == "not told"


def test_the_fastest_is_advised_and_when_it_pays() -> None:
    result = summarise(bench({"eager": 10.0, "default": 5.0}))
    first = result.advice[0]
    assert (first.need, first.line) == ("latency", "model = torch.compile(model)")
    assert result.verdict[0].startswith("Use default: 5.")
    # 20 s of compiling against 5 ms saved per call
    assert "paid for after" in first.why
    default = next(row for row in result.rows if row.setting.mode == "default")
    assert default.break_even_cold == pytest.approx(4000, rel=0.05)
    assert default.break_even_warm == pytest.approx(400, rel=0.05)


def test_of_ties_the_simplest_is_advised() -> None:
    result = summarise(bench({"eager": 20.0, "max-autotune": 10.0, "default": 10.1}))
    first = result.advice[0]
    assert first.setting == "default"
    assert first.ties == ("max-autotune",)
    never = next(row for row in result.rows if row.setting.mode == "eager")
    assert never.break_even_cold == 0


def test_eager_stays_where_nothing_is_faster_by_5_percent() -> None:
    result = summarise(bench({"eager": 10.0, "default": 9.8}))
    assert result.verdict[0].startswith("Stay with eager")
    assert result.advice[0].line == "model  # eager"
    assert result.rows[1].pays == "never"
    assert result.rows[1].break_even_cold is None


@pytest.mark.parametrize("verdict", ["wrong", "lower precision"])
def test_wrong_answers_are_never_advised_however_fast(verdict: str) -> None:
    found = bench({"eager": 10.0, "default": 1.0})
    default = next(setting for setting in found.plan.settings if setting.mode == "default")
    found.cold[default.key]["numerics"]["verdict"] = verdict
    result = summarise(found)
    assert {one.setting for one in result.advice} == {"eager"}
    assert "left out because of their answers: default" in result.advice[0].why
    assert "default" in result.verdict[2]


def verdicts(times: dict[str, float], said: dict[str, str]) -> BenchResult:
    found = bench(times)
    for setting in found.plan.settings:
        if setting.mode in said:
            found.cold[setting.key]["numerics"]["verdict"] = said[setting.mode]
    return summarise(found)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"default": "wrong"}, "and nothing with right answers is faster by 5 %."),
        ({"default": "lower precision"}, "and nothing as precise is faster by 5 %."),
        ({"default": "wrong", "max-autotune": "wrong"}, "and nothing else has right answers."),
    ],
)
def test_what_answers_wrongly_may_be_faster(said: dict[str, str], line: str) -> None:
    result = verdicts({"eager": 10.0, "default": 1.0, "max-autotune": 11.0}, said)
    assert result.verdict[0].startswith("Stay with eager: 10")
    assert result.verdict[0].endswith(line)


def test_eager_in_lower_precision_is_said_to_be() -> None:
    of = plan(["eager"], dtypes=["float32", "bfloat16"])
    found = measured(of, dict(zip(of.settings, (10.0, 5.0), strict=True)), np.random.default_rng(0))
    found.cold[of.settings[1].key]["numerics"]["verdict"] = "lower precision"
    result = summarise(found)
    assert "Lower precision: eager (bfloat16)." in result.verdict[2]
    assert "All answers agree" not in result.verdict[2]
    assert {one.setting for one in result.advice} == {"eager, float32"}


def test_another_batch_size_is_no_rival() -> None:
    of = plan(["eager", "default"], batch_sizes=[8, 1])
    found = measured(of, dict(zip(of.settings, (20.0, 30.0, 10.0, 5.0), strict=True)), np.random.default_rng(0))
    assert summarise(found).verdict[0].endswith("at batch 8, and nothing is faster by 5 %.")


def test_what_answers_wrongly_never_pays() -> None:
    result = verdicts({"eager": 10.0, "default": 1.0}, {"default": "wrong"})
    default = result.rows[1]
    assert (default.pays, default.break_even_cold, default.break_even_warm) == ("not told", None, None)
    assert words.cells(default)[-1] == "-"


def test_a_setting_that_failed_is_a_row() -> None:
    found = bench({"eager": 10.0, "default": 1.0})
    failed = {
        "kind": "timeout",
        "stage": "compile",
        "session": "cold",
        "message": "no answer after 900 s",
        "after_s": 900.0,
    }
    default = next(setting for setting in found.plan.settings if setting.mode == "default")
    found.cold[default.key] = {"open": cold(1, 1)["open"], "failure": failed}
    for one in found.rounds.values():
        del one[default.key]
    result = summarise(found)
    assert len(result.rows) == 2
    assert result.rows[1].failure is not None
    assert result.rows[1].failure.kind == "timeout"
    assert "1 of 2 failed: default" in result.verdict[2]
    assert {one.setting for one in result.advice} == {"eager"}


def test_tails_are_refused_below_20_and_100_steps_per_session() -> None:
    few = row(bench({"eager": 10.0}, n_blocks=1, n=19), "eager")
    assert [quantile.value_ms is None for quantile in few.quantiles] == [False, True, True]
    some = row(bench({"eager": 10.0}, n_blocks=1, n=99), "eager")
    assert [quantile.value_ms is None for quantile in some.quantiles] == [False, False, True]
    enough = row(bench({"eager": 10.0}, n_blocks=10, n=10), "eager")
    assert all(quantile.value_ms is not None for quantile in enough.quantiles)
    assert "at least 20 values" in few.quantiles[1].refused


def test_deadline_misses_have_an_interval_and_none_are_not_never() -> None:
    of = plan(["eager"], deadline_ms=10.0)
    found = measured(of, {of.settings[0]: 5.0}, np.random.default_rng(0))
    misses = summarise(found).rows[0].misses
    assert misses is not None
    assert misses.n_missed == 0
    assert misses.high is not None
    assert 0 < misses.high < 0.02


def test_deadline_misses_of_one_session_say_little_about_the_next() -> None:
    """Each session misses all or none, or all miss some: the share is the same."""
    of = plan(["eager"], deadline_ms=10.0)
    slow, quick = [20.0] * 10, [5.0] * 10
    told = []
    for blocks in ([[slow] * 10, [quick] * 10] * 4, [[slow, quick] * 5] * 8):
        found = measured(of, {of.settings[0]: 5.0}, np.random.default_rng(0), rounds=8)
        for sessions, one in zip(found.rounds.values(), blocks, strict=True):
            sessions[of.settings[0].key] = session(one) | {"warm_up": [5_000_000] * 20}
        misses = summarise(found).rows[0].misses
        assert misses is not None
        assert misses.share == 0.5
        assert misses.low is not None
        assert misses.high is not None
        told.append(misses.high - misses.low)
    clustered, even = told
    assert clustered > 0.5
    assert even < 0.1


def test_deadline_misses_of_two_sessions_have_no_interval() -> None:
    of = plan(["eager"], deadline_ms=10.0)
    found = measured(of, {of.settings[0]: 5.0}, np.random.default_rng(0), rounds=2)
    misses = summarise(found).rows[0].misses
    assert misses is not None
    assert (misses.share, misses.low, misses.high) == (0.0, None, None)
    assert words.misses(misses) == "0 of 200 steps took longer than 10.0 ms (0 %)"


def test_throughput_counts_samples_and_larger_batches_win() -> None:
    of = plan(["eager"], batch_sizes=[1, 8])
    one, eight = of.settings
    found = measured(of, {one: 10.0, eight: 40.0}, np.random.default_rng(0))
    result = summarise(found)
    best = next(advice for advice in result.advice if advice.need == "throughput")
    assert best.batch_size == 8
    rate = result.rows[1].throughput
    assert rate is not None
    assert rate.unit == "samples/s"
    assert rate.value == pytest.approx(200, rel=0.15)


def test_the_least_memory_is_advised_for_the_edge() -> None:
    found = bench({"eager": 10.0, "default": 5.0})
    default = next(setting for setting in found.plan.settings if setting.mode == "default")
    for one in found.rounds.values():
        one[default.key]["peak"] = 900 << 20
    edge = next(one for one in summarise(found).advice if one.need == "edge memory")
    assert edge.setting == "eager"
    assert "default takes 900 MiB" in edge.why


def test_of_those_as_small_the_one_that_is_fastest_is_advised_for_the_edge() -> None:
    found = bench({"eager": 10.0, "max-autotune": 5.0})
    edge = next(one for one in summarise(found).advice if one.need == "edge memory")
    assert edge.setting == "max-autotune"
    assert edge.ties == ("eager",)
    assert edge.why.endswith("; as good: eager")


def test_a_tie_has_one_answer_for_every_need() -> None:
    """One step in ten of one way is long: its mean is 8 % longer, its tail too, and its median is not."""
    for slow in MODES[:2]:
        found = bench({"eager": 10.0, "default": 10.0})
        for number, sessions in found.rounds.items():
            for setting in found.plan.settings:
                if setting.mode == slow:
                    for block in sessions[setting.key]["blocks"]:
                        block["ns"][number % 10] *= 1.8
        result = summarise(found)
        assert result.comparisons[0].tie
        assert {one.setting for one in result.advice if one.need != "tail"} == {"eager"}, slow
    quick = summarise(bench({"eager": 12.0, "default": 10.0, "max-autotune": 10.1}))
    assert {one.setting for one in quick.advice} == {"default"}


def test_the_headline_tells_after_how_many_calls() -> None:
    result = summarise(bench({"eager": 10.0, "default": 8.0}))
    assert re.match(r"Use default: .* 1\.\d+ \(.*\) times as fast as eager after 9,\d\d\d calls\.$", result.verdict[0])
    assert re.search(r" with warm ones, which is paid for after [\d,]+ calls\.$", result.verdict[1])


def test_eager_with_another_batch_size_is_as_simple() -> None:
    of = plan(["eager", "default"], batch_sizes=[1, 8])
    one, _, eight, compiled = of.settings
    found = measured(of, {one: 1.0, of.settings[1]: 1.0, eight: 8.0, compiled: 8.0}, np.random.default_rng(0))
    why = next(one for one in summarise(found).advice if one.need == "throughput").why
    simple = [part for part in why.split("; ") if "less simple" not in part]
    assert any("eager (batch " in part for part in simple), why
    assert "less simple: eager" not in why


def test_another_batch_size_is_called_where_there_is_one() -> None:
    of = plan(["eager", "default"], batch_sizes=[1, 8])
    assert [of.other_size(setting) for setting in of.settings] == [8, 8, 1, 1]
    assert plan(["eager"], batch_sizes=[4]).other_size(of.settings[0]) is None
    found = measured(of, dict.fromkeys(of.settings, 5.0), np.random.default_rng(0))
    found.cold[of.settings[1].key]["other"] = {"batch_size": 8, "ns": 3_000_000_000, "recompiles": 1}
    told = summarise(found).rows[1].compilation
    assert told is not None
    assert told.other_size == OtherSize(8, 3.0, 1)
    assert "then batch 8: 3.00 s once, 1 recompile" in words.compilation(told)


def test_phases_add_up_to_the_compile_time() -> None:
    told = row(bench({"eager": 10.0, "default": 5.0}), "default").compilation
    assert told is not None
    assert sum(phase.cold_s for phase in told.phases) == 9.5


def test_sessions_that_never_settle_are_said_to() -> None:
    found = bench({"eager": 10.0})
    for one in found.rounds.values():
        raw = one[found.plan.settings[0].key]
        raw["warm_up"] = [int(value) for value in np.linspace(10e6, 30e6, 60)]
        for at, block in enumerate(raw["blocks"]):
            block["ns"] = [int((30 + 3 * at) * 1e6)] * 10
    result = summarise(found)
    assert result.rows[0].steady_from is None
    assert result.rows[0].n_steady == 0
    assert "not-steady" in {note.code for note in result.notes}


def test_dtypes_are_compared_by_their_rounds() -> None:
    of: BenchPlan = plan(["eager"], dtypes=["float32", "bfloat16"])
    full, half = of.settings
    steps: dict[Setting, float] = {full: 10.0, half: 5.0}
    result = summarise(measured(of, steps, np.random.default_rng(0)))
    assert result.advice[0].line == "model = model.to(torch.bfloat16)  # eager: no torch.compile"
