"""The JSON Schema of the document ``torchtriage-alert/1``, which webhooks get."""

from __future__ import annotations

from typing import Any

from torchtriage.operate.monitor.alert_finding import ALERT_SCHEMA, AlertDocument
from torchtriage.report.json_report import schema_of

__all__ = ["schema"]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an alert."""
    return schema_of(AlertDocument, ALERT_SCHEMA, f"An alert of torchtriage, {ALERT_SCHEMA}")
