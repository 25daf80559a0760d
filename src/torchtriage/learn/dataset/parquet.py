"""A recording as a Parquet table, a row an event: for whoever reads tables, not traces.

Needs ``pyarrow``: ``pip install 'torchtriage[parquet]'``.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchtriage.core.errors import MissingExtraError


def write_parquet(document: dict[str, Any], path: Path) -> None:
    """Write a trace document: times as whole nanoseconds, each event's ``args`` as JSON.

    What stands beside the events is in the table's metadata, under ``trace``.

    Raises MissingExtraError: pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise MissingExtraError(
            "writing Parquet needs pyarrow, which is not installed", hint="pip install 'torchtriage[parquet]'"
        )
    import pyarrow as pa
    from pyarrow import parquet

    events = document["traceEvents"]
    columns = {
        **{
            key: pa.array([_text(event.get(key)) for event in events], pa.string())
            for key in ("ph", "cat", "name", "pid", "tid", "id")
        },
        **{f"{key}_ns": pa.array([_ns(event.get(key)) for event in events], pa.int64()) for key in ("ts", "dur")},
        "args": pa.array([_text(event.get("args")) for event in events], pa.string()),
    }
    beside = {key: value for key, value in document.items() if key != "traceEvents"}
    table = pa.table(columns).replace_schema_metadata({"trace": json.dumps(beside)})
    parquet.write_table(table, path, compression="zstd")


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _ns(micros: float | None) -> int | None:
    return None if micros is None else round(float(micros) * 1000)
