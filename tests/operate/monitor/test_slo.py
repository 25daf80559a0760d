"""Objectives in one line, and by promtool that their alerts fire when the budget burns and not before."""

import json
import re
import subprocess

import pytest
from click.testing import CliRunner

from torchtriage.cli.main import cli
from torchtriage.core.errors import UsageError
from torchtriage.operate.monitor.rules import rules
from torchtriage.operate.monitor.slo import burn_rates, objective


def test_a_line_is_read():
    assert objective("99.9%")[1:] == ("", 0.999, None, 30)
    assert objective("detector: 99% under 250ms over 28d")[1:] == ("detector", 0.99, 0.25, 28)
    assert objective("a: b: 95 % under 1 s")[1:] == ("a: b", 0.95, 1.0, 30)


WRONG = ["", "always", "100%", "0%", "99.9.9%", "99% under", "99% in 3d", "99% under 0s", "99% under 0.2.5s", ".%"]
WRONG += ["99% under .s", f"99% under {'9' * 400}s", "99% over 9999999d"]


@pytest.mark.parametrize("line", WRONG)
def test_what_is_no_objective_is_told(line):
    with pytest.raises(UsageError):
        objective(line)
    assert CliRunner().invoke(cli, ["monitor", "rules", "--slo", line]).exit_code == 2


def test_what_no_alert_can_tell_is_refused():
    with pytest.raises(UsageError, match="can burn too fast"):
        objective("90% over 365d")


def test_a_time_that_no_bucket_ends_at_is_told_with_the_nearest():
    with pytest.raises(UsageError, match=r"0\.2 s") as caught:
        objective("99% under 200ms")
    assert "0.25s" in caught.value.hint


def test_limits_are_those_of_the_book():
    rates = burn_rates(objective("99.9%"))
    limits = [{float(text) for text in re.findall(r"\) > (0\.\d+)", rate.query)} for rate in rates]
    assert limits == [{0.0144, 0.006}, {0.001}]
    # a share that cannot be exceeded is no alert
    assert " or (1 -" not in burn_rates(objective("90%"))[0].query


def series(errors, late, le):
    """Return an hour of 600 requests a minute, so many of which fail or are late."""
    name, labels = "torchtriage_inference_duration_seconds", 'job="s",instance="a",model="m",version="1"'
    good = 600 - errors
    return [
        {"series": f"{name}_count{{{labels}}}", "values": f"0+{good}x600"},
        {"series": f'{name}_bucket{{{labels},le="{le}"}}', "values": f"0+{good - late}x600"},
        {"series": f'{name}_bucket{{{labels},le="+Inf"}}', "values": f"0+{good}x600"},
        {"series": f'torchtriage_inference_errors_total{{{labels},error="E"}}', "values": f"0+{errors}x600"},
    ]


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("line", "errors", "late", "le", "severities"),
    [
        ("99%", 120, 0, "1", {"critical", "warning"}),
        ("99%", 12, 0, "1", {"warning"}),  # 2 %: in three days a tenth of the budget and more
        ("99%", 3, 0, "1", set()),
        ("m: 99% under 1s", 0, 120, "1", {"critical", "warning"}),
        ("m: 99% under 1s", 0, 120, "1.0", {"critical", "warning"}),
        ("m: 99% under 1s", 3, 0, "1", set()),
        ("m: 99% under 1s", 3, 0, "1.0", set()),
        ("99%", 0, 120, "1", set()),
        ("other: 99%", 120, 0, "1", set()),
    ],
)
def test_a_budget_that_burns_is_told(tmp_path, line, errors, late, le, severities):
    (tmp_path / "rules.yml").write_text(rules(slos=[line]))
    expected = [
        {
            "expr": f'count(ALERTS{{alertname="TorchtriageSLOBudget",alertstate="firing",severity="{severity}"}}) > 0',
            "eval_time": "500m",
            "exp_samples": [{"labels": "{}", "value": 1}] * (severity in severities),
        }
        for severity in ("critical", "warning")
    ]
    tests = [{"interval": "1m", "input_series": series(errors, late, le), "promql_expr_test": expected}]
    (tmp_path / "tests.yml").write_text(
        json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "5m", "tests": tests})
    )
    done = subprocess.run(["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_runbooks_are_links_where_the_pages_are_served_and_promtool_is_content(tmp_path):
    path = tmp_path / "rules.yml"
    args = ["monitor", "rules", "--slo", "99.9%", "--slo", 'a "b": 99% under 1s', "--docs", "https://docs.example/tt/"]
    assert CliRunner().invoke(cli, [*args, "-o", str(path)]).exit_code == 0
    assert 'runbook_url: "https://docs.example/tt/monitor.md#alerts"' in path.read_text()
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_two_objectives_of_a_model_are_alerts_apart(tmp_path):
    path = tmp_path / "rules.yml"
    path.write_text(rules(slos=["m: 99.9%", "m: 99% under 1s", "m: 99% under 1s over 7d"]))
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "duplicate" not in done.stdout + done.stderr
    assert 'slo: "m: 99% under 1s"' in path.read_text()


def test_an_objective_twice_or_over_no_days_is_refused():
    with pytest.raises(UsageError, match="each objective once"):
        rules(slos=["m: 99%", " m:  99.0 % over 30d"])
    with pytest.raises(UsageError, match="expected an objective"):
        objective("99% over 0d")
