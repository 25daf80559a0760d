"""Write the published JSON Schemas again: ``python -m tests.report.write_schema``."""

from __future__ import annotations

import json
from pathlib import Path

from torchtriage.report import json_report, verification
from torchtriage.report.comparison import json_report as comparison_json
from torchtriage.report.lint import json_report as lint_json
from torchtriage.report.memory import json_report as memory_json

FOLDER = Path(__file__).parents[2] / "docs" / "schema"
PUBLISHED = {
    "torchtriage-1.json": json_report.schema,
    "torchtriage-comparison-1.json": comparison_json.schema,
    "torchtriage-lint-1.json": lint_json.schema,
    "torchtriage-memory-1.json": memory_json.schema,
    "torchtriage-verification-1.json": verification.schema,
}

if __name__ == "__main__":
    for name, schema in PUBLISHED.items():
        text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
        (FOLDER / name).write_text(text, encoding="utf-8")
