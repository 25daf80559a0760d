"""Columns for other people's data frames: Arrow's C stream interface over numpy arrays, without a dependency.

pandas, polars, pyarrow and DuckDB ask an object for ``__arrow_c_stream__`` and read the structures written here, laid
out as Arrow's C data interface says (https://arrow.apache.org/docs/format/CDataInterface.html). Values are not copied:
what a consumer holds keeps our arrays alive until it calls ``release``, from whatever thread.
"""

from __future__ import annotations

import ctypes
import errno
import sys
import threading
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p, py_object
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BATCH_ROWS = 1 << 20
"""A multiple of 8, so that no bitmap begins within a byte."""
_NULLABLE = 2
_FORMATS = {"int64": b"l", "float64": b"g", "bool": b"b", "int32": b"i", "text": b"u"}


class Values(NamedTuple):
    """One column: int64, float64 or bool; or int32 codes into ``texts``.

    ``valid`` : false where a value is null; None where none is.
    """

    data: NDArray[Any]
    valid: NDArray[np.bool_] | None = None
    texts: tuple[str, ...] | None = None


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


# addresses, not pointers: making one of those fails while an exception is on its way
_Release = CFUNCTYPE(None, c_void_p)
_Fill = CFUNCTYPE(c_int, c_void_p, c_void_p)
_Tell = CFUNCTYPE(c_void_p, c_void_p)

_Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_char_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(_Schema))),
    ("dictionary", POINTER(_Schema)),
    ("release", _Release),
    ("private_data", c_void_p),
]
_Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(_Array))),
    ("dictionary", POINTER(_Array)),
    ("release", _Release),
    ("private_data", c_void_p),
]
_Stream._fields_ = [
    ("get_schema", _Fill),
    ("get_next", _Fill),
    ("get_last_error", _Tell),
    ("release", _Release),
    ("private_data", c_void_p),
]

_HELD: dict[int, Any] = {}
"""What consumers have and have not released yet, by ``private_data``."""
_NUMBERS = count(1)


def _hold(*things: Any) -> int:
    number = next(_NUMBERS)
    _HELD[number] = things
    return number


def _releaser(kind: type[Any]) -> Any:
    """Return the callback that lets go of a structure and of what it owns, members that were not moved elsewhere.

    It outlives this module, which is cleared at the end of a program that still holds a table: it uses no globals.
    """
    held, nothing, address_of = _HELD, _Release(), ctypes.addressof
    raise_pending = ctypes.PYFUNCTYPE(c_void_p)(("PyErr_Occurred", ctypes.pythonapi))
    has_members = kind is not _Stream

    def release(address: int) -> None:
        # a consumer that fails may call this while its exception is on its way, and whatever ctypes calls raises that;
        # it cannot be left where it was, so it is printed in the end
        pending = None
        try:
            raise_pending()
        except BaseException as error:
            pending = error
        each = kind.from_address(address)
        if has_members:
            members = [each.children[index] for index in range(each.n_children)]
            for member in [*members, *([each.dictionary] if each.dictionary else [])]:
                if member.contents.release:
                    release(address_of(member.contents))
        number = each.private_data
        each.release = nothing
        held.pop(number, None)
        if pending is not None:
            raise pending

    callback = _Release(release)
    _add_reference(callback)
    return callback


_add_reference = ctypes.PYFUNCTYPE(None, py_object)(("Py_IncRef", ctypes.pythonapi))
_RELEASE_SCHEMA, _RELEASE_ARRAY, _RELEASE_STREAM = map(_releaser, (_Schema, _Array, _Stream))


# -- schemas -----------------------------------------------------------------------------------


def _fill_schema(out: Any, formats: str | Mapping[str, str], name: str = "", *, coded: bool = False) -> None:
    """Write the schema of one column by its type, or of a table by the types of its columns."""
    children: list[Any] = []
    held: list[Any] = [children]
    if isinstance(formats, str):
        out.flags = _NULLABLE
        if coded:
            table = _Schema()
            _fill_schema(table, "text")
            out.dictionary = ctypes.pointer(table)
            held.append(table)
        code = _FORMATS["int32" if coded else formats]
    else:
        code = b"+s"
        for column, kind in formats.items():
            child = _Schema()
            _fill_schema(child, kind, column, coded=kind == "text")
            children.append(child)
        out.children = (POINTER(_Schema) * len(children))(*map(ctypes.pointer, children))
    encoded = name.encode()
    out.format, out.name, out.n_children = code, encoded, len(children)
    out.release = _RELEASE_SCHEMA
    out.private_data = _hold(held, code, encoded, out.children)


# -- arrays ------------------------------------------------------------------------------------


def _fill_array(out: Any, length: int, buffers: list[Any], *, n_null: int = 0, held: Any = None) -> None:
    addresses = (c_void_p * len(buffers))(*(None if buffer is None else buffer.ctypes.data for buffer in buffers))
    out.length, out.null_count, out.n_buffers = length, n_null, len(buffers)
    out.buffers = ctypes.cast(addresses, POINTER(c_void_p))
    out.release = _RELEASE_ARRAY
    out.private_data = _hold(buffers, addresses, held)


