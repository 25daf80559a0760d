"""In the script's process: what the operators of two steps compute, and what those of the second one read.

A dispatch mode sees the operators of one thread, and ``sys.setprofile`` what leaves torch beside them. Of equal values
:mod:`value_numbers` knows, of what nobody reads :mod:`unread_results`. Nothing that the script computes is changed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from torchtriage.core.record.operator_notes import PLAIN, OperatorNotes, tensors_in
from torchtriage.core.record.stacks import is_library, user_call
from torchtriage.core.record.unread_results import unread_results
from torchtriage.core.record.value_numbers import ValueNumbers, changed_by

MOST_OPERATORS = 50_000
LONGEST_S, LOOKS_AT_CLOCK = 10.0, 1024
"""So long a probe lasts at most, and after how many events it looks."""
LEAVES = frozenset({"numpy", "tolist", "data_ptr", "untyped_storage"})
"""Methods of C after which values are read without an operator."""
UNSEEN = frozenset({"_to_dlpack", "_to_dlpack_versioned", "start_new_thread", "start_joinable_thread"})
"""Functions of C after which it is not known what is read."""
OUTER = 2
"""Frames of the user's, the outermost, in which it may end."""
OURS = str(Path(__file__).parent)


class OperatorProbe:
    """Looks at the operators of the thread that starts it, for two steps; :meth:`step` stands between them."""

    def __init__(self) -> None:
        self._mode = _Mode(self)
        self._notes = OperatorNotes()
        self._values = ValueNumbers()
        self._frames: frozenset[FrameType] = frozenset()
        self._infers = False
        self._n_events = self._until_ns = 0
        self._whole = self._noting = False

    def start(self) -> bool:
        """Begin, unless somebody else looks at calls or operators, or a backward pass is on; return whether."""
        if sys.getprofile() is not None or _get_current_dispatch_mode_stack() or _in_backward():
            return False
        self._until_ns = time.perf_counter_ns() + int(LONGEST_S * 1e9)
        self._frames = frozenset(list(_users(sys._getframe(1)))[-OUTER:])  # inner ones would keep a step's tensors
        self._infers = torch.is_inference_mode_enabled()
        self._whole = True
        self._mode.__enter__()
        sys.setprofile(self._event)
        return True

    def step(self) -> None:
        """Say that the first step has ended and the second begins."""
        self._values.step()
        self._noting = True

    def stop(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """End; return what was computed for nothing, and lines that repeat their work, as JSON values."""
        whole = self._whole and self._noting
        self.give_up()
        if not whole:
            return [], []
        with torch.no_grad():
            return [asdict(unread) for unread in unread_results(self._notes)], self._values.facts()

    def give_up(self) -> None:
        """End."""
        self._whole = False
        if not _in_backward():
            self._end()

    def _end(self) -> None:
        """Leave the mode, in the thread and under the guards that it was entered in.

        A backward pass and ``inference_mode`` put back the dispatcher's state as they found it: where the mode is left
        inside of them it is asked for, and gone. Until then it hands all through.
        """
        stack = _get_current_dispatch_mode_stack()
        mine = sys.getprofile() == self._event and stack and stack[-1] is self._mode
        if mine and torch.is_inference_mode_enabled() == self._infers:
            sys.setprofile(None)
            self._mode.__exit__(None, None, None)
            self._frames = frozenset()

    def _event(self, frame: FrameType, event: str, called: Any) -> None:
        self._n_events += 1
        if self._n_events % LOOKS_AT_CLOCK == 0 and time.perf_counter_ns() > self._until_ns:
            self._whole = False
        if not self._whole:
            # in a frame that was there at the start nothing of torch is between it and the mode
            if event != "call" and frame in self._frames:
                self._end()
        elif event == "c_call" and called.__name__ in LEAVES and not frame.f_code.co_filename.startswith(OURS):
            tensor = getattr(called, "__self__", None)
            if isinstance(tensor, torch.Tensor):
                try:
                    self._notes.share(tensor)
                except Exception:
                    self._whole = False
        elif event == "c_call" and called.__name__ in UNSEEN:
            self._whole = False

    def see(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, ns: int) -> None:
        """Look at an operator that has returned."""
        if not self._whole:
            return
        try:
            self._see(func, args, kwargs, result, ns)
        except Exception:  # of a tensor without a storage, such as an unknown subclass
            self._whole = False

    def _see(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, ns: int) -> None:
        read = tuple(tensors_in((args, tuple(kwargs.values()))))
        made = tuple(tensors_in(result))
        changed = tuple(changed_by(func, args, kwargs))
        line = user_call(sys._getframe())
        if made and not changed and {*map(_memory, made)} <= {*map(_memory, read)}:
            if self._noting:
                self._notes.view(read, made, line)
            return
        in_backward = _in_backward()
        needs_grad = not in_backward and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in read)
        number = self._values.note(func, args, kwargs, () if changed else made, changed)
        if not in_backward:
            self._values.count(number, line, ns, changed or made, needs_grad=needs_grad)
        if self._noting:
            self._notes.add(
                func, args, read, made, line, ns, changed=changed, in_backward=in_backward, needs_grad=needs_grad
            )
            self._whole = len(self._notes.operators) < MOST_OPERATORS


class _Mode(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """Shows a probe every operator, in the place of those that only call others what they call."""

    def __init__(self, probe: OperatorProbe) -> None:
        super().__init__()
        self._probe = probe
        self._composite: dict[Any, bool] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler for it, a second or two in the step; none is at work here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in self._composite:
            name = func.name()
            self._composite[func] = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        if self._composite[func] and all(kind in PLAIN for kind in types):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        begun = time.perf_counter_ns()
        result = func(*args, **kwargs)
        self._probe.see(func, args, kwargs, result, time.perf_counter_ns() - begun)
        return result


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _users(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the user's own code that a frame was called from."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)
