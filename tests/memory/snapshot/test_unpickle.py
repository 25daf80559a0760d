"""Only plain data comes out of a pickle; nothing else is even begun."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import pickletools
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtriage.core.errors import SnapshotError
from torchtriage.core.names import word_list
from torchtriage.memory.snapshot import unpickle as unpickling
from torchtriage.memory.snapshot.read import read_snapshot
from torchtriage.memory.snapshot.unpickle import unpickle
from torchtriage.memory.snapshot.verdict import judge

PROTOCOLS = (2, 3, 4, 5)
STOP = b"."


class KeepAll:
    n_items = 0

    def __init__(self) -> None:
        self.counted: list[str] = []

    def count(self, what: str) -> None:
        self.counted.append(what)

    def take_dict(self, value: dict[Any, Any]) -> Any:
        return value

    def take_list(self, value: list[Any]) -> Any:
        return value


def load(data: bytes) -> Any:
    return unpickle(io.BytesIO(data).read, KeepAll(), name="file.pickle")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=80)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=8), inner, min_size=1, max_size=4)
    ),
    max_leaves=30,
)


@settings(max_examples=200)
@given(plain, st.sampled_from((3, 4, 5)))
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


def test_protocol_2_comes_back() -> None:
    value = {"a": [1, -2, 1 << 40, 2.5, None, True, False, "ü", (), (1,), (1, 2), (1, 2, 3, 4)]}
    assert load(pickle.dumps(value, 2)) == value


def test_shared_values_come_back_shared_and_long_lists_whole() -> None:
    one = {"x": "y" * 300}
    many = [one] * 5000
    found = load(pickle.dumps({"many": many, "again": many}, 4))
    assert found["many"] == many
    assert found["again"] is found["many"]
    assert found["many"][0] is found["many"][4999]


# -- hostile files -----------------------------------------------------------------------------


class Writes:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("place", ["top", "segments", "frames", "key"])
def test_nothing_runs(tmp_path: Path, protocol: int, place: str) -> None:
    made = tmp_path / "made"
    evil = Writes(made)
    document = (
        {
            "top": evil,
            "segments": {"segments": [evil], "device_traces": []},
            "frames": {"segments": [], "device_traces": [[{"action": "alloc", "frames": [evil]}]]},
            "key": {(evil,): 1},
        }[place]
        if place != "key"
        else {"segments": [], "x": (1, [evil])}
    )
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(document, protocol))
    with pytest.raises(SnapshotError, match=r"the opcode (STACK_)?GLOBAL .*nothing was run"):
        read_snapshot(file)
    assert not made.exists()
    # the file is live: what it would do, it does when pickle reads it
    pickle.loads(file.read_bytes())
    assert made.exists()


ALLOWED = set(
    word_list("""
    PROTO FRAME STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE SETITEM SETITEMS APPEND APPENDS TUPLE TUPLE1 TUPLE2 TUPLE3
    NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES
    SHORT_BINBYTES BINBYTES8 BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
