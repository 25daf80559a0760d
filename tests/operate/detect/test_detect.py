"""The default detectors: quiet on what is normal, however odd, and quick on what is not."""

import json
import math
import pickle
import random
from itertools import accumulate, pairwise

import pytest
from click.testing import CliRunner

from torchtriage.cli.main import cli
from torchtriage.core.errors import SampleError
from torchtriage.operate.detect.latency_detector import RequestDetector, Sample
from torchtriage.operate.detect.metric import MetricDetector
from torchtriage.operate.detect.recorded import LabelledFault, StreamLabels, read_labels, read_log
from torchtriage.operate.detect.replay import replay
from torchtriage.operate.detect.score import DetectionScore, Scoring, episodes, nab_points, score

N = 4000


def stream(n=N, seed=1, size=None):
    """Return requests of 2 ms, 5 % scatter, and a slow one in a hundred."""
    draw = random.Random(seed)
    out = []
    for at in range(n):
        value = 2e-3 * math.exp(draw.gauss(0, 0.05)) * (1.5 if draw.random() < 0.01 else 1)
        out.append(Sample(value, at * 0.003, size))
    return out


def raised(samples, detector=None):
    detector = detector or RequestDetector()
    return [alarm for alarm in map(detector.update, samples) if alarm]


def changed(samples, start, end, change):
    return [change(at, one) if start <= at < end else one for at, one in enumerate(samples)]


def times(factor):
    return lambda at, one: one._replace(value=one.value * factor)


@pytest.mark.parametrize("seed", range(4))
def test_quiet_on_noise(seed):
    assert raised(stream(10_000, seed=seed)) == []


def test_quiet_on_a_start_up_that_decays():
    samples = changed(stream(), 0, 400, lambda at, one: one._replace(value=one.value * (1 + 4 * 0.98**at)))
    assert raised(samples) == []


def test_quiet_on_rare_large_values_that_always_came():
    samples = [one._replace(value=one.value * (25 if at % 331 == 7 else 1)) for at, one in enumerate(stream(8000))]
    assert [alarm for alarm in raised(samples) if alarm.row > 2500] == []


def test_quiet_on_waves_of_load_where_the_size_is_told():
    def sized(at, one):
        size = round(16 + 12 * math.sin(at / 700))
        return one._replace(value=one.value * (0.2 + size / 20), size=size)

    samples = changed(stream(8000, seed=2), 0, 8000, sized)
    assert raised(samples) == []


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 86400.0])
def test_quiet_on_a_clock_that_jumps(jump_s):
    samples = changed(stream(), 2000, N, lambda at, one: one._replace(at_s=one.at_s + jump_s))
    assert raised(samples) == []


@pytest.mark.parametrize("factor", [0.5, 0.6, 1.5, 2.0, 4.0])
def test_a_large_shift_is_found_within_ten_requests(factor):
    (alarm, *_) = raised(changed(stream(), 2000, 2400, times(factor)))
    assert alarm.kind in ("faster", "shift", "tail")
    assert 2000 <= alarm.row <= 2010 + 5 * (factor < 1)


def test_a_small_shift_is_found_in_time():
    (alarm, *_) = raised(changed(stream(), 2000, 2400, times(1.2)))
    assert alarm.kind == "shift"
    assert 2000 <= alarm.row <= 2040
    assert "slower" in alarm.message


def test_a_change_that_stays_is_told_once_and_its_end_is_no_change_again():
    alarms = raised(changed(stream(8000), 2000, 5000, times(1.6)))
    assert all(2000 <= alarm.row < 2300 for alarm in alarms)


