"""Write the published JSON Schemas again: ``python -m tests.report.write_schema``.

That of samples, which describes what is read rather than a result, is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchtriage.operate.monitor.alert import ALERT_SCHEMA, AlertDocument
from torchtriage.report import json_report
from torchtriage.report.formats import FORMATS

FOLDER = Path(__file__).parents[2] / "docs" / "schema"


def alert_schema() -> dict[str, Any]:
    return json_report.schema_of(AlertDocument, ALERT_SCHEMA, f"An alert of torchtriage, {ALERT_SCHEMA}")


PUBLISHED = {
    "torchtriage-1.json": json_report.schema,
    "torchtriage-alert-1.json": lambda: json_report.schema_of(
        AlertDocument, ALERT_SCHEMA, f"An alert of torchtriage, {ALERT_SCHEMA}"
    ),
    **{f"{name.replace('/', '-')}.json": make().schema for name, make in FORMATS.items()},
}

if __name__ == "__main__":
    for name, schema in PUBLISHED.items():
        text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
        (FOLDER / name).write_text(text, encoding="utf-8")
