"""What an event may hold, as the classes its JSON is decoded into.

Three ways, the cheaper first: by category, where each class has the arguments of its kind and no others; by phase,
where a call may have any category; and loosely, where nothing is what it should be. All three give the same columns.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from types import GenericAlias
from typing import Any, Literal

import msgspec

from torchtriage.core.trace.schema import CATEGORY_KINDS, WORK_KINDS, Kind

_NO_TEXT = msgspec.Raw(b"")


# -- arguments ---------------------------------------------------------------------------------


class CallArgs(msgspec.Struct, gc=False):
    """The arguments of a runtime call that become columns; the others stay in the file."""

    correlation: int = -1
    external: int | str | None = msgspec.field(default=-1, name="External id")
    # ROCm writes sizes as text
    size_bytes: int | str | None = msgspec.field(default=-1, name="bytes")


class DeviceArgs(CallArgs, gc=False):
    """Those of work on a device."""

    stream: int | str | None = None
    device: int | str | None = None
    grid: msgspec.Raw = _NO_TEXT
    block: msgspec.Raw = _NO_TEXT
    collective: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Collective name")
    nelems: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="In msg nelems")
    dtype: msgspec.Raw = _NO_TEXT
    group: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Process Group Name")
    ranks: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Process Group Ranks")
    seq: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Seq")
    group_size: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Group size")
    src: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Src Rank")
    dst: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Dst Rank")


class FrameArgs(msgspec.Struct, gc=False):
    """Those of a Python frame."""

    python_id: int = msgspec.field(default=-1, name="Python id")
    python_parent: int | None = msgspec.field(default=-1, name="Python parent id")


class OpArgs(msgspec.Struct, gc=False):
    """Those of an op or annotation."""

    sequence: int = msgspec.field(default=-1, name="Sequence number")
    fwd_thread: int = msgspec.field(default=-1, name="Fwd thread id")
    concrete: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Input Strides")
    dims: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Input Dims")
    grid: msgspec.Raw = _NO_TEXT
    block: msgspec.Raw = _NO_TEXT
    collective: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Collective name")
    nelems: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="In msg nelems")
    dtype: msgspec.Raw = _NO_TEXT
    group: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Process Group Name")
    ranks: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Process Group Ranks")
    seq: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Seq")
    group_size: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Group size")
    src: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Src Rank")
    dst: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Dst Rank")


class Args(OpArgs, gc=False):
    """Those of a call of any category."""

    correlation: int = -1
    external: int | str | None = msgspec.field(default=-1, name="External id")
    size_bytes: int | str | None = msgspec.field(default=-1, name="bytes")
    stream: int | str | None = None
    device: int | str | None = None
    python_id: int = msgspec.field(default=-1, name="Python id")
    python_parent: int | None = msgspec.field(default=-1, name="Python parent id")


class InstantArgs(Args, gc=False):
    """Those of an instant, which may be an allocator record."""

    memory_bytes: int = msgspec.field(default=0, name="Bytes")
    addr: int = msgspec.field(default=0, name="Addr")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")


class LabelArgs(msgspec.Struct, gc=False):
    """Those of a metadata event."""

    name: Any = None
    labels: Any = None


NO_ARGS = InstantArgs()


class Group(IntEnum):
    """How the arguments of a kind become the columns `key`, `value` and `detail`."""

    CALLS = 0
    FRAMES = 1
    OPS = 2
    DEVICES = 3


_DEVICE_KINDS = (*WORK_KINDS, Kind.GPU_ANNOTATION, Kind.DEVICE_SYNC, Kind.DEVICE_OTHER)
GROUP_OF: dict[Kind, Group] = {
    **dict.fromkeys(Kind, Group.CALLS),
    Kind.PYTHON: Group.FRAMES,
    **dict.fromkeys((Kind.OP, Kind.ANNOTATION), Group.OPS),
    **dict.fromkeys(_DEVICE_KINDS, Group.DEVICES),
}
_ARGS_OF: dict[Group, Any] = {
    Group.CALLS: CallArgs,
    Group.FRAMES: FrameArgs,
    Group.OPS: OpArgs,
    Group.DEVICES: DeviceArgs,
}


KERNEL, RANK = "kernel", "rank"
READ_AGAIN = (KERNEL, RANK)
"""What rules ask ``Trace.args`` for: it is read from the file again. Whoever asks for another argument adds it here."""


def args_read(kind: Kind | None) -> frozenset[str]:
    """Return the names of the arguments that anything reads of rows of a kind; None: of an event that is no row."""
    classes = (InstantArgs, LabelArgs) if kind in (None, Kind.INSTANT) else (_ARGS_OF[GROUP_OF[kind]],)
    return frozenset(field.encode_name for each in classes for field in msgspec.structs.fields(each)) | set(READ_AGAIN)


# -- events ------------------------------------------------------------------------------------


class Event(msgspec.Struct, gc=False):
    """Any event."""


class EventRow(Event, gc=False):
    """An event that becomes a row; ``ts`` and ``dur`` in microseconds."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    # whole numbers stay integers: old versions write epoch microseconds, beyond a double's reach
    ts: int | float | None = None
    dur: int | float = -1


