"""In the script's process: what operators compute in one step that nobody reads.

For a step a dispatch mode notes the operators of one thread: which elements of which storages each reads and writes,
and at which line. Afterwards they are gone through from the last to the first. Read is what is still within reach, and
what something that is read was computed from, by :mod:`liveness`: of ``head(hidden)[:, -1]`` one row of many. What
leaves torch unseen (``numpy()``) counts as read, and so does a result that nothing at all reads. Nothing of the
script's is held but copies of indices and masks.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from torchtriage.core.record.liveness import ALL, KEEPS, LOSSES, MASKS, RULES, Live, Rule, Shape, part, pointwise
from torchtriage.core.record.stacks import is_library, user_call
from torchtriage.core.record.value_numbers import ValueNumbers, changed_by

FEWEST, LARGEST = 16, 1 << 26
"""Elements of a storage that are told apart: fewer take no time, more take too much."""
COUNTS = 4096
"""Elements of a result from which on its operator counts."""
MOST_OPERATORS, LARGEST_INDEX = 50_000, 1 << 22
MOST_KEPT, MOST_TOLD_APART = 1 << 24, 1 << 28
"""Elements of all indices that are kept, and of the storages that are told apart at once: a byte each."""
LONGEST_S, LOOKS_AT_CLOCK, LONGEST_JUDGED_S = 10.0, 1024, 3.0
READ = 0.5
"""What part of an operator's work may be needed at most, so that the rest counts."""
LEAST = 0.01
"""Of the time of all operators, what is computed for nothing."""
MOST_FOUND, MOST_LINES = 8, 8
LEAVES = frozenset({"numpy", "tolist", "data_ptr", "untyped_storage"})
"""Methods of C after which values are read without an operator."""
UNSEEN = frozenset({"_to_dlpack", "_to_dlpack_versioned", "start_new_thread", "start_joinable_thread"})
"""Functions of C after which it is not known what is read."""
OUTER = 2
"""Frames of the user's, the outermost, in which it may end."""
OURS = str(Path(__file__).parent)
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
Line: TypeAlias = tuple[str, int, str]


class _Piece(NamedTuple):
    """Where the elements of a tensor are in its storage; counted in elements."""

    storage: int
    size: Shape
    stride: Shape
    offset: int


class _Operator(NamedTuple):
    """``given`` : plain values, and copies of indices and masks in the place of tensors. ``read`` : None: unknown.

    ``data`` : which of what it reads are large and of floating point.
    """

    rule: Rule | None
    name: str
    line: Line
    ns: int
    given: tuple[Any, ...]
    read: tuple[_Piece | None, ...]
    data: tuple[bool, ...]
    made: tuple[_Piece | None, ...]
    in_backward: bool
    needs_grad: bool


@dataclass
class UnreadLine:
    """A line that computes what nobody reads; ``ns`` : of its operators, ``unread_ns`` : of that, for nothing."""

    file: str
    line: int
    function: str
    ns: int = 0
    unread_ns: float = 0.0


@dataclass
class Unread:
    """What is computed for nothing, by the line that reads the rest.

    ``lines`` : those that compute it. ``operator``, ``shape`` : the longest of them. ``needs_grad`` : whether gradients
    go back through it. ``share`` : of the time of all operators.
    """

    file: str
    line: int
    function: str
    lines: list[UnreadLine]
    operator: str = ""
    shape: Shape = ()
    longest_ns: float = 0.0
    needs_grad: bool = False
    share: float = 0.0


