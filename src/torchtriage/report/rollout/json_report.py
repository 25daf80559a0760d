"""The documents ``torchtriage-rollout/1`` and ``torchtriage-experiment/1``, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtriage.experiment.result import EXPERIMENT_SCHEMA, ExperimentResult
from torchtriage.report.json_report import parse, plain, schema_of
from torchtriage.rollout.result import ROLLOUT_SCHEMA, RolloutResult

__all__ = ["decode", "encode", "experiment_schema", "schema"]


def encode(result: RolloutResult | ExperimentResult) -> bytes:
    """Return the document as UTF-8, one line; equal results give equal bytes."""
    return msgspec.json.encode(plain(result)) + b"\n"


def decode(data: bytes) -> RolloutResult | ExperimentResult:
    """Return the rollout or experiment of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is neither.
    """
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        head = None  # the reader says what is wrong
    if isinstance(head, dict) and head.get("schema") == EXPERIMENT_SCHEMA:
        command = "Experiment.result()"
        return parse(data, ExperimentResult, EXPERIMENT_SCHEMA, "an experiment", command)
    command = "torchtriage rollout report --json"
    return parse(data, RolloutResult, ROLLOUT_SCHEMA, "a rollout", command)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a rollout."""
    return schema_of(RolloutResult, ROLLOUT_SCHEMA, f"A rollout of torchtriage, {ROLLOUT_SCHEMA}")


def experiment_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an experiment."""
    title = f"An experiment of torchtriage, {EXPERIMENT_SCHEMA}"
    return schema_of(ExperimentResult, EXPERIMENT_SCHEMA, title)
