"""A pickle's dicts become the columns of a snapshot, as soon as each is complete.

Versions differ: torch 1.12 wrote a list of segments whose blocks have a ``history`` and no address,
2.0 added ``device_traces``, later ones annotations, settings, metadata, compile contexts and pools.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from torchtriage.core.errors import SnapshotError
from torchtriage.memory.snapshot.snapshot import (
    NONE,
    Action,
    AllocatorState,
    Annotations,
    Blocks,
    History,
    Segments,
    Snapshot,
    StackTable,
)


class _Frame(int):
    __slots__ = ()


class _Stack(int):
    __slots__ = ()


class _Row:
    """Stands for a dict that became a row: each is counted, none can be taken for another."""

    def __init__(self, what: str) -> None:
        self.what = what


_SEGMENT, _BLOCK, _ENTRY, _ANNOTATION = map(_Row, ("segment", "block", "entry", "annotation"))
_ACTIONS = {item.name.lower(): int(item) for item in Action}
_ACTIONS["free"] = int(Action.FREE_COMPLETED)
_STATES = {item.name.lower(): int(item) for item in AllocatorState}
# active_pending_free was the name until torch 2.1
_STATES["active_pending_free"] = int(AllocatorState.ACTIVE_AWAITING_FREE)
_LIMIT = 1 << 63
_HIGHEST, _MOST_BYTES = 1 << 62, 1 << 50
"""Addresses have 57 bits at most; a petabyte is more than any machine has."""
_USUAL = {"action", "addr", "size", "stream", "frames"}
_POOL = "segment_pool_id"
_ENTRY_FIELDS = {*_USUAL, "time_us", "device", "device_free", "compile_context", "user_metadata", "pool_id", _POOL}
_SNAPSHOT = "pass the file written by torch.cuda.memory._dump_snapshot(path)"


def _columns(types: dict[str, str]) -> dict[str, Any]:
    return {name: array(code) for code, names in types.items() for name in names.split()}


class SnapshotBuilder:
    """A sink of :func:`unpickle.unpickle`: dicts become rows as soon as they are complete."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {"": 0}
        self.pools: dict[tuple[int, int], int] = {}
        self.unknown: dict[str, int] = {}
        self.stacks = StackTable()
        self.lists: dict[int, tuple[Any, int]] = {}
        self.segment = _columns(
            {
                "q": "address size_bytes allocated_bytes active_bytes requested_bytes stream device n_blocks",
                "i": "pool stack",
                "b": "is_small is_expandable",
            }
        )
        self.block = _columns({"q": "address size_bytes requested_bytes", "b": "state", "i": "stack"})
        self.entry = _columns({"b": "action", "q": "address size_bytes stream time_us", "i": "stack pool"})
        self.device_free: dict[int, int] = {}
        self.marks: list[tuple[int, int, int, bool]] = []
        self.n_blocks_used = 0
        self.n_items = 0

    # -- what the reader calls

    def take_dict(self, value: dict[Any, Any]) -> Any:
        """Return a row's stand-in for a dict with a known shape, any other dict itself."""
        if "action" in value:
            return self._entry(value)
        if "filename" in value:
            return self._frame(value)
        if "total_size" in value:
            return self._segment(value)
        if "state" in value and "size" in value:
            return self._block(value)
        if "stage" in value:
            return self._mark(value)
        return value

    def taker(self, names: tuple[Any, ...]) -> Callable[[list[Any]], Any] | None:
        """Return what makes rows of entries with these fields, in this order; else None."""
        place = {name: i for i, name in enumerate(names) if type(name) is str}
        if len(place) != len(names) or not _USUAL <= place.keys() <= _ENTRY_FIELDS:
            return None
        i_action, i_stack = place["action"], place["frames"]
        i_address, i_size, i_stream = place["addr"], place["size"], place["stream"]
        i_time = place.get("time_us")
        i_pool = place.get(_POOL, place.get("pool_id"))
        entry = self.entry
        numbers = [entry[name] for name in ("address", "size_bytes", "stream", "time_us")]
        put_address, put_size, put_stream, put_time = (column.append for column in numbers)
        put_stack, put_pool, put_action = (entry[name].append for name in ("stack", "pool", "action"))

        def take(values: list[Any]) -> Any:
            stack, name = values[i_stack], values[i_action]
            action = _ACTIONS.get(name, Action.OTHER) if type(name) is str else Action.OTHER
            if action >= Action.OOM or type(stack) is not _Stack:
                return self._entry(dict(zip(names, values, strict=True)))
            try:
                put_address(values[i_address])
                put_size(values[i_size])
                put_stream(values[i_stream])
                put_time(NONE if i_time is None else values[i_time])
            except (TypeError, OverflowError):
                for column in numbers:
                    del column[len(entry["action"]) :]
                return self._entry(dict(zip(names, values, strict=True)))
            put_stack(stack)
            pool = None if i_pool is None else values[i_pool]
            put_pool(NONE if pool is None else self._pool(pool))
            put_action(action)
            return _ENTRY

        return take

    def take_list(self, value: list[Any]) -> Any:
        """Return the stack a list of frames is, any other list itself."""
        if any(type(item) is not _Frame for item in value):
            return value
        return _Stack(self._stack(value))

    # -- rows

    def _entry(self, value: dict[Any, Any]) -> _Row:
        get, row = value.get, self.entry
        name = get("action")
        action = _ACTIONS.get(name, Action.OTHER) if type(name) is str else Action.OTHER
        address = get("addr", NONE)
        if action == Action.OTHER:
            self.count(f"action {_word(name)}")
        elif action == Action.OOM:
            self.device_free[len(row["action"])] = _number(get("device_free", address))
            address = NONE
        stack = get("frames")
        row["stack"].append(stack if type(stack) is _Stack else self._stack(stack))
        _put(row["address"], address)
        _put(row["size_bytes"], get("size", 0))
        _put(row["stream"], get("stream", 0))
        _put(row["time_us"], get("time_us", NONE))
        pool = get(_POOL, get("pool_id"))
        row["pool"].append(NONE if pool is None else self._pool(pool))
        row["action"].append(action)
        if len(value) != self.n_items:
            # entries of one file are alike: looking at each costs as much as reading it
            self.n_items = len(value)
            for key in value.keys() - _ENTRY_FIELDS:
                self.count(f"field {_word(key)} of history")
        return _ENTRY

    def _frame(self, value: dict[Any, Any]) -> _Frame:
        file, name = value.get("filename"), value.get("name", "")
        line = _number(value.get("line", 0))
        if type(file) is not str or type(name) is not str:
            raise _odd("a frame without a file and a name")
        return _Frame(self.stacks.frame(file, line, name))

    def _segment(self, value: dict[Any, Any]) -> _Row:
        get, blocks = value.get, value.get("blocks", [])
        # blocks come before their segment is complete, and belong to it alone
        first = self.n_blocks_used
        sizes = self.block["size_bytes"][first:]
        if type(blocks) is not list or _rows(blocks, _BLOCK) != len(sizes):
            raise _odd("a segment whose blocks are not its own")
        address = get("address")
        if address is None:
            # torch 1.12 wrote the address of segments as of blocks
            address = self.block["address"][first] if sizes else NONE
        states = self.block["state"][first:]
        allocated = sum(
            size for size, state in zip(sizes, states, strict=True) if state == AllocatorState.ACTIVE_ALLOCATED
        )
        row = {
            "address": _number(address),
            "size_bytes": _number(value["total_size"]),
            "allocated_bytes": _number(get("allocated_size", allocated)),
            "active_bytes": _number(get("active_size", allocated)),
            "requested_bytes": _number(get("requested_size", NONE)),
            "stream": _number(get("stream", 0)),
            "device": _number(get("device", 0)),
            "pool": self._pool(get(_POOL, (0, 0))),
            "is_small": get("segment_type") == "small",
            "is_expandable": bool(get("is_expandable", False)),
            "stack": self._stack(get("frames")),
            "n_blocks": len(sizes),
        }
        for name, number in row.items():
            self.segment[name].append(number)
        self._addresses(_number(address), len(sizes))
        self.n_blocks_used += len(sizes)
        return _SEGMENT

    def _addresses(self, address: int, n_blocks: int) -> None:
        # blocks that have none follow each other
        column, sizes = self.block["address"], self.block["size_bytes"]
        for row in range(self.n_blocks_used, self.n_blocks_used + n_blocks):
            if column[row] == NONE:
                column[row] = address
            address = column[row] + sizes[row]
            if not 0 <= address < _LIMIT:
                raise _odd("a block outside the address space")

    def _block(self, value: dict[Any, Any]) -> _Row:
        row = self.block
        stack, requested = value.get("frames"), value.get("requested_size")
        history = value.get("history")
        if type(history) is list and history and type(history[0]) is dict:
            # until torch 2.1: the newest user of the block comes first
            stack = history[0].get("frames") if stack is None else stack
            requested = history[0].get("real_size") if requested is None else requested
        state = value.get("state")
        code = _STATES.get(state) if type(state) is str else None
        if code is None:
            self.count(f"block state {_word(state)}")
            code = int(AllocatorState.ACTIVE_ALLOCATED)
        row["address"].append(_number(value.get("address", NONE)))
        row["size_bytes"].append(_number(value["size"]))
        row["requested_bytes"].append(_number(value["size"] if requested is None else requested))
        row["state"].append(code)
        row["stack"].append(self._stack(stack))
        return _BLOCK

    def _mark(self, value: dict[Any, Any]) -> _Row:
        self.marks.append(
            (
                self._text(value.get("name", "")),
                _number(value.get("device", 0)),
                _number(value.get("time_us", NONE)),
                value.get("stage") == "START",
            )
        )
        return _ANNOTATION

    # -- codes

    def _stack(self, value: Any) -> int:
        if type(value) is _Stack:
            return value
        seen = self.lists.get(id(value))
        if seen is not None and len(seen[0]) == len(value):
            return seen[1]
        if not value or type(value) not in (list, tuple):
            return NONE
        if any(type(item) is not _Frame for item in value):
            raise _odd("a stack of something other than frames")
        stack = self.stacks.stack(value)
        if len(self.lists) < 100_000:
            # held, so that its id stays its own
            self.lists[id(value)] = value, stack
        return stack

    def _text(self, value: Any) -> int:
        code = self.texts.get(value) if type(value) is str else None
        if code is not None:
            return code
        if type(value) is not str:
            value = "" if value is None else str(value)[:1000] if not _is_big(value) else "…"
        return self.texts.setdefault(value, len(self.texts))

    def _pool(self, value: Any) -> int:
        if type(value) not in (tuple, list) or len(value) != 2:
            return NONE
        pair = (_number(value[0]), _number(value[1]))
        return self.pools.setdefault(pair, len(self.pools))

    def count(self, what: str) -> None:
        """Count what was met and not understood, by name; a hundred names at most."""
        if what in self.unknown or len(self.unknown) < 100:
            self.unknown[what] = self.unknown.get(what, 0) + 1

    # -- the whole

    def finish(self, document: Any, path: str, size_bytes: int) -> Snapshot:
        """Return the snapshot; ``document`` is what the reader returned.

        Raises SnapshotError: the pickle holds something else.
        """
        if isinstance(document, list) and document:
            document = {"segments": document}  # torch 1.12
        if not isinstance(document, dict) or not isinstance(document.get("segments"), list):
            kind = _kind(document)
            if document == []:
                kind = "an empty list"
            elif isinstance(document, dict):
                kind = "a dict without segments"
            raise SnapshotError(f"expected a memory snapshot, found a pickle of {kind}", where=path, hint=_SNAPSHOT)
        traces = document.get("device_traces")
        traces = traces if isinstance(traces, list) else []
        counts = [_rows(trace, _ENTRY) for trace in traces]
        if not (
            _rows(document["segments"], _SEGMENT) == len(self.segment["address"])
            and min(counts, default=0) >= 0
            and sum(counts) == len(self.entry["action"])
            and len(self.block["address"]) == self.n_blocks_used
        ):
            raise SnapshotError(
                "expected a memory snapshot, found segments or history where none belong", where=path, hint=_SNAPSHOT
            )
        segment, block, entry = (
            {name: np.frombuffer(column, column.typecode) for name, column in table.items()}
            for table in (self.segment, self.block, self.entry)
        )
        for what, table in (("segment", segment), ("block", block), ("entry", entry)):
            address, size = table["address"], table["size_bytes"]
            sizes = (size >= 0) & (size <= _MOST_BYTES)
            if not (sizes & (address >= NONE) & (address <= _HIGHEST)).all():
                raise SnapshotError(
                    f"expected addresses and sizes of memory, found a {what} beyond all of it",
                    where=path,
                    hint=_SNAPSHOT,
                )
        for key in document.keys() - {"segments", "device_traces", "allocator_settings", "external_annotations"}:
            self.count(f"field {_word(key)}")
        n_blocks = segment.pop("n_blocks")
        for flag in ("is_small", "is_expandable"):
            segment[flag] = segment[flag].astype(np.bool_)
        free = np.full(sum(counts), NONE, np.int64)
        free[list(self.device_free)] = list(self.device_free.values())
        device = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return Snapshot(
            path=path,
            size_bytes=size_bytes,
            segments=Segments(**segment),
            blocks=Blocks(np.repeat(np.arange(len(n_blocks)), n_blocks), **block),
            history=History(device, **entry, device_free_bytes=free),
            stacks=self.stacks.stacks(),
            annotations=self._annotations(),
            pools=tuple(self.pools),
            texts=tuple(self.texts),
            settings=_settings(document.get("allocator_settings")),
            n_devices=max(len(traces), int(max(self.segment["device"], default=-1)) + 1),
            unknown=dict(sorted(self.unknown.items())),
        )

    def _annotations(self) -> Annotations:
        """Pair starts and ends: of one name on one device, the last start ends first."""
        rows: list[list[int]] = []
        opened: dict[tuple[int, int], list[list[int]]] = {}
        for code, number, time_us, is_start in sorted(self.marks, key=lambda mark: mark[2]):
            waiting = opened.setdefault((code, number), [])
            if is_start:
                rows.append([code, number, time_us, NONE])
                waiting.append(rows[-1])
            elif waiting:
                waiting.pop()[3] = time_us
            else:
                self.count("ends of annotations without a start")
        name, device, start_us, end_us = np.array(rows, np.int64).reshape(-1, 4).T
        return Annotations(name.astype(np.int32), device.astype(np.int32), start_us, end_us)


