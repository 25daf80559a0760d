"""The documents ``torchtriage-rollout/1`` and ``torchtriage-experiment/1``, and back."""

from __future__ import annotations

from torchtriage.experiment.result import EXPERIMENT_SCHEMA, ExperimentResult
from torchtriage.report.json_report import Document, decode_as
from torchtriage.rollout.result import ROLLOUT_SCHEMA, RolloutResult

__all__ = ["decode", "encode", "experiment_schema", "schema"]

_ROLLOUT = Document(
    RolloutResult, ROLLOUT_SCHEMA, title="A rollout of torchtriage", what="a rollout",
    command="torchtriage rollout report --json",
)  # fmt: skip
_EXPERIMENT = Document(
    ExperimentResult, EXPERIMENT_SCHEMA, title="An experiment of torchtriage",
    what="an experiment", command="Experiment.result()",
)  # fmt: skip
schema, experiment_schema = _ROLLOUT.schema, _EXPERIMENT.schema


def encode(result: RolloutResult | ExperimentResult) -> bytes:
    """Return the document as UTF-8, one line; equal results give equal bytes."""
    if isinstance(result, RolloutResult):
        return _ROLLOUT.encode(result)
    return _EXPERIMENT.encode(result)


def decode(data: bytes) -> RolloutResult | ExperimentResult:
    """Return the rollout or experiment of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is neither.
    """
    result: RolloutResult | ExperimentResult = decode_as(data, _ROLLOUT, _EXPERIMENT)
    return result
