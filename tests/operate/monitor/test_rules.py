"""The rules are right by promtool: each alert fires when it should, and not when it should not."""

import json
import re
import subprocess

import pytest
from click.testing import CliRunner

from torchtriage.cli.main import cli
from torchtriage.core.errors import UsageError
from torchtriage.operate.monitor.metrics import expand, metrics_of
from torchtriage.operate.monitor.rules import RECORDED, alerts, rules

LATENCY = {"": 0.2, "slow": 2.0}
NAMES = [one.name for one in alerts(latency=LATENCY)]


def series(name, values, **labels):
    """Return a series as promtool takes it; of the one service there is, one value a minute."""
    every = {"job": "service", "instance": "a:9464", **labels}
    inside = ",".join(f'{label}="{text}"' for label, text in every.items())
    full = name if name == "up" else f"torchtriage_{name}"
    return {"series": f"{full}{{{inside}}}", "values": values}


def of_model(name, values, **labels):
    return series(name, values, **{"model": "m", "version": "1", **labels})


def histogram(name, per_minute, seconds, **labels):
    """Return the buckets of requests that all take about ``seconds``."""
    found = []
    for le in ("0.01", "0.1", "1", "10", "+Inf"):
        n = per_minute if float(le) >= seconds else 0
        found.append(of_model(f"{name}_bucket", f"0+{n}x120", le=le, **labels))
    return [*found, of_model(f"{name}_count", f"0+{per_minute}x120", **labels)]


def answers(per_minute=600, seconds=0.05, **labels):
    return histogram("inference_duration_seconds", per_minute, seconds, **labels)


HEALTHY = [
    series("up", "1x120"),
    *answers(),
    *answers(seconds=0.9, model="slow"),
    *histogram("inference_queue_seconds", 600, 0.005),
    of_model("inference_errors_total", "0+6x120", error="ValueError"),
    of_model("inference_errors_total", "3x120", error="OutOfMemoryError"),
    of_model("inference_nan_outputs_total", "7x120"),
    of_model("inference_in_flight", "3x120"),
    of_model("inference_input_sizes", "9x120"),
    of_model("alarms_total", "2x120", kind="shift"),
    series("device_allocated_bytes", "70x120", device="0"),
    series("device_reserved_bytes", "99x120", device="0"),
    series("device_capacity_bytes", "100x120", device="0"),
    series("compile_recompiles_total", "4x120"),
    series("compile_graph_breaks_total", "2x120"),
    series("ladder_level", "0x120", ladder="boxes"),
    series("rollout_candidate_ratio", "0.05x120", rollout="int8"),
    series("rollout_candidate_ratio", "0x120", rollout="rolled back long ago"),
    series("monitor_pending", "5x120"),
    series("monitor_requests_total", "0+606x120", outcome="sent"),
    series("monitor_requests_total", "4x120", outcome="dropped"),
    series("monitor_outlet_records_total", "0+6x120", outlet="JsonLog", outcome="sent"),
    series("monitor_outlet_records_total", "2x120", outlet="JsonLog", outcome="dropped"),
    series("monitor_outlet_pending", "1x120", outlet="JsonLog"),
    series("monitor_failures_total", "1x120"),
    series("monitor_refused_models_total", "1x120"),
    series("fleet_alarms_total", "2x120", kind="slow-device"),
    series("fleet_lag_seconds", "1x120"),
    series("fleet_records_total", "0+600x120", outcome="taken"),
    series("fleet_records_total", "5x120", outcome="lost"),
    series("monitor_start_time_seconds", "0x120"),
]

