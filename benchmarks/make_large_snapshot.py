"""Write a memory snapshot of any size: a training loop as the allocator would have recorded it.

``python benchmarks/make_large_snapshot.py OUT.pickle --entries 8600000`` writes about 1 GB. Sizes,
stacks, fields and their order are those of real files (``context="all", stacks="all"``); the
sequence of allocations is a model's forward, backward and optimizer, step after step, on segments
from which freed blocks are used again.
"""

from __future__ import annotations

import argparse
import pickle
import random
from pathlib import Path
from typing import Any

MIB = 1 << 20
BASE_US = 1_772_552_894_612_373


class Allocator:
    """Segments of one block size each: freed blocks are used again, last freed first."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.entries = entries
        self.free: dict[int, list[int]] = {}
        self.segments: list[tuple[int, int, int]] = []
        self.live: dict[int, tuple[int, list[Any]]] = {}
        self.next_address = 0x7F0000000000
        self.time_us = BASE_US

    def entry(self, action: str, address: int, size: int, frames: list[Any]) -> None:
        """Record one action."""
        self.time_us += 7
        self.entries.append(
            {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time_us, "frames": frames}
        )

    def malloc(self, size: int, frames: list[Any]) -> int:
        """Return the address of a new block."""
        frames = list(frames)  # torch makes a list for each traceback
        size = (size + 511) // 512 * 512
        waiting = self.free.setdefault(size, [])
        if not waiting:
            room = 2 * MIB if size <= MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            self.segments.append((self.next_address, room, size))
            self.entry("segment_alloc", self.next_address, room, frames)
            waiting += range(self.next_address, self.next_address + room - size + 1, size)
            self.next_address += room
        address = waiting.pop()
        self.live[address] = size, frames
        self.entry("alloc", address, size, frames)
        return address

    def release(self, address: int, frames: list[Any]) -> None:
        """Free a block."""
        frames = list(frames)
        size, _ = self.live.pop(address)
        self.entry("free_requested", address, size, frames)
        self.entry("free_completed", address, size, frames)
        self.free[size].append(address)


def stack(depth: int, where: str, function: str, line: int, shared: list[Any]) -> list[Any]:
    """Return a stack of ``depth`` frames over frames that all stacks share."""
    own = [
        {"name": "torch::unwind::unwind()", "filename": "??", "line": 0},
        {"name": f"at::native::{function}_cuda", "filename": "??", "line": 0},
        {"name": function, "filename": where, "line": line},
    ]
    return own + shared[: depth - len(own)]


def make(n_entries: int, depth: int, n_layers: int, seed: int) -> dict[str, Any]:
    """Return a snapshot as ``torch.cuda.memory._snapshot`` returns it."""
    rng = random.Random(seed)
    entries: list[dict[str, Any]] = []
    allocator = Allocator(entries)
    shared = [
        {"name": f"call_{i}", "filename": f"/opt/conda/lib/torch/nn/modules/m{i}.py", "line": 50 + i}
        for i in range(depth - 1)
    ] + [{"name": "<module>", "filename": "/home/user/train.py", "line": 91}]
    forward = [stack(depth, "/home/user/model.py", "forward", 20 + i, shared) for i in range(n_layers)]
    backward = [stack(depth, "??", "backward", 0, shared) for _ in range(n_layers)]
    update = stack(depth, "/opt/conda/lib/torch/optim/adamw.py", "step", 220, shared)
    sizes = [rng.choice((4096, 65536, 3 * MIB, 12 * MIB)) for _ in range(n_layers)]
    for i, size in enumerate(sizes):  # parameters stay
        allocator.malloc(size, forward[i])
    while len(entries) < n_entries:
        kept = [allocator.malloc(size, forward[i]) for i, size in enumerate(sizes)]
        gradients = []
        for i in reversed(range(n_layers)):
            gradients.append(allocator.malloc(sizes[i], backward[i]))
            allocator.release(kept[i], backward[i])
        for address in gradients:
            scratch = allocator.malloc(4096, update)
            allocator.release(scratch, update)
            allocator.release(address, update)
    return {
        "segments": [segment(allocator, *one) for one in allocator.segments],
        "device_traces": [entries],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
        "external_annotations": [],
    }


def segment(allocator: Allocator, address: int, room: int, size: int) -> dict[str, Any]:
    """Return one segment with its blocks."""
    blocks = []
    used = 0
    for at in range(address, address + room - size + 1, size):
        owner = allocator.live.get(at)
        used += size if owner else 0
        blocks.append(
            {
                "address": at,
                "size": size,
                "requested_size": size,
                "state": "active_allocated" if owner else "inactive",
                "frames": owner[1] if owner else [],
            }
        )
    rest = address + room - (at + size)
    if rest:
        last = {"address": at + size, "size": rest, "requested_size": 0, "state": "inactive"}
        blocks.append({**last, "frames": []})
    return {
        "device": 0,
        "address": address,
        "total_size": room,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "small" if size <= MIB else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--entries", type=int, default=8_600_000)
    parser.add_argument("--depth", type=int, default=40, help="frames of a stack")
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--protocol", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    snapshot = make(given.entries, given.depth, given.layers, given.seed)
    with given.out.open("wb") as file:
        pickle.dump(snapshot, file, protocol=given.protocol)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:,.1f} MB")


if __name__ == "__main__":
    main()
