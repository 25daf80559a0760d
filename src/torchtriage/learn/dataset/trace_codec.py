"""A trace in few bytes: columns of numbers and coded texts, packed; read back event by event.

Events with the same keys are a group; each key of a group is a column. Times are kept as whole
nanoseconds, growing numbers as differences, everything else as codes into one list of JSON texts.
What is read back is equal to what was written, in the same order: key by key, number by number.

The file: eight bytes that name the format, then one xz stream of a JSON header, a zero byte, and
the columns one after the other, each of the integer type the header names.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.errors import TraceFormatError

MAGIC = b"ttcol\x00\x00\x01"
_TYPES = (np.int8, np.int16, np.int32, np.int64)


def read(path: Path) -> dict[str, Any]:
    """Return a document that was written.

    Raises TraceFormatError: not such a file, or damaged.
    """
    document: dict[str, Any] = _read(path, lambda data: json.loads(as_text(data)))
    return document


def read_text(path: Path) -> bytes:
    """Return a document that was written as JSON.

    Raises TraceFormatError: not such a file, or damaged.
    """
    text: bytes = _read(path, as_text)
    return text


def _read(path: Path, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(path.read_bytes())
    except (ValueError, KeyError, IndexError, TypeError, lzma.LZMAError, EOFError, StopIteration) as error:
        raise TraceFormatError(
            f"expected a trace of the benchmark, found something else in {path}: {error}",
            hint="torchtriage benchmark dataset record writes it again",
        ) from error


def pack(document: dict[str, Any]) -> bytes:
    """Return a document's bytes."""
    texts: dict[str, int] = {}
    columns: list[Ints] = []
    groups: dict[tuple[Any, ...], int] = {}
    rows: list[list[dict[str, Any]]] = []
    order = []
    for event in document["traceEvents"]:
        args = event.get("args")
        shape = (tuple(event), tuple(args) if isinstance(args, dict) else None)
        number = groups.setdefault(shape, len(groups))
        if number == len(rows):
            rows.append([])
        rows[number].append(event)
        order.append(number)
    columns.append(np.array(order, np.int64))
    described = []
    for (keys, arg_keys), events in zip(groups, rows, strict=True):
        coders = []
        for key, values in _values(keys, arg_keys, events):
            coder, column = _encode(values, texts)
            coders.append([*key, coder])
            columns.append(column)
        described.append({"n": len(events), "args": arg_keys is not None, "columns": coders})
    narrow = [column.astype(_type_of(column)) for column in columns]
    header = {
        "beside": {key: value for key, value in document.items() if key != "traceEvents"},
        "keys": list(document),
        "groups": described,
        "texts": list(texts),
        "types": [column.dtype.str for column in narrow],
        "sizes": [len(column) for column in narrow],
    }
    # lower bytes together, then the next: what grows slowly packs twice as well
    planes = [column.view(np.uint8).reshape(-1, column.itemsize).T.tobytes() for column in narrow]
    body = json.dumps(header, separators=(",", ":")).encode() + b"\x00" + b"".join(planes)
    return MAGIC + lzma.compress(body, preset=6)


def as_text(data: bytes) -> bytes:
    """Return the JSON of the document of these bytes."""
    header, columns = _opened(data)
    texts = header["texts"]
    order = next(columns)
    groups = []
    for group in header["groups"]:
        shape = [(top, key) for top, key, _ in group["columns"]]
        values = [_texts(coder, next(columns), texts) for _, _, coder in group["columns"]]
        rows = zip(*values, strict=True)
        groups.append(map(_template(shape).__mod__, rows) if shape else iter(["{}"] * group["n"]))
    events = ",".join([next(groups[number]) for number in order.tolist()])
    beside = header["beside"]
    members = [
        f"{json.dumps(key)}:" + (f"[{events}]" if key == "traceEvents" else json.dumps(beside[key]))
        for key in header["keys"]
    ]
    return ("{" + ",".join(members) + "}").encode()


