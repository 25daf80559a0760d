"""In the script's process: which functions of the user's give equal results for equal inputs, step after step.

For a step or two ``sys.setprofile`` reports the calls of one thread. Of each call of the user's own functions, and of
each module that they call, a digest of the inputs and of the result is kept: values of numbers and texts, shape, sum
and up to a thousand elements of tensors and arrays. Only digests are compared, nothing of the script's is held.

Standard library only; torch and numpy are looked up where the script has imported them.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import count
from types import CodeType, FrameType
from typing import Any

from torchtriage.core.record.stacks import callers, current_frames, is_library

__all__ = ["CallProbe", "ProbedCall"]

MOST_CALLS = 200
"""Calls of one function in a step whose inputs and results are read; more are counted."""
LONGEST_S = 5.0
"""So long a probe lasts at most; what digests take counts."""
ELEMENTS, ITEMS, DEEPEST = 1024, 32, 3
"""What is read of a tensor or an array, of a list or a mapping, and how deep."""
LARGEST = 1 << 22
"""Elements; larger ones are not read."""
FEWEST = 16
"""Elements of a result that count: two calls may well return the same flag."""
SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
SCALARS = (bool, int, float, complex, str, bytes)
COMPILER = f"{os.sep}_dynamo{os.sep}convert_frame.py"
MODULE_CALL = "_wrapped_call_impl"


@dataclass(frozen=True)
class ProbedCall:
    """Calls of one function, or of one kind of module, from one line; in the last step of the probe.

    ``function``, ``first_line`` : of a module its class, and 0. ``repeated`` : what part of its calls had inputs and
    results of an earlier call, ``within`` : of an earlier one in the same step. ``large`` : whether a result has
    elements enough to tell.
    """

    file: str
    function: str
    first_line: int
    caller_file: str
    caller_line: int
    n_calls: int
    ns: int
    repeated: float
    within: float
    large: bool


_UNEQUAL = count()


class CallProbe:
    """Reads the calls of the thread that starts it, from :meth:`start` to :meth:`stop`; steps end at :meth:`step`."""

    def __init__(self) -> None:
        self._wanted: dict[CodeType, int] = {}  # 0: not, 1: a function of the user's, 2: a module's call
        self._open: dict[int, tuple[tuple[Any, ...], int, int]] = {}  # by frame: key, digest of inputs, begin
        self._calls: dict[tuple[Any, ...], list[tuple[int, int, int, int]]] = {}
        self._n_calls: dict[tuple[Any, ...], int] = {}
        self._n_steps = 0
        self._own_ns = 0
        self._until_ns = 0

    def start(self) -> bool:
        """Begin, unless somebody else listens to calls or another thread runs code of the user's; return whether."""
        if sys.getprofile() is not None or (sys.version_info < (3, 13) and _others_run()):
            return False
        self._until_ns = time.perf_counter_ns() + int(LONGEST_S * 1e9)
        sys.setprofile(self._event)
        return True

    def step(self) -> None:
        """Say that a step has ended and the next begins."""
        self._n_steps += 1
        self._n_calls.clear()

    def stop(self) -> list[dict[str, Any]]:
        """End, and return what the last whole step called, as JSON values."""
        self._end()
        last = self._n_steps - 1
        return [asdict(call) for call in self._judged(last)] if last >= 0 else []

    def _end(self) -> None:
        if sys.getprofile() == self._event:
            sys.setprofile(None)

    # -- events --------------------------------------------------------------------------------

    def _event(self, frame: FrameType, event: str, value: Any) -> None:
        try:
            if event == "call":
                kind = self._wanted.get(frame.f_code)
                if kind is None:
                    kind = self._wanted[frame.f_code] = _kind(frame.f_code)
                if kind:
                    self._called(frame, kind)
            elif event == "return" and (entry := self._open.pop(id(frame), None)) is not None:
                self._returned(entry, value)
        except Exception:  # it would be raised in the script
            self._end()

    def _called(self, frame: FrameType, kind: int) -> None:
        begun = time.perf_counter_ns()
        if kind < 0 or begun > self._until_ns:  # a compiler at work, or a step without an end
            self._end()
            return
        caller = frame.f_back
        if caller is None or (kind == 2 and is_library(caller.f_code.co_filename)):
            return
        code, given = frame.f_code, frame.f_locals
        name = getattr(code, "co_qualname", code.co_name)
        place = (code.co_filename, name, code.co_firstlineno)
        if kind == 2:
            place = ("", type(given.get("self")).__name__, 0)
        key = (*place, caller.f_code.co_filename, caller.f_lineno)
        n_calls = self._n_calls[key] = self._n_calls.get(key, 0) + 1
        if n_calls > MOST_CALLS:
            return
        inputs = _digest([given[name] for name in sorted(given)], DEEPEST, result=False)[0]
        now = time.perf_counter_ns()
        self._own_ns += now - begun
        self._open[id(frame)] = (key, inputs, now - self._own_ns)

    def _returned(self, entry: tuple[tuple[Any, ...], int, int], value: Any) -> None:
        key, inputs, begun = entry
        now = time.perf_counter_ns()
        took = now - self._own_ns - begun
        result, size = _digest(value, DEEPEST, result=True)
        self._calls.setdefault(key, []).append((self._n_steps, took, hash((inputs, result)), size))
        self._own_ns += time.perf_counter_ns() - now

    def _judged(self, last: int) -> list[ProbedCall]:
        judged = []
        for key, calls in self._calls.items():
            mine = [call for call in calls if call[0] == last]
            before = {call[2] for call in calls if call[0] < last}
            if not mine:
                continue
            here: set[int] = set()
            repeated = within = ns = 0
            for _, took, digest, _ in mine:
                within += took * (digest in here)
                repeated += took * (digest in here or digest in before)
                here.add(digest)
                ns += took
            n_calls, large = len(mine), any(call[3] >= FEWEST for call in mine)
            file, function, first_line, caller_file, caller_line = key
            parts = repeated / max(ns, 1), within / max(ns, 1)
            call = ProbedCall(file, function, first_line, caller_file, caller_line, n_calls, ns, *parts, large)
            judged.append(call)
        return sorted(judged, key=lambda call: -call.ns)