class Complete(EventRow, gc=False, tag_field="ph", tag="X"):
    """A call with its duration."""

    cat: str = ""
    args: Args | None = None


class Begin(EventRow, gc=False, tag_field="ph", tag="B"):
    """The start of a call whose end is an event of its own."""

    cat: str = ""
    args: Args | None = None


class Instant(EventRow, gc=False, tag_field="ph", tag="i"):
    """A moment, or a record of the allocator."""

    cat: str = ""
    args: InstantArgs | None = None


class OldInstant(Instant, gc=False, tag_field="ph", tag="I"):
    """The same under its older name."""


class End(Event, gc=False, tag_field="ph", tag="E"):
    """The end of the innermost open call of its thread."""

    pid: int | str = ""
    tid: int | str = ""
    ts: int | float | None = None


class Label(Event, gc=False, tag_field="ph", tag="M"):
    """What a process or thread is called."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: LabelArgs | None = None


def _make(name: str, fields: list[Any], base: type[Event], field: str, tag: str) -> type[Event]:
    made: Any = msgspec.defstruct(
        name, fields, bases=(base,), module=__name__, gc=False, kw_only=True, tag_field=field, tag=tag
    )
    return made


PHASES: dict[str, type[Event]] = {
    "X": Complete,
    "B": Begin,
    "i": Instant,
    "I": OldInstant,
    "E": End,
    "M": Label,
    # arrows, counters, asynchronous and object events are counted and otherwise skipped unread
    **{phase: _make("Skipped", [], Event, "ph", phase) for phase in "stfCbneSTpFPNODVvRc(),"},
}


class KnownInstant(EventRow, gc=False, kw_only=True, tag_field="cat", tag="cpu_instant_event"):
    """An instant, decoded by category."""

    ph: Literal["i"]
    args: InstantArgs | None = None


class Arrow(Event, gc=False, tag_field="cat", tag="ac2g"):
    """A flow arrow, decoded by category: counted and otherwise skipped unread."""

    ph: Literal["s", "t", "f"]


class LaunchArrow(Arrow, gc=False, kw_only=True):
    """An end of an arrow from a call to its work, decoded loosely, where nothing else links them."""

    id: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float | None = None


LAUNCHES = "HostToDevice"
"""The category of such arrows in Ascend's recordings, whose times are text."""

CATEGORIES: dict[str, type[Event]] = {
    KnownInstant.__struct_config__.tag: KnownInstant,  # type: ignore[dict-item]
    Arrow.__struct_config__.tag: Arrow,  # type: ignore[dict-item]
    **{
        category: _make(
            "KnownCall",
            [("ph", Literal["X"]), ("args", _ARGS_OF[GROUP_OF[kind]] | None, None)],
            EventRow,
            "cat",
            category,
        )
        for category, kind in CATEGORY_KINDS.items()
    },
    **{
        category: _make("Arrow", [], Arrow, "cat", category)
        for category in ("fwdbwd", "async", "async_gpu", "async_cpu_to_gpu")
    },
}
ARROWS = frozenset(kind for kind in CATEGORIES.values() if issubclass(kind, Arrow)) | {LaunchArrow}


CALLS = frozenset(CATEGORIES.values()) - ARROWS - {KnownInstant} | {Complete}
"""A call with its duration, decoded in whatever way."""


class LooseEvent(msgspec.Struct, gc=False):
    """An event with nothing assumed about types: old, foreign and hand-edited files."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    id: Any = ""
    ts: msgspec.Raw = _NO_TEXT
    dur: msgspec.Raw = _NO_TEXT
    args: msgspec.Raw = _NO_TEXT


class RawEvent(msgspec.Struct, gc=False):
    """Times and arguments as written."""

    ts: msgspec.Raw = _NO_TEXT
    dur: msgspec.Raw = _NO_TEXT
    args: msgspec.Raw = _NO_TEXT


class _Shape(msgspec.Struct, gc=False):
    """Nothing of an event: only its brackets and quotes are checked."""


def _list_of(classes: Iterable[type[Event]]) -> Any:
    return GenericAlias(list, (functools.reduce(operator.or_, classes),))


# -- decoding ----------------------------------------------------------------------------------

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the parser raises on text that is not JSON, not UTF-8, or nested beyond reason."""
_POSITION = re.compile(r"\(byte (\d+)\)")


def is_cut_short(error: BaseException) -> bool:
    """Return whether the text ended before the JSON value did."""
    return isinstance(error, msgspec.DecodeError) and "truncated" in str(error)


