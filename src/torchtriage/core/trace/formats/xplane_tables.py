"""The tables of an XPlane: names of events and of statistics by id, and the statistics that events have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.trace.formats.protobuf import BYTES, VARINT, fields_of
from torchtriage.core.trace.formats.texts import text_of
from torchtriage.core.trace.formats.xplane_rows import Coded

_DOUBLE, _UNSIGNED, _SIGNED, _STRING, _OCTETS, _REFERENCE = range(2, 8)

Places = Sequence[tuple[int, int]] | tuple[Ints, Ints]


class Table:
    """Names by id; ``find`` turns ids into places in ``names``."""

    def __init__(self, text: bytes, ids: Ints, names: list[str], stats: Stats) -> None:
        self.names, self._text, self._stats = names, text, stats
        order = np.argsort(ids, kind="stable")
        self._ids, self._places = ids[order], order

    def find(self, ids: Ints) -> Ints:
        """Return each id's place, ``len(names)`` for one that is not there."""
        if not len(self._ids):
            return np.zeros(len(ids), np.int64)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._places[at], len(self.names))

    def ids_of(self, name: str) -> Ints:
        """Return the ids of a name, mostly one."""
        places = [place for place, known in enumerate(self.names) if known == name]
        return self._ids[np.isin(self._places, places)]

    def texts_of(self, name: str, stat_names: Table) -> list[str]:
        """Return what a statistic says of each entry, empty where it says nothing."""
        out = [""] * len(self.names)
        owner, found = self._stats.coded(self._text, name, stat_names)
        for index, code in zip(owner.tolist(), found.codes.tolist(), strict=True):
            out[index] = found.table[code]
        return out


class Stats(NamedTuple):
    """Statistics, arrays of equal length: whose, which, of which type, its bits (or where it starts), where it ends."""

    owner: Ints
    id: Ints
    type: Ints
    value: NDArray[np.uint64]
    stop: Ints

    def _named(self, name: str, names: Table, types: tuple[int, ...]) -> Ints:
        ids = names.ids_of(name)
        if not len(ids):
            return ids
        return np.flatnonzero(np.isin(self.id, ids) & np.isin(self.type, types))

    def numbers(self, name: str, names: Table) -> tuple[Ints, Ints]:
        """Return whose and what a whole number is."""
        at = self._named(name, names, (_UNSIGNED, _SIGNED))
        return self.owner[at], self.value[at].astype(np.int64)

    def coded(self, text: bytes, name: str, names: Table) -> tuple[Ints, Coded]:
        """Return whose and what a text is."""
        at = self._named(name, names, (_STRING, _REFERENCE))
        codes: dict[str, int] = {}
        out = np.empty(len(at), np.int64)
        refers = self.type[at] == _REFERENCE
        ids, which = np.unique(self.value[at[refers]].astype(np.int64), return_inverse=True)
        known = [*names.names, ""]
        meant = [codes.setdefault(known[place], len(codes)) for place in names.find(ids).tolist()]
        out[refers] = np.array(meant, np.int64)[which]
        own = at[~refers]
        raw: dict[bytes, int] = {}
        given = [
            raw.setdefault(text[start:stop], len(raw))
            for start, stop in zip(self.value[own].tolist(), self.stop[own].tolist(), strict=True)
        ]
        meant = [codes.setdefault(text_of(part), len(codes)) for part in raw]
        out[~refers] = np.array(meant, np.int64)[given] if given else out[:0]
        return self.owner[at], Coded(out, list(codes))

    def texts(self, text: bytes, name: str, names: Table) -> list[str]:
        """Return the texts of a statistic, in order."""
        found = self.coded(text, name, names)[1]
        return [found.table[code] for code in found.codes.tolist()]


class NamedStats(NamedTuple):
    """Statistics, and the names that they go by."""

    stats: Stats
    text: bytes
    names: Table

    def numbers(self, name: str) -> tuple[Ints, Ints]:
        """Return whose and what a whole number is."""
        return self.stats.numbers(name, self.names)

    def coded(self, name: str) -> tuple[Ints, Coded]:
        """Return whose and what a text is."""
        return self.stats.coded(self.text, name, self.names)


def read_table(text: bytes, octets: NDArray[np.uint8], places: Places) -> Table:
    """Return the names of a map from ids to messages of metadata."""
    entries, _ = fields_of(text, octets, *_apart(places))
    n = len(_apart(places)[0])
    ids, start, stop = np.zeros((3, n), np.int64)
    key, value = entries.where(1, VARINT), entries.where(2, BYTES)
    ids[key.message] = key.value.astype(np.int64)
    start[value.message], stop[value.message] = value.value.astype(np.int64), value.stop
    inner, _ = fields_of(text, octets, start, stop)
    names = [""] * n
    name = inner.where(2, BYTES)
    for index, first, last in zip(name.message.tolist(), name.value.tolist(), name.stop.tolist(), strict=True):
        names[index] = text_of(text[first:last])
    held = inner.where(5, BYTES)
    stats = read_stats(text, octets, (held.value.astype(np.int64), held.stop), held.message)
    return Table(text, ids, names, stats)


def read_stats(text: bytes, octets: NDArray[np.uint8], places: Places, owner: Ints | None = None) -> Stats:
    """Return the statistics at these places, each its own owner unless it is said whose they are."""
    start, stop = _apart(places)
    fields, _ = fields_of(text, octets, start, stop)
    n = len(start)
    ids, kind, end = np.zeros((3, n), np.int64)
    value = np.zeros(n, np.uint64)
    name = fields.where(1, VARINT)
    ids[name.message] = name.value.astype(np.int64)
    typed = np.flatnonzero((fields.number >= _DOUBLE) & (fields.number <= _REFERENCE))
    as_written = fields.wire[typed] == _WIRE[fields.number[typed]]
    typed = typed[as_written]
    at = fields.message[typed]
    kind[at], value[at], end[at] = fields.number[typed], fields.value[typed], fields.stop[typed]
    return Stats(np.arange(n) if owner is None else owner, ids, kind, value, end)


_WIRE = np.array([9, 9, 1, VARINT, VARINT, BYTES, BYTES, VARINT], np.uint8)


def _apart(places: Places) -> tuple[Ints, Ints]:
    if isinstance(places, tuple):
        return places
    starts, stops = np.array(places, np.int64).reshape(-1, 2).T
    return np.ascontiguousarray(starts), np.ascontiguousarray(stops)
