"""In the script's process: which functions of the user's give equal results for equal inputs, step after step.

For a step or two ``sys.setprofile`` reports the calls of one thread. Of each call of the user's own functions, and of
each module that they call, a digest of the inputs and of the result is kept: values of numbers and texts, shape, sum
and up to a thousand elements of tensors and arrays. Each row of a module's first tensor gets its own digest, kept with
some elements of the matching row of the result: a sliding window repeats most rows. Where a function of the user's
returns, its tensors are looked at for subnormal numbers; where a module is called, for padding.
Nothing of the script's is held.

Standard library only; torch and numpy are looked up where the script has imported them.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import count
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

from torchtriage.core.record.padded_texts import PaddingWatch
from torchtriage.core.record.stacks import is_library, of_the_user
from torchtriage.core.record.torch_modes import is_watched

MOST_CALLS = 200
"""Calls of one function in a step whose inputs and results are read; more are counted."""
LONGEST_S, LOOKS_AT_CLOCK = 5.0, 256
"""So long a probe lasts at most, and after how many events it looks."""
ELEMENTS, ITEMS, DEEPEST, LONGEST_LIST = 1024, 32, 3, 4096
"""What is read of a tensor or an array, of a list or a mapping, how deep, and of a list of numbers."""
LARGEST = 1 << 22
"""Elements; larger ones are not read."""
MOST_ROWS, OF_A_ROW, NEAR, TINY = 256, 8, 1e-3, 1e-6
"""Rows of a batch that are compared, elements of a row's result, and how far these may be apart, of themselves or at
all, where rows change their place in the batch."""
LARGE, FEW_SUBNORMAL = 4096, 0.005
"""Elements of a tensor that take time, and the share of subnormal ones among them that does."""
FEWEST = 16
"""Elements of a result that count: two calls may well return the same flag."""
SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
SCALARS = (bool, int, float, complex, str, bytes)
COMPILER = f"{os.sep}_dynamo{os.sep}convert_frame.py"
MODULE_CALL = "_wrapped_call_impl"
BACKWARD, BACKWARD_FILE = ("backward", "grad"), f"{os.sep}autograd{os.sep}__init__.py"


@dataclass(frozen=True)
class ProbedCall:
    """Calls of one function, or of one kind of module, from one line; in the last step of the probe.

    ``function``, ``first_line`` : of a module its class, and 0. ``repeated`` : what part of its calls had inputs and
    results of an earlier call, ``within`` : of an earlier one in the same step. ``large`` : whether a result has
    enough elements to decide. ``rows`` : what part of the rows of a module's batches an earlier call had, with equal
    results.
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
    rows: float = 0.0


@dataclass(frozen=True)
class Subnormal:
    """A variable of a function whose tensor holds numbers below the normal ones, and what share of it they are."""

    file: str
    first_line: int
    name: str
    function: str
    share: float
    shape: tuple[int, ...]


Passes: TypeAlias = tuple[int, int]
"""Of the probe so far: steps, and backward passes."""
Rows: TypeAlias = tuple[list[int], Any]
"""The digest of each row of a module's input, and some elements of each row of its result, float64[n, k]."""
_UNEQUAL = count()


class _Call(NamedTuple):
    """One call: ``digest`` of inputs and result, ``size`` of the result, ``n_backward`` passes of the probe before."""

    step: int
    ns: int
    digest: int
    size: int
    rows: Rows
    n_backward: int


