"""Recording and alerting rules for Prometheus, made from the metrics' registry."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchtriage.core.errors import UsageError
from torchtriage.core.names import visible
from torchtriage.operate.monitor.aggregate import BOUNDS_S
from torchtriage.operate.monitor.metrics import expand
from torchtriage.operate.monitor.slo import Objective, burn_rates, objective

PAGE = "monitor.md#alerts"
BY = "job, model, version"
ANSWERS = f"sum by ({BY}) (rate(@inference_duration_seconds_count[5m]))"
ERRORS = f"sum by ({BY}) (rate(@inference_errors_total[5m]))"
REQUESTS = "model:torchtriage_inference_requests:rate5m"
ERROR_RATIO = "model:torchtriage_inference_error_ratio:rate5m"
LATENCY = "model:torchtriage_inference_duration_seconds"
QUEUE = "model:torchtriage_inference_queue_seconds:p90_5m"


def _quantile(histogram: str, share: float) -> str:
    rates = f"sum by ({BY}, le) (rate(@{histogram}_bucket[5m]))"
    return f"histogram_quantile({share}, {rates}) >= 0"


RECORDED = {
    REQUESTS: f"{ERRORS} + {ANSWERS} or {ANSWERS}",
    ERROR_RATIO: f"{ERRORS} / ({REQUESTS} > 0) or 0 * ({REQUESTS} > 0)",
    **{
        f"{LATENCY}:p{round(share * 100)}_5m": _quantile("inference_duration_seconds", share)
        for share in (0.5, 0.9, 0.99)
    },
    QUEUE: _quantile("inference_queue_seconds", 0.9),
}
"""Name of each recorded series, and its query with ``@names``."""


@dataclass(frozen=True)
class AlertRule:
    """An alert; ``wait`` is how long it must hold before it is sent."""

    name: str
    query: str
    wait: str
    severity: str
    summary: str
    description: str
    labels: tuple[tuple[str, str], ...] = ()  # beside the severity and those of the query


OF_MODEL = "{{ $labels.model }} {{ $labels.version }}"
OUT_OF_MEMORY = '@inference_errors_total{error=~".*OutOfMemory.*"}'
OF_INSTANCE = "{{ $labels.instance }}"
WARM = "(time() - @monitor_start_time_seconds > 900)"
"""Processes that have run for the time of the window and five minutes before it."""


def _counted(series: str) -> str:
    # a series that is new has nothing that it rises from
    return (
        f"sum by ({BY}) (increase({series}[10m])) > 0"
        f" or sum by ({BY}) ({series} unless {series} offset 10m"
        " and on (job, instance) @monitor_start_time_seconds offset 10m) > 0"
    )


ALERTS = (
    AlertRule(
        "TorchtriageDown",
        # what fires goes on: who scraped it within the hour is forgotten, and it is still down
        "up == 0 and on (job, instance) (present_over_time(@monitor_pending[1h])"
        ' or on (job, instance) present_over_time(ALERTS{alertname="TorchtriageDown"}[15m]))',
        "2m",
        "critical",
        f"{OF_INSTANCE} cannot be scraped",
        "It was scraped within the last hour and does not answer now: check whether the process"
        " runs, and whether its port or token has changed.",
    ),
    AlertRule(
        "TorchtriageStuck",
        f"sum by ({BY}) (@inference_in_flight) > 0 and {REQUESTS} == 0",
        "5m",
        "critical",
        f"{OF_MODEL}: requests start and none finish",
        "{{ $value }} requests are in progress and none has finished for ten minutes: a deadlock, a hung"
        " device or a hung collective. Dump the process's stacks (py-spy dump) before you"
        " restart it.",
    ),
    AlertRule(
        "TorchtriageNaN",
        _counted("@inference_nan_outputs_total"),
        "0m",
        "critical",
        f"{OF_MODEL} returns NaN",
        "{{ $value | humanize }} answers contained NaN in ten minutes: roll back to the previous"
        " version, then look for out-of-range inputs and reduced precision.",
    ),
    AlertRule(
        "TorchtriageOutOfMemory",
        _counted(OUT_OF_MEMORY),
        "0m",
        "critical",
        f"{OF_MODEL}: requests run out of device memory",
        "Bound the batch and the input size; torchtriage memory SNAPSHOT says what holds the memory"
        " and whether it is fragmented (docs/memory.md).",
    ),
    AlertRule(
        "TorchtriageLatencyShift",
        f"{LATENCY}:p90_5m > 2 * avg_over_time({LATENCY}:p90_5m[6h] offset 30m) and {REQUESTS} > 0.2",
        "10m",
        "warning",
        f"{OF_MODEL} takes twice as long as in the previous hours",
        "p90 is {{ $value | humanizeDuration }}. Compare the dashboard's rows of devices,"
        " compilation and input sizes; a recording of both states and torchtriage compare name the"
        " cause (docs/compare.md).",
    ),
    AlertRule(
        "TorchtriageQueue",
        f"{QUEUE} > {LATENCY}:p90_5m",
        "10m",
        "warning",
        f"{OF_MODEL}: requests wait in the queue longer than they run",
        "p90 of the wait is {{ $value | humanizeDuration }}: add replicas, batch more, or let a"
        " ladder switch to a cheaper mode (docs/degrade.md).",
    ),
    AlertRule(
        "TorchtriageDeviceMemory",
        "max by (job, instance, device) (@device_allocated_bytes / @device_capacity_bytes) > 0.9",
        "10m",
        "warning",
        f"{OF_INSTANCE}: tensors fill device {{{{ $labels.device }}}}",
        "Tensors hold {{ $value | humanizePercentage }} of its memory: the next larger batch may"
        " fail. tt.memory.watch() shows whether it leaks (docs/leaks.md).",
    ),
    AlertRule(
        "TorchtriageRecompiles",
        f"increase(@compile_recompiles_total[10m]) > 0 and on (job, instance) {WARM}",
        "0m",
        "warning",
        f"{OF_INSTANCE} recompiles after warm-up",
        "{{ $value | humanize }} recompilations in ten minutes, each of which stalls a request for"
        " seconds: torchtriage compile names the guard and the line (docs/compile.md); a few"
        " planned input sizes avoid most of them (docs/bucketing.md).",
    ),
    AlertRule(
        "TorchtriageGraphBreaks",
        f"increase(@compile_graph_breaks_total[10m]) > 0 and on (job, instance) {WARM}",
        "0m",
        "warning",
        f"{OF_INSTANCE} hits graph breaks after warm-up",
        "{{ $value | humanize }} graph breaks in ten minutes: torchtriage compile names their lines"
        " and fixes (docs/compile.md).",
    ),
    AlertRule(
        "TorchtriageAnomaly",
        f"sum by ({BY}, kind) (increase(@alarms_total{{kind!='faster'}}[10m])) > 0",
        "0m",
        "warning",
        f"{OF_MODEL}: {{{{ $labels.kind }}}}",
        "The detectors in the service raised {{ $value | humanize }} alarms of this kind in ten"
        " minutes; the details are in its log and channels (docs/detection.md).",
    ),
    AlertRule(
        "TorchtriageDegraded",
        "max by (job, instance, ladder) (@ladder_level) > 0",
        "15m",
        "warning",
        f"{OF_INSTANCE}: {{{{ $labels.ladder }}}} is in a cheaper mode",
        "It is at level {{ $value }} and has not recovered: its log says why it stepped down (docs/degrade.md).",
    ),
    AlertRule(
        "TorchtriageRolledBack",
        "max by (job, rollout) (@rollout_candidate_ratio) == 0"
        " and max by (job, rollout) (max_over_time(@rollout_candidate_ratio[1h])) > 0",
        "0m",
        "warning",
        "{{ $labels.rollout }}: the candidate gets no more requests",
        "It was rolled back, or its store cannot be read: torchtriage rollout status says which and"
        " why (docs/rollout.md).",
    ),
    AlertRule(
        "TorchtriageTelemetryLost",
        'sum by (job, instance) (increase(@monitor_requests_total{outcome="dropped"}[10m])) > 0'
        " or sum by (job, instance, outlet)"
        ' (increase(@monitor_outlet_records_total{outcome="dropped"}[10m])) > 0'
        " or sum by (job, instance) (increase(@monitor_failures_total[10m])) > 0",
        "0m",
        "warning",
        f"{OF_INSTANCE} loses records{{{{ with $labels.outlet }}}} of {{{{ . }}}}{{{{ end }}}}",
        "{{ $value | humanize }} records or alerts in ten minutes. No request is affected, but"
        " the numbers are incomplete. The outlet's last_error says why.",
    ),
    AlertRule(
        "TorchtriageOutletStuck",
        "sum by (job, instance, outlet) (@monitor_outlet_pending) > 0"
        " unless on (job, instance, outlet) sum by (job, instance, outlet)"
        ' (increase(@monitor_outlet_records_total{outcome="sent"}[5m])) > 0',
        "5m",
        "warning",
        f"{OF_INSTANCE}: {{{{ $labels.outlet }}}} sends nothing",
        "{{ $value }} records wait: its server or disk is unavailable. The oldest are dropped when"
        " there is no room left. The outlet's last_error says why.",
    ),
    AlertRule(
        "TorchtriageFleetAnomaly",
        "sum by (job, kind) (increase(@fleet_alarms_total[10m])) > 0",
        "0m",
        "warning",
        "the fleet: {{ $labels.kind }}",
        "{{ $value | humanize }} alarms of this kind in ten minutes; the consumer's log and channels name the device"
        " or the version.",
    ),
    AlertRule(
        "TorchtriageFleetBehind",
        "max by (job, instance) (@fleet_lag_seconds) > 30",
        "2m",
        "warning",
        f"{OF_INSTANCE} is {{{{ $value | humanizeDuration }}}} behind the fleet's stream",
        "What the stream trims before it is read is lost: give the consumer a CPU core, the stream more entries,"
        " or split the fleet over several streams.",
    ),
    AlertRule(
        "TorchtriageFleetLost",
        'sum by (job, instance) (increase(@fleet_records_total{outcome="lost"}[10m])) > 0',
        "0m",
        "warning",
        f"{OF_INSTANCE} is missing records of the fleet",
        "{{ $value | humanize }} records in ten minutes were dropped by their devices, or trimmed before they were"
        " read: raise max_entries and max_pending of RedisStream.",
    ),
    AlertRule(
        "TorchtriageModelsRefused",
        "sum by (job, instance) (increase(@monitor_refused_models_total[10m])) > 0",
        "0m",
        "warning",
        f"{OF_INSTANCE} observes more models than it has room for",
        "Further pairs of model and version are counted together as other: a name or a version that"
        " changes with each request belongs elsewhere.",
    ),
)
"""What needs no choice of the user's."""