def _bits(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(mask, bitorder="little")


def _fill_column(out: Any, values: Values, rows: slice, table: tuple[int, list[Any]] | None) -> None:
    """Write some rows of a column; ``table`` : number and buffers of its texts."""
    data = values.data[rows]
    valid = None if values.valid is None else values.valid[rows]
    n_null = 0 if valid is None else int(len(valid) - np.count_nonzero(valid))
    buffer = _bits(data) if data.dtype == np.bool_ else np.ascontiguousarray(data)
    dictionary = None
    if table is not None:
        dictionary = _Array()
        _fill_array(dictionary, table[0], table[1])
        out.dictionary = ctypes.pointer(dictionary)
    _fill_array(out, len(data), [_bits(valid) if valid is not None and n_null else None, buffer], n_null=n_null)
    _HELD[out.private_data] += (dictionary,)


def _text_buffers(texts: tuple[str, ...]) -> tuple[int, list[Any]]:
    encoded = [text.encode("utf-8", "replace") for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return len(encoded), [None, ends.astype(np.int32), np.frombuffer(b"".join(encoded) or b"\0", np.uint8)]


# -- the stream --------------------------------------------------------------------------------


class _Source:
    """The columns of one stream, and how far it was read."""

    def __init__(self, n_rows: int, formats: Mapping[str, str], columns: Mapping[str, Values]) -> None:
        self.n_rows, self.formats = n_rows, formats
        self.columns = [
            (column, None if column.texts is None else _text_buffers(column.texts)) for column in columns.values()
        ]
        self.at = 0
        self.error = b""

    def send_schema(self, address: int) -> None:
        ctypes.memset(address, 0, ctypes.sizeof(_Schema))
        _fill_schema(_Schema.from_address(address), self.formats)

    def send_batch(self, address: int) -> None:
        """Write the next rows; what is left empty is the end of the stream."""
        ctypes.memset(address, 0, ctypes.sizeof(_Array))
        if self.at >= self.n_rows:
            return
        out = _Array.from_address(address)
        rows = slice(self.at, min(self.at + BATCH_ROWS, self.n_rows))
        children = [_Array() for _ in self.columns]
        for child, (column, table) in zip(children, self.columns, strict=True):
            _fill_column(child, column, rows, table)
        out.children = (POINTER(_Array) * len(children))(*map(ctypes.pointer, children))
        out.n_children = len(children)
        _fill_array(out, rows.stop - rows.start, [None], held=(children, out.children))
        self.at = rows.stop


def _tried(stream: int, work: Callable[[_Source], None]) -> int:
    """Return 0, or an error's number: nothing may be raised into a consumer's C++."""
    source = _source(stream)
    try:
        work(source)
    except MemoryError:
        source.error = b"out of memory"
        return errno.ENOMEM
    except BaseException as error:
        source.error = f"{type(error).__name__}: {error}".encode()
        return errno.EIO
    return 0


def _source(stream: int) -> _Source:
    return _HELD[_Stream.from_address(stream).private_data][0]


def _last_error(stream: int) -> int | None:
    text = _source(stream).error
    return ctypes.cast(c_char_p(text), c_void_p).value if text else None


_CALLBACKS = (
    _Fill(lambda stream, out: _tried(stream, lambda source: source.send_schema(out))),
    _Fill(lambda stream, out: _tried(stream, lambda source: source.send_batch(out))),
    _Tell(_last_error),
)


def schema_capsule(formats: Mapping[str, str]) -> object:
    """Return a table's schema as a capsule: ``int64``, ``float64``, ``bool`` or ``text`` by column."""
    schema = _Schema()
    _fill_schema(schema, formats)
    return _capsule(schema, b"arrow_schema")


def stream_capsule(n_rows: int, formats: Mapping[str, str], columns: Mapping[str, Values]) -> object:
    """Return a table as a capsule of a stream of batches."""
    stream = _Stream(*_CALLBACKS, _RELEASE_STREAM, _hold(_Source(n_rows, formats, columns)))
    return _capsule(stream, b"arrow_array_stream")


# -- capsules ----------------------------------------------------------------------------------

# a prototype of our own: those of pythonapi are shared by whoever sets them
_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_CAPSULES: list[tuple[object, Any, bytes]] = []
"""Capsules that somebody may still have, with the structure and the name that they point to."""
_LOCK = threading.RLock()


def _capsule(structure: Any, name: bytes) -> object:
    """Return a capsule of a structure, which is released with the first capsule after it is gone.

    Not by a destructor: one in Python would lose the exception that is on its way when a consumer fails.
    """
    with _LOCK:
        sweep()
        capsule: object = _new(ctypes.addressof(structure), name, None)
        _CAPSULES.append((capsule, structure, name))
    return capsule


def sweep() -> None:
    """Release what is in capsules that nobody has any more; what was taken out of them is its taker's."""
    with _LOCK:
        gone = [entry for entry in _CAPSULES if sys.getrefcount(entry[0]) <= _OURS]
        for entry in gone:
            _CAPSULES.remove(entry)
            if entry[1].release:
                entry[1].release(ctypes.addressof(entry[1]))


_OURS = 2
"""References to a capsule that only the table above and the question itself have."""
