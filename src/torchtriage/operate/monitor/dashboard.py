"""A dashboard for Grafana, made from the metrics' registry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import Any

from torchtriage.operate.monitor.metrics import Metric, expand, metrics_of

SCHEMA_VERSION = 41  # of Grafana 12; older ones (from 9) read it, newer ones bring it up to theirs
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
MODEL = "{{model}} {{version}}"


@dataclass(frozen=True)
class Panel:
    """One panel; ``queries`` : PromQL with ``@names``, by legend."""

    title: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"


def _rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate(@{metric}[$__rate_interval]))"


def _more(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (increase(@{metric}[$__rate_interval]))"


def _quantile(share: float, histogram: str, *by: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{histogram}_bucket', *by, 'le')})"


def _quantiles(histogram: str) -> dict[str, str]:
    return {f"p{share * 100:g} {MODEL}": _quantile(share, histogram, "model", "version") for share in (0.5, 0.9, 0.99)}


ANSWERS = _rate("inference_duration_seconds_count", "model", "version")
ERRORS = _rate("inference_errors_total", "model", "version")
FAILED = f"{ERRORS} / ({ERRORS} + {ANSWERS}) or {ANSWERS} * 0"
MEAN = f"{_rate('inference_duration_seconds_sum', 'model', 'version')} / {ANSWERS}"
ERRORS_BY_TYPE = _rate("inference_errors_total", "model", "version", "error")
MEMORY = {
    f"{what} {{{{instance}}}} {{{{device}}}}": f"sum by (instance, device) (@device_{what}_bytes)"
    for what in ("allocated", "reserved", "capacity")
}
OF_GPU = "{{instance}} {{device}}"
UTILIZATION = "max by (instance, device) (@device_utilization_ratio)"
OUTLETS = _rate("monitor_outlet_records_total", "outlet", "outcome")
OF_DEVICE = ("device", "model", "version")
DEVICE = "{{device}} {{model}} {{version}}"
FLEET_GOOD = f"({_rate('fleet_requests_total', *OF_DEVICE)} - {_rate('fleet_failed_total', *OF_DEVICE)})"
FLEET_MEAN = f"{_rate('fleet_seconds_total', *OF_DEVICE)} / {FLEET_GOOD}"
FLEET_FAILED = f"{_rate('fleet_failed_total', *OF_DEVICE)} / {_rate('fleet_requests_total', *OF_DEVICE)}"

# rows of panels
DASHBOARD: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Answered", "reqps", {"": _rate("inference_duration_seconds_count")}, "stat"),
        Panel("In flight", "short", {"": "sum(@inference_in_flight)"}, "stat"),
        Panel("p99", "s", {"": _quantile(0.99, "inference_duration_seconds")}, "stat"),
        Panel("Process starts", "dateTimeFromNow", {"{{instance}}": "@monitor_start_time_seconds * 1000"}, "stat"),
    ),
    "Traffic": (
        Panel("Requests answered", "reqps", {MODEL: ANSWERS}),
        Panel("Mean time", "s", {MODEL: MEAN}),
        Panel("Distinct input sizes", "short", {MODEL: "max by (model, version) (@inference_input_sizes)"}),
    ),
    "Latency": (
        Panel("Latency: p50, p90, p99", "s", _quantiles("inference_duration_seconds")),
        Panel("Requests by latency", "s", {"{{le}}": _more("inference_duration_seconds_bucket", "le")}, "heatmap"),
    ),
    "Errors": (
        Panel("Errors by type", "reqps", {f"{MODEL} {{{{error}}}}": ERRORS_BY_TYPE}),
        Panel("Share of requests that fail", "percentunit", {MODEL: FAILED}),
        Panel("Outputs with NaN", "short", {MODEL: _more("inference_nan_outputs_total", "model", "version")}),
    ),
    "Load": (
        Panel("In flight", "short", {MODEL: "sum by (model, version) (@inference_in_flight)"}),
        Panel("Time in queue: p50, p90, p99", "s", _quantiles("inference_queue_seconds")),
    ),
    "Devices": (
        Panel("Device memory", "bytes", MEMORY),
        Panel("GPU utilization", "percentunit", {OF_GPU: UTILIZATION}),
        Panel("GPU power", "watt", {OF_GPU: "max by (instance, device) (@device_power_watts)"}),
        Panel("GPU temperature", "celsius", {OF_GPU: "max by (instance, device) (@device_temperature_celsius)"}),
        Panel("Uncorrected ECC errors", "short", {OF_GPU: _more("device_ecc_errors_total", "instance", "device")}),
        Panel("Memory of the processes", "bytes", {"{{instance}}": "sum by (instance) (@process_resident_bytes)"}),
        Panel("CPU cores in use", "short", {"{{instance}}": _rate("process_cpu_seconds_total", "instance")}),
    ),
    "torch.compile": (
        Panel("Recompilations", "short", {"{{instance}}": _more("compile_recompiles_total", "instance")}),
        Panel("Graph breaks", "short", {"{{instance}}": _more("compile_graph_breaks_total", "instance")}),
        Panel(
            "Cache lookups",
            "short",
            {f"{{{{cache}}}} {what}": _more(f"compile_cache_{what}_total", "cache") for what in ("hits", "misses")},
        ),
    ),
    "Alarms, ladders, rollouts": (
        Panel("Alarms", "short", {f"{MODEL} {{{{kind}}}}": _more("alarms_total", "model", "version", "kind")}),
        Panel(
            "Level of ladders (0 is the full mode)",
            "short",
            {"{{ladder}} {{instance}}": "max by (instance, ladder) (@ladder_level)"},
        ),
        Panel(
            "Calls of ladders by mode",
            "reqps",
            {
                "{{ladder}} {{mode}} {{outcome}}": _rate("ladder_calls_total", "ladder", "mode", "outcome"),
                "{{ladder}} fallback": _rate("ladder_fallbacks_total", "ladder"),
            },
        ),
        Panel("Share of the candidate", "percentunit", {"{{rollout}}": "max by (rollout) (@rollout_candidate_ratio)"}),
    ),
    "Fleet": (
        Panel(
            "Slow devices, ratio to usual", "short", {DEVICE: "max by (device, model, version) (@fleet_slowness_ratio)"}
        ),
        Panel("Mean time by device", "s", {DEVICE: FLEET_MEAN}),
        Panel("Share of a device's requests that fail", "percentunit", {DEVICE: FLEET_FAILED}),
        Panel("Alarms of the fleet", "short", {"{{kind}}": _more("fleet_alarms_total", "kind")}),
        Panel("The fleet's records", "reqps", {"{{outcome}}": _rate("fleet_records_total", "outcome")}),
        Panel(
            "Stream lag",
            "short",
            {
                "seconds {{instance}}": "max by (instance) (@fleet_lag_seconds)",
                "entries {{instance}}": "max by (instance) (@fleet_lag_entries)",
                "not stored {{instance}}": "max by (instance) (@fleet_pending_entries)",
            },
        ),
    ),
    "Training": (
        Panel(
            "Late ranks, share of a step",
            "percentunit",
            {"rank {{rank}} {{phase}}": "max by (rank, phase) (@straggler_late_ratio)"},
        ),
        Panel("Ranks that became late", "short", {"rank {{rank}}": _more("straggler_late_total", "rank")}),
        Panel("Windows compared", "short", {"{{instance}}": _more("straggler_windows_total", "instance")}),
    ),
    "The monitor itself": (
        Panel(
            "Requests by outcome of their record", "reqps", {"{{outcome}}": _rate("monitor_requests_total", "outcome")}
        ),
        Panel("Logs and streams", "reqps", {"{{outlet}} {{outcome}}": OUTLETS}),
        Panel(
            "Waiting",
            "short",
            {
                "the monitor's thread": "sum(@monitor_pending)",
                "{{outlet}}": "sum by (outlet) (@monitor_outlet_pending)",
            },
        ),
        Panel(
            "Trouble",
            "short",
            {
                "failures {{instance}}": _more("monitor_failures_total", "instance"),
                "refused connections {{instance}}": _more("monitor_refused_connections_total", "instance"),
                "refused models {{instance}}": _more("monitor_refused_models_total", "instance"),
            },
        ),
    ),
}

VARIABLES = {
    "instance": "label_values(@monitor_pending, instance)",
    "model": 'label_values(@inference_in_flight{instance=~"$instance"}, model)',
    "version": 'label_values(@inference_in_flight{instance=~"$instance",model=~"$model"}, version)',
}
DATASOURCE = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
    "includeAll": False,
    "multi": False,
    "options": [],
    "current": {},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
        "rowsFrame": {"layout": "le"},
        "yAxis": {"unit": "s"},
        "tooltip": {"mode": "single", "yHistogram": False},
        "legend": {"show": True},
    },
}


def dashboard() -> str:
    """Return the dashboard as JSON."""
    ids = count(1)
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in DASHBOARD.items():
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        panels.append(
            {"id": next(ids), "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        top += 1
        width = WIDTH // len(row)
        height = STAT_HEIGHT if row[0].kind == "stat" else HEIGHT
        for at, panel in enumerate(row):
            place = {"x": at * width, "y": top, "w": width, "h": height}
            panels.append({"id": next(ids), "gridPos": place, **_panel(panel)})
        top += height
    document = {
        "title": "torchtriage",
        "uid": "torchtriage",
        "description": "PyTorch models in production, as torchtriage.operate.monitor sees them.",
        "tags": ["pytorch", "torchtriage"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [DATASOURCE, *(_variable(name, expand(query)) for name, query in VARIABLES.items())]},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


def _panel(panel: Panel) -> dict[str, Any]:
    helps = dict.fromkeys(metric.help for query in panel.queries.values() for metric in metrics_of(query))
    field: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        field["min"] = 0
        field["custom"] = {"drawStyle": "line", "fillOpacity": 10, "lineWidth": 1, "showPoints": "auto"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": " ".join(helps),
        "datasource": SOURCE,
        "fieldConfig": {"defaults": field, "overrides": []},
        "options": OPTIONS[panel.kind],
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": expand(query, _matchers),
                "legendFormat": legend,
                "format": "heatmap" if panel.kind == "heatmap" else "time_series",
                "range": True,
            }
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _matchers(metric: Metric) -> str:
    names = [name for name in VARIABLES if name == "instance" or name in metric.labels]
    return ",".join(f'{name}=~"${name}"' for name in names)


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "options": [],
        "current": {"text": ["All"], "value": ["$__all"]},
    }