# what changes, and the minute at which the alert must fire
FIRES = {
    "TorchtriageErrors": (30, [of_model("inference_errors_total", "0+60x120", error="ValueError")]),
    "TorchtriageLatency": (30, answers(seconds=0.9)),
    "TorchtriageDown": (30, [series("up", "1x20 0x120"), series("monitor_pending", "5x20")]),
    "TorchtriageStuck": (40, [*answers(per_minute=0), of_model("inference_errors_total", "8x120", error="ValueError")]),
    "TorchtriageNaN": (22, [of_model("inference_nan_outputs_total", "0x20 1x120")]),
    "TorchtriageOutOfMemory": (22, [of_model("inference_errors_total", "_x20 1x120", error="OutOfMemoryError")]),
    "TorchtriageLatencyShift": (105, [of_model("inference_duration_seconds_bucket", "0+600x80 48000x120", le="0.1")]),
    "TorchtriageQueue": (30, histogram("inference_queue_seconds", 600, 0.9)),
    "TorchtriageDeviceMemory": (30, [series("device_allocated_bytes", "95x120", device="0")]),
    "TorchtriageRecompiles": (32, [series("compile_recompiles_total", "4x30 5x120")]),
    "TorchtriageGraphBreaks": (32, [series("compile_graph_breaks_total", "2x30 9x120")]),
    "TorchtriageAnomaly": (22, [of_model("alarms_total", "0x20 1x120", kind="shift")]),
    "TorchtriageDegraded": (30, [series("ladder_level", "0x5 1x120", ladder="boxes")]),
    "TorchtriageRolledBack": (22, [series("rollout_candidate_ratio", "0.05x20 0x120", rollout="int8")]),
    "TorchtriageTelemetryLost": (
        22,
        [series("monitor_outlet_records_total", "2x20 9x120", outlet="JsonLog", outcome="dropped")],
    ),
    "TorchtriageOutletStuck": (30, [series("monitor_outlet_records_total", "6x120", outlet="JsonLog", outcome="sent")]),
    "TorchtriageFleetAnomaly": (22, [series("fleet_alarms_total", "2x20 3x120", kind="slow-device")]),
    "TorchtriageFleetBehind": (30, [series("fleet_lag_seconds", "0x20 60x120")]),
    "TorchtriageFleetLost": (22, [series("fleet_records_total", "5x20 7x120", outcome="lost")]),
    "TorchtriageModelsRefused": (22, [series("monitor_refused_models_total", "1x20 2x120")]),
}

# what comes near, at every minute up to this one
QUIET = {
    "TorchtriageErrors": (40, [of_model("inference_errors_total", "0+6x20 420+6x120", error="ValueError")]),
    "TorchtriageLatency": (40, answers(seconds=0.9, model="slow")),
    "TorchtriageDown": (40, [series("up", "0x120"), series("monitor_pending", "_x120")]),
    "TorchtriageStuck": (
        40,
        [
            *answers(per_minute=0),
            of_model("inference_errors_total", "8x120", error="ValueError"),
            of_model("inference_in_flight", "0x120"),
        ],
    ),
    "TorchtriageNaN": (40, [of_model("inference_nan_outputs_total", "_x20 0x120")]),
    "TorchtriageOutOfMemory": (40, [of_model("inference_errors_total", "0+6x120", error="MemoryBudget")]),
    "TorchtriageLatencyShift": (
        105,
        [
            # a handful of slow requests, where there are few
            *answers(per_minute=5),
            of_model("inference_duration_seconds_bucket", "0+5x80 400x120", le="0.1"),
            of_model("inference_errors_total", "0x120", error="ValueError"),
        ],
    ),
    "TorchtriageQueue": (40, histogram("inference_queue_seconds", 600, 0.05)),
    "TorchtriageDeviceMemory": (40, [series("device_allocated_bytes", "70x10 95x5 70x120", device="0")]),
    # compiled while the process is young: it began at minute 20
    "TorchtriageRecompiles": (
        60,
        [
            series("compile_recompiles_total", "_x20 0+2x5 10x120"),
            series("monitor_start_time_seconds", "0x20 1200x120"),
        ],
    ),
    "TorchtriageGraphBreaks": (
        60,
        [
            series("compile_graph_breaks_total", "_x20 0+2x5 10x120"),
            series("monitor_start_time_seconds", "0x20 1200x120"),
        ],
    ),
    "TorchtriageAnomaly": (40, [of_model("alarms_total", "9x20 0x120", kind="shift")]),
    "TorchtriageDegraded": (40, [series("ladder_level", "0x5 1x10 0x120", ladder="boxes")]),
    "TorchtriageRolledBack": (40, [series("rollout_candidate_ratio", "0.05x20 _x120", rollout="int8")]),
    "TorchtriageTelemetryLost": (
        40,
        [series("monitor_outlet_records_total", "9x20 0x120", outlet="JsonLog", outcome="dropped")],
    ),
    "TorchtriageOutletStuck": (
        40,
        [
            series("monitor_outlet_records_total", "6x120", outlet="JsonLog", outcome="sent"),
            series("monitor_outlet_pending", "0x120", outlet="JsonLog"),
        ],
    ),
    "TorchtriageFleetAnomaly": (40, [series("fleet_alarms_total", "9x20 0x120", kind="slow-device")]),
    "TorchtriageFleetBehind": (40, [series("fleet_lag_seconds", "0x20 60 0x120")]),
    "TorchtriageFleetLost": (40, [series("fleet_records_total", "9x20 0x120", outcome="lost")]),
    "TorchtriageModelsRefused": (40, [series("monitor_refused_models_total", "9x20 0x120")]),
}


