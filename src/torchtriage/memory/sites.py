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

from torchtriage.memory.holders import Place, place_of

__all__ = ["Sites", "Survivors"]

MAX_NOTED = 20_000
"""Storages noted in one sampled step; what comes after is counted, not noted."""
MIN_BYTES = 64


@dataclass
class Survivors:
    """What one sampled step left: per site the bytes that are still alive, as of the last look."""

    step: int
    alive: dict[Place, int] = field(default_factory=dict)
    n_alive: dict[Place, int] = field(default_factory=dict)


class Sites:
    """Samples steps, and keeps for each of the last ones what survived it."""

    def __init__(self, keep: int = 16) -> None:
        self.sampled: list[Survivors] = []
        self.n_skipped = 0
        self.shapes: dict[Place, str] = {}
        self._keep = keep
        self._mode: Any = None
        self._warm = False
        self._op_s = 3e-5
        self._noted: list[tuple[int, list[tuple[Any, int, Place]]]] = []

    def start(self, step: int) -> str:
        """Begin to note storages; where that is not safe, return why not. Nothing without torch."""
        if "torch" not in sys.modules:
            return ""
        if unsafe := _unsafe():
            return unsafe
        noted: list[tuple[Any, int, Place]] = []
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
        one, noted = torch.zeros(16), _mode_class()([], {})
        with noted:
            torch.neg(one)
        costs = []
        for _ in range(3):
            began = thread_time()
            for _ in range(20):
                torch.neg(one)
            between = thread_time()
            with noted:
                for _ in range(20):
                    torch.neg(one)
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
            left = [one for one in noted if not one[0].expired()]
            self._noted[index] = (step, left)
            survivors = Survivors(step)
            alive, n_alive = Counter[Place](), Counter[Place]()
            for _, size, place in left:
                alive[place] += size
                n_alive[place] += 1
            survivors.alive, survivors.n_alive = dict(alive), dict(n_alive)
            self.sampled.append(survivors)

    def growing(self, since: int, at_least: int = 4) -> dict[Place, float]:
        """Return bytes per step of sites of which every sampled step since then left something.

        The last sampled step does not count: what it made may still be in use.
        """
        judged = [one for one in self.sampled[:-1] if one.step >= since]
        if len(judged) < at_least:
            return {}
        places = set(judged[0].alive)
        for one in judged[1:]:
            places &= set(one.alive)
        return {
            place: sorted(one.alive[place] for one in judged)[len(judged) // 2] for place in places
        }


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
    for one in values:
        if type(one) is kind or isinstance(one, kind):
            found.append(one)
        elif isinstance(one, (tuple, list)):
            found.extend(two for two in one if isinstance(two, kind))
    return found


_mode: Any = None


def _mode_class() -> Any:
    global _mode
    if _mode is None:
        from torch import Tensor
        from torch.multiprocessing.reductions import StorageWeakRef
        from torch.utils._python_dispatch import TorchDispatchMode

        class NotesStorages(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
            def __init__(
                self, noted: list[tuple[Any, int, Place]], shapes: dict[Place, str]
            ) -> None:
                super().__init__()
                self.noted, self.shapes = noted, shapes
                self.n_skipped = self.n_ops = 0

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                out = func(*args, **(kwargs or {}))
                self.n_ops += 1
                try:
                    new = [one for one in _tensors((out,), Tensor) if type(one) is Tensor]
                    if new:
                        # views and what is written in place were there before
                        old = {one.untyped_storage()._cdata for one in _tensors(args, Tensor)}
                        for one in new:
                            storage = one.untyped_storage()
                            if storage._cdata not in old and storage.nbytes() >= MIN_BYTES:
                                self._note(one, storage)
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
