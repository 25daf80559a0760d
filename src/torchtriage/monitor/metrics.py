"""The names of all metrics, and their text for Prometheus.

Dashboards, rules and documentation are made from :data:`METRICS`, so that they name what exists.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torchtriage.monitor.aggregate import BOUNDS_S

__all__ = ["CONTENT_TYPE", "METRICS", "PREFIX", "Exposition", "Metric", "Value", "combined"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """One metric: ``labels`` are all it can have.

    ``combine`` : what two sources, or two processes, that tell of the same labels tell together.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    combine: Callable[[float, float], float] = operator.add


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
            "Requests whose output held NaN, where the caller tells whether it does.",
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
            "Distinct request sizes seen, up to 256, where the caller tells sizes.",
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
            "torchtriage_device_capacity_bytes",
            "gauge",
            "Memory that the device has.",
            ("device",),
            max,
        ),
        Metric(
            "torchtriage_device_utilization_ratio",
            "gauge",
            "Share of the last sample period in which the GPU ran a kernel, as NVML tells it.",
            ("device",),
            max,
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
            "Compiled code that torch.compile found in its caches: whole graphs (autograd), and"
            " their forward and backward parts (inductor).",
            ("cache",),
        ),
        Metric(
            "torchtriage_compile_cache_misses_total",
            "counter",
            "Compiled code that torch.compile looked for in its caches in vain.",
            ("cache",),
        ),
        Metric(
            "torchtriage_alarms_total",
            "counter",
            "Alarms that the detectors raised, told or not, by kind.",
            (*MODEL, "kind"),
        ),
        Metric(
            "torchtriage_ladder_level",
            "gauge",
            "Mode of the ladder that answers: 0 is the full one.",
            ("ladder",),
            max,
        ),
        Metric(
            "torchtriage_rollout_candidate_ratio",
            "gauge",
            "Share of requests that go to the rollout's candidate; 0 once it is rolled back.",
            ("rollout",),
            max,
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
            "torchtriage_monitor_outlet_records_total",
            "counter",
            "Records of a log or stream by what became of them: sent or dropped.",
            ("outlet", "outcome"),
        ),
        Metric(
            "torchtriage_monitor_outlet_pending",
            "gauge",
            "Records that wait for a log or stream.",
            ("outlet",),
        ),
        Metric(
            "torchtriage_monitor_failures_total",
            "counter",
            "Errors inside sinks and channels, and writes to the workers' folder that failed.",
        ),
        Metric(
            "torchtriage_monitor_start_time_seconds",
            "gauge",
            "When the monitor began to count, of several processes the last; Unix time.",
            (),
            max,
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


def combined(values: Iterable[Value]) -> list[Value]:
    """Return one value per metric and labels; of what no metric is called, none."""
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for name, labels, value in values:
        metric = METRICS.get(name)
        if metric is None:  # a worker of another version wrote it
            continue
        key = name, tuple(labels[label] for label in metric.labels)
        found[key] = metric.combine(found[key], value) if key in found else value
    return [
        (name, dict(zip(METRICS[name].labels, texts, strict=True)), value)
        for (name, texts), value in found.items()
    ]


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
        "inference_in_flight": f"{inference}in_flight{text} {state['in_flight']}\n",
    }
    # what the caller does not tell is absent: 0 would say that it was looked at
    if state["n_nan"] is not None:
        out["inference_nan_outputs_total"] = (
            f"{inference}nan_outputs_total{text} {state['n_nan']}\n"
        )
    if state["sizes"]:
        out["inference_input_sizes"] = f"{inference}input_sizes{text} {len(state['sizes'])}\n"
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
    # 15 digits: a rate is the difference of two sums, which may be those of weeks
    return repr(value) if isinstance(value, int) else f"{value:.15g}"