""")
)


@pytest.mark.parametrize(
    "opcode", [one for one in pickletools.opcodes if one.name not in ALLOWED], ids=lambda one: one.name
)
def test_every_other_opcode_is_refused_by_name(opcode: pickletools.OpcodeInfo) -> None:
    code = opcode.code.encode("latin-1")
    data = b"\x80\x04" + b"}K\x01K\x01" + code + b"os\nmkdir\n" + b"\0" * 16 + STOP
    with pytest.raises(SnapshotError) as caught:
        load(data)
    if opcode.name == "LONG4":
        assert "64 bits" in str(caught.value)
    else:
        assert f"the opcode {opcode.name} " in str(caught.value)


def test_every_byte_that_is_no_opcode_is_refused() -> None:
    known = {opcode.code.encode("latin-1")[0] for opcode in pickletools.opcodes}
    for byte in set(range(256)) - known:
        with pytest.raises(SnapshotError, match=rf"0x{byte:02x}"):
            load(b"\x80\x04" + bytes([byte]) + STOP)


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


LAUGHS = b"".join(b"](" + b"h" + bytes([i]) + (b"h" + bytes([i])) * 9 + b"e\x94" for i in range(60))
BOMBS = {
    "a text longer than the file": b"\x8d" + struct.pack("<Q", 1 << 60) + b"x",
    "bytes longer than the file": b"\x8e" + struct.pack("<Q", 1 << 60) + b"x",
    "a text of 4 GiB": b"X\xff\xff\xff\xffx",
    "a text that ends late": b"X\x00\x10\x00\x00x",
    "a number of 2 GiB": b"\x8b\xff\xff\xff\x7f",
    "a number of 255 bytes": b"\x8a\xff" + b"\x7f" * 255,
    "a memo index of 4 billion": b"K\x01" + put(0xFFFFFFFF),
    "a memo slot written twice": b"K\x01" + put(0) + b"K\x02" + put(0),
    "a value from nowhere": b"j\xff\xff\xff\x7f",
    "marks without end": b"(" * 1000,
    "lists in lists": b"(".join([b"]"] * 1000),
    "loose values": b"(" + b"N" * 600_000,
    "loose lists": b"(" + b"]" * 600_000,
    "memo without end": b"N" + b"\x94" * 600_000,
    "an item without a key": b"}(K\x01u",
    "items for a number": b"K\x01(K\x01K\x02u",
    "values for a text": b"\x8c\x01x(K\x01e",
    "a list as a key": b"}(]K\x01u",
    "an end inside a list": b"](K\x01",
    "nothing to append": b"a",
    "a tuple of nothing": b"\x87",
    "text that is no text": b"\x8c\x02\xff\xfe",
}


@pytest.mark.parametrize("what", BOMBS)
def test_bombs_and_nonsense_are_refused_in_one_line(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickling, "FREE_VALUES", 10_000)
    monkeypatch.setattr(unpickling, "WINDOW_BYTES", 200_000)
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError) as caught:
            load(b"\x80\x04" + BOMBS[what] + STOP)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 << 20
    message = str(caught.value)
    assert message.startswith("file.pickle: ")
    assert message.count("\n") <= 1


def test_a_text_of_megabytes_is_cut_and_counted() -> None:
    long = "ü" * (3 << 20)
    document = {"before": 1, long: b"x" * (2 << 20), "name": long, "fine": "y" * (1 << 20)}
    sink = KeepAll()
    data = io.BytesIO(b"\x80\x04" + pickle.dumps(document, 4)[2:])
    tracemalloc.start()
    try:
        found = unpickle(data.read, sink)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 9 << 20
    start = "ü" * (unpickling.CUT_BYTES // 2) + "…"
    cut = b"x" * unpickling.CUT_BYTES
    assert found == {"before": 1, start: cut, "name": start, "fine": "y" * (1 << 20)}
    assert sink.counted == ["text longer than 1.00 MiB, cut"] * 2


def test_long_texts_are_said_in_the_result(tmp_path: Path) -> None:
    file = tmp_path / "long.pickle.gz"
    entry = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "frames": []}
    entry["user_metadata"] = "z" * (5 << 20)
    file.write_bytes(gzip.compress(pickle.dumps({"segments": [], "device_traces": [[entry]]}, 4), 1))
    (note,) = (one for one in judge(read_snapshot(file)).notes if one.code == "unknown")
    assert note.message == "Not understood: text longer than 1.00 MiB, cut (1)"


@pytest.mark.parametrize("n_bytes", [100, 1 << 20])
def test_text_without_end_is_refused(n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickling, "MAX_TEXTS_BYTES", 4 << 20)
    n_texts = 0

    def read(size: int) -> bytes:
        nonlocal n_texts
        start = b"\x80\x04(" if not n_texts else b""
        first, n_texts = n_texts, n_texts + (1 << 20) // n_bytes
        head = b"\x8c%c" % n_bytes if n_bytes < 256 else b"X" + struct.pack("<I", n_bytes)
        texts = (b"%*d" % (n_bytes, number) for number in range(first, n_texts))
        return start + b"".join(head + text for text in texts)

    with pytest.raises(SnapshotError, match=r"found more than 4.00 MiB of text"):
        unpickle(read, KeepAll())
    assert n_texts * n_bytes < 8 << 20


def test_a_list_in_itself_ends() -> None:
    found = load(b"\x80\x04]\x94(h\x00K\x01e.")
    assert found[0] is found


def test_a_billion_laughs_cost_nothing_and_are_no_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "laughs.pickle"
    head = b"\x80\x04](K\x01K\x02e\x94"
    file.write_bytes(head + LAUGHS + STOP)
    with pytest.raises(SnapshotError):
        read_snapshot(file)


def test_a_file_without_an_end_is_cut() -> None:
    whole = pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 5}]]}, 4)
    for size in range(2, len(whole)):
        with pytest.raises(SnapshotError, match=r"breaks off|fit no data"):
            load(whole[:size])


@settings(max_examples=300)
@given(st.binary(max_size=120))
def test_any_bytes_give_plain_data_or_one_clear_error(data: bytes) -> None:
    with contextlib.suppress(SnapshotError):
        load(b"\x80\x04" + data)


@pytest.mark.parametrize(
    "idle", [b"\x80\x04", b"\x95" + bytes(8), b"(e", b"(u"], ids=["PROTO", "FRAME", "list", "dict"]
)
def test_opcodes_that_do_nothing_do_not_go_on_forever(idle: bytes) -> None:
    n_read = 0
    part = idle * (unpickling.MARGIN_BYTES // len(idle))
    start = b"\x80\x04" + (b"]" if idle == b"(e" else b"}K\x01K\x01s")

    def read(size: int) -> bytes:
        nonlocal n_read
        n_read += 1
        return start if n_read == 1 else part

    with pytest.raises(SnapshotError, match="loose values"):
        unpickle(read, KeepAll())
    assert n_read * len(part) < 32 << 20


TWICE = b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(60))
"""Tuples of the one before, twice: with a hash or a text that never ends."""


@pytest.mark.parametrize("items", [b"h\x3cK\x01s", b"(h\x3cK\x01u"])
def test_tuples_are_no_keys(items: bytes) -> None:
    with pytest.raises(SnapshotError, match="names as keys, found a tuple"):
        load(b"\x80\x04(" + TWICE + b"}" + items + b"t.")


@pytest.mark.parametrize("field", [b"action", b"user_metadata", b"addr", b"segment_pool_id"])
def test_fields_of_nested_tuples_have_no_endless_text(tmp_path: Path, field: bytes) -> None:
    def text(value: bytes) -> bytes:
        return b"\x8c%c" % len(value) + value

    entry = b"}(" + text(field) + b"h\x3c" + text(b"size") + b"K\x01u"
    start = b"\x80\x04}(" + text(b"unused") + b"(" + TWICE + b"t" + text(b"segments") + b"]"
    file = tmp_path / "laughs.pickle"
    file.write_bytes(start + text(b"device_traces") + b"]]" + entry + b"aau.")
    with contextlib.suppress(SnapshotError):
        assert judge(read_snapshot(file)).crashes == ()


# -- many entries that look alike --------------------------------------------------------------


def mixed_history(seed: int) -> dict[str, Any]:
    """Entries of several shapes, in runs and in turns, with values that do not fit a column."""
    rng = random.Random(seed)
    files = [{"filename": f"/a/{i}.py", "line": i, "name": f"f{i}"} for i in range(9)]
    shapes: list[list[str]] = [
        ["action", "addr", "size", "stream", "time_us", "frames"],
        ["action", "addr", "size", "stream", "frames"],
        ["frames", "addr", "size", "stream", "time_us", "action"],
        ["action", "addr", "size", "stream", "frames", "time_us", "compile_context", "pool_id"],
        ["action", "addr", "size", "stream", "time_us", "frames", "user_metadata", "new_field"],
        ["action", "size", "stream", "time_us", "frames"],
    ]
    entries = []
    for _ in range(60):
        shape = rng.choice(shapes)
        for _ in range(rng.choice((1, 2, 40))):
            made: dict[str, Any] = {
                "action": rng.choice(("alloc", "free_requested", "free_completed", "oom", "newer")),
                "addr": rng.choice((1 << 47, 1 << 40, 512, -1, None)),
                "size": rng.choice((0, 7, 1 << 20, 1 << 33)),
                "stream": rng.choice((0, 7, 1 << 41)),
                "time_us": rng.choice((1_700_000_000_000_000, 5, None, True, (1 << 63) + 5)),
                "frames": rng.choice(([], files[:1], files[2:7], list(files))),
                "compile_context": rng.choice((None, "0/0", "1/0")),
                "user_metadata": rng.choice(("", "step", "x" * 200, 3)),
                "pool_id": rng.choice(((0, 0), (0, 3), None)),
                "new_field": 1,
            }
            entries.append({name: made[name] for name in shape})
    for entry in entries:
        if entry["action"] == "oom" and "addr" in entry:
            entry["device_free"] = entry.pop("addr")
    return {"segments": [], "device_traces": [entries]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(3))
def test_entries_read_at_once_are_those_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch, protocol: int, seed: int
) -> None:
    data = pickle.dumps(mixed_history(seed), protocol)
    at_once = read_snapshot(io.BytesIO(data))
    monkeypatch.setattr(unpickling, "MAX_ITEMS", 0)
    one_by_one = read_snapshot(io.BytesIO(data))
    for name, column in vars(one_by_one.history).items():
        assert getattr(at_once.history, name).tolist() == column.tolist(), name
    assert at_once.texts == one_by_one.texts
    assert at_once.pools == one_by_one.pools
    assert at_once.stacks.frame.tolist() == one_by_one.stacks.frame.tolist()
    assert at_once.unknown.keys() == one_by_one.unknown.keys()


def test_many_shapes_cost_no_pattern_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[bytes, ...]] = []
    real = unpickling._row_of_known
    monkeypatch.setattr(unpickling, "_row_of_known", lambda keys, puts: made.append(keys) or real(keys, puts))
    fields = [f"field_{i}" for i in range(200)]
    entries = [{"action": "alloc", "addr": i, "size": 1, name: 3} for i, name in enumerate(fields * 2)]
    wide = [{"action": "alloc", "addr": 1, **dict.fromkeys(fields, 1)}] * 3
    document = {"segments": [], "device_traces": [[*entries, *map(dict, wide)]]}
    found = read_snapshot(io.BytesIO(pickle.dumps(document, 4)))
    assert found.history.address.tolist() == [*range(400), 1, 1, 1]
    assert 1 < len(set(made)) <= unpickling.MAX_SHAPES + 2
    assert max(map(len, made)) <= unpickling.MAX_ITEMS