def changed(job, alert, changes):
    """Return what an alert asks for of the healthy service, with others in the place of some."""
    queries = [alert.query, *(RECORDED.values() if "model:" in alert.query else ())]
    asked = ("up", *(metric.name for query in queries for metric in metrics_of(query)))
    found = {one["series"]: one for one in HEALTHY if one["series"].startswith(asked)}
    found |= {change["series"]: change for change in changes}
    return [{**one, "series": one["series"].replace('job="service"', f'job="{job}"')} for one in found.values()]


def firing(minute, name, n, labels=(), job=""):
    """Return that ``n`` alerts of a name fire, each with these labels."""
    asked = "".join(f',{label}!=""' for label in labels)
    asked += f',job="{job}"' if job else ""
    return {
        "expr": f'count(ALERTS{{alertname=~"{name}",alertstate="firing"{asked}}})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": "{}", "value": n}] if n else [],
    }


def promtool(tmp_path, tests):
    (tmp_path / "rules.yml").write_text(rules(latency=LATENCY))
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(document))
    command = ["promtool", "test", "rules", "tests.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def told_labels(alert):
    """Return the labels that an alert's texts name, which it must have, then."""
    return set(re.findall(r"{{ \$labels\.(\w+)", alert.summary + alert.description))


def test_every_alert_is_tried_both_ways():
    assert set(FIRES) == set(NAMES)
    assert set(QUIET) == set(NAMES)


@pytest.mark.prometheus
def test_nothing_fires_while_all_is_well(tmp_path):
    expected = [firing(minute, ".*", 0) for minute in (1, 15, 35, 60)]
    promtool(tmp_path, [{"interval": "1m", "input_series": HEALTHY, "promql_expr_test": expected}])


@pytest.mark.prometheus
def test_each_alert_fires_when_it_should_and_not_when_it_comes_near(tmp_path):
    """Each in a job of its own, all at once."""
    series, expected = [], []
    for alert in alerts(latency=LATENCY):
        minute, changes = FIRES[alert.name]
        series += changed(alert.name, alert, changes)
        expected.append(firing(minute, alert.name, 1, told_labels(alert), job=alert.name))
        last, changes = QUIET[alert.name]
        series += changed(f"not {alert.name}", alert, changes)
        minutes = range(10, last + 1, 5)
        expected += [firing(at, alert.name, 0, job=f"not {alert.name}") for at in minutes]
    promtool(tmp_path, [{"interval": "1m", "input_series": series, "promql_expr_test": expected}])


@pytest.mark.prometheus
def test_the_first_nan_is_told_where_nobody_had_said_that_there_is_none(tmp_path):
    (alert,) = [one for one in alerts() if one.name == "TorchtriageNaN"]
    first = changed("service", alert, [of_model("inference_nan_outputs_total", "_x20 1x120")])
    expected = [firing(minute, alert.name, n) for minute, n in ((15, 0), (22, 1), (40, 0))]
    promtool(tmp_path, [{"interval": "1m", "input_series": first, "promql_expr_test": expected}])


@pytest.mark.prometheus
def test_an_alerts_text_holds_its_numbers(tmp_path):
    minute, changes = FIRES["TorchtriageErrors"]
    (alert,) = [one for one in alerts() if one.name == "TorchtriageErrors"]
    expected = {
        "exp_labels": {"severity": "critical", "job": "service", "model": "m", "version": "1"},
        "exp_annotations": {
            "summary": "m 1 fails 9.091% of its requests",
            "description": alert.description,
            "runbook": "docs/monitor.md#alerts",
        },
    }
    test = {"alertname": alert.name, "eval_time": f"{minute}m", "exp_alerts": [expected]}
    input_series = changed("service", alert, changes)
    promtool(tmp_path, [{"interval": "1m", "input_series": input_series, "alert_rule_test": [test]}])


@pytest.mark.prometheus
def test_promtool_finds_nothing_to_say_of_the_rules(tmp_path):
    path = tmp_path / "rules.yml"
    odd = 'a "quoted" \\ name\n'
    args = ["monitor", "rules", "--latency", "0.2", "--latency", f"{odd}=1", "-o", str(path)]
    assert CliRunner().invoke(cli, args).exit_code == 0
    command = ["promtool", "check", "rules", "--lint-fatal", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RECORDED) + len(NAMES)} rules found" in done.stdout


