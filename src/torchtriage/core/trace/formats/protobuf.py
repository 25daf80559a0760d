"""The wire format of protocol buffers: one message field by field, or thousands of messages at a time as arrays.

Positions count from the start of the text. A message that does not parse keeps the fields before the damage.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST = 10
"""Bytes of a varint."""
_PADDING = bytes(2 * _LONGEST)
_LARGEST = 1 << 31
"""No message is larger."""
_FEW = 32
"""So few messages are read one by one: a step of arrays costs as much as reading so many fields."""


Field = tuple[int, int, int, int]
"""Number, wire type, value (or where the bytes start) and end."""


Arrays = tuple["array[int]", "array[int]"]


class WireError(ValueError):
    """Bytes that are no message."""


class Fields(NamedTuple):
    """Fields of many messages, arrays of equal length, in the order of each message.

    ``message`` : whose field it is. ``value`` : the number's bits, or where the bytes start. ``stop`` : where it ends.
    """

    message: Ints
    number: Ints
    wire: NDArray[np.uint8]
    value: NDArray[np.uint64]
    stop: Ints

    def where(self, number: int, wire: int) -> Fields:
        """Return the fields of one number, of the type it should have."""
        at = np.flatnonzero((self.number == number) & (self.wire == wire))
        return Fields(self.message[at], self.number[at], self.wire[at], self.value[at], self.stop[at])


def padded(text: bytes) -> NDArray[np.uint8]:
    """Return the text for ``fields_of``, which may read a little beyond its end."""
    return np.frombuffer(text + _PADDING, np.uint8)


def scan(text: bytes, start: int, end: int, *, cut: bool = False) -> Iterator[Field]:
    """Yield the fields of one message.

    ``cut`` : the bytes of the last field may end beyond the message.

    Raises WireError: at the first field that does not parse or ends beyond the message.
    """
    at = start
    while at < end:
        tag, at = _varint(text, at, end)
        wire = tag & 7
        if wire == VARINT:
            value, at = _varint(text, at, end)
        elif wire == BYTES:
            size, value = _varint(text, at, end)
            at = value + size
        elif wire in _SIZES:
            value, at = int.from_bytes(text[at : at + _SIZES[wire]], "little"), at + _SIZES[wire]
        else:
            raise WireError(f"unknown wire type {wire} at byte {at}")
        if (at > end and not (cut and wire == BYTES)) or tag < 8:
            raise WireError(f"a field at byte {at} of {end} does not fit")
        yield tag >> 3, wire, value, at


def split(text: bytes, start: int, end: int, number: int, places: Arrays, others: list[Field]) -> None:
    """Append where each message of one number starts and ends to ``places``, and the other fields to ``others``.

    For lists of many small messages, whose number is below 16.

    Raises WireError: as ``scan`` does, with what stands before the damage appended.
    """
    tag, (starts, stops) = number << 3 | BYTES, places
    at = start
    while at < end:
        if text[at] == tag and at + 1 < end:
            size, first = text[at + 1], at + 2
            if size > 127:
                size, first = _varint(text, at + 1, end)
            at = first + size
            if at > end:
                raise WireError(f"a message at byte {first} of {end} does not fit")
            starts.append(first)
            stops.append(at)
        else:
            others.append(next(scan(text, at, end)))
            at = others[-1][3]


def _varint(text: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 7 * _LONGEST:
        byte = text[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
        shift += 7
    raise WireError(f"a number at byte {at} of {end} does not end")


def fields_of(text: bytes, octets: NDArray[np.uint8], start: Ints, end: Ints) -> tuple[Fields, Mask]:
    """Return the fields of many messages, and which messages are damaged.

    All messages move on by one field at a time. ``octets`` : ``padded`` of the text. ``start``, ``end`` : int64[k].
    """
    at = start.copy()
    damaged = np.zeros(len(start), dtype=bool)
    parts: list[tuple[NDArray[np.generic], ...]] = []
    live = np.flatnonzero(at < end)
    while len(live) > _FEW:
        tag, here = _varints(octets, at[live])
        wire = (tag & np.uint64(7)).astype(np.uint8)
        value, behind = _varints(octets, here)
        size = np.where(wire == BYTES, value, 0)
        stop = behind + np.minimum(size, _LARGEST).astype(np.int64)
        value[wire == BYTES] = behind[wire == BYTES]
        fixed = np.flatnonzero((wire == FIXED64) | (wire == FIXED32))
        if len(fixed):
            width = np.where(wire[fixed] == FIXED64, 8, 4)
            places = np.minimum(here[fixed, None] + np.arange(8), len(octets) - 1)
            bits = np.ascontiguousarray(octets[places]).view("<u8").ravel()
            value[fixed] = np.where(width == 8, bits, bits & np.uint64(0xFFFFFFFF))
            stop[fixed] = here[fixed] + width
        known = (wire < 3) | (wire == FIXED32)
        good = known & (tag >= 8) & (behind >= 0) & (here >= 0) & (size <= _LARGEST) & (stop <= end[live])
        damaged[live[~good]] = True
        live, stop = live[good], stop[good]
        parts.append((live, (tag[good] >> np.uint64(3)).astype(np.int64), wire[good], value[good], stop))
        at[live] = stop
        live = live[stop < end[live]]
    rest: list[tuple[int, ...]] = []
    for message in live.tolist():
        damaged[message] = not _read_rest(text, message, int(at[message]), int(end[message]), rest)
    if rest:
        columns = tuple(zip(*rest, strict=True))
        parts.append(tuple(np.array(column, np.uint64) for column in columns))
    types = (np.int64, np.int64, np.uint8, np.uint64, np.int64)
    joined = (
        np.concatenate([part[i] for part in parts]).astype(dtype) if parts else np.empty(0, dtype)
        for i, dtype in enumerate(types)
    )
    return Fields(*joined), damaged


def _read_rest(text: bytes, message: int, start: int, end: int, out: list[tuple[int, ...]]) -> bool:
    """Append the fields of one message to the last one that parses; return whether all do."""
    try:
        out.extend((message, *field) for field in scan(text, start, end))
    except WireError:
        return False
    return True


def _varints(octets: NDArray[np.uint8], at: Ints) -> tuple[NDArray[np.uint64], Ints]:
    """Return the numbers at these places, and where each ends; -1 where it does not."""
    value = np.zeros(len(at), np.uint64)
    behind = at.copy()
    open_ = np.arange(len(at))
    for step in range(_LONGEST):
        byte = octets[np.minimum(behind[open_], len(octets) - 1)]
        value[open_] |= (byte & np.uint8(127)).astype(np.uint64) << np.uint64(7 * step)
        behind[open_] += 1
        open_ = open_[byte > 127]
        if not len(open_):
            break
    behind[open_] = -1
    return value, behind
