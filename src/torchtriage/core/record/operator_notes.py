"""In the script's process: which elements of which storages operators read and write, and at which line.

Nothing of the script's is held but copies of indices and masks. Memory that is read or written without operators, as
NumPy does, is not looked into from then on: all of it counts as read.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torchtriage.core.record.liveness import KEEPS, MASKS, RULES, Rule, Shape, pointwise

FEWEST, LARGEST = 16, 1 << 26
"""Elements of a storage that are distinguished: fewer take no time, more take too much."""
COUNTS = 4096
"""Elements of a result from which on its operator counts."""
LARGEST_INDEX, MOST_KEPT = 1 << 22, 1 << 24
"""Elements of an index that is kept, and of all of them."""
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
Line: TypeAlias = tuple[str, int, str]


class Piece(NamedTuple):
    """Where the elements of a tensor are in its storage; counted in elements."""

    storage: int
    size: Shape
    stride: Shape
    offset: int

    @property
    def n(self) -> int:
        """How many elements it has."""
        return math.prod(self.size)


class Operator(NamedTuple):
    """``given`` : plain values, and copies of indices and masks in the place of tensors. ``read`` : None: unknown.

    ``data`` : which of what it reads are large and of floating point. ``leaves`` : whether it may leave more behind
    than ``made``, as a batch norm does, or an operator that torch does not know.
    """

    rule: Rule | None
    name: str
    line: Line
    ns: int
    given: tuple[Any, ...]
    read: tuple[Piece | None, ...]
    data: tuple[bool, ...]
    made: tuple[Piece | None, ...]
    in_backward: bool
    needs_grad: bool
    leaves: bool


class OperatorNotes:
    """The operators of a step, in order.

    ``storages`` : by a number that a weak reference keeps from being another's. ``n_elements`` : of those that are
    distinguished; else 0. ``tensors`` : those that were made, and where. ``narrowed`` : the line that took a part.
    """

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.storages: dict[int, StorageWeakRef] = {}
        self.n_elements: dict[int, int] = {}
        self.tensors: list[tuple[weakref.ref[torch.Tensor], Piece]] = []
        self.narrowed: dict[Piece, Line] = {}
        self._n_kept = 0

    def add(
        self,
        func: Any,
        args: Sequence[Any],
        read: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        line: Line,
        ns: int,
        *,
        changed: Sequence[torch.Tensor],
        in_backward: bool,
        needs_grad: bool,
    ) -> None:
        """Note an operator; ``changed`` : what it is given and writes into."""
        rule = _rule_of(func, writes=bool(changed))
        results = {id(tensor) for tensor in made}
        leaves = (
            func.namespace != "aten" or "batch_norm" in func.name() or any(id(item) not in results for item in changed)
        )
        operator = Operator(
            rule,
            func.overloadpacket.__name__,
            line,
            ns,
            tuple(self._keep(item, rule) for item in args) if rule is not None else (),
            tuple(self._piece(tensor) for tensor in read),
            tuple(tensor.is_floating_point() and tensor.numel() >= COUNTS for tensor in read),
            tuple(self._made(tensor) for tensor in made),
            in_backward,
            needs_grad,
            leaves,
        )
        self.operators.append(operator)

    def view(self, read: Sequence[torch.Tensor], made: Sequence[torch.Tensor], line: Line) -> None:
        """Note other tensors of the same memory."""
        whole, before = max(tensor.numel() for tensor in read), self._piece(read[0])
        for tensor in made:
            piece = self._made(tensor)
            if piece is not None and tensor.numel() < whole:
                self.narrowed[piece] = line
            elif piece is not None and before in self.narrowed:
                self.narrowed[piece] = self.narrowed[before]

    def share(self, tensor: torch.Tensor) -> None:
        """Note that a tensor's memory is read and written without operators from now on.

        Raises NotImplementedError or RuntimeError: it has no storage.
        """
        storage = tensor.untyped_storage()
        self.storages.setdefault(storage._cdata, StorageWeakRef(storage))
        self.n_elements[storage._cdata] = 0

    def _made(self, tensor: torch.Tensor) -> Piece | None:
        piece = self._piece(tensor)
        if piece is not None:
            self.tensors.append((weakref.ref(tensor), piece))
        return piece

    def _piece(self, tensor: torch.Tensor) -> Piece | None:
        if tensor.layout is not torch.strided:
            return None
        if type(tensor) not in PLAIN:
            self.share(tensor)
            return None
        storage = tensor.untyped_storage()
        key, n = storage._cdata, storage.nbytes() // tensor.element_size()
        if key not in self.storages:
            self.storages[key] = StorageWeakRef(storage)
            self.n_elements[key] = n if FEWEST <= n <= LARGEST else 0
        elif self.n_elements[key] != n:
            self.n_elements[key] = 0  # a view as another type
        return Piece(key, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def _keep(self, given: Any, rule: Rule) -> Any:
        """Return what a rule may need of an argument; of tensors, as long as not too much is kept."""
        if isinstance(given, (list, tuple)):
            return [self._keep(item, rule) for item in given]
        if not isinstance(given, torch.Tensor):
            return given
        kept = kept_of(given, rule) if self._n_kept < MOST_KEPT else None
        self._n_kept += kept.numel() if kept is not None else 0
        return kept


def kept_of(given: torch.Tensor, rule: Rule) -> torch.Tensor | None:
    """Return a copy of an index, or where a mask is on, as a rule needs it."""
    if given.device.type != "cpu" or given.numel() > LARGEST_INDEX or given.requires_grad:
        return None
    if rule in KEEPS:
        return given.detach().clone() if not given.is_floating_point() else None
    if rule in MASKS:
        on = given != 0
        is_mask = given.dtype is torch.bool or torch.equal(given, on.to(given.dtype))
        return on if is_mask and not bool(on.all()) else None
    return None


def tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments or results, at any depth."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for item in given:
            yield from tensors_in(item)


def _rule_of(func: Any, *, writes: bool) -> Rule | None:
    name = func.overloadpacket.__name__
    if writes and not name.endswith("_"):  # ``out=``
        return None
    rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
    return pointwise if rule is None and torch.Tag.pointwise in func.tags else rule
