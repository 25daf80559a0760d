"""Reports beside the other curves of a training: numbers to plot, and the page.

>>> from torchtriage.integrations.trackers import TensorBoard
>>> TensorBoard(writer).log(callback.report, step=1000)

Each takes the client's own object, which decides where it goes; no client is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from torchtriage.api.traces import Report
from torchtriage.core.errors import MissingExtraError
from torchtriage.diagnose.verdict.result import Result

PAGE = "torchtriage/report"


def scalars(result: Result) -> dict[str, float]:
    """Return the numbers of a result that make a curve, by name; what the recording does not show is left out.

    ``step_ms``, without the profiler where that was timed, ``busy_share`` of the main device and ``mfu`` are of the
    steady steps, ``saving_low_ms`` and
    ``saving_high_ms`` of all findings together, ``finding/CODE_low_ms`` of those of a code, all per step, or window.
    """
    return {f"torchtriage/{name}": float(value) for name, value in _numbers(result)}


class TensorBoard:
    """Logs into a ``torch.utils.tensorboard.SummaryWriter``: numbers as scalars, the report as text."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, report: Report, *, step: int = 0) -> None:
        """Log one report; ``step`` : of the training it was recorded in."""
        for name, value in scalars(report).items():
            self._writer.add_scalar(name, value, step)
        self._writer.add_text(PAGE, report.to_markdown(), step)


class WandB:
    """Logs into a run of Weights & Biases, as ``wandb.init`` returns it: numbers, and the page.

    Raises MissingExtraError: wandb is not installed.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._html = _client("wandb").Html

    def log(self, report: Report, *, step: int | None = None) -> None:
        """Log one report; ``step`` : of the training it was recorded in, by default the run's own."""
        page = self._html(report.to_html(), inject=False)
        self._run.log({**scalars(report), PAGE: page}, step=step)


class MLflow:
    """Logs into a run of MLflow, the active one by default: numbers as metrics, the page as an artifact.

    Raises MissingExtraError: mlflow is not installed.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self._run_id = run_id
        self._mlflow = _client("mlflow")

    def log(self, report: Report, *, step: int = 0) -> None:
        """Log one report; ``step`` : of the training it was recorded in."""
        self._mlflow.log_metrics(scalars(report), step=step, run_id=self._run_id)
        self._mlflow.log_text(report.to_html(), f"torchtriage/step{step}.html", run_id=self._run_id)


def _numbers(result: Result) -> Iterator[tuple[str, float]]:
    timed_ms = result.recorded.step_ms if result.recorded is not None else None
    if result.summary is not None:
        step_ms = timed_ms or result.summary.step_ms
        if step_ms is not None:
            yield "step_ms", step_ms
        for device in result.summary.devices[:1]:
            classes = device.classes
            if classes is not None and classes.wall_ns:
                busy_ns = classes.compute_ns + classes.comm_only_ns + classes.copy_only_ns
                yield "busy_share", busy_ns / classes.wall_ns
    for table in result.device_time:
        if table.mfu is not None and table.mfu.share is not None:
            yield "mfu", table.mfu.share
    if result.refused:
        return
    total = result.joint_cost
    yield "saving_low_ms", total.low_ms if total is not None else 0.0
    yield "saving_high_ms", total.high_ms if total is not None else 0.0
    yield "findings", len(result.findings)
    costs: dict[str, float] = {}
    for finding in result.findings:
        if finding.cost is not None:
            costs[finding.code] = costs.get(finding.code, 0.0) + finding.cost.low_ms
    for code, low_ms in costs.items():
        yield f"finding/{code}_low_ms", low_ms


def _client(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"expected {name} to log to, found none", hint=f"pip install {name}") from error