class CallProbe:
    """Reads the calls of the thread that starts it, from :meth:`start` to :meth:`stop`; steps end at :meth:`step`."""

    def __init__(self) -> None:
        # 0: not, 1: a function of the user's, 2: a module's call, 3: a backward pass
        self._wanted: dict[CodeType, int] = {}
        # by frame: key, digest of inputs, digests of the rows of a module's, begin
        self._open: dict[int, tuple[tuple[Any, ...], int, list[int], int]] = {}
        self._calls: dict[tuple[Any, ...], list[_Call]] = {}
        self._passed_twice: set[int] = set()  # backward passes before modules whose graphs two passes go through
        self._last_module = 0
        self._n_calls: dict[tuple[Any, ...], int] = {}
        self._counted: dict[tuple[Any, ...], int] = {}  # of the last whole step
        self._subnormal: dict[tuple[str, int, str], Subnormal] = {}
        self.padding = PaddingWatch()
        self._n_steps = self._n_backward = self._n_events = self._own_ns = 0
        self._incomplete = False
        self._until_ns = 0

    def start(self) -> bool:
        """Begin, unless somebody else listens to calls; return whether.

        Python 3.10 copies the locals of every frame for each event, and back.
        """
        if sys.getprofile() is not None or sys.version_info < (3, 11):
            return False
        self._until_ns = time.perf_counter_ns() + int(LONGEST_S * 1e9)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:  # a forward that a step begins in is of that step
            if frame.f_code.co_name == MODULE_CALL:
                self._called(frame, 2)
            frame = frame.f_back
        sys.setprofile(self._event)
        return True

    def step(self) -> None:
        """Say that a step has ended and the next begins."""
        self._n_steps += 1
        self._counted, self._n_calls = self._n_calls, {}

    def stop(self) -> list[dict[str, Any]]:
        """End, and return what the last whole step called, as JSON values."""
        self._until_ns = 0  # where another thread says so, the probe ends at its own next event
        if sys.getprofile() == self._event:
            sys.setprofile(None)
        last = self._n_steps - 1
        return [asdict(call) for call in self._judged(last)] if last >= 0 and not self._incomplete else []

    def _cut(self) -> None:
        self._incomplete = True
        sys.setprofile(None)

    # -- events --------------------------------------------------------------------------------

    def _event(self, frame: FrameType, event: str, value: Any) -> None:
        self._n_events += 1
        try:
            if self._n_events % LOOKS_AT_CLOCK == 0 and time.perf_counter_ns() > self._until_ns:
                self._cut()
            elif event == "call":
                kind = self._wanted.get(frame.f_code)
                if kind is None:
                    kind = self._wanted[frame.f_code] = _kind(frame.f_code)
                if kind:
                    self._called(frame, kind)
            elif event == "return" and (entry := self._open.pop(id(frame), None)) is not None:
                self._returned(entry, value)
                if self._wanted.get(frame.f_code) == 1:
                    self._look_for_subnormal(frame)
        except Exception as error:  # it would be raised in the script
            self._cut()
            if of_the_user(error):
                raise

    def _called(self, frame: FrameType, kind: int) -> None:
        begun = time.perf_counter_ns()
        if kind < 0 or begun > self._until_ns:  # a compiler at work, or a step without an end
            self._cut()
            return
        if kind == 3:
            if self._last_module < self._n_backward:
                self._passed_twice.add(self._last_module)
            self._n_backward += 1
            return
        caller, given = frame.f_back, frame.f_locals
        if kind == 2:
            self.padding.look(given.get("self"), (given.get("args"), given.get("kwargs")), caller)
        if caller is None or (kind == 2 and is_library(caller.f_code.co_filename)):
            self._own_ns += time.perf_counter_ns() - begun
            return
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        place = (code.co_filename, name, code.co_firstlineno)
        if kind == 2:
            place = ("", type(given.get("self")).__name__, 0)
        key = (*place, caller.f_code.co_filename, caller.f_lineno)
        n_calls = self._n_calls[key] = self._n_calls.get(key, 0) + 1
        if n_calls > MOST_CALLS:
            return
        inputs = _digest([given[name] for name in sorted(given)], DEEPEST)[0]
        given_rows = _rows(given.get("args"), ELEMENTS // 4) if kind == 2 else None
        rows = _digests(given_rows) if given_rows is not None else []
        now = time.perf_counter_ns()
        self._own_ns += now - begun
        self._open[id(frame)] = (key, inputs, rows, now - self._own_ns)

    def _returned(self, entry: tuple[tuple[Any, ...], int, list[int], int], value: Any) -> None:
        key, inputs, rows, begun = entry
        now = time.perf_counter_ns()
        took = now - self._own_ns - begun
        result, size = _digest(value, DEEPEST, (self._n_steps, self._n_backward))
        results = _rows(value, OF_A_ROW) if rows else None
        matched = (rows, results) if results is not None and len(results) == len(rows) else ([], [])
        if not key[0]:
            self._last_module = self._n_backward
        called = _Call(self._n_steps, took, hash((inputs, result)), size, matched, self._n_backward)
        self._calls.setdefault(key, []).append(called)
        self._own_ns += time.perf_counter_ns() - now

    def _look_for_subnormal(self, frame: FrameType) -> None:
        begun, code = time.perf_counter_ns(), frame.f_code
        values = dict(frame.f_locals)
        for name, held in _attributes(values.get("self")).items():
            values[f"self.{name}"] = held
        for name, held in values.items():
            share = _subnormal_share(held)
            place = code.co_filename, code.co_firstlineno, name
            if share >= FEW_SUBNORMAL and (place not in self._subnormal or self._subnormal[place].share < share):
                self._subnormal[place] = Subnormal(*place, code.co_name, share, tuple(held.shape))
        self._own_ns += time.perf_counter_ns() - begun

    def subnormal(self) -> list[dict[str, Any]]:
        """Return the variables with subnormal numbers, those with most of them first, as JSON values."""
        found = sorted(self._subnormal.values(), key=lambda variable: -variable.share * math.prod(variable.shape))
        return [asdict(variable) for variable in found[:ITEMS]]

    def _judged(self, last: int) -> list[ProbedCall]:
        judged = []
        for key, calls in self._calls.items():
            mine = [call for call in calls if call.step == last]
            before = {call.digest for call in calls if call.step < last}
            if not mine:
                continue
            here: set[int] = set()
            known = {
                (row, len(values)): values
                for call in calls
                if call.step < last
                for row, values in zip(*call.rows, strict=True)
            }
            repeated = within = ns = 0
            rows = 0.0
            for call in mine:
                if call.n_backward in self._passed_twice:
                    here.discard(call.digest)
                within += call.ns * (call.digest in here)
                repeated += call.ns * (call.digest in here or call.digest in before)
                rows += call.ns * _known_rows(call.rows, known)
                here.add(call.digest)
                ns += call.ns
            n_calls, large = self._counted.get(key, len(mine)), any(call.size >= FEWEST for call in mine)
            file, function, first_line, caller_file, caller_line = key
            parts = repeated / max(ns, 1), within / max(ns, 1)
            place = file, function, first_line, caller_file, caller_line
            judged.append(ProbedCall(*place, n_calls, ns, *parts, large, rows / max(ns, 1)))
        return sorted(judged, key=lambda call: -call.ns)


def _kind(code: CodeType) -> int:
    file = code.co_filename
    if code.co_name == MODULE_CALL:
        return 2
    if code.co_name in BACKWARD and file.endswith(BACKWARD_FILE):
        return 3
    if is_library(file):
        return -1 if file.endswith(COMPILER) else 0
    # what is suspended returns many times; a comprehension and a module's body are part of what is around them
    if code.co_flags & SUSPENDS or code.co_name.startswith("<"):
        return 0
    # before 3.13 the locals that are read are copied back: what another thread has assigned to a variable of a closure
    # meanwhile would be lost (CPython issue 74929)
    return 0 if sys.version_info < (3, 13) and (code.co_freevars or code.co_cellvars) else 1


def _digest(value: Any, depth: int, passes: Passes | None = None) -> tuple[int, int]:
    """Return a digest of a value, and how many elements it has.

    ``passes`` : None for an input. What cannot be read is equal to itself as an input, and to nothing as a result:
    another object may get its id. A result with a graph is equal to none that a step or a backward pass lies between:
    each such pass needs a graph of its own. And gradients that an input wants are not those of its values alone.
    """
    try:
        return _read(value, depth, passes)
    except Exception as error:  # anything may refuse to be read
        if of_the_user(error):
            raise
        return _unread(value, passes)


def _unread(value: Any, passes: Passes | None) -> tuple[int, int]:
    return hash(("object", id(value) if passes is None else next(_UNEQUAL))), 0


def _read(value: Any, depth: int, passes: Passes | None) -> tuple[int, int]:
    if value is None or isinstance(value, SCALARS):
        return hash((type(value), repr(value) if isinstance(value, int | float | complex) else value)), 1
    largest = LARGEST >> 4 * (DEEPEST - depth)  # a list may hold many
    torch: Any = sys.modules.get("torch")
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        return _of_tensor(value, torch, passes, largest)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject and value.size <= largest:
        flat = value.reshape(-1)
        with numpy.errstate(all="ignore"):
            total = repr(flat.sum().item()) if value.dtype.kind in "biufc" else ""
        some = flat[:: _stride(value.size)]
        return hash(("array", value.shape, value.dtype.str, some.tobytes(), total)), value.size
    if depth and type(value) in (list, tuple):
        if len(value) <= LONGEST_LIST and all(isinstance(item, SCALARS) for item in value):
            return hash((type(value), *map(repr, value))), len(value)
        return _of_items(type(value), len(value), value[:: max(len(value) // ITEMS, 1)], depth, passes)
    if depth and type(value) is dict and len(value) <= 4 * ITEMS:
        return _of_items(dict, len(value), [*value.keys(), *value.values()], depth, passes)
    return _unread(value, passes)


def _stride(size: int, n: int = ELEMENTS) -> int:
    return max(size // n, 1) | 1  # odd: else it may be the length of a row, and read one column alone


def _of_items(kind: type, n_items: int, some: Sequence[Any], depth: int, passes: Passes | None) -> tuple[int, int]:
    parts = [_digest(item, depth - 1, passes) for item in some]
    return hash((kind, n_items, *(part for part, _ in parts))), max(n_items, sum(size for _, size in parts))


def _of_tensor(tensor: Any, torch: Any, passes: Passes | None, largest: int) -> tuple[int, int]:
    size = tensor.numel()
    device = tensor.device.type
    readable = tensor.layout == torch.strided and device in ("cpu", "cuda") and size <= largest
    if not readable or is_watched(torch, device):  # a tracer or a mode of the script's would see what reads it
        return _unread(tensor, passes)[0], size
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        some = flat[:: _stride(size)]
        some = some.float() if some.dtype == torch.bfloat16 else some
        graph = tensor.requires_grad, passes if tensor.requires_grad else None
        about = "tensor", tuple(tensor.shape), tensor.dtype, device, graph
        return hash((*about, some.cpu().numpy().tobytes(), repr(flat.sum().item()))), size


def _attributes(held: Any) -> dict[str, Any]:
    """Return what an object holds, without asking code of its own."""
    try:
        own = object.__getattribute__(held, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def _subnormal_share(value: Any) -> float:
    """Return what share of a tensor in memory are subnormal numbers, by a thousand of them; 0 of anything else."""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    if torch is None or numpy is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return 0.0
    try:
        if is_watched(torch, "cpu"):
            return 0.0
        known = value.dtype in (torch.float32, torch.float64) and value.layout == torch.strided
        if not known or value.device.type != "cpu" or not LARGE <= value.numel() <= LARGEST:
            return 0.0
        with torch.no_grad():
            some = numpy.abs(value.detach().reshape(-1)[:: _stride(value.numel())].numpy())
        return float(((some > 0) & (some < numpy.finfo(some.dtype).tiny)).mean())
    except Exception as error:  # anything may refuse to be read
        if of_the_user(error):
            raise
        return 0.0


def _first_tensor(value: Any, torch: Any) -> Any:
    """Return the first tensor of a call's arguments or results, with rows that can be read; None without one."""
    items = value if type(value) in (tuple, list) else (value,)
    tensor = next((item for item in items if type(item) is torch.Tensor), None)
    if tensor is None or tensor.dim() < 2 or not 2 <= tensor.shape[0] <= MOST_ROWS or tensor.requires_grad:
        return None
    readable = (
        tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda") and 0 < tensor.numel() <= LARGEST
    )
    plain = readable and not tensor.is_complex() and not tensor.is_quantized
    return tensor if plain and not is_watched(torch, tensor.device.type) else None


def _rows(value: Any, n: int) -> Any:
    """Return of each row of the first tensor its sum, and ``n`` or more of its elements or all; None without rows."""
    torch: Any = sys.modules.get("torch")
    try:
        tensor = None if torch is None else _first_tensor(value, torch)
        if tensor is None:
            return None
        with torch.no_grad():
            flat = tensor.detach().reshape(tensor.shape[0], -1)
            some = flat[:, :: _stride(flat.shape[1], n)].double()
            return torch.cat([flat.sum(1, dtype=torch.float64)[:, None], some], dim=1).cpu().numpy()
    except Exception as error:  # anything may refuse to be read
        if of_the_user(error):
            raise
        return None


def _digests(rows: Any) -> list[int]:
    """Return a digest of each row; rows of one value say nothing."""
    return [hash(row.tobytes()) if row[1:].min() < row[1:].max() else next(_UNEQUAL) for row in rows]


def _known_rows(rows: Rows, known: dict[tuple[int, int], Any]) -> float:
    """Return what part of the rows earlier calls had, with results as good as equal."""
    same = 0
    for row, values in zip(*rows, strict=True):
        before = known.get((row, len(values)), ())
        pairs = zip(before, values, strict=False)
        same += len(before) > 0 and all(math.isclose(*pair, rel_tol=NEAR, abs_tol=TINY) for pair in pairs)
    return same / max(len(rows[0]), 1)