def test_tails_spread_and_one_huge_request_are_found():
    draw = random.Random(3)
    tail = changed(stream(), 2000, 2400, lambda at, one: times(6 if draw.random() < 0.03 else 1)(at, one))
    assert any(2000 <= one.row < 2400 for one in raised(tail))
    wide = changed(stream(), 2000, 2400, lambda at, one: times(math.exp(draw.gauss(0, 0.3)))(at, one))
    assert any(2000 <= one.row < 2400 for one in raised(wide))
    huge = changed(stream(), 2000, 2001, times(300))
    assert [(one.kind, one.row) for one in raised(huge)] == [("surge", 2000)]


def test_one_pause_of_a_garbage_collection_is_no_alarm():
    def paused(at, one):
        return one._replace(value=one.value + 0.06)

    assert raised(changed(stream(), 2000, 2001, paused)) == []


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_a_burst_that_passes_is_no_alarm(factor):
    assert raised(changed(stream(), 2000, 2010, times(factor))) == []


def test_a_slow_ramp_does_not_teach_that_it_is_usual():
    samples = changed(
        stream(), 2000, 2800, lambda at, one: one._replace(value=one.value * (1 + 0.3 * (at - 2000) / 800))
    )
    assert any(2000 <= one.row < 2800 for one in raised(samples))


def test_failures_nan_and_stuck_values_are_found_within_ten_requests():
    for change in (
        lambda at, one: one._replace(ok=False),
        lambda at, one: one._replace(value=math.nan),
        lambda at, one: one._replace(value=math.inf),
        lambda at, one: one._replace(value=2e-3),
    ):
        (alarm, *_) = raised(changed(stream(), 2000, 2100, change))
        assert alarm.kind in ("missing", "nan", "stuck")
        assert 2000 <= alarm.row < 2010


def test_one_failure_alone_is_no_alarm_and_failures_as_ever_are_none():
    assert raised(changed(stream(), 2000, 2001, lambda at, one: one._replace(ok=False))) == []
    draw = random.Random(4)
    often = [one._replace(ok=draw.random() > 0.05) for one in stream(8000, seed=2)]
    assert [one for one in raised(often) if one.row > 2000] == []


def test_other_sizes_than_ever_are_told_as_such():
    def larger(at, one):
        return one._replace(size=64, value=one.value * 3)

    (alarm, *_) = raised(changed(stream(size=8), 2000, 2400, larger))
    assert alarm.row < 2030
    assert alarm.cause == "input mix"
    (alarm, *_) = raised(changed(stream(size=0), 2000, 2400, larger))
    assert (alarm.kind, alarm.size) == ("input-mix", 1.0)


@pytest.mark.parametrize("make", [RequestDetector, MetricDetector])
def test_odd_values_break_nothing(make):
    detector = make()
    odd = [0.0, -1.0, 1e300, -1e300, math.nan, math.inf, -math.inf, 5e-324]
    for at in range(3000):
        for value in odd:
            detector.update(Sample(value, at * (-1) ** at, size=[0, -1, 1e18, None][at % 4]))
    assert len(pickle.dumps(detector)) < 100_000


@pytest.mark.parametrize("make", [RequestDetector, MetricDetector])
def test_a_saved_detector_goes_on_as_if_nothing_had_been(make):
    one = make()
    for sample in stream(2000):
        one.update(sample)
    other = pickle.loads(pickle.dumps(one))
    rest = changed(stream(1000, seed=9), 500, 1000, times(1.4))
    assert [one.update(sample) for sample in rest] == [other.update(sample) for sample in rest]


# -- metrics -------------------------------------------------------------------------------


def metric(days=20, seed=1):
    draw = random.Random(seed)
    return [
        Sample(100 + 40 * math.sin(at / 24 * 2 * math.pi) + draw.gauss(0, 3), at * 3600.0) for at in range(24 * days)
    ]


def test_a_daily_wave_is_normal_and_a_reading_at_the_wrong_hour_is_not():
    assert raised(metric(), MetricDetector()) == []
    samples = metric()
    noon = 24 * 15 + 18  # the wave's lowest hour
    samples[noon] = samples[noon]._replace(value=140.0)
    found = raised(samples, MetricDetector())
    assert [one.row for one in found] == [noon]