def _others_run() -> bool:
    """Return whether another thread is in code of the user's.

    Python before 3.13 copies a frame's locals for each event, and back: what another thread has assigned to a variable
    of a closure meanwhile would be lost (CPython issue 74929).
    """
    others = (innermost for thread, innermost in current_frames().items() if thread != get_ident())
    return any(not is_library(frame.f_code.co_filename) for innermost in others for frame in callers(innermost))


def _kind(code: CodeType) -> int:
    file = code.co_filename
    if code.co_name == MODULE_CALL:
        return 2
    if is_library(file):
        return -1 if file.endswith(COMPILER) else 0
    # what is suspended returns many times; a comprehension and a module's body are part of what is around them
    return 0 if code.co_flags & SUSPENDS or code.co_name.startswith("<") else 1


def _digest(value: Any, depth: int, *, result: bool) -> tuple[int, int]:
    """Return a digest of a value, and how many elements it has.

    What cannot be read is equal to itself as an input, and to nothing as a ``result``: another object may get its id.
    """
    try:
        return _read(value, depth, result)
    except Exception:  # anything may refuse to be read
        return _unread(value, result)


def _unread(value: Any, result: bool) -> tuple[int, int]:
    return hash(("object", next(_UNEQUAL) if result else id(value))), 0


def _read(value: Any, depth: int, result: bool) -> tuple[int, int]:
    if value is None or isinstance(value, SCALARS):
        return hash((type(value), value if value == value else repr(value))), 1
    torch: Any = sys.modules.get("torch")
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter) and not torch._C._get_tracing_state():
        return _of_tensor(value, torch, result)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject and value.size <= LARGEST:
        flat = value.reshape(-1)
        total = repr(flat.sum().item()) if value.dtype.kind in "biufc" else ""
        some = flat[:: max(value.size // ELEMENTS, 1)]
        return hash(("array", value.shape, value.dtype.str, some.tobytes(), total)), value.size
    if depth and type(value) in (list, tuple):
        return _of_items(type(value), len(value), value[:: max(len(value) // ITEMS, 1)], depth, result)
    if depth and type(value) is dict and len(value) <= 4 * ITEMS:
        return _of_items(dict, len(value), [*value.keys(), *value.values()], depth, result)
    return _unread(value, result)


def _of_items(kind: type, n_items: int, some: Sequence[Any], depth: int, result: bool) -> tuple[int, int]:
    parts = [_digest(item, depth - 1, result=result) for item in some]
    return hash((kind, n_items, *(part for part, _ in parts))), max(n_items, sum(size for _, size in parts))


def _of_tensor(tensor: Any, torch: Any, result: bool) -> tuple[int, int]:
    size = tensor.numel()
    device = tensor.device.type
    captures = device == "cuda" and torch.cuda.is_current_stream_capturing()
    if tensor.layout != torch.strided or device not in ("cpu", "cuda") or captures or size > LARGEST:
        return _unread(tensor, result)[0], size
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(size // ELEMENTS, 1)]
        some = some.float() if some.dtype == torch.bfloat16 else some
        about = "tensor", tuple(tensor.shape), tensor.dtype, device
        return hash((*about, some.cpu().numpy().tobytes(), repr(flat.sum().item()))), size