def _template(shape: list[tuple[bool, str]]) -> str:
    """Return an event's JSON with a place for each value; arguments lie together."""
    members: list[str] = []
    args = [f"{json.dumps(key)}:" for top, key in shape if not top]
    for top, key in shape:
        name = json.dumps(key).replace("%", "%%")
        if top:
            members.append(f"{name}:%s")
        elif args:
            inside = ",".join(f"{arg.replace('%', '%%')}%s" for arg in args)
            members.append(f'"args":{{{inside}}}')
            args = []
    return "{" + ",".join(members) + "}"


def _texts(coder: str, column: Ints, texts: list[str]) -> list[str]:
    if coder == "differences":
        return [repr(item) for item in np.cumsum(column).tolist()]
    if coder == "thousandths":
        return [repr(item) for item in (np.cumsum(column) / 1000).tolist()]
    if coder == "texts":
        return [texts[code] for code in column.tolist()]
    raise ValueError(f"no way to keep a column is called {coder!r}")


def _opened(data: bytes) -> tuple[dict[str, Any], Iterator[Ints]]:
    if not data.startswith(MAGIC):
        raise ValueError("the first eight bytes name no format")
    text, _, body = lzma.decompress(data[len(MAGIC) :]).partition(b"\x00")
    header = json.loads(text)
    return header, _columns(header, body)


def _columns(header: dict[str, Any], body: bytes) -> Iterator[Ints]:
    at = 0
    for name, size in zip(header["types"], header["sizes"], strict=True):
        dtype = np.dtype(name)
        end = at + size * dtype.itemsize
        if end > len(body):
            raise ValueError("the columns end too early")
        planes = np.frombuffer(body[at:end], np.uint8).reshape(dtype.itemsize, -1)
        yield np.ascontiguousarray(planes.T).view(dtype).reshape(-1).astype(np.int64)
        at = end


def _values(
    keys: tuple[str, ...], arg_keys: tuple[str, ...] | None, events: list[dict[str, Any]]
) -> Iterator[tuple[tuple[bool, str], list[Any]]]:
    """Yield each column of a group: whether its key is the event's own, the key, the values."""
    for key in keys:
        if key == "args" and arg_keys is not None:
            for arg in arg_keys:
                yield (False, arg), [event["args"][arg] for event in events]
            if not arg_keys:  # an empty object stands where it stood
                yield (True, key), [{} for _ in events]
        else:
            yield (True, key), [event[key] for event in events]


# -- one column --------------------------------------------------------------------------------


def _encode(values: list[Any], texts: dict[str, int]) -> tuple[str, Ints]:
    if all(type(value) is int and -(2**62) < value < 2**62 for value in values):
        return "differences", _differences(np.array(values, np.int64))
    if all(type(value) is float for value in values):
        micros = np.array(values)
        if np.isfinite(micros).all() and np.abs(micros).max() < 2**52 / 1000:
            nanos = np.rint(micros * 1000).astype(np.int64)
            if (nanos / 1000 == micros).all() and not np.signbit(micros[micros == 0]).any():
                return "thousandths", _differences(nanos)
    known: dict[tuple[type, Any], int] = {}
    codes = []
    for item in values:
        # 0.0 and -0.0 are equal but two texts; of what is listed here equal is the same
        key = (type(item), item) if type(item) in (str, int, bool, NoneType) else None
        code = known.get(key) if key is not None else None
        if code is None:
            code = texts.setdefault(json.dumps(item, separators=(",", ":")), len(texts))
            if key is not None:
                known[key] = code
        codes.append(code)
    return "texts", np.array(codes, np.int64)


def _differences(column: Ints) -> Ints:
    return np.diff(column, prepend=np.int64(0))


def _type_of(column: Ints) -> type[np.signedinteger[Any]]:
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    return next(item for item in _TYPES if np.iinfo(item).min <= least and most <= np.iinfo(item).max)
