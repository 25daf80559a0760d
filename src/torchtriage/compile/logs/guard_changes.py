"""What else changed at a recompilation.

The log names the first guard that failed. The guards of the graph that did not fit and of the one that was made instead
tell the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import DecodeError
from msgspec.json import decode

from torchtriage.compile.logs.guards import GuardTree
from torchtriage.compile.logs.recompiles import Cause, GuardFailure, as_written, parse_failure

_TENSOR = re.compile(
    r"check_tensor\([^=]+?, \w+, (?P<keys>DispatchKeySet\([^()]*\)), (?P<dtype>[\w.]+), device=(?P<device>\w+),"
    r" requires_grad=(?P<grad>\w+), size=\[(?P<size>[^\[\]]*)\], stride=\[(?P<stride>[^\[\]]*)\]\)"
)
_TYPE = re.compile(r"type=<class '(?P<name>[\w.]+)'>")


def _changes(old: GuardTree, new: GuardTree, *, next_: bool) -> Iterator[GuardFailure]:
    """Yield what the guards of the old graph expected otherwise than those of the new one.

    ``next_`` : the new graph is the next after the old one. Only then a constant that became dynamic has changed at
    this call and not at an earlier one.
    """
    for (what, source), text in old.expected.items():
        same = new.expected.get((what, source))
        if what == "tensor" and same is not None:
            yield from _of_tensor(source, text, same, next_=next_)
        elif what == "type" and same is not None:
            was, now = _type(text), _type(same)
            if was != now:
                yield _change("type", source, was, now, text)
        elif what == "state" and same is not None:
            yield from _of_state(text, same)
        elif what in ("value", "length"):
            failure = parse_failure(text)
            kinds = {kind for kind, of in new.expected if of == source} if same is None else set()
            if same is not None:
                now = parse_failure(same).was
                if failure.was != now:
                    yield _change(failure.cause, source, failure.was, now, text)
            elif kinds - {"type"} or (kinds and next_):
                yield _change(failure.cause, source, failure.was, "", text)


def besides(first: GuardFailure, old: GuardTree | None, new: GuardTree | None, *, next_: bool) -> list[GuardFailure]:
    """Return what changed beside the guard that the log names; nothing where it has no guards of both graphs."""
    if old is None or new is None:
        return []
    return [change for change in _changes(old, new, next_=next_) if _kind(change) != _kind(first)]


def _kind(failure: GuardFailure) -> tuple[str, int, str]:
    # strides are given for all dimensions at once
    return failure.cause, failure.dim if failure.cause == "size" else -1, _last(failure.source)


def _last(source: str) -> str:
    """Return the last name of a source: ``self.w`` in one text is ``self._parameters['w']`` in another."""
    return next((name for name in reversed(re.split(r"\W+", source)) if name), "")


def _of_tensor(source: str, old: str, new: str, *, next_: bool) -> Iterator[GuardFailure]:
    before, after = _TENSOR.match(old), _TENSOR.match(new)
    if before is None or after is None:
        return
    named: tuple[tuple[Cause, str], ...] = (("dtype", "dtype"), ("device", "device"), ("requires grad", "grad"))
    for cause, name in named:
        if before[name] != after[name]:
            was, now = (guard[name].removeprefix("torch.") for guard in (before, after))
            yield _change(cause, source, was, now, old)
    if before["keys"] != after["keys"] and before["device"] == after["device"]:
        yield _change("dispatch keys", source, before["keys"], after["keys"], old)
    sizes, others = (guard["size"].split(", ") if guard["size"] else [] for guard in (before, after))
    if len(sizes) != len(others):
        yield _change("rank", source, str(len(sizes)), str(len(others)), old)
        return
    for dim, (was, now) in enumerate(zip(sizes, others, strict=True)):
        if was not in (now, "None") and (now != "None" or next_):
            yield _change("size", source, was, "" if now == "None" else now, old, dim)
    if sizes == others and before["stride"] != after["stride"]:
        yield _change("stride", source, before["stride"], after["stride"], old)


def _of_state(old: str, new: str) -> Iterator[GuardFailure]:
    before, after = (_state(text) for text in (old, new))
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            yield _change("global state", name, str(before[name]), str(after[name]), "GLOBAL_STATE")


def _state(text: str) -> dict[str, object]:
    try:
        state = decode(text.partition(" against ")[2])
    except DecodeError:
        return {}
    return state if isinstance(state, dict) else {}


def _type(text: str) -> str:
    match = _TYPE.search(text)
    return match["name"] if match else ""


def _change(cause: Cause, source: str, was: str, now: str, guard: str, dim: int = -1) -> GuardFailure:
    return GuardFailure("", cause, as_written(source), dim, was[:200], now[:200], guard[:1000], "", None, "")
