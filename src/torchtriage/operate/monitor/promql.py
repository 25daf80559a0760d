"""PromQL that can only name metrics that exist: ``@name`` stands for a metric of the registry."""

from __future__ import annotations

import re
from collections.abc import Callable

from torchtriage.operate.monitor.metrics import METRICS, Metric

__all__ = ["expand", "metrics_of"]

NAME = re.compile(r"@([a-z_]+)(?:\{([^{}]*)\})?")
PARTS = ("_bucket", "_count", "_sum")
"""What a histogram's series are called."""


def expand(query: str, matchers: Callable[[Metric], str] = lambda metric: "") -> str:
    """Return the query with full names; ``matchers`` gives what to ask for beside what is asked.

    >>> expand("sum(rate(@alarms_total[5m]))")
    'sum(rate(torchtriage_alarms_total[5m]))'

    Raises
    ------
    KeyError
        It names no metric.
    """

    def spell(found: re.Match[str]) -> str:
        metric, part = _metric(found[1])
        inside = ",".join(filter(None, (found[2], matchers(metric))))
        return f"{metric.name}{part}" + (f"{{{inside}}}" if inside else "")

    return NAME.sub(spell, query)


def metrics_of(query: str) -> list[Metric]:
    """Return the metrics that a query names, each once, as they come."""
    return list(dict.fromkeys(_metric(found[1])[0] for found in NAME.finditer(query)))


def _metric(name: str) -> tuple[Metric, str]:
    for part in PARTS:
        whole = METRICS.get(name.removesuffix(part))
        if name.endswith(part) and whole is not None and whole.kind == "histogram":
            return whole, part
    return METRICS[name], ""
