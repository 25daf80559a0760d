"""Burn-rate alerts of an objective that is given in one line: ``detector: 99.9% under 0.25s over 30d``."""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple

from torchtriage.core.errors import UsageError
from torchtriage.core.names import visible
from torchtriage.operate.monitor.aggregate import BOUNDS_S

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_OBJECTIVE = re.compile(
    rf"(?P<percent>{_NUMBER})\s*%"
    rf"(?:\s+under\s+(?P<seconds>{_NUMBER})\s*(?P<unit>ms|s))?(?:\s+over\s+(?P<days>[0-9]{{1,5}})\s*d)?\s*"
)
BY = "job, model"
# share of the budget that is spent, in a long window and, still, in a short one (Google's SRE workbook, chapter 5)
WINDOWS = ((0.02, "1h", "5m", "critical"), (0.05, "6h", "30m", "critical"), (0.10, "3d", "6h", "warning"))
HOURS = {"1h": 1, "6h": 6, "3d": 72}


class Objective(NamedTuple):
    """A share of requests to answer without error, in a time where one is given, over so many days."""

    text: str
    model: str
    share: float
    under_s: float | None
    days: int


class BurnRate(NamedTuple):
    """A query that holds while an objective's budget is spent too fast, and that in words."""

    query: str
    severity: str
    means: str


def objective(line: str) -> Objective:
    """Return what a line says.

    Raises ``UsageError``: it says something else, a time that is no bound of the histogram, or a share of which
    requests that all fail spend too little to be told, over so many days.
    """
    model, _, rest = line.rpartition(":")
    found = _OBJECTIVE.fullmatch(rest.strip())
    share = round(float(found["percent"]) / 100, 9) if found else 0.0
    if found is None or not 0 < share < 1 or (found["days"] and not int(found["days"])):
        raise UsageError(
            f"expected an objective, found {visible(line)!r}",
            where="--slo",
            hint='--slo "99.9%", --slo "99% under 250ms over 28d" or --slo "detector: 99.9% under 0.25s"',
        )
    under_s = None
    if found["seconds"]:
        under_s = float(found["seconds"]) * (1e-3 if found["unit"] == "ms" else 1.0)
        near = min(BOUNDS_S, key=lambda bound: abs(math.log(bound / max(under_s or 0.0, 1e-9))))
        if not math.isclose(near, under_s):
            raise UsageError(
                f"expected a time that the histogram counts by, found {under_s:g} s",
                where="--slo",
                hint=f"the nearest is {near:g}s; bounds are 1, 2.5 and 5 times powers of ten",
            )
        under_s = near
    slo = Objective(line.strip(), model.strip(), share, under_s, int(found["days"] or 30))
    if not burn_rates(slo):
        raise UsageError(
            f"expected an objective whose budget can burn too fast, found {visible(line)!r}",
            where="--slo",
            hint="a larger share or fewer days: even if all requests fail, no alert would fire",
        )
    return slo


def burn_rates(slo: Objective) -> list[BurnRate]:
    """Return the queries, with ``@names``, whose alerts tell that the budget will not last, one per severity."""
    found: dict[str, list[tuple[str, str]]] = {}
    for spent, long, short, severity in WINDOWS:
        limit = spent * slo.days * 24 / HOURS[long] * (1 - slo.share)
        if limit < 1:
            query = " and ".join(f"{_bad_share(slo, window)} > {limit:.6g}" for window in (long, short))
            found.setdefault(severity, []).append((query, f"{spent:.0%} in {long}"))
    return [
        BurnRate(" or ".join(query for query, _ in parts), severity, " or ".join(means for _, means in parts))
        for severity, parts in found.items()
    ]


def _bad_share(slo: Objective, window: str) -> str:
    match = f"model={json.dumps(slo.model)}" if slo.model else ""

    def rate(name: str, *more: str) -> str:
        inside = ",".join(filter(None, (match, *more)))
        return f"sum by ({BY}) (rate(@{name}{{{inside}}}[{window}]))"

    answers, errors = rate("inference_duration_seconds_count"), rate("inference_errors_total")
    asked = f"({errors} + {answers} or {answers})"
    in_time = answers
    if slo.under_s is not None:
        # Prometheus 3 writes whole numbers with a point, whatever it scraped
        in_time = rate("inference_duration_seconds_bucket", f'le=~"{slo.under_s:g}(\\\\.0)?"')
    return f"(1 - {in_time} / ({asked} > 0))"