class OperatorProbe:
    """Notes the operators of the thread that starts it, for two steps.

    :meth:`step` stands between them. What they compute is compared, and what the second one reads is noted.
    """

    def __init__(self) -> None:
        self._mode = _Mode(self)
        self._operators: list[_Operator] = []
        # a weak reference keeps its number from being another storage's
        self._storages: dict[int, StorageWeakRef] = {}
        self._n_elements: dict[int, int] = {}
        self._tensors: list[tuple[weakref.ref[torch.Tensor], _Piece]] = []
        self._narrowed: dict[_Piece, Line] = {}
        self._values = ValueNumbers()
        self._frames: frozenset[FrameType] = frozenset()
        self._infers = False
        self._n_events = self._until_ns = self._n_kept = 0
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
            return [asdict(found) for found in self._judged()], self._values.facts()

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
        elif event == "c_call" and called.__name__ in LEAVES:
            if not frame.f_code.co_filename.startswith(OURS):
                self._share(getattr(called, "__self__", None))
        elif event == "c_call" and called.__name__ in UNSEEN:
            self._whole = False

    def _share(self, tensor: Any) -> None:
        """Note that memory is read and written without operators from now on: then nothing is known of it."""
        if isinstance(tensor, torch.Tensor) and self._whole:
            try:
                key = tensor.untyped_storage()._cdata
                self._storages.setdefault(key, StorageWeakRef(tensor.untyped_storage()))
                self._n_elements[key] = 0
            except Exception:
                self._whole = False

    # -- what operators read and make ----------------------------------------------------------

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, ns: int) -> None:
        """Note an operator that has returned."""
        if not self._whole:
            return
        try:
            self._note(func, args, kwargs, result, ns)
        except Exception:  # of a tensor without a storage, such as an unknown subclass
            self._whole = False

    def _note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, ns: int) -> None:
        read = tuple(_tensors((args, tuple(kwargs.values()))))
        made = tuple(_tensors(result))
        changed = tuple(changed_by(func, args, kwargs))
        name = func.overloadpacket.__name__
        if made and not changed:
            storages = {_storage(tensor) for tensor in read}
            if all(_storage(tensor) in storages for tensor in made):
                if self._noting:
                    self._view(read, made)
                return
        number = self._values.note(func, args, kwargs, () if changed else made, changed)
        in_backward = _in_backward()
        if not in_backward:
            needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in read)
            self._values.count(number, user_call(sys._getframe(3)), ns, changed or made, needs_grad=needs_grad)
        if not self._noting:
            return
        rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
        if rule is None and torch.Tag.pointwise in func.tags:
            rule = pointwise
        if (changed and not name.endswith("_")) or kwargs.get("out") is not None:
            rule = None
        self._add(rule, name, ns, args, read, made)

    def _view(self, read: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
        line = user_call(sys._getframe(4))
        whole, before = max(tensor.numel() for tensor in read), self._piece(read[0])
        for tensor in made:
            piece = self._made(tensor)
            if piece is not None and tensor.numel() < whole:
                self._narrowed[piece] = line
            elif piece is not None and before in self._narrowed:
                self._narrowed[piece] = self._narrowed[before]

    def _add(
        self,
        rule: Rule | None,
        name: str,
        ns: int,
        given: Sequence[Any],
        read: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
    ) -> None:
        pieces = tuple(self._piece(tensor) for tensor in read)
        in_backward = _in_backward()
        needs_grad = not in_backward and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in read)
        operator = _Operator(
            rule,
            name,
            user_call(sys._getframe(4)),
            ns,
            tuple(self._keep(item, rule) for item in given) if rule is not None else (),
            pieces,
            tuple(tensor.is_floating_point() and tensor.numel() >= COUNTS for tensor in read),
            tuple(self._made(tensor) for tensor in made),
            in_backward,
            needs_grad,
        )
        self._operators.append(operator)
        if len(self._operators) >= MOST_OPERATORS:
            self._whole = False

    def _keep(self, given: Any, rule: Rule) -> Any:
        kept = _kept(given, rule) if self._n_kept < MOST_KEPT or not isinstance(given, torch.Tensor) else None
        self._n_kept += sum(tensor.numel() for tensor in _tensors(kept))
        return kept

    def _made(self, tensor: torch.Tensor) -> _Piece | None:
        piece = self._piece(tensor)
        if piece is not None:
            self._tensors.append((weakref.ref(tensor), piece))
        return piece

    def _piece(self, tensor: torch.Tensor) -> _Piece | None:
        if tensor.layout is not torch.strided:
            return None
        if type(tensor) not in PLAIN:
            self._share(tensor)
            return None
        storage = tensor.untyped_storage()
        key, n = storage._cdata, storage.nbytes() // tensor.element_size()
        if key not in self._storages:
            self._storages[key] = StorageWeakRef(storage)
            self._n_elements.setdefault(key, n if FEWEST <= n <= LARGEST else 0)
        elif self._n_elements[key] != n:
            self._n_elements[key] = 0  # a view as another type: all of it counts as read
        return _Piece(key, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    # -- from the last operator to the first ---------------------------------------------------

    def _judged(self) -> Iterator[Unread]:
        until_ns = time.perf_counter_ns() + int(LONGEST_JUDGED_S * 1e9)
        made = {piece.storage for operator in self._operators for piece in operator.made if piece is not None}
        makers: dict[int, Line] = {}
        for operator in self._operators:
            before = {piece.storage for piece in operator.read if piece is not None}
            for piece in operator.made:
                if piece is not None and piece.storage not in before:
                    makers.setdefault(piece.storage, operator.line)
        with_grad = {
            piece.storage
            for operator in self._operators
            if operator.needs_grad
            for piece in operator.made
            if piece is not None
        }
        step = _Backwards({key: n for key, n in self._n_elements.items() if n and key in made}, self._narrowed, makers)
        self._reach(step, makers.keys())
        found: dict[Line, Unread] = {}
        lines: dict[tuple[Line, Line], UnreadLine] = {}
        line_ns: Counter[Line] = Counter()
        for operator in reversed(self._operators):
            if time.perf_counter_ns() > until_ns or step.n_told_apart > MOST_TOLD_APART:
                return
            if operator.in_backward:  # the gradient of what nobody reads is zero
                step.take(operator.made)
                step.read([piece for piece in operator.read if piece is None or piece.storage not in with_grad])
                continue
            line_ns[operator.line] += operator.ns
            needed, reader = step.through(operator)
            if needed > READ or reader is None:
                continue
            unread = found.setdefault(reader, Unread(*reader, []))
            row = lines.setdefault((reader, operator.line), UnreadLine(*operator.line))
            row.unread_ns += (1 - needed) * operator.ns
            unread.needs_grad |= operator.needs_grad
            if operator.ns > unread.longest_ns and operator.made[0] is not None:
                unread.operator, unread.shape, unread.longest_ns = operator.name, operator.made[0].size, operator.ns
        for (reader, line), row in lines.items():
            row.ns = line_ns[line]
            # a layer that others of its kind come behind, or that mixes what it is given, needs all of that
            if line not in step.need_all and row.unread_ns > READ * row.ns:
                found[reader].lines.append(row)
        total = max(line_ns.total(), 1)
        for unread in found.values():
            unread.lines.sort(key=lambda row: -row.unread_ns)
            unread.share = sum(row.unread_ns for row in unread.lines) / total
            del unread.lines[MOST_LINES:]
        ranked = sorted(found.values(), key=lambda unread: -unread.share)
        yield from (unread for unread in ranked[:MOST_FOUND] if unread.share >= LEAST)

    def _reach(self, step: _Backwards, fresh: Collection[int]) -> None:
        """Mark what is within reach: all of a storage that only torch holds, or that was there before the step."""
        held = set()
        for reference, piece in self._tensors:
            if reference() is not None:
                held.add(piece.storage)
                step.read([piece])
        for key, storage in self._storages.items():
            if (key not in held or key not in fresh) and not storage.expired():
                step.read_all(key)


@dataclass
class _Backwards:
    """What of each storage is read after an operator; ``n_elements`` : of those that are told apart.

    ``makers`` : lines that make storages. ``need_all`` : lines that need all of what another line made.
    """

    n_elements: dict[int, int]
    narrowed: dict[_Piece, Line]
    makers: dict[int, Line]
    need_all: set[Line] = field(default_factory=set)
    live: dict[int, Live] = field(default_factory=dict)
    n_told_apart: int = 0
    readers: dict[int, Line] = field(default_factory=dict)
    """The line that reads a part of a storage."""

    def read_all(self, key: int) -> None:
        if (mask := self._of(key)) is not None:
            mask.fill_(True)

    def read(self, pieces: Iterable[_Piece | None]) -> None:
        for piece in pieces:
            self._mark(piece, None, None)

    def take(self, pieces: Sequence[_Piece | None]) -> list[Live]:
        """Return what is read of results, all of those that are not told apart; before, nothing of them is."""
        taken = []
        for piece in pieces:
            mask = self._of(piece.storage) if piece is not None else None
            if piece is None or mask is None:
                taken.append(torch.ones(piece.size if piece is not None else (), dtype=torch.bool, device="cpu"))
                continue
            here = torch.as_strided(mask, piece.size, piece.stride, piece.offset)
            taken.append(here.clone())
            if all(step or length <= 1 for length, step in zip(piece.size, piece.stride, strict=True)):
                here.fill_(False)
                if here.numel() == mask.numel():
                    del self.live[piece.storage]
                    self.n_told_apart -= mask.numel()
        return taken

    def through(self, operator: _Operator) -> tuple[float, Line | None]:
        """Go back through an operator; return what part of its work is needed, and the line that reads that part."""
        reader = next(
            (self.readers[piece.storage] for piece in operator.made if piece and piece.storage in self.readers), None
        )
        counts = any(piece is not None and _n(piece.size) >= COUNTS for piece in operator.made)
        masks = self.take(operator.made)
        live = masks[0] if masks else None
        for mask in masks[1:]:
            if live is not None and mask.shape == live.shape:
                live = live | mask
            elif mask.numel() >= FEWEST and mask.any():
                live = None
        rule = operator.rule
        if rule is None or live is None or None in operator.read or not (bool(live.any()) or rule in LOSSES):
            self.read(operator.read)
            self._picks(operator, {})
            return 1.0, None
        try:
            reads, needed = rule(operator.given, [piece.size if piece else () for piece in operator.read], live)
        except (RuntimeError, IndexError, TypeError):  # arguments that it does not know
            reads, needed = ALL
        self._picks(operator, reads)
        whole = bool(live.all())
        for at, piece in enumerate(operator.read):
            mask = reads.get(at)
            if at not in reads or mask is not None:
                self._mark(piece, mask, operator.line if whole else reader or operator.line)
        return (needed if counts else 1.0), reader

    def _picks(self, operator: _Operator, reads: Mapping[int, Live | None]) -> None:
        """Note a line that needs most of what another made in this step."""
        for at, piece in enumerate(operator.read):
            mask = reads.get(at)
            whole = at not in reads or (mask is not None and part(mask) > READ)
            maker = self.makers.get(piece.storage) if piece is not None else None
            if operator.data[at] and whole and maker not in (None, operator.line):
                self.need_all.add(operator.line)

    def _mark(self, piece: _Piece | None, live: Live | None, reader: Line | None) -> None:
        mask = self._of(piece.storage) if piece is not None else None
        if piece is None or mask is None:
            return
        length = [1 if not step and n else n for n, step in zip(piece.size, piece.stride, strict=True)]
        here = torch.as_strided(mask, length, piece.stride, piece.offset)
        if live is None:
            here.fill_(True)
        else:
            for dim, (n, step) in enumerate(zip(piece.size, piece.stride, strict=True)):
                live = live.any(dim, keepdim=True) if not step and n > 1 else live
            try:
                here |= live
            except RuntimeError:  # windows that overlap
                mask.fill_(True)
        reader = self.narrowed.get(piece, reader)
        if reader is not None:
            self.readers.setdefault(piece.storage, reader)

    def _of(self, key: int) -> Live | None:
        n = self.n_elements.get(key)
        if n and key not in self.live:
            self.live[key] = torch.zeros(n, dtype=torch.bool, device="cpu")
            self.n_told_apart += n
        return self.live.get(key)


class _Mode(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """Hands every operator to a probe, those that only call others by what they call."""

    def __init__(self, probe: OperatorProbe) -> None:
        super().__init__()
        self._probe = probe
        self._composite: dict[Any, bool] = {}

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
        self._probe.note(func, args, kwargs, result, time.perf_counter_ns() - begun)
        return result


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _users(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the user's own code that a frame was called from."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for item in given:
            yield from _tensors(item)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _kept(given: Any, rule: Rule) -> Any:
    """Return what a rule may need of an argument: a copy of an index, where a mask is on; else of tensors nothing."""
    if isinstance(given, (list, tuple)):
        return [_kept(item, rule) for item in given]
    if not isinstance(given, torch.Tensor):
        return given
    if given.device.type != "cpu" or given.numel() > LARGEST_INDEX or given.requires_grad:
        return None
    if rule in KEEPS:
        return given.detach().clone() if not given.is_floating_point() else None
    if rule in MASKS:
        on = given != 0
        is_mask = given.dtype is torch.bool or bool(((given == 1) | ~on).all())
        return on if is_mask and not bool(on.all()) else None
    return None


def _n(size: Shape) -> int:
    n = 1
    for length in size:
        n *= length
    return n