def alerts(
    errors: float = 0.05, latency: Mapping[str, float] | None = None, slos: Sequence[str] = ()
) -> list[AlertRule]:
    """Return all alerts.

    ``errors`` : share of requests that may fail. ``latency`` : seconds that 99 % of a model's requests may
    take; the name ``""`` stands for all others. ``slos`` : objectives, as :func:`~.slo.objective` reads them.
    Raises ``UsageError``: a share that is none, a time that is no positive number, or no objective.
    """
    if not 0 < errors < 1:
        raise UsageError(f"expected a share of errors between 0 and 1, found {errors:g}")
    chosen = [
        AlertRule(
            "TorchtriageErrors",
            f"{ERROR_RATIO} > {errors:g}",
            "5m",
            "critical",
            f"{OF_MODEL} fails {{{{ $value | humanizePercentage }}}} of its requests",
            f"More than {errors:.15g} of the requests failed, for ten minutes: the dashboard's row"
            " of errors shows which kinds. A rollout in progress is the first suspect"
            " (torchtriage rollout status).",
        )
    ]
    if latency:
        chosen.append(
            AlertRule(
                "TorchtriageLatency",
                _too_slow(latency),
                "5m",
                "critical",
                f"{OF_MODEL} misses its latency objective",
                "p99 is {{ $value | humanizeDuration }}. Compare the dashboard's rows of queue,"
                " devices and compilation; tt.sample() records the service for torchtriage analyze"
                " (docs/recording.md).",
            )
        )
    return [*chosen, *(rule for slo in _objectives(slos) for rule in _burning(slo)), *ALERTS]


