"""The names of all metrics, and their text for Prometheus.

Dashboards, rules and documentation are made from :data:`METRICS`, so that they name what exists.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from torchtriage.operate.monitor.aggregate import BOUNDS_S

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """A metric with all labels it can have; ``combine`` : the value of two sources, or processes, together."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    combine: Callable[[float, float], float] = operator.add


PREFIX = "torchtriage_"
# name without prefix, kind and how to combine unless by adding, labels, help
_TABLE = """\
inference_duration_seconds | histogram | model version | Duration of a successful request.
inference_queue_seconds | histogram | model version | Time a request waited before it started, if the caller reports it.
inference_errors_total | counter | model version error | Failed requests, by exception name or by the caller's label.
inference_nan_outputs_total | counter | model version | Requests with NaN in their output, if the caller reports it.
inference_in_flight | gauge | model version | Requests in progress.
inference_input_sizes | gauge | model version | Distinct request sizes seen, up to 256, if the caller reports sizes.
device_allocated_bytes | gauge | device | Device memory in use by tensors.
device_reserved_bytes | gauge | device | Device memory reserved by PyTorch's allocator.
device_capacity_bytes | gauge max | device | Total device memory.
device_utilization_ratio | gauge max | device | Share of the last sampling period in which a kernel was running, from \
NVML.
device_power_watts | gauge max | device | Power draw of the GPU, from NVML.
device_temperature_celsius | gauge max | device | Temperature of the GPU, from NVML.
device_ecc_errors_total | counter max | device | Uncorrectable ECC memory errors since the driver was loaded, from NVML.
process_resident_bytes | gauge |  | Resident memory of the process, or the sum over the processes.
process_cpu_seconds_total | counter |  | CPU time used by the process.
compile_recompiles_total | counter |  | Recompilations by torch.compile.
compile_graph_breaks_total | counter |  | Graph breaks in torch.compile.
compile_cache_hits_total | counter | cache | torch.compile cache hits: whole graphs (autograd), their forward and \
backward parts (inductor).
compile_cache_misses_total | counter | cache | torch.compile cache misses, by the same caches.
alarms_total | counter | model version kind | Alarms raised by the detectors, delivered or not, by kind.
ladder_level | gauge max | ladder | Mode in which the ladder is serving; 0 is the full mode.
ladder_calls_total | counter | ladder mode outcome | Calls to a mode of a ladder: answered, late (also counted as \
answered) or failed; dry runs included.
ladder_fallbacks_total | counter | ladder | Calls that no mode of a ladder could answer and that went to its fallback.
rollout_candidate_ratio | gauge max | rollout | Share of requests sent to the rollout's candidate; 0 after a rollback.
fleet_requests_total | counter | device model version | Requests completed on a device of the fleet.
fleet_failed_total | counter | device model version | Requests on a device that failed or returned NaN.
fleet_seconds_total | counter | device model version | Total duration of a device's successful requests.
fleet_slowness_ratio | gauge max | device model version | How many times as long as usual, and as on its peers, a slow \
device's requests take.
fleet_alarms_total | counter | kind | Alarms about devices slower than their peers and about versions, by kind.
fleet_records_total | counter | outcome | Records of the fleet's stream: taken, again (duplicates, counted once), lost \
(dropped by their device or trimmed before they were read), unreadable, or not judged (taken, beyond 20,000 versions \
on devices).
fleet_lag_entries | gauge |  | Entries of the fleet's stream not read yet, if Redis reports it.
fleet_lag_seconds | gauge |  | Age of the last entry read, relative to the newest; grows while Redis is unreachable.
fleet_pending_entries | gauge |  | Entries read whose effect is not stored yet.
straggler_late_ratio | gauge max | rank phase | Extra time a late rank takes, as a share of a training step.
straggler_late_total | counter | rank phase | Times a training rank became late, by the phase in which it loses time.
straggler_windows_total | counter |  | Windows of steps in which training ranks were compared.
monitor_requests_total | counter | outcome | Finished requests, by whether their record was sent on or dropped.
monitor_pending | gauge |  | Finished requests whose record the monitor has not processed yet.
monitor_outlet_records_total | counter | outlet outcome | Records written to a log or stream: sent or dropped.
monitor_outlet_pending | gauge | outlet | Records waiting to be written to a log or stream.
monitor_failures_total | counter |  | Errors in sinks and channels, ports already in use, and failed writes to the \
workers' folder.
monitor_start_time_seconds | gauge max |  | Unix time at which the monitor started, the latest if there are several.
monitor_refused_connections_total | counter | listener reason | Connections refused by a listener or page, by reason: \
slow, long, full, host, token or guesses.
monitor_refused_models_total | counter |  | Times a model was counted as other because the table of names was full.
"""


