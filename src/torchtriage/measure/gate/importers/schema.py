"""The JSON Schema of our own format of samples."""

from __future__ import annotations

from typing import Any, get_args

from torchtriage.core.samples import SAMPLES_SCHEMA, Better, Kind

__all__ = ["schema"]

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_NUMBERS = {"type": "array", "items": _NUMBER, "minItems": 1}
_PAIRS = {
    "description": "An object of texts, or pairs of name and value.",
    "anyOf": [
        {"type": "object", "additionalProperties": _TEXT},
        {"type": "array", "items": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}},
    ],
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one line or document, a run or a metric alone."""
    head: dict[str, Any] = {
        "metric": {"type": "string", "minLength": 1},
        "unit": {
            "type": "string",
            "minLength": 1,
            "description": "Of all values. s, ms, us, ns: a latency; …/s: a throughput; B, KiB,"
            " MiB, GiB: memory; 1: a count. Another one needs kind.",
        },
        "kind": {"enum": [*get_args(Kind), None]},
        "better": {
            "enum": [*get_args(Better), None],
            "description": "Without it higher for throughput and accuracy, else lower.",
        },
    }
    session = {
        "description": "What one fresh process measured, in time order.",
        "anyOf": [
            _NUMBERS,
            {
                "type": "object",
                "required": ["values"],
                "properties": {
                    "values": _NUMBERS,
                    "cpu_values": {**_maybe(_NUMBERS), "description": "CPU time of each value, in the same unit."},
                    "round": {
                        **_maybe({"type": "integer", "minimum": 0}),
                        "description": "Of an interleaved measurement; null without.",
                    },
                    "started_s": {**_maybe(_NUMBER), "description": "Seconds since the epoch."},
                },
            },
        ],
    }
    series = {
        "type": "object",
        "required": ["metric", "unit", "sessions"],
        "properties": {**head, "sessions": {"type": "array", "items": session, "minItems": 1}},
    }
    machine = {
        "anyOf": [
            {"type": "object", "required": ["fields"], "properties": {"fields": _PAIRS}},
            {"type": "object", "additionalProperties": _TEXT},
        ]
    }
    run = {
        "title": "A run: one benchmark, measured once",
        "type": "object",
        "required": ["series"],
        "properties": {
            "schema": {"anyOf": [{"const": SAMPLES_SCHEMA}, {"type": "null"}]},
            "benchmark": _maybe({"type": "string", "minLength": 1}),
            "commit": _maybe(_TEXT),
            "branch": _maybe(_TEXT),
            "parent": {**_maybe(_TEXT), "description": "The commit before."},
            "recorded_at_s": {**_maybe(_NUMBER), "description": "Seconds since the epoch."},
            "machine": _maybe(machine),
            "environment": _maybe(_PAIRS),
            "series": {"type": "array", "items": series, "minItems": 1},
            "traces": _maybe({"type": "array", "items": _TEXT}),
        },
    }
    metric = {
        "title": "A metric alone; all of a file are one session of one run",
        "type": "object",
        "required": ["metric", "unit"],
        "anyOf": [{"required": ["value"]}, {"required": ["values"]}],
        "properties": {**head, "value": _NUMBER, "values": _NUMBERS, "cpu_values": _maybe(_NUMBERS)},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Samples of a benchmark, {SAMPLES_SCHEMA}",
        "description": "What torchtriage gate reads and writes: one document, or one per line. What"
        " a file does not tell is taken from where it is imported. Fields that are not known are"
        " ignored.",
        "anyOf": [run, metric],
    }


def _maybe(what: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [what, {"type": "null"}]}
