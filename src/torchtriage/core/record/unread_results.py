"""In the script's process: what operators compute in one step that nobody reads.

The operators are gone through from the last to the first. Read is what is still within reach, and what something that
is read was computed from, by :mod:`liveness`: of ``head(hidden)[:, -1]`` one row of many. A result that nothing at all
reads counts as read, as why it was computed is not known; unless others of the same line are: of five stages two.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torchtriage.core.record.liveness import ALL, LOSSES, Live, Shape, part
from torchtriage.core.record.operator_notes import COUNTS, FEWEST, Line, Operator, OperatorNotes, Piece

LONGEST_S = 3.0
"""So long a step is judged at most."""
MOST_DISTINGUISHED = 1 << 28
"""Elements of the storages that are distinguished at once: a byte each."""
READ = 0.5
"""What part of an operator's work may be needed at most, so that the rest counts."""
LEAST = 0.01
"""Of the time of all operators, what is computed for nothing."""
MOST_FOUND, MOST_LINES = 8, 8


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


def unread_results(notes: OperatorNotes) -> Iterator[Unread]:
    """Yield what was computed for nothing, the most first; nothing where that would take too much."""
    until_ns = time.perf_counter_ns() + int(LONGEST_S * 1e9)
    made = {piece.storage for operator in notes.operators for piece in operator.made if piece is not None}
    makers: dict[int, Line] = {}
    for operator in notes.operators:
        before = {piece.storage for piece in operator.read if piece is not None}
        for piece in operator.made:
            if piece is not None and piece.storage not in before:
                makers.setdefault(piece.storage, operator.line)
    with_grad = {
        piece.storage
        for operator in notes.operators
        if operator.needs_grad
        for piece in operator.made
        if piece is not None
    }
    step = _Backwards({key: n for key, n in notes.n_elements.items() if n and key in made}, notes.narrowed, makers)
    _reach(notes, step, makers.keys())
    dropped = _dropped(notes, step)
    found: dict[Line, Unread] = {}
    lines: dict[tuple[Line, Line], UnreadLine] = {}
    line_ns: Counter[Line] = Counter()
    dropped_ns: Counter[tuple[Line, Line]] = Counter()
    for number, operator in reversed([*enumerate(notes.operators)]):
        if time.perf_counter_ns() > until_ns or step.n_distinguished > MOST_DISTINGUISHED:
            return
        if operator.in_backward:  # the gradient of what nobody reads is zero
            step.take(operator.made)
            step.read([piece for piece in operator.read if piece is None or piece.storage not in with_grad])
            continue
        line_ns[operator.line] += operator.ns
        needed, reader = (0.0, dropped[number]) if number in dropped else step.through(operator)
        if needed > READ or reader is None:
            continue
        unread = found.setdefault(reader, Unread(*reader, []))
        row = lines.setdefault((reader, operator.line), UnreadLine(*operator.line))
        row.unread_ns += (1 - needed) * operator.ns
        dropped_ns[reader, operator.line] += operator.ns * (number in dropped)
        unread.needs_grad |= operator.needs_grad and number not in dropped
        if operator.ns > unread.longest_ns and operator.made[0] is not None:
            unread.operator, unread.shape, unread.longest_ns = operator.name, operator.made[0].size, operator.ns
    for (reader, line), row in lines.items():
        row.ns = line_ns[line]
        # a layer that others of its kind come behind, or that mixes what it is given, needs all of that
        if line in step.need_all or row.unread_ns <= READ * row.ns:
            row.unread_ns = dropped_ns[reader, line]
        if row.unread_ns:
            found[reader].lines.append(row)
    total = max(line_ns.total(), 1)
    for unread in found.values():
        unread.lines.sort(key=lambda row: -row.unread_ns)
        unread.share = sum(row.unread_ns for row in unread.lines) / total
        del unread.lines[MOST_LINES:]
    ranked = sorted(found.values(), key=lambda unread: -unread.share)
    yield from (unread for unread in ranked[:MOST_FOUND] if unread.share >= LEAST)


