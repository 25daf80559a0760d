"""Which recordings of a baseline show its level now: a change that was accepted is its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtriage.core.samples import Series
from torchtriage.core.stats import session_comparison
from torchtriage.measure.gate.row_verdict import STATISTICS
from torchtriage.measure.gate.session_stats import SessionTable


def newest_level(runs: Sequence[tuple[str, Series]]) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
    """Return the recordings of the newest level and those of the one before it.

    ``runs`` : one metric's recordings by commit, oldest first. What has a spread is cut at its last change of level.
    Counts are those of the newest commit, and of the recordings before it that never had another value.
    """
    series = [series for _, series in runs]
    if len(series) < 2:
        return tuple(series), ()
    tables = [SessionTable(part) for part in series]
    if series[-1].kind == "count" or min(table.least for table in tables) <= 0:
        commit = runs[-1][0]
        begin = len(series) - 1
        while begin and commit and runs[begin - 1][0] == commit:
            begin -= 1
        values = {value for table in tables[begin:] for value in (table.least, table.most)}
        if len(values) == 1:
            while begin and {tables[begin - 1].least, tables[begin - 1].most} == values:
                begin -= 1
        return tuple(series[begin:]), ()
    statistic = STATISTICS[series[-1].kind][0]
    centres = np.array([np.median(table.values(statistic)) for table in tables])
    begin, first = session_comparison.newest_level(centres)
    return tuple(series[begin:]), tuple(series[first:begin])