def _odd(what: str) -> SnapshotError:
    return SnapshotError(f"expected a memory snapshot, found {what}", hint=_SNAPSHOT)


def _number(value: Any) -> int:
    if type(value) is not int:
        if value is None:
            return NONE
        if type(value) is not bool:
            shown = str(value) if type(value) is float else _kind(value)
            raise _odd(f"{shown} where a whole number belongs")
    # addresses of the upper half wrap, as they do in C
    return value - (value >= _LIMIT) * (_LIMIT << 1) if -_LIMIT <= value < _LIMIT << 1 else NONE


def _put(column: Any, value: Any) -> None:
    try:
        column.append(value)
    except (TypeError, OverflowError):
        column.append(_number(value))


def _rows(values: Any, row: _Row) -> int:
    return len(values) if type(values) is list and values.count(row) == len(values) else -1


def _kind(value: Any) -> str:
    kinds = {dict: "a dict", list: "a list", str: "a text", int: "a number", float: "a number"}
    if isinstance(value, _Row):
        return f"one {value.what} alone"
    return kinds.get(type(value), "something else")


def _word(value: Any) -> str:
    if type(value) is str:
        return value[:40]
    return type(value).__name__ if _is_big(value) else str(value)[:40]


def _is_big(value: Any) -> bool:
    # the text of nested lists that name each other may have no end
    return not isinstance(value, int | float | bytes) or (isinstance(value, bytes) and len(value) > 1000)


def _settings(value: Any, depth: int = 0) -> dict[str, Any]:
    """Return the allocator's settings: texts, numbers, flags, and one dict inside."""
    if not isinstance(value, dict) or len(value) > 1000:
        return {}
    return {
        str(key)[:200]: _settings(item, depth + 1) if isinstance(item, dict) and depth == 0 else item
        for key, item in value.items()
        if isinstance(key, str | int)
        and (isinstance(item, bool | int | float | str) or (isinstance(item, dict) and depth == 0))
    }