def _dropped(notes: OperatorNotes, step: _Backwards) -> dict[int, Line]:
    """Return the operators whose results nothing reads, by number, of lines that make others that are read, and where.

    Of storages as a whole, so that nothing which is read is among them; those that are not distinguished are read.
    Where gradients went back through an operator, its parameters are read in the backward pass.
    """
    live, backward = {*step.live}, set[int]()
    dead: list[int] = []
    readers: dict[Line, dict[Line, None]] = {}
    for number, operator in reversed([*enumerate(notes.operators)]):
        made = {piece.storage if piece is not None else 0 for piece in operator.made}
        read = {piece.storage for piece in operator.read if piece is not None}
        backward |= read if operator.in_backward else set()
        needed = operator.in_backward or operator.leaves or not made or not made <= step.n_elements.keys()
        if needed or made & live or (operator.needs_grad and (read - step.makers.keys()) & backward):
            live |= read
            for storage in () if operator.in_backward else read:
                readers.setdefault(step.makers.get(storage, operator.line), {})[operator.line] = None
        else:
            dead.append(number)
    lines = {notes.operators[number].line for number in dead}
    at = {line: _reader(line, readers, lines) for line in lines}
    return {number: line for number in dead if (line := at[notes.operators[number].line]) is not None}


def _reader(line: Line, readers: Mapping[Line, Iterable[Line]], without: Collection[Line]) -> Line | None:
    """Return the first line that reads what a line made, by way of others that make what nobody reads, too."""
    waiting, seen = [line], {line}
    for behind in waiting:
        for reader in readers.get(behind, ()):
            if reader not in without:
                return reader
            if reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    return None


def _reach(notes: OperatorNotes, step: _Backwards, fresh: Collection[int]) -> None:
    """Mark what is within reach: all of a storage that only torch holds, or that was there before the step."""
    held = set()
    for reference, piece in notes.tensors:
        if reference() is not None:
            held.add(piece.storage)
            step.read([piece])
    for key, storage in notes.storages.items():
        if (key not in held or key not in fresh) and not storage.expired():
            step.read_all(key)


@dataclass
class _Backwards:
    """What of each storage is read after an operator; ``n_elements`` : of those that are distinguished.

    ``makers`` : lines that make storages. ``need_all`` : lines that need all of what another line made.
    """

    n_elements: dict[int, int]
    narrowed: dict[Piece, Line]
    makers: dict[int, Line]
    need_all: set[Line] = field(default_factory=set)
    live: dict[int, Live] = field(default_factory=dict)
    n_distinguished: int = 0
    readers: dict[int, Line] = field(default_factory=dict)
    """The line that reads a part of a storage."""

    def read_all(self, key: int) -> None:
        if (mask := self._of(key)) is not None:
            mask.fill_(True)

    def read(self, pieces: Iterable[Piece | None]) -> None:
        for piece in pieces:
            self._mark(piece, None, None)

    def take(self, pieces: Sequence[Piece | None]) -> list[Live]:
        """Return what is read of results, all of those that are not distinguished; before, nothing of them is."""
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
                    self.n_distinguished -= mask.numel()
        return taken

    def through(self, operator: Operator) -> tuple[float, Line | None]:
        """Go back through an operator; return what part of its work is needed, and the line that reads that part."""
        reader = next(
            (self.readers[piece.storage] for piece in operator.made if piece and piece.storage in self.readers), None
        )
        counts = any(piece is not None and piece.n >= COUNTS for piece in operator.made)
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

    def _picks(self, operator: Operator, reads: Mapping[int, Live | None]) -> None:
        """Note a line that needs most of what another made in this step."""
        for at, piece in enumerate(operator.read):
            mask = reads.get(at)
            whole = at not in reads or (mask is not None and part(mask) > READ)
            maker = self.makers.get(piece.storage) if piece is not None else None
            if operator.data[at] and whole and maker not in (None, operator.line):
                self.need_all.add(operator.line)

    def _mark(self, piece: Piece | None, live: Live | None, reader: Line | None) -> None:
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
            self.n_distinguished += n
        return self.live.get(key)