def error_position(error: BaseException) -> int:
    """Return where text follows a complete JSON value, or -1 if that is not the trouble."""
    message = str(error)
    found = _POSITION.search(message) if "trailing" in message else None
    return int(found.group(1)) - 1 if found else -1


Decode = Callable[[bytes], list[Event]]
decode_by_category: Decode = msgspec.json.Decoder(_list_of(CATEGORIES.values())).decode
"""Decode an array of events of known categories; ValidationError when there are others."""
decode_by_phase: Decode = msgspec.json.Decoder(_list_of(PHASES.values())).decode
"""Decode an array of events; ValidationError when a field has another type than it should."""
_decode_loose = msgspec.json.Decoder(list[LooseEvent]).decode
decode_raw = msgspec.json.Decoder(list[RawEvent]).decode
_decode_one = msgspec.json.Decoder(LooseEvent).decode
_decode_args = msgspec.json.Decoder(InstantArgs).decode
_decode_any = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_shape = msgspec.json.Decoder(list[_Shape]).decode


def decode_loosely(document: bytes) -> list[Event]:
    """Decode an array of events whose fields may have any type."""
    return [_tight(event) for event in _decode_loose(document)]


def is_event(text: bytes | memoryview) -> bool:
    """Return whether a text is one event, whatever the types of its fields."""
    try:
        _decode_one(text)
    except BROKEN:
        return False
    return True


def event_size(text: memoryview) -> int:
    """Return the length of the event that the text starts with, 0 when it is damaged.

    The parser's own error says where the event ends, so this needs no second grammar.
    """
    try:
        _decode_one(text)
    except BROKEN as error:
        end = error_position(error)
        return end if end > 0 and is_event(text[:end]) else 0
    return len(text)


def is_complete(document: bytes) -> bool:
    """Return whether every bracket and quote is closed, whatever stands between them."""
    try:
        _decode_shape(document)
    except BROKEN:
        return False
    return True


# -- loose events ------------------------------------------------------------------------------

_ARG_FIELDS = {
    item.encode_name: (item.name, isinstance(item.default, msgspec.Raw)) for item in msgspec.structs.fields(InstantArgs)
}


def _tight(loose: LooseEvent) -> Event:
    kind = PHASES.get(loose.ph, Event) if isinstance(loose.ph, str) else Event
    if kind is End:
        return End(_identifier(loose.pid), _identifier(loose.tid), _number(loose.ts, None))
    if loose.cat == LAUNCHES and loose.ph in ("s", "f"):
        return LaunchArrow(
            ph=loose.ph,
            id=text_of(loose.id),
            pid=_identifier(loose.pid),
            tid=_identifier(loose.tid),
            ts=_number(loose.ts, None),
        )
    if kind is Label:
        given = _loose_args(loose.args)
        return Label(
            name=text_of(loose.name),
            pid=_identifier(loose.pid),
            tid=_identifier(loose.tid),
            args=LabelArgs(*(_loose_value(given.get(key, msgspec.Raw(b"null"))) for key in ("name", "labels"))),
        )
    if kind not in (Complete, Begin, Instant, OldInstant):
        return kind()
    try:
        args = _decode_args(loose.args or b"{}")
    except BROKEN:
        args = InstantArgs()
        for key, text in _loose_args(loose.args).items():
            name, is_raw = _ARG_FIELDS.get(key, ("", False))
            if is_raw:
                setattr(args, name, text)
            elif name in ("stream", "device"):
                setattr(args, name, _identifier(_loose_value(text)))
            elif name:
                setattr(args, name, whole(_loose_value(text)))
    row: Any = kind
    return row(
        cat=text_of(loose.cat),
        name=text_of(loose.name),
        pid=_identifier(loose.pid),
        tid=_identifier(loose.tid),
        ts=_number(loose.ts, None),
        dur=_number(loose.dur, -1),
        args=args,
    )


def _loose_args(text: msgspec.Raw) -> dict[str, msgspec.Raw]:
    try:
        return _decode_members(text or b"{}")
    except BROKEN:
        return {}


def _loose_value(text: msgspec.Raw) -> Any:
    try:
        return _decode_any(text)
    except BROKEN:  # a number too large, or nested too deep
        return None


def whole(value: Any) -> int:
    """Return a whole number that fits 64 bits, from a number or its text; -1 otherwise."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return -1
    if isinstance(value, int | float) and -_LARGEST <= value < _LARGEST:
        return int(value)
    return -1


_LARGEST = 1 << 63


def text_of(value: Any) -> str:
    """Return what a label says, whatever its type; empty for none."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def _identifier(value: Any) -> int | str:
    return value if type(value) is int else text_of(value)  # True would be taken for 1


def _number(text: msgspec.Raw, missing: int | None) -> Any:
    digits = bytes(text).strip(b'"')
    try:
        return int(digits) if digits.isdigit() else float(digits)
    except ValueError:
        return missing
