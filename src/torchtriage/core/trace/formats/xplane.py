"""XPlane, the profile of JAX, TensorFlow and PyTorch/XLA, as they write it: protocol buffers to planes of events."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.events import Loss
from torchtriage.core.trace.formats.protobuf import BYTES, VARINT, WireError, fields_of, padded, scan, split
from torchtriage.core.trace.formats.texts import text_of
from torchtriage.core.trace.formats.xplane_rows import MAX_PLANES, Events, Line, Plane, XPlaneRows, is_read
from torchtriage.core.trace.formats.xplane_tables import NamedStats, Table, read_stats, read_table

_BLOCK = 1 << 16
"""Events decoded at a time: their fields stay near the caches."""
_FACTS = {
    "name": "device_type_string",
    "vendor": "device_vendor",
    "computeMajor": "compute_cap_major",
    "computeMinor": "compute_cap_minor",
    "numSms": "core_count",
    "totalGlobalMem": "memory_size",
}


class _Parts(NamedTuple):
    """The parts of a plane; ``places`` : int64 arrays of where each event starts and stops, line after line."""

    name: str
    lines: list[Line]
    at_ns: list[int]
    places: tuple[Ints, Ints]
    events: list[tuple[int, int]]
    stat_names: list[tuple[int, int]]
    stats: list[tuple[int, int]]


def read_xplane(text: bytes, builder: ColumnBuilder) -> tuple[dict[str, Any], Loss]:
    """Give a builder all rows of an XSpace; return facts on its devices as Kineto writes them, and what was lost."""
    reader, n_planes = _Reader(text, builder), 0
    try:
        for number, wire, start, stop in scan(text, 0, len(text), cut=True):
            if stop > len(text):
                reader.miss("the file ends early: the rest is missing")
                reader.is_cut, stop = True, len(text)
            if (number, wire) == (1, BYTES):
                n_planes += 1
                if n_planes > MAX_PLANES:
                    reader.miss(f"more than {MAX_PLANES} planes")
                    break
                reader.read_plane(start, stop)
    except WireError as error:
        reader.miss(f"the rest of the file cannot be read: {error}")
    reader.rows.finish()
    return reader.rows.meta(), reader.loss


class _Reader:
    def __init__(self, text: bytes, builder: ColumnBuilder) -> None:
        self.loss = Loss()
        self.is_cut = False
        self.rows = XPlaneRows(builder)
        self._text, self._octets = text, padded(text)
        self._builder = builder

    def miss(self, message: str, stop: int = -1) -> None:
        """Say that a part cannot be read, unless it is the one that the file ends in: that is said."""
        if not (self.is_cut and stop == len(self._text)):
            self.loss.incomplete = True
            self.loss.say(message)

    def read_plane(self, start: int, stop: int) -> None:
        """Take the rows of a plane, if it is one of a device or the host."""
        parts = self._sort_out(start, stop)
        stat_names = read_table(self._text, self._octets, parts.stat_names)
        self._describe(parts, stat_names)
        if not len(parts.places[0]) or not is_read(parts.name):
            return
        table = read_table(self._text, self._octets, parts.events)
        categories = table.texts_of("hlo_category", stat_names)
        plane = Plane(parts.name, parts.lines, table.names, categories, self._builder)
        line = np.repeat(np.arange(len(parts.lines)), [item.n_events for item in parts.lines])
        line_at_ns = np.array(parts.at_ns, np.int64)
        for first in range(0, len(line), _BLOCK):
            some = slice(first, first + _BLOCK)
            places = parts.places[0][some], parts.places[1][some]
            self.rows.add(plane, self._read_events(line[some], line_at_ns, places, table, stat_names))

    def _sort_out(self, start: int, stop: int) -> _Parts:
        text, lines, at_ns = self._text, [], []
        places = array("q"), array("q")
        name, tables = "", {4: [], 5: [], 6: []}  # type: tuple[str, dict[int, list[tuple[int, int]]]]
        try:
            for number, wire, value, end in scan(text, start, stop, cut=True):
                if end > stop:
                    self.miss(f"a part of a plane ends beyond it, at byte {end} of {stop}", stop)
                    end = stop
                if wire != BYTES:
                    continue
                if number == 2:
                    name = text_of(text[value:end])
                elif number == 3:
                    line, line_at_ns = self._read_line(value, end, places)
                    lines.append(line)
                    at_ns.append(line_at_ns)
                elif number in tables:
                    tables[number].append((value, end))
        except WireError as error:
            self.miss(str(error), stop)
        starts, stops = (np.frombuffer(part, np.int64) if part else np.empty(0, np.int64) for part in places)
        return _Parts(name, lines, at_ns, (starts, stops), tables[4], tables[5], tables[6])

    def _read_line(self, start: int, stop: int, places: tuple[array[int], array[int]]) -> tuple[Line, int]:
        first = len(places[0])
        others: list[tuple[int, int, int, int]] = []
        try:
            split(self._text, start, stop, 4, places, others)
        except WireError as error:
            self.miss(str(error), stop)
        found = {number: self._text[value:end] if wire == BYTES else value for number, wire, value, end in others}
        name = found.get(11) or found.get(2)
        numbers = (value if isinstance(value, int) else 0 for value in (found.get(1, 0), found.get(3, 0)))
        line_id, at_ns = map(_signed, numbers)
        return Line(line_id, text_of(name) if isinstance(name, bytes) else "", len(places[0]) - first), at_ns

    def _describe(self, parts: _Parts, stat_names: Table) -> None:
        """Keep what a device says of itself."""
        stats = read_stats(self._text, self._octets, parts.stats)
        facts: dict[str, Any] = {}
        for key, name in _FACTS.items():
            values = stats.texts(self._text, name, stat_names) or stats.numbers(name, stat_names)[1].tolist()
            if values:
                facts[key] = values[-1]
        self.rows.describe(parts.name, facts)

    def _read_events(
        self, line: Ints, line_at_ns: Ints, places: tuple[Ints, Ints], table: Table, stat_names: Table
    ) -> Events:
        n = len(line)
        fields, damaged = fields_of(self._text, self._octets, *places)
        if damaged.any():
            self.loss.n_lost += int(damaged.sum())
            self.loss.say("events that are no messages")
        number = {key: np.zeros(n, np.int64) for key in (1, 2, 3, 5)}
        for key, values in number.items():
            found = fields.where(key, VARINT)
            values[found.message] = found.value.astype(np.int64)
        # what only counts occurrences has no place in time
        keep = np.flatnonzero(~damaged & (number[5] == 0))
        position = np.full(n, -1, np.int64)
        position[keep] = np.arange(len(keep))
        code, offset_ps, dur_ps, line = table.find(number[1][keep]), number[2][keep], number[3][keep], line[keep]
        held = fields.where(4, BYTES)
        owner = position[held.message]
        owned = owner >= 0
        stats = read_stats(
            self._text, self._octets, (held.value[owned].astype(np.int64), held.stop[owned]), owner[owned]
        )
        return Events(line, code, line_at_ns[line], offset_ps, dur_ps, NamedStats(stats, self._text, stat_names))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
