"""The ways in which trace files in the wild are laid out as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Events = list[dict[str, Any]]


def old_kineto(events: Events) -> str:
    """Several keys per line, as Kineto wrote until 2024."""
    texts = []
    for event in events:
        head = {k: v for k, v in event.items() if k not in ("ts", "dur", "args")}
        lines = [_pairs(head)]
        if times := {k: event[k] for k in ("ts", "dur") if k in event}:
            lines.append(_pairs(times))
        if "args" in event:
            lines.append(f'"args": {{\n      {_pairs(event["args"])}\n    }}')
        texts.append("  {\n    " + ",\n    ".join(line for line in lines if line) + "\n  }")
    return "[\n" + ",\n".join(texts) + "\n  ]"


def new_kineto(events: Events) -> str:
    """One key per line, a lone comma before the arguments and blank lines, as in torch 2.13."""
    texts = []
    for event in events:
        head = {k: v for k, v in event.items() if k != "args"}
        text = ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items())
        if "args" in event:
            text += "\n    ,\n" if head else ""
            inner = "\n,\n".join(f"      {json.dumps(k)}: {json.dumps(v)}" for k, v in event["args"].items())
            text += f'    "args": {{\n{inner}\n\n    }}'
        texts.append("  {\n    " + text + "\n  }")
    return "[\n" + ",\n\n".join(texts) + "\n\n  ]"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in values.items())


LAYOUTS: dict[str, Callable[[Events], str]] = {
    "old Kineto": old_kineto,
    "new Kineto": new_kineto,
    "indented": lambda events: json.dumps(events, indent=2),
    "one line": json.dumps,
    "compact": lambda events: json.dumps(events, separators=(",", ":"), ensure_ascii=False),
    "spread": lambda events: "[ " + " \t ,\r\n  ".join("{ " + json.dumps(e)[1:-1] + " }" for e in events) + " ]",
}


def document(events: Events, meta: dict[str, Any], layout: str, place: str) -> bytes:
    """Render a trace with its events ``first``, ``last`` or ``between`` the other keys, or bare."""
    text = LAYOUTS[layout](events)
    if place == "bare":
        return text.encode()
    keys = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in meta.items()]
    at = {"first": 0, "last": len(keys), "between": len(keys) // 2}[place]
    keys.insert(at, f'"traceEvents": {text}')
    return ("{\n" + ",\n".join(keys) + "\n}\n").encode()
