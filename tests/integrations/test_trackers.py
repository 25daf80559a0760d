"""Reports in TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.api.traces import Report
from torchtriage.core.errors import MissingExtraError
from torchtriage.diagnose.runs.result import RecordedRun
from torchtriage.integrations.trackers import MLflow, TensorBoard, WandB, scalars


@pytest.fixture(scope="module")
def report() -> Report:
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at + 4_000, 20)
        builder.launch(at + 4_005, 5, at + 4_010, 5_990)
    return tt.analyze(builder.build())


class Calls:
    """Remembers every call of every method."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.made.append((name, given, named))


def test_the_numbers_are_those_of_the_report(report: Report) -> None:
    numbers = scalars(report)
    assert report.summary is not None
    (device,) = report.summary.devices
    assert device.classes is not None
    assert numbers["torchtriage/step_ms"] == report.summary.step_ms
    assert numbers["torchtriage/busy_share"] == device.classes.compute_ns / device.classes.wall_ns
    assert numbers["torchtriage/findings"] == len(report.findings)
    assert report.joint_cost is not None
    assert numbers["torchtriage/saving_high_ms"] == report.joint_cost.high_ms
    costs = {finding.code: finding.cost.low_ms for finding in report.findings if finding.cost}
    assert costs
    assert costs.items() == {
        (name.removeprefix("torchtriage/finding/").removesuffix("_low_ms"), value)
        for name, value in numbers.items()
        if "/finding/" in name
    }


def test_the_step_time_is_that_without_the_profiler(report: Report) -> None:
    recorded = RecordedRun("train.py", 0, "each step", "train.py", 3, "main", 40, 4.5, 20, True, 10.0, None)
    assert scalars(replace(report, recorded=recorded))["torchtriage/step_ms"] == 4.5
    untimed = replace(recorded, step_ms=None)
    assert scalars(replace(report, recorded=untimed)) == scalars(report)


def test_what_is_not_known_is_no_number() -> None:
    host = tt.analyze(TraceBuilder().op("aten::mm", 0, 5_000).build())
    assert not {"torchtriage/busy_share", "torchtriage/step_ms", "torchtriage/mfu"} & set(scalars(host))


def test_no_name_lies_below_another(report: Report) -> None:
    names = scalars(report)
    assert not [name for name in names for other in names if name.startswith(f"{other}/")]  # MLflow makes folders


def test_tensorboard(report: Report) -> None:
    writer = Calls()
    TensorBoard(writer).log(report, step=7)
    logged = {given[0]: given[1:] for name, given, _ in writer.made if name == "add_scalar"}
    assert logged == {name: (value, 7) for name, value in scalars(report).items()}
    ((_, text, step),) = [given for name, given, _ in writer.made if name == "add_text"]
    assert (text, step) == (report.to_markdown(), 7)


def test_wandb(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(Html=lambda page, *, inject: (page, inject))
    monkeypatch.setitem(sys.modules, "wandb", client)
    run = Calls()
    WandB(run).log(report, step=7)
    ((name, (logged,), named),) = run.made
    assert (name, named) == ("log", {"step": 7})
    assert logged == {**scalars(report), "torchtriage/report": (report.to_html(), False)}


def test_mlflow(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Calls()
    monkeypatch.setitem(sys.modules, "mlflow", client)
    MLflow("run").log(report, step=7)
    assert client.made == [
        ("log_metrics", (scalars(report),), {"step": 7, "run_id": "run"}),
        ("log_text", (report.to_html(), "torchtriage/step7.html"), {"run_id": "run"}),
    ]


@pytest.mark.parametrize(("kind", "client"), [(WandB, "wandb"), (MLflow, "mlflow")])
def test_a_client_that_is_missing_is_named(kind: Any, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, client, None)
    with pytest.raises(MissingExtraError, match=client):
        kind(Calls())
