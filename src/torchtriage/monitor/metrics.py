"""The names of all metrics, and their text for Prometheus.

Dashboards, rules and documentation are made from :data:`METRICS`, so that they name what exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torchtriage.monitor.aggregate import BOUNDS_S

__all__ = ["CONTENT_TYPE", "METRICS", "Exposition", "Metric", "Value"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """One metric: ``labels`` are all it can have."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


PREFIX = "torchtriage_"
MODEL = ("model", "version")
METRICS = {
    metric.name.removeprefix(PREFIX): metric
    for metric in (
        Metric(
            "torchtriage_inference_duration_seconds",
            "histogram",
            "Time of a request that succeeded, from its begin to its end.",
            MODEL,
        ),
        Metric(
            "torchtriage_inference_queue_seconds",
            "histogram",
            "Time a request waited before it began, where the caller told it.",
            MODEL,
        ),
        Metric(
            "torchtriage_inference_errors_total",
            "counter",
            "Requests that failed, by the exception's name or the caller's word.",
            (*MODEL, "error"),
        ),
        Metric(
            "torchtriage_inference_nan_outputs_total",
            "counter",
            "Requests whose output held NaN, where the caller told it.",
            MODEL,
        ),
        Metric(
            "torchtriage_inference_in_flight",
            "gauge",
            "Requests that have begun and not ended.",
            MODEL,
        ),
        Metric(
            "torchtriage_inference_input_sizes",
            "gauge",
            "Distinct request sizes seen, up to 256.",
            MODEL,
        ),
        Metric(
            "torchtriage_device_allocated_bytes",
            "gauge",
            "Memory of the device that tensors hold.",
            ("device",),
        ),
        Metric(
            "torchtriage_device_reserved_bytes",
            "gauge",
            "Memory of the device that PyTorch's allocator holds.",
            ("device",),
        ),
        Metric(
            "torchtriage_device_utilization_ratio",
            "gauge",
            "Share of the last sample period in which the GPU ran a kernel, as NVML tells it.",
            ("device",),
        ),
        Metric(
            "torchtriage_compile_recompiles_total",
            "counter",
            "Compilations by torch.compile of code that it had compiled before.",
        ),
        Metric(
            "torchtriage_compile_graph_breaks_total",
            "counter",
            "Graph breaks that torch.compile met.",
        ),
        Metric(
            "torchtriage_compile_cache_hits_total",
            "counter",
            "Compiled graphs that torch.compile found in its caches.",
        ),
        Metric(
            "torchtriage_monitor_requests_total",
            "counter",
            "Finished requests by what became of their record: sent on or dropped.",
            ("outcome",),
        ),
        Metric(
            "torchtriage_monitor_pending",
            "gauge",
            "Finished requests whose record waits for the monitor's thread.",
        ),
        Metric(
            "torchtriage_monitor_refused_models_total",
            "counter",
            "Times a further model was counted as other, for want of room for more names.",
        ),
    )
}

Value = tuple[str, dict[str, str], float]
"""A metric's name without prefix, its labels, its value."""


class Exposition:
    """Renders states as text; a model that had no request since keeps its text."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[tuple[int, ...], dict[str, str]]] = {}

    def render(self, models: Iterable[dict[str, Any]], values: Iterable[Value]) -> bytes:
        """Return the text of the models' states and of further values."""
        lines: dict[str, list[str]] = {name: [] for name in METRICS}
        for state in models:
            for name, text in self._model(state).items():
                lines[name].append(text)
        for name, labels, value in values:
            metric = METRICS[name]
            pairs = {label: labels[label] for label in metric.labels}
            lines[name].append(f"{metric.name}{_labels(pairs)} {_number(value)}\n")
        parts = []
        for name, metric in METRICS.items():
            if lines[name]:
                parts.append(f"# HELP {metric.name} {metric.help}\n")
                parts.append(f"# TYPE {metric.name} {metric.kind}\n")
                parts += lines[name]
        return "".join(parts).encode()

    def _model(self, state: dict[str, Any]) -> dict[str, str]:
        key = (state["model"], state["version"])
        now = (state["finished"], state["in_flight"], state["n_nan"])
        known = self._known.get(key)
        if known is not None and known[0] == now:
            return known[1]
        text = _model_text(state)
        self._known[key] = (now, text)
        return text


def _model_text(state: dict[str, Any]) -> dict[str, str]:
    labels = {"model": state["model"], "version": state["version"]}
    text = _labels(labels)
    inference = METRICS["inference_in_flight"].name.removesuffix("in_flight")
    out = {
        "inference_duration_seconds": _histogram(
            inference + "duration_seconds", labels, state["durations"]
        ),
        "inference_nan_outputs_total": f"{inference}nan_outputs_total{text} {state['n_nan']}\n",
        "inference_in_flight": f"{inference}in_flight{text} {state['in_flight']}\n",
        "inference_input_sizes": f"{inference}input_sizes{text} {len(state['sizes'])}\n",
    }
    if state["queued"]["count"]:
        out["inference_queue_seconds"] = _histogram(
            inference + "queue_seconds", labels, state["queued"]
        )
    if state["errors"]:
        out["inference_errors_total"] = "".join(
            f"{inference}errors_total{_labels(labels | {'error': kind})} {n}\n"
            for kind, n in sorted(state["errors"].items())
        )
    return out


def _histogram(name: str, labels: dict[str, str], state: dict[str, Any]) -> str:
    inside = _labels(labels)[:-1]
    parts, total = [], 0
    for bound, n in zip(_BOUNDS, state["classic"], strict=True):
        total += n
        parts.append(f'{name}_bucket{inside},le="{bound}"}} {total}\n')
    parts.append(f"{name}_sum{inside}}} {_number(state['sum_ns'] * 1e-9)}\n")
    parts.append(f"{name}_count{inside}}} {state['count']}\n")
    return "".join(parts)


_BOUNDS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _labels(pairs: dict[str, str]) -> str:
    if not pairs:
        return ""
    inside = ",".join(f'{name}="{_clean(value)}"' for name, value in pairs.items())
    return f"{{{inside}}}"


def _clean(value: str) -> str:
    """Return a label's value escaped; what UTF-8 cannot hold becomes a question mark."""
    return value.translate(_ESCAPES).encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return repr(value) if isinstance(value, int) else f"{value:.9g}"
