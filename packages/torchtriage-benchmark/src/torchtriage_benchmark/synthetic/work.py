"""What a device does for an operator: tensors among its inputs, a piece of work, and what is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchtriage_benchmark.synthetic.accelerators import Accelerator

Dims = tuple[int, ...]

ITEM_BYTES = {
    "double": 8,
    "long": 8,
    "long int": 8,
    "c10::complex<float>": 8,
    "float": 4,
    "int": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "short": 2,
    "bool": 1,
    "unsigned char": 1,
}
HALF = ("c10::BFloat16", "c10::Half")


class Tensor(NamedTuple):
    """One tensor among an operator's inputs."""

    dims: Dims
    dtype: str
    strides: Dims

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.dims)

    @property
    def n_bytes(self) -> int:
        """How much memory they take."""
        return self.numel * ITEM_BYTES.get(self.dtype, 4)

    @property
    def dense(self) -> bool:
        """Whether its elements follow each other."""
        wanted = 1
        for size, stride in sorted(zip(self.dims, self.strides, strict=False), key=lambda item: (item[1], item[0])):
            if size != 1 and stride != wanted:
                return False
            wanted *= size
        return True


@dataclass(frozen=True)
class Precision:
    """How products are computed. ``rate`` : for fp32 inputs, "float" or "tf32".

    ``converts`` : convolutions on tensor cores turn planes into channels and back.
    """

    rate: str
    converts: bool = False


@dataclass(frozen=True)
class Work:
    """One piece of device work. ``kind`` : "kernel", "gpu_memcpy" or "gpu_memset".

    ``group`` : kernels of one group reach about the same share of the peaks. ``rate`` : the peak
    that ``flop`` counts against.
    """

    kind: str
    name: str
    group: str
    n_bytes: int
    flop: float = 0.0
    rate: str = "float"
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    shared: int = 0
    slowness: float = 1.0
    """How much longer than a well-fitting kernel."""
    call: str = "cudaLaunchKernel"

    @property
    def n_blocks(self) -> int:
        """Blocks in the grid."""
        return math.prod(self.grid)


def tensors_of(args: dict[str, Any]) -> list[Tensor | list[Tensor] | None]:
    """Return an operator's inputs in order: a tensor, a list of them, or None for what is none."""
    dims, types = args.get("Input Dims") or [], args.get("Input type") or []
    strides = args.get("Input Strides") or [[]] * len(dims)
    found: list[Tensor | list[Tensor] | None] = []
    for size, kind, step in zip(dims, types, strides, strict=False):
        if kind == "TensorList":
            steps = step if len(step) == len(size) else [[]] * len(size)
            found.append(
                [Tensor(tuple(item), "float", tuple(one_step)) for item, one_step in zip(size, steps, strict=True)]
            )
        elif kind in ITEM_BYTES:
            found.append(Tensor(tuple(size), kind, tuple(step)))
        else:
            found.append(None)
    return found


def memcpy(kind: str, n_bytes: int) -> Work:
    """Return a copy, such as ``HtoD (Pinned -> Device)``."""
    return Work("gpu_memcpy", f"Memcpy {kind}", kind.split()[0], n_bytes, call="cudaMemcpyAsync")


@dataclass(frozen=True)
class Asked:
    """An operator, what it reads, and where it runs."""

    name: str
    args: dict[str, Any]
    inputs: list[Tensor | list[Tensor] | None]
    flat: list[Tensor]
    accelerator: Accelerator
    precision: Precision

    @property
    def base(self) -> str:
        """The name without namespace and trailing underscore."""
        return self.name.rpartition("::")[2].strip("_")

    def tensor(self, at: int) -> Tensor:
        """Return one input that has to be a tensor."""
        tensor = self.inputs[at]
        assert isinstance(tensor, Tensor), (self.name, at)
        return tensor

    def has(self, at: int) -> bool:
        """Whether an input is a tensor with elements."""
        value = self.inputs[at] if at < len(self.inputs) else None
        return isinstance(value, Tensor) and len(value.dims) > 0

    def numbers(self, at: int) -> list[int]:
        """Return a recorded list of numbers."""
        text = self.concrete(at).strip("[]")
        return [int(part) for part in text.split(",") if part.strip().lstrip("-").isdigit()]

    def flags(self, at: int) -> list[bool]:
        """Return a recorded list of truths."""
        return [part.strip() == "True" for part in self.concrete(at).strip("[]").split(",")]

    def concrete(self, at: int) -> str:
        """Return a recorded scalar as text."""
        texts = self.args.get("Concrete Inputs") or []
        return str(texts[at]) if at < len(texts) else ""

    def rate(self, dtype: str) -> str:
        """Return the peak that products of this type count against."""
        return "half" if dtype in HALF else self.precision.rate if dtype == "float" else "float"
