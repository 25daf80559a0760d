"""What is compared with recordings of another time: their own noise, levels and counts."""

from __future__ import annotations

from dataclasses import replace

from tests.measure.gate.sides import LIMITS, constant, first, run, series, timed

from torchtriage.core.samples import Run
from torchtriage.measure.gate.check import check
from torchtriage.measure.gate.result import MetricRow


def stored(factor: float, seed: int, at_s: float) -> Run:
    return run(timed(factor, seed=seed, rounds=False), at_s=at_s, commit=f"{seed:040d}")


def test_stored_samples_allow_for_what_two_recordings_differ_by() -> None:
    alone = check([stored(1, 1, 10)], [stored(1.04, 2, 90)], LIMITS)
    assert (alone.design, alone.exit_code) == ("stored", 2)
    assert first(alone).floor == 0.05
    assert any(note.code == "noise-floor" for note in alone.notes)
    repeats = [stored(1 + 0.002 * (seed % 3), seed, seed) for seed in range(1, 7)]
    steady = check(repeats, [stored(1.04, 9, 90)], LIMITS)
    assert steady.exit_code == 1
    assert first(steady).floor < 0.02
    assert check(repeats, [stored(1.0, 9, 90)], LIMITS).exit_code == 0


def test_drift_between_recordings_is_no_regression() -> None:
    repeats = [stored(factor, i, i) for i, factor in enumerate((1.0, 1.06, 0.95, 1.03, 0.98), 1)]
    result = check(repeats, [stored(1.05, 9, 90)], LIMITS)
    assert result.exit_code == 2
    assert "recordings of one program may differ by 21 %" in first(result).sentence


def test_the_floor_is_as_wide_as_the_number_of_metrics_asks() -> None:
    """Of 30 metrics, one is 12 % off: by as much as five recordings may be once in 700."""

    def recorded(factor: float, seed: int, n: int) -> Run:
        found = [timed(factor if i == 0 else 1, seed=seed + i, rounds=False, metric=f"m{i}") for i in range(n)]
        return run(*found, at_s=float(seed), commit=f"{seed:040d}")

    def told(n: int) -> MetricRow:
        repeats = [recorded(factor, 100 * i, n) for i, factor in enumerate((1.0, 1.02, 0.98, 1.01, 0.99), 1)]
        result = check(repeats, [recorded(1.12, 900, n)], LIMITS)
        return next(row for row in result.rows if (row.metric, row.statistic) == ("m0", "low"))

    alone, among = told(1), told(30)
    assert (alone.verdict, among.verdict) == ("regression", "inconclusive")
    assert alone.floor is not None
    assert among.floor is not None
    assert alone.floor < 0.1 < among.floor


def test_the_baseline_is_what_it_is_since_its_last_change() -> None:
    """Main took 20 % at its newest commit but one; its fifth had fixed five graph breaks."""

    def recorded(i: int, factor: float, breaks: int) -> Run:
        found = constant(breaks, "count", n=10, rounds=False)
        return run(timed(factor, seed=i, rounds=False, n=10), found, at_s=float(i), commit=f"{i:040x}")

    main = [recorded(i, 1.2 if i > 8 else 1.0, 5 if i < 5 else 0) for i in range(1, 11)]
    same = check(main, [recorded(90, 1.2, 0)], LIMITS, labels=("main", "topic"))
    assert same.exit_code == 0, same.verdict
    (note,) = [one for one in same.notes if one.code == "level"]
    assert note.message == ("the level of main changed: mlp latency is compared with its newest 2 runs")
    told = {(row.metric, row.statistic): row for row in same.rows}
    low = told["latency", "low"]
    assert low.floor < 0.03
    assert low.before is not None
    assert low.before.n_sessions == 20
    slower = check(main, [recorded(90, 1.32, 0)], LIMITS)
    assert [row.metric for row in slower.rows if row.decides and row.verdict == "regression"] == ["latency"]
    back = check(main, [recorded(90, 1.2, 5)], LIMITS)
    assert back.exit_code == 1
    assert [row.metric for row in back.rows if row.verdict == "regression"] == ["count"]
    (breaks,) = [row for row in back.rows if row.metric == "count"]
    assert breaks.before is not None
    assert (breaks.before.value, breaks.before.n_sessions) == (0, 60)


def test_counts_of_the_newest_commit_are_the_baseline() -> None:
    def recorded(commit: int, *values: float) -> Run:
        found = series([[value] for value in values], "k", unit="1", kind="count", rounds=False)
        return run(found, at_s=float(commit), commit=f"{commit:040x}")

    main = [recorded(1, 7, 7, 7), recorded(2, 3, 4, 3, 4, 3, 4), recorded(2, 3, 4, 4)]
    result = check(main, [recorded(9, *[7] * 9)], LIMITS)
    assert result.exit_code == 1
    assert result.rows[0].before is not None
    assert result.rows[0].before.n_sessions == 9


def test_a_busy_host_is_blamed_before_the_program_unless_in_turns() -> None:
    repeats = [stored(1 + 0.002 * (seed % 3), seed, seed) for seed in range(1, 7)]
    busy = (("host", "noisy: other processes used 1.7 of 2 cores meanwhile"),)
    slow = replace(stored(1.3, 9, 90), environment=busy)
    result = check(repeats, [slow], LIMITS)
    assert result.exit_code == 2
    assert "the host was noisy then; interleaved pairs would decide" in first(result).sentence
    assert check(repeats, [replace(slow, environment=())], LIMITS).exit_code == 1
    # what disturbed one benchmark says nothing of another
    alone = [replace(found, benchmark="other") for found in repeats]
    both = check([*repeats, *alone], [slow, replace(slow, benchmark="other", environment=())], LIMITS)
    assert [row.benchmark for row in both.rows if row.decides and row.verdict == "regression"] == ["other"]
    mark = (("interleaving", "one"),)
    turns = [run(timed(seed=1)), run(timed(1.3, seed=2), environment=(*mark, *busy))]
    assert check(turns[:1], turns[1:], LIMITS).exit_code == 1


def test_mean_and_tails_of_one_stored_run_are_not_judged() -> None:
    result = check([stored(1, 1, 10)], [stored(3, 2, 90)], LIMITS)
    verdicts = {row.statistic: row.verdict for row in result.rows}
    assert verdicts == {"low": "regression", "mean": "refused", "p95": "refused", "p99": "refused"}


def test_rounds_of_two_measurements_are_no_pairs() -> None:
    names = [((("interleaving", name),)) for name in ("x", "y")]
    one, other = (run(timed(seed=i), environment=name) for i, name in enumerate(names))
    assert check([one], [other], LIMITS).design == "stored"
    assert check([one], [replace(other, environment=names[0])], LIMITS).design == "interleaved"
    # numbered rounds alone do not say that they are those of one measurement
    untold = [replace(side, environment=()) for side in (one, other)]
    assert check(untold[:1], untold[1:], LIMITS).design == "stored"
