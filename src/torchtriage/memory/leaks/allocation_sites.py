"""Tensors that stay alive, by the line that made them: every operator of a few sampled steps.

In a sampled step each new storage is noted with the line of the user's code that made it; later
looks ask which of them still live. The note is a weak one on the storage, not on the Python object:
what an autograd graph saved is seen although no name holds it. Between sampled steps nothing runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from time import thread_time
from typing import Any

from torchtriage.memory.leaks.object_growth import CodeLine, place_of

MAX_NOTED = 20_000
"""Storages noted in one sampled step."""
MIN_BYTES = 64
MAX_STEPS = 16
"""Sampled steps that are followed."""


Noted = list[tuple[Any, int, CodeLine]]
"""A weak reference to a storage, its bytes, and the line that made it."""


class Sites:
    """Samples steps, and stores for each of the last ones what survived it."""

    def __init__(self) -> None:
        self.sampled: list[tuple[int, Counter[CodeLine]]] = []
        """A step, and per site the bytes that were still alive at the last look."""
        self.shapes: dict[CodeLine, str] = {}
        self._mode: Any = None
        self._warm = False
        self._op_s = 3e-5
        self._noted: list[tuple[int, Noted]] = []

    def start(self, step: int) -> str:
        """Begin to note storages; where that is not safe, return why not. Nothing without torch."""
        if "torch" not in sys.modules:
            return ""
        if unsafe := _unsafe():
            return unsafe
        noted: Noted = []
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
        mode.noted = []
        return float(mode.n_ops * self._op_s)

    @property
    def active(self) -> bool:
        """True inside a sampled step."""
        return self._mode is not None

    def look(self) -> None:
        """Ask which storages of sampled steps still live; forget those that do not."""
        self.sampled = []
        del self._noted[:-MAX_STEPS]
        for index, (step, noted) in enumerate(self._noted):
            left = [storage for storage in noted if not storage[0].expired()]
            self._noted[index] = (step, left)
            alive = Counter[CodeLine]()
            for _, size, place in left:
                alive[place] += size
            self.sampled.append((step, alive))

    def growing(self, since: int, at_least: int = 4) -> dict[CodeLine, float]:
        """Return bytes per step of sites of which every sampled step since then left something.

        The last sampled step does not count: what it made may still be in use.
        """
        steps = [alive for step, alive in self.sampled[:-1] if step >= since]
        if len(steps) < at_least:
            return {}
        places = set(steps[0]).intersection(*steps[1:])
        return {place: sorted(alive[place] for alive in steps)[len(steps) // 2] for place in places}


def _unsafe() -> str:
    # why a dispatch mode would change what the program does
    compiled = sys.modules.get("torch._dynamo.utils")
    if compiled is not None and getattr(compiled, "counters", {}).get("frames"):
        return "torch.compile is in use"
    depth = getattr(sys.modules.get("torch._C"), "_len_torch_dispatch_stack", None)
    if depth is None:
        return "this version of torch does not report whether that is safe"
    if depth():
        return "another dispatch mode is active"
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return ""


def _tensors(values: Any, kind: type) -> list[Any]:
    tensors = []
    for value in values:
        if isinstance(value, kind):
            tensors.append(value)
        elif isinstance(value, (tuple, list)):
            tensors += [item for item in value if isinstance(item, kind)]
    return tensors


_mode: Any = None


def _mode_class() -> Any:
    global _mode
    if _mode is None:
        from torch import Tensor
        from torch.multiprocessing.reductions import StorageWeakRef
        from torch.utils._python_dispatch import TorchDispatchMode

        class NotesStorages(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
            def __init__(self, noted: Noted, shapes: dict[CodeLine, str]) -> None:
                super().__init__()
                self.noted, self.shapes, self.n_ops = noted, shapes, 0

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                self.n_ops += 1
                with suppress(Exception):  # the user's step goes on, whatever a tensor is like
                    new = [tensor for tensor in _tensors((out,), Tensor) if type(tensor) is Tensor]
                    if new:
                        # views and what is written in place were there before
                        old = {tensor.untyped_storage()._cdata for tensor in _tensors(args, Tensor)}
                        for tensor in new:
                            storage = tensor.untyped_storage()
                            if storage._cdata not in old and storage.nbytes() >= MIN_BYTES:
                                self._note(tensor, storage)
                return out

            def _note(self, tensor: Any, storage: Any) -> None:
                place = place_of(sys._getframe(2)) if len(self.noted) < MAX_NOTED else None
                if place is not None:
                    self.noted.append((StorageWeakRef(storage), storage.nbytes(), place))
                    if place not in self.shapes and len(self.shapes) < 1000:
                        shape = "x".join(map(str, tensor.shape))
                        self.shapes[place] = f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"

        _mode = NotesStorages
    return _mode