def _metric(line: str) -> Metric:
    name, kinds, labels, help = (part.strip() for part in line.split("|", 3))
    kind, _, combine = kinds.partition(" ")
    return Metric(PREFIX + name, cast(Kind, kind), help, tuple(labels.split()), max if combine else operator.add)


METRICS = {metric.name.removeprefix(PREFIX): metric for metric in map(_metric, _TABLE.splitlines())}

Value = tuple[str, dict[str, str], float]  # a metric's name without prefix, its labels, its value


def combined(values: Iterable[Value]) -> list[Value]:
    """Return one value per metric and labels; unknown metrics are left out."""
    sums: dict[tuple[str, tuple[str, ...]], float] = {}
    for name, labels, value in values:
        metric = METRICS.get(name)
        if metric is not None:  # None: a worker of another version wrote it
            key = name, tuple(labels[label] for label in metric.labels)
            sums[key] = metric.combine(sums[key], value) if key in sums else value
    return [(name, dict(zip(METRICS[name].labels, texts, strict=True)), value) for (name, texts), value in sums.items()]


class Exposition:
    """Renders states as text; a model that had no request since keeps its text."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[tuple[int, ...], dict[str, str]]] = {}

    def render(self, models: Iterable[dict[str, Any]], values: Iterable[Value]) -> bytes:
        """Return the text of the models' states and of further values."""
        lines: dict[str, list[str]] = {name: [] for name in METRICS}
        for state in models:
            key = (state["model"], state["version"])
            now = (state["finished"], state["in_flight"], state["n_nan"])
            if self._known.get(key, ((),))[0] != now:
                self._known[key] = (now, _model_text(state))
            for name, text in self._known[key][1].items():
                lines[name].append(text)
        for name, labels, value in values:
            metric = METRICS[name]
            pairs = {label: labels[label] for label in metric.labels}
            lines[name].append(f"{metric.name}{_labels(pairs)} {_number(value)}\n")
        return "".join(
            f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n{''.join(lines[name])}"
            for name, metric in METRICS.items()
            if lines[name]
        ).encode()


def _model_text(state: dict[str, Any]) -> dict[str, str]:
    labels = {"model": state["model"], "version": state["version"]}
    text = _labels(labels)
    inference = METRICS["inference_in_flight"].name.removesuffix("in_flight")
    out = {
        "inference_duration_seconds": _histogram(inference + "duration_seconds", labels, state["durations"]),
        "inference_in_flight": f"{inference}in_flight{text} {state['in_flight']}\n",
    }
    # what the caller does not report is absent: 0 would claim a measurement
    if state["n_nan"] is not None:
        out["inference_nan_outputs_total"] = f"{inference}nan_outputs_total{text} {state['n_nan']}\n"
    if state["sizes"]:
        out["inference_input_sizes"] = f"{inference}input_sizes{text} {len(state['sizes'])}\n"
    if state["queued"]["count"]:
        out["inference_queue_seconds"] = _histogram(inference + "queue_seconds", labels, state["queued"])
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
    # what UTF-8 cannot hold becomes a question mark
    inside = (
        f'{name}="{text.translate(_ESCAPES).encode("utf-8", "replace").decode()}"' for name, text in pairs.items()
    )
    return f"{{{','.join(inside)}}}" if pairs else ""


def _number(value: float) -> str:
    # 15 digits: a rate is the difference of two sums, which may be those of weeks
    return repr(value) if isinstance(value, int) else f"{value:.15g}"


# -- PromQL that can only name metrics that exist ---------------------------------------------------

NAME = re.compile(r"@([a-z_]+)(?:\{([^{}]*)\})?")
PARTS = ("_bucket", "_count", "_sum")  # what a histogram's series are called


def expand(query: str, matchers: Callable[[Metric], str] = lambda metric: "") -> str:
    """Return the query with full names for ``@name``; ``KeyError`` where that is no metric.

    ``matchers`` : gives what to ask of a metric beside what the query asks.

    >>> expand("sum(rate(@alarms_total[5m]))")
    'sum(rate(torchtriage_alarms_total[5m]))'
    """

    def spell(match: re.Match[str]) -> str:
        metric, part = _queried(match[1])
        inside = ",".join(filter(None, (match[2], matchers(metric))))
        return f"{metric.name}{part}" + (f"{{{inside}}}" if inside else "")

    return NAME.sub(spell, query)


def metrics_of(query: str) -> list[Metric]:
    """Return the metrics that a query names, each once, as they come."""
    return list(dict.fromkeys(_queried(match[1])[0] for match in NAME.finditer(query)))


def _queried(name: str) -> tuple[Metric, str]:
    for part in PARTS:
        whole = METRICS.get(name.removesuffix(part))
        if name.endswith(part) and whole is not None and whole.kind == "histogram":
            return whole, part
    return METRICS[name], ""