def test_a_metric_of_nothing_is_quiet_and_its_first_burst_is_not():
    flat = [Sample(5.0, at * 300.0) for at in range(2000)]
    assert raised(flat, MetricDetector()) == []
    flat[1500] = flat[1500]._replace(value=50.0)
    assert [one.row for one in raised(flat, MetricDetector())] == [1500]


def test_an_hour_that_was_odd_before_makes_no_alarm_of_the_usual_reading():
    samples = metric()
    for day in (1, 2, 3):
        samples[24 * day + 5] = samples[24 * day + 5]._replace(value=450.0)
    assert raised(samples, MetricDetector()) == []


def fast_wave(pace_s):
    draw = random.Random(2)
    wave = [100 + 40 * math.sin(at / 37 * 2 * math.pi) + draw.gauss(0, 2) for at in range(3000)]
    wave[2072:2092] = [100 + draw.gauss(0, 2) for _ in range(20)]  # 2072 / 37 is a crossing of the mean
    return [Sample(value, at * pace_s) for at, value in enumerate(wave)]


def test_a_wave_that_goes_flat_is_a_pattern_that_never_came():
    (alarm,) = raised(fast_wave(300.0), MetricDetector())
    assert alarm.kind == "pattern"
    assert 2072 < alarm.row <= 2092


def test_a_pace_of_which_no_week_is_kept_has_no_patterns():
    assert raised(fast_wave(60.0), MetricDetector()) == []


# -- scoring and replay --------------------------------------------------------------------


def test_episodes_join_and_long_ones_count_again():
    assert episodes([10, 12, 30, 90, 200], 50) == [10, 90, 200]
    assert episodes(range(0, 450, 10), 50) == [0, 200, 400]


def test_a_score_counts_by_the_rules():
    labels = StreamLabels(
        (LabelledFault("shift", 1000, 1300), LabelledFault("clock", 3000, 3001, benign=True)), ((4000, 4100),)
    )
    judged = score([700, 1020, 1600, 2500, 3010, 4050], labels, 5000, Scoring.of(5000, is_requests=True))
    assert [fault.delay for fault in judged.faults] == [20]
    assert judged.false_alarms == (700, 2500, 3010)
    assert judged.benign_alarms == (3010,)
    assert judged.n_clean == 5000 - 600 - 800 - 100
    assert judged.per_10k == pytest.approx(3 / 3500 * 1e4)
    both = DetectionScore.of([judged, judged])
    assert (both.recall, both.n_clean) == (1.0, 7000)
    assert math.isnan(DetectionScore.of([]).recall)


def test_a_numenta_score_does_not_depend_on_the_order_of_labels():
    faults = [LabelledFault("window", start, start + 100) for start in (1000, 2000)]
    assert nab_points([2110], faults, 0) == nab_points([2110], faults[::-1], 0)


def test_a_perfect_numenta_score_is_a_hundred():
    labels = StreamLabels((LabelledFault("window", 1000, 1100),))
    rules = Scoring.of(4000, is_requests=False)
    assert score([1000], labels, 4000, rules).nab_score == pytest.approx(100, abs=0.1)
    assert score([], labels, 4000, rules).nab_score == 0


