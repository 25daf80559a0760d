"""Which recordings of a baseline tell its level now: a change that was accepted is its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchtriage.gate.rows import STATISTICS
from torchtriage.gate.summaries import Table
from torchtriage.samples import Series
from torchtriage.stats import sessions

__all__ = ["Level", "newest_level"]


class Level(NamedTuple):
    """The recordings of the newest level, and those of the one before it."""

    now: tuple[Series, ...]
    earlier: tuple[Series, ...] = ()


def newest_level(runs: Sequence[tuple[str, Series]]) -> Level:
    """Return the newest level of one metric's recordings, by commit, oldest first.

    What has a spread is cut at its last change of level. Counts are those of the newest commit, and
    of the recordings before it that never had another value.
    """
    series = [one for _, one in runs]
    if len(series) < 2:
        return Level(tuple(series))
    tables = [Table(one) for one in series]
    if series[-1].kind == "count" or min(one.least for one in tables) <= 0:
        commit = runs[-1][0]
        begin = len(series) - 1
        while begin and commit and runs[begin - 1][0] == commit:
            begin -= 1
        values = {one for table in tables[begin:] for one in (table.least, table.most)}
        if len(values) == 1:
            while begin and {tables[begin - 1].least, tables[begin - 1].most} == values:
                begin -= 1
        return Level(tuple(series[begin:]))
    statistic = STATISTICS[series[-1].kind][0]
    centres = np.array([np.median(one.values(statistic)) for one in tables])
    begin, first = sessions.newest_level(centres)
    return Level(tuple(series[begin:]), tuple(series[first:begin]))
