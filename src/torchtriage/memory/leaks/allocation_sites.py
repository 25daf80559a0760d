"""Tensors that stay alive, by the line that made them: every operator of a few sampled steps.

In a sampled step each new storage is noted with the line of the user's code that made it; later
looks ask which of them still live. The note is a weak one on the storage, not on the Python object:
what an autograd graph saved is seen although no name holds it. Between sampled steps nothing runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

from torchtriage.memory.leaks.object_growth import CodeLine, place_of

__all__ = ["Sites", "Survivors"]

MAX_NOTED = 20_000
"""Storages noted in one sampled step; what comes after is counted, not noted."""
MIN_BYTES = 64


@dataclass
class Survivors:
    """What one sampled step left: per site the bytes that are still alive, as of the last look."""

    step: int
    alive: dict[CodeLine, int] = field(default_factory=dict)
    n_alive: dict[CodeLine, int] = field(default_factory=dict)


class Sites:
    """Samples steps, and keeps for each of the last ones what survived it."""

    def __init__(self, keep: int = 16) -> None:
        self.sampled: list[Survivors] = []
        self.n_skipped = 0
        self.shapes: dict[CodeLine, str] = {}
        self._keep = keep
        self._mode: Any = None
        self._warm = False
        self._op_s = 3e-5
        self._noted: list[tuple[int, list[tuple[Any, int, CodeLine]]]] = []

    def start(self, step: int) -> str:
        """Begin to note storages; where that is not safe, return why not. Nothing without torch."""
        if "torch" not in sys.modules:
            return ""
        if unsafe := _unsafe():
            return unsafe
        noted: list[tuple[Any, int, CodeLine]] = []
        self._mode = _mode_class()(noted, self.shapes)
        self._mode.__enter__()
        self._noted.append((step, noted))
        return ""

    def warm(self) -> None:
        """Import what sampling needs, and use it once: seconds that no step should have to wait."""
        torch = sys.modules.get("torch")
        if torch is None or self._warm or _unsafe():
            return
        self._warm = True
        tensor, noted = torch.zeros(16), _mode_class()([], {})
        with noted:
            torch.neg(tensor)
        costs = []
        for _ in range(3):
            began = thread_time()
            for _ in range(20):
                torch.neg(tensor)
            between = thread_time()
            with noted:
                for _ in range(20):
                    torch.neg(tensor)
            costs.append((thread_time() - between) - (between - began))
        self._op_s = max(sorted(costs)[1] / 20, 0.0)

    def stop(self) -> float:
        """Leave the sampled step; return the seconds that noting took in it."""
        mode, self._mode = self._mode, None
        if mode is None:
            return 0.0
        mode.__exit__(None, None, None)
        self.n_skipped += mode.n_skipped
        mode.noted = []
        return float(mode.n_ops * self._op_s)

    @property
    def active(self) -> bool:
        """True inside a sampled step."""
        return self._mode is not None

    def look(self) -> None:
        """Ask which storages of sampled steps still live; forget those that do not."""
        self.sampled = []
        del self._noted[: -self._keep]
        for index, (step, noted) in enumerate(self._noted):
            left = [storage for storage in noted if not storage[0].expired()]
            self._noted[index] = (step, left)
            survivors = Survivors(step)
            alive, n_alive = Counter[CodeLine](), Counter[CodeLine]()
            for _, size, place in left:
                alive[place] += size
                n_alive[place] += 1
            survivors.alive, survivors.n_alive = dict(alive), dict(n_alive)
            self.sampled.append(survivors)

    def growing(self, since: int, at_least: int = 4) -> dict[CodeLine, float]:
        """Return bytes per step of sites of which every sampled step since then left something.

        The last sampled step does not count: what it made may still be in use.
        """
        judged = [step for step in self.sampled[:-1] if step.step >= since]
        if len(judged) < at_least:
            return {}
        places = set(judged[0].alive)
        for step in judged[1:]:
            places &= set(step.alive)
        return {place: sorted(step.alive[place] for step in judged)[len(judged) // 2] for place in places}


def _unsafe() -> str:
    """Return why a dispatch mode would change what the program does, or nothing."""
    compiled = sys.modules.get("torch._dynamo.utils")
    if compiled is not None and getattr(compiled, "counters", {}).get("frames"):
        return "torch.compile is in use"
    depth = getattr(sys.modules.get("torch._C"), "_len_torch_dispatch_stack", None)
    if depth is None:
        return "this version of torch does not tell whether that is safe"
    if depth():
        return "another dispatch mode is active"
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return ""


def _tensors(values: Any, kind: type) -> list[Any]:
    found = []
    for value in values:
        if type(value) is kind or isinstance(value, kind):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found.extend(two for two in value if isinstance(two, kind))
    return found


_mode: Any = None


def _mode_class() -> Any:
    global _mode
    if _mode is None:
        from torch import Tensor
        from torch.multiprocessing.reductions import StorageWeakRef
        from torch.utils._python_dispatch import TorchDispatchMode

        class NotesStorages(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
            def __init__(self, noted: list[tuple[Any, int, CodeLine]], shapes: dict[CodeLine, str]) -> None:
                super().__init__()
                self.noted, self.shapes = noted, shapes
                self.n_skipped = self.n_ops = 0

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                self.n_ops += 1
                try:
                    new = [tensor for tensor in _tensors((out,), Tensor) if type(tensor) is Tensor]
                    if new:
                        # views and what is written in place were there before
                        old = {tensor.untyped_storage()._cdata for tensor in _tensors(args, Tensor)}
                        for tensor in new:
                            storage = tensor.untyped_storage()
                            if storage._cdata not in old and storage.nbytes() >= MIN_BYTES:
                                self._note(tensor, storage)
                except Exception:  # the user's step goes on, whatever a tensor is like
                    self.n_skipped += 1
                return out

            def _note(self, tensor: Any, storage: Any) -> None:
                if len(self.noted) >= MAX_NOTED:
                    self.n_skipped += 1
                    return
                place = place_of(sys._getframe(2))
                if place is not None:
                    self.noted.append((StorageWeakRef(storage), storage.nbytes(), place))
                    if place not in self.shapes and len(self.shapes) < 1000:
                        shape = "x".join(map(str, tensor.shape))
                        self.shapes[place] = f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"

        _mode = NotesStorages
    return _mode