def test_replay_tells_alarms_and_scores_them(tmp_path):
    log = tmp_path / "requests.csv"
    samples = changed(stream(), 2000, 2400, times(1.5))
    rows = "\n".join(f"{sample.at_s},{sample.value * 1e6:.1f}" for sample in samples)
    log.write_text(f"t_s,latency_us\n{rows}\n")
    labels = tmp_path / "requests.json"
    labels.write_text(json.dumps({"faults": [{"kind": "shift", "start": 2000, "end": 2400, "factor": 1.5}]}))
    done = CliRunner().invoke(cli, ["monitor", "replay", str(log), "--labels", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "4,000 requests" in done.output
    assert "1 of 1 fault found, 0 false alarms" in done.output
    done = CliRunner().invoke(cli, ["monitor", "replay", str(log), "--json"])
    assert json.loads(done.output)["schema"] == "torchtriage-monitor-replay/1"


def test_replay_reads_the_log_of_requests(tmp_path):
    log = tmp_path / "requests.jsonl"
    lines = [
        json.dumps({"model": "m", "version": str(at % 2), "at_s": at, "duration_ns": 2_000_000 + at})
        for at in range(100)
    ]
    log.write_text("\n".join([*lines, "{broken", '"text"', ""]))
    done = CliRunner().invoke(cli, ["monitor", "replay", str(log)])
    assert done.exit_code == 0, done.output
    assert (
        "m 0: 50 requests, 0 alarms (2 lines could not be read in full)\n  no duration was judged: the first 500"
        in done.output
    )


@pytest.mark.parametrize("share", [None, 1, 0.01, 0])
def test_replay_says_where_the_log_holds_a_share_of_the_requests(tmp_path, share):
    log = tmp_path / "requests.jsonl"
    line = {"at_s": 1, "duration_ns": 2_000_000} | ({} if share is None else {"sample": share})
    log.write_text(json.dumps(line))
    said = CliRunner().invoke(cli, ["monitor", "replay", str(log)]).output
    told = json.loads(CliRunner().invoke(cli, ["monitor", "replay", str(log), "--json"]).output)
    is_sampled = share in (0.01, 0)
    assert ("a sample of the successful requests" in said) == told["streams"][0]["is_sampled"] == is_sampled


@pytest.mark.parametrize(("column", "first"), [("latency_s", 500), ("value", 100)])
def test_replay_says_where_all_values_only_teach(tmp_path, column, first):
    log = tmp_path / "log.csv"
    for n in (first - 1, first + 1):
        log.write_text("\n".join([column, *(str(sample.value) for sample in stream(n))]))
        (replayed,) = replay(log)
        assert bool(replayed.n_judged) == (n > first)
        said = CliRunner().invoke(cli, ["monitor", "replay", str(log)]).output
        assert (f"was judged: the first {first}" in said) == (n < first)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_metric_whose_times_are_not_known_is_judged(odd):
    samples = [Sample(100 + at % 7, odd if at % 2 else 60.0 * at) for at in range(600)]
    assert raised(samples, MetricDetector()) == []
    assert raised([one._replace(at_s=odd) for one in samples], MetricDetector()) == []


def test_sizes_whose_quotient_is_no_number_end_no_detector():
    draw = random.Random(1)
    samples = [one._replace(size=draw.choice((7e-200, 1e308, 5.0))) for one in stream(2000)]
    assert raised(samples) == []


def test_replay_reads_sizes_that_are_none_and_a_mark_of_the_order_of_bytes(tmp_path):
    log = tmp_path / "requests.csv"
    rows = [f"{sample.value},{at if at % 3 else 'inf' if at % 2 else ''}" for at, sample in enumerate(stream(900))]
    log.write_text("\n".join(["\ufefflatency_s,size", *rows]), encoding="utf-8")
    (recorded,) = read_log(log)
    assert [sample.size for sample in recorded.samples[:4]] == [None, 1.0, 2.0, None]
    assert raised(recorded.samples) == []


@pytest.mark.parametrize(
    ("column", "words", "n_ok", "n_labelled"),
    [
        ("", ("0", "7"), 20, 0),  # the index that pandas writes
        ("ok", ("True", "False"), 15, 0),
        ("ok", ("1.0", "0.0"), 15, 0),
        ("error", ("", "OutOfMemoryError"), 15, 0),
        ("error", ("None", "ValueError"), 15, 0),
        ("error", ("0", "1"), 15, 0),
        ("error", ("False", "False"), 20, 0),
        ("label", ("False", "True"), 20, 5),
        ("label", ("0.0", "1.0"), 20, 5),
    ],
)
def test_what_is_true_is_read_in_every_usual_form(tmp_path, column, words, n_ok, n_labelled):
    log = tmp_path / "log.csv"
    log.write_text("\n".join([f"{column},duration_s", *(f"{words[10 <= at < 15]},0.01" for at in range(20))]))
    (recorded,) = read_log(log)
    assert sum(sample.ok for sample in recorded.samples) == n_ok
    assert sum(recorded.labels) == n_labelled
    assert recorded.n_skipped == 0


@pytest.mark.parametrize(("column", "needed"), [("ok", True), ("label", True), ("t_s", False), ("size", False)])
def test_a_column_of_which_nothing_can_be_read_is_told_or_counted_and_a_torn_cell_is_counted(tmp_path, column, needed):
    log = tmp_path / "log.csv"
    log.write_text(f"{column},duration_s\nnormal,0.01\nnormal,0.02\n")
    if needed:
        with pytest.raises(SampleError, match=f"column {column}: expected .* found 'normal'"):
            read_log(log)
    else:
        (recorded,) = read_log(log)
        assert (recorded.n_skipped, recorded.stamps) == (2, ["", ""])
        assert [sample.at_s for sample in recorded.samples] == [0.0, 1.0]
    log.write_text(f"{column},duration_s\n1,0.01\n1,0.02\nnor,\n")
    (recorded,) = read_log(log)
    assert (len(recorded.samples), recorded.n_skipped) == (3, 1)


MOMENT = "2024-01-01T00:33:20"  # 1704069200 s


@pytest.mark.parametrize(
    ("stamp", "at_s"),
    [
        (MOMENT, 1704069200.0),
        ("2024-01-01 00:33:20 UTC", 1704069200.0),
        ("2024-01-01T00:33:20Z", 1704069200.0),
        ("2024-01-01T01:33:20+01:00", 1704069200.0),
        ("2024-01-01 00:33:20 +0000", 1704069200.0),
        ("2024-01-01 00:33:20.5+00", 1704069200.5),
        ("2023-12-31 22:33:20.250000000-0200", 1704069200.25),
        ("1704069200000", 1704069200.0),
        ("1704069200000000000", 1704069200.0),
        ("2000", 2000.0),
    ],
)
def test_times_are_seconds_whatever_the_log_counts_in(tmp_path, stamp, at_s):
    log = tmp_path / "log.csv"
    log.write_text(f"timestamp,value\n,1\n{stamp},1\n,2\n")
    assert [sample.at_s for sample in read_log(log)[0].samples] == [at_s] * 3


@pytest.mark.parametrize("stamp", ["01/31/2024 12:00:00", "12:00:01"])
def test_times_in_other_forms_are_counted_and_rows_are_the_clock(tmp_path, stamp):
    log = tmp_path / "log.csv"
    for lines in ([json.dumps({"at_s": stamp, "value": 1})] * 3, ["time,value", *[f"{stamp},1"] * 3]):
        log.write_text("\n".join(lines))
        (recorded,) = read_log(log)
        assert [sample.at_s for sample in recorded.samples] == [0.0, 1.0, 2.0]
        assert recorded.n_skipped == 3


@pytest.mark.parametrize(("window", "found"), [([40e9, 60e9], (100, 301)), ([120e9, 150e9], (900, 1201))])
def test_a_clock_in_nanoseconds_since_the_start_has_one_unit(tmp_path, window, found):
    log, labels = tmp_path / "log.csv", tmp_path / "labels.json"
    log.write_text("\n".join(["time,duration_s", *(f"{30e9 + at * 1e8:.0f},0.01" for at in range(3000))]))
    labels.write_text(json.dumps({"log": [window]}))
    (recorded,) = read_log(log)
    assert all(before.at_s < after.at_s for before, after in pairwise(recorded.samples))
    (fault,) = read_labels(labels, recorded, log).faults
    assert (fault.start, fault.end) == found


def test_a_log_with_the_newest_line_first_is_told(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("t_s,value\n" + "".join(f"{at},1\n" for at in range(9, 0, -1)))
    with pytest.raises(SampleError, match="oldest line first"):
        read_log(log)
    lines = [json.dumps({"at_s": at, "duration_ns": 1}) + "\n" for at in (5, 4, 3)]
    log.write_text("".join([*lines, json.dumps({"at_s": 1, "duration_ns": 10**400})]))
    with pytest.raises(SampleError, match="oldest line first"):
        read_log(log)


def test_requests_that_are_written_as_they_end_and_a_clock_that_begins_again_are_in_order(tmp_path):
    log = tmp_path / "log.csv"
    for seed in range(8):  # a hundred at once, with their begins
        draw = random.Random(seed)
        begins = list(accumulate(draw.expovariate(100) for _ in range(1000)))
        ended = sorted((begin + took, begin, took) for begin in begins for took in [draw.expovariate(1)])
        log.write_text("time,duration_s\n" + "".join(f"{begin:.6f},{took:.6f}\n" for _, begin, took in ended))
        assert len(read_log(log)[0].samples) == 1000
    times = (*range(1000, 2000), *range(500))
    log.write_text("time,value\n" + "".join(f"{at},1\n" for at in times))
    assert len(read_log(log)[0].samples) == 1500


@pytest.mark.parametrize(
    ("window", "found"),
    [
        (["2024-01-01 00:33:20.000000", "2024-01-01 00:38:20.000000"], (2000, 2301)),
        ([1704069200, 1704069500], (2000, 2301)),
        ([1704069200000, 1704069500000], (2000, 2301)),
        (["2025-01-01", "2025-01-02"], None),
    ],
)
def test_windows_are_compared_as_times(tmp_path, window, found):
    log, labels = tmp_path / "log.csv", tmp_path / "labels.json"
    rows = (f"2024-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02},0.01" for at in range(3000))
    log.write_text("\n".join(["timestamp,duration_s", *rows]))
    labels.write_text(json.dumps({"log": [window]}))
    if found is None:
        with pytest.raises(SampleError, match="found none of 1 there"):
            replay(log, labels)
    else:
        (fault,) = read_labels(labels, read_log(log)[0], log).faults
        assert (fault.start, fault.end) == found


def test_numbers_that_are_times_are_not_compared_as_text(tmp_path):
    log, labels = tmp_path / "log.csv", tmp_path / "labels.json"
    log.write_text("\n".join(["t_s,duration_s", *(f"{at},0.01" for at in range(3000))]))
    labels.write_text(json.dumps({"log": [["900", "1300"]]}))
    (fault,) = read_labels(labels, read_log(log)[0], log).faults
    assert (fault.start, fault.end) == (900, 1301)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\0\1\2", "value\n", "[1, 2]"])
def test_what_is_no_log_is_told(tmp_path, text):
    log = tmp_path / "log.csv"
    log.write_text(text)
    done = CliRunner().invoke(cli, ["monitor", "replay", str(log)])
    assert done.exit_code == 2
    assert "expected" in done.output


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"faults": [{}]}', '{"faults": 1}', "[" * 100_000, '{"other": []}', '{"log": [["x", "y"]]}'),
        '{"faults": [{"start": 0, "end": 1e999}]}',
    ],
)
def test_what_are_no_labels_is_told(tmp_path, text):
    log = tmp_path / "log.csv"
    log.write_text("value\n1\n2\n")
    labels = tmp_path / "labels.json"
    labels.write_text(text)
    done = CliRunner().invoke(cli, ["monitor", "replay", str(log), "--labels", str(labels)])
    assert done.exit_code == 2
    assert "Traceback" not in done.output
