"""Write the published JSON Schemas again: ``python -m tests.report.write_schema``."""

from __future__ import annotations

import json
from pathlib import Path

from torchtriage.gate.importers import schema as samples_schema
from torchtriage.report import alert, json_report
from torchtriage.report.bench import json_report as bench_json
from torchtriage.report.comparison import json_report as comparison_json
from torchtriage.report.compile import json_report as compile_json
from torchtriage.report.gate import json_report as gate_json
from torchtriage.report.lint import json_report as lint_json
from torchtriage.report.memory import json_report as memory_json
from torchtriage.report.review import json_report as review_json
from torchtriage.report.rollout import json_report as rollout_json
from torchtriage.report.verification import json_report as verification_json
from torchtriage.report.xla import json_report as xla_json

FOLDER = Path(__file__).parents[2] / "docs" / "schema"
PUBLISHED = {
    "torchtriage-1.json": json_report.schema,
    "torchtriage-alert-1.json": alert.schema,
    "torchtriage-bench-1.json": bench_json.schema,
    "torchtriage-comparison-1.json": comparison_json.schema,
    "torchtriage-experiment-1.json": rollout_json.experiment_schema,
    "torchtriage-gate-1.json": gate_json.schema,
    "torchtriage-gate-history-1.json": gate_json.history_schema,
    "torchtriage-compile-1.json": compile_json.schema,
    "torchtriage-lint-1.json": lint_json.schema,
    "torchtriage-memory-1.json": memory_json.schema,
    "torchtriage-review-1.json": review_json.schema,
    "torchtriage-rollout-1.json": rollout_json.schema,
    "torchtriage-samples-1.json": samples_schema.schema,
    "torchtriage-verification-1.json": verification_json.schema,
    "torchtriage-xla-1.json": xla_json.schema,
}

if __name__ == "__main__":
    for name, schema in PUBLISHED.items():
        text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
        (FOLDER / name).write_text(text, encoding="utf-8")