def test_only_what_the_user_chose_is_asked_for():
    assert "TorchtriageLatency\n" not in rules()
    by_model = rules(latency={"": 0.2, "slow": 2.0})
    assert r"p99_5m{model!=\"slow\"} > 0.2 or" in by_model
    assert r'p99_5m{model=\"slow\"} > 2"' in by_model
    assert "rate5m > 0.01" in rules(errors=0.01)
    for errors in (0, 1, float("nan"), -0.1):
        with pytest.raises(UsageError, match="between 0 and 1"):
            rules(errors=errors)
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="above 0"):
            rules(latency={"": seconds})
    for seconds in (50, 600):  # histogram_quantile tells no more than the last bound
        with pytest.raises(UsageError, match="last bound, 50"):
            rules(latency={"slow": seconds})


def test_wrong_options_are_told():
    for latency in ("fast", "detector=", "=", "detector=0.1s"):
        done = CliRunner().invoke(cli, ["monitor", "rules", "--latency", latency])
        assert done.exit_code == 2
        assert "expected seconds, or a model's name and seconds" in done.output


def test_a_query_can_only_name_what_exists():
    with pytest.raises(KeyError):
        expand("rate(@inference_latency[5m])")
    with pytest.raises(KeyError):
        expand("@inference_in_flight_bucket")
    asked = expand('@alarms_total{kind="gc"}', lambda metric: f'n="{len(metric.labels)}"')
    assert asked == 'torchtriage_alarms_total{kind="gc",n="3"}'
    (metric,) = metrics_of("@inference_queue_seconds_sum / @inference_queue_seconds_count")
    assert metric.kind == "histogram"


def test_every_alert_and_recorded_series_is_documented():
    from pathlib import Path

    docs = Path(__file__).parents[3] / "docs"
    for page, names in {"monitor.md": NAMES, "monitor-reference.md": RECORDED}.items():
        text = (docs / page).read_text()
        assert [name for name in names if f"`{name}`" not in text] == [], page


@pytest.mark.prometheus
def test_what_is_down_is_told_for_as_long_as_it_is(tmp_path):
    down = [series("up", "1x20 0x1500 1x20"), series("monitor_pending", "5x20 _x1500 5x20")]
    expected = [firing(minute, "TorchtriageDown", 1) for minute in (30, 100, 1500)]
    expected += [firing(1530, "TorchtriageDown", 0)]
    promtool(tmp_path, [{"interval": "1m", "input_series": down, "promql_expr_test": expected}])