def _objectives(lines: Sequence[str]) -> Iterator[Objective]:
    known: dict[Objective, str] = {}
    for line in lines:
        slo = objective(line)
        bare = slo._replace(text="")
        if bare in known:
            raise UsageError(
                f"expected each objective once, found {visible(line)!r} and {visible(known[bare])!r}", where="--slo"
            )
        known[bare] = line
        yield slo


def _burning(slo: Objective) -> Iterator[AlertRule]:
    for rate in burn_rates(slo):
        yield AlertRule(
            "TorchtriageSLOBudget",
            rate.query,
            "2m",
            rate.severity,
            f"{{{{ $labels.model }}}} burns the error budget of {slo.text}",
            "{{ $value | humanizePercentage }} of its requests failed or were late: at this rate it burns"
            f" {rate.means} of the error budget for {slo.days} days.",
            (("slo", slo.text),),
        )


def _too_slow(latency: Mapping[str, float]) -> str:
    parts = []
    for model, seconds in latency.items():
        if not 0 < seconds < math.inf:
            raise UsageError(f"expected seconds above 0, found {seconds:g}")
        if seconds >= BOUNDS_S[-1]:
            raise UsageError(
                f"expected fewer seconds than the histogram's last bound, {BOUNDS_S[-1]:g}, found {seconds:g}",
                where="--latency",
                hint="no quantile is reported above it, so the alert would never fire",
            )
        others = [f"model!={json.dumps(name)}" for name in latency if name]
        matchers = f"model={json.dumps(model)}" if model else ",".join(others)
        parts.append(f"{LATENCY}:p99_5m{{{matchers}}} > {seconds:.15g}")
    return " or ".join(parts)


def rules(
    errors: float = 0.05, latency: Mapping[str, float] | None = None, slos: Sequence[str] = (), *, docs: str = "docs"
) -> str:
    """Return the rules' file as YAML; parameters and errors as of :func:`alerts`.

    ``docs`` : where these pages are for those who are called: a URL makes the runbooks' links absolute.
    """
    runbook = f"{docs.rstrip('/')}/{PAGE}"
    lines = ["groups:", "  - name: torchtriage", "    rules:"]
    for name, query in RECORDED.items():
        lines += [f"      - record: {name}", f"        expr: {json.dumps(expand(query))}"]
    for alert in alerts(errors, latency, slos):
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(expand(alert.query))}",
            f"        for: {alert.wait}",
            "        labels:",
            f"          severity: {alert.severity}",
            *(f"          {name}: {json.dumps(value)}" for name, value in alert.labels),
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.description)}",
            f"          {'runbook_url' if '://' in docs else 'runbook'}: {json.dumps(runbook)}",
        ]
    return "\n".join(lines) + "\n"
