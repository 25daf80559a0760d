"""Write the published JSON Schema again: ``python -m tests.report.write_schema``."""

from __future__ import annotations

import json
from pathlib import Path

from torchtriage.report import json_report

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema" / "torchtriage-1.json"

if __name__ == "__main__":
    text = json.dumps(json_report.schema(), indent=2, ensure_ascii=False) + "\n"
    PUBLISHED.write_text(text, encoding="utf-8")
