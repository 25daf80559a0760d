"""What the CUDA caching allocator is set to by ``PYTORCH_ALLOC_CONF``, and how it rounds sizes.

Constants and rules are those of PyTorch 2.0 to 2.13, which agree on them; the size of a large
segment can be set since 2.10 (``large_segment_size_mb``). Source: ``c10/core/AllocatorConfig.h``
and ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.errors import UsageError

MIB = 1 << 20
MIN_BLOCK = 512
"""Every size is a multiple of it (kMinBlockSize)."""
SMALL_SIZE = MIB
"""Up to this a rounded request is small (kSmallSize)."""
SMALL_SEGMENT = 2 * MIB
"""Small requests share segments of this size (kSmallBuffer)."""
MIN_LARGE = 10 * MIB
"""From here on a request gets a segment of its own size (kMinLargeAlloc)."""
ROUND_LARGE = 2 * MIB
"""What such a segment's size is a multiple of (kRoundLarge)."""
UNLIMITED = 1 << 62
N_INTERVALS = 16
"""Entries of ``roundup_power2_divisions``: 1 MiB, 2 MiB, ... 32 GiB."""


@dataclass(frozen=True)
class Settings:
    """One setting of the allocator; the default is PyTorch's own.

    ``roundup_divisions`` : for each power of two from 1 MiB to 32 GiB, into how many parts the
    space up to the next one is divided (0 or 1: not rounded). ``gc_threshold`` : 0-1, 0 for none.
    ``others`` : pairs of keys that have no field, as written; settings that differ in these alone are equal.
    """

    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB
    roundup_divisions: tuple[int, ...] = (0,) * N_INTERVALS
    gc_threshold: float = 0.0
    expandable: bool = False
    backend: str = "native"
    others: str = field(default="", compare=False)

    @classmethod
    def parse(cls, conf: str) -> Settings:
        """Return what a ``PYTORCH_ALLOC_CONF`` string says.

        Raises UsageError: a value that PyTorch would not take.
        """
        values: dict[str, Any] = {}
        others: dict[str, str] = {}
        try:
            for key, value in re.findall(r"(?<!\w)([A-Za-z_]\w*):(\[[^\[\]]*\]|[^,\[\]]*)", re.sub(r"\s", "", conf)):
                if key in _READ:
                    name, read = _READ[key]
                    values[name] = read(value)
                elif re.fullmatch(r"[\w.:,\[\]-]+", value):  # a shell may get it
                    others[key] = value
        except ValueError:
            raise UsageError(
                f"expected key:value pairs as PyTorch takes them, found {conf!r}", where="PYTORCH_ALLOC_CONF"
            ) from None
        return cls(**values, others=",".join(f"{key}:{value}" for key, value in others.items()))

    @classmethod
    def recorded(cls, facts: Mapping[str, Any]) -> Settings:
        """Return the settings a snapshot's ``allocator_settings`` states.

        Its own fields win over the string beside them: settings can be changed at run time.
        """
        conf = facts.get("PYTORCH_ALLOC_CONF") or facts.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        base = cls.parse(str(conf))
        limit = int(facts.get("max_split_size", -1))
        divisions = facts.get("roundup_power2_divisions", {})
        if isinstance(divisions, Mapping):
            parts = tuple(min(int(divisions.get(str(1 << i), 0)), UNLIMITED) for i in range(N_INTERVALS))
        else:
            parts = base.roundup_divisions
        return replace(
            base,
            max_split_bytes=limit if 0 < limit < UNLIMITED else UNLIMITED,
            roundup_divisions=parts,
            gc_threshold=float(facts.get("garbage_collection_threshold", 0.0)),
            expandable=bool(facts.get("expandable_segments", False)),
        )

    @property
    def conf(self) -> str:
        """The value of ``PYTORCH_ALLOC_CONF`` that gives these settings; empty for the default."""
        parts = []
        if self.backend != "native":
            parts.append(f"backend:{self.backend}")
        if self.expandable:
            parts.append("expandable_segments:True")
        if self.max_split_bytes != UNLIMITED:
            parts.append(f"max_split_size_mb:{self.max_split_bytes // MIB}")
        if self.max_non_split_rounding_bytes != 20 * MIB:
            parts.append(f"max_non_split_rounding_mb:{self.max_non_split_rounding_bytes // MIB}")
        if self.large_segment_bytes != 20 * MIB:
            parts.append(f"large_segment_size_mb:{self.large_segment_bytes // MIB}")
        if any(self.roundup_divisions):
            kinds = set(self.roundup_divisions)
            if len(kinds) == 1:
                parts.append(f"roundup_power2_divisions:{kinds.pop()}")
            else:
                each = ",".join(f"{1 << i}:{d}" for i, d in enumerate(self.roundup_divisions))
                parts.append(f"roundup_power2_divisions:[{each}]")
        if self.gc_threshold:
            parts.append(f"garbage_collection_threshold:{self.gc_threshold:g}")
        if self.others:
            parts.append(self.others)
        return ",".join(parts)

    def round_sizes(self, size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the size of the block each request asks for, in bytes."""
        size = np.maximum(np.asarray(size_bytes, np.int64), 1)
        rounded = -(-size // MIN_BLOCK) * MIN_BLOCK
        if not any(d > 1 for d in self.roundup_divisions):
            return rounded
        # exact for integers below 2**53, as every size of a device's memory is
        floor_log = np.frexp(size.astype(np.float64))[1].astype(np.int64) - 1
        interval = np.clip(floor_log - 20, 0, N_INTERVALS - 1)
        divisions = np.asarray(self.roundup_divisions, np.int64)[interval]
        power = np.left_shift(np.int64(1), floor_log)
        shift = np.frexp(np.maximum(divisions, 1).astype(np.float64))[1].astype(np.int64) - 1
        step = np.maximum(power >> shift, 1)
        up = -(-size // step) * step
        applies = (divisions > 1) & (size > MIN_BLOCK * divisions)
        return np.where(applies, up, rounded)

    def segment_size(self, block_bytes: int) -> int:
        """Return how many bytes are asked of the device for a block that no cached one serves."""
        if block_bytes <= SMALL_SIZE:
            return SMALL_SEGMENT
        if block_bytes < MIN_LARGE:
            return self.large_segment_bytes
        return -(-block_bytes // ROUND_LARGE) * ROUND_LARGE


def _mebibytes(value: str) -> int:
    return min(int(value) * MIB, UNLIMITED)


def _divisions(value: str) -> tuple[int, ...]:
    """Return ``roundup_power2_divisions`` per interval: one number, or ``[256:1,512:2,>:4]``."""
    if not value.startswith("["):
        return (int(value),) * N_INTERVALS
    parts = [0] * N_INTERVALS
    last = 0
    for position, pair in enumerate(filter(None, value.strip("[]").split(","))):
        boundary, _, number = pair.partition(":")
        if boundary == ">":
            parts[last + 1 :] = [int(number)] * (N_INTERVALS - last - 1)
            continue
        last = min(max(int(boundary).bit_length() - 1, 0), N_INTERVALS - 1)
        if position == 0:  # the first boundary also holds for everything below it
            parts[:last] = [int(number)] * last
        parts[last] = int(number)
    return tuple(parts)


_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max_split_size_mb": ("max_split_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "large_segment_size_mb": ("large_segment_bytes", _mebibytes),
    "garbage_collection_threshold": ("gc_threshold", float),
    "expandable_segments": ("expandable", "True".__eq__),
    "roundup_power2_divisions": ("roundup_divisions", _divisions),
    "backend": ("backend", str),
}
