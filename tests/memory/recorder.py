"""A caching allocator small enough to check by eye, that records as PyTorch's does.

What it gives is what a test says: sizes, places and moments are chosen by hand, so that the right
answer is known without running the code under test.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from torchtriage.memory.snapshot.read import read_snapshot
from torchtriage.memory.snapshot.snapshot import Snapshot

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
A, B, C, D = (place << 36 for place in (1, 2, 3, 4))
"""Addresses of segments."""


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


TRAIN = [frame("/home/me/train.py", 10, "main")]
FORWARD = [
    frame("/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward"),
    frame("/home/me/model.py", 41, "forward"),
    *TRAIN,
]
BACKWARD = [
    frame("??", 0, "at::_ops::mm::call(at::Tensor const&)"),
    frame("??", 0, "torch::autograd::generated::MmBackward0::apply(std::vector<>)"),
    frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<>)"),
]
STATE = [
    frame("/opt/lib/python3.11/site-packages/torch/optim/adamw.py", 150, "_init_group"),
    frame("/opt/lib/python3.11/site-packages/torch/optim/adamw.py", 220, "step"),
    *TRAIN,
]
TO_DEVICE = [frame("/opt/lib/python3.11/site-packages/torch/nn/modules/module.py", 1357, "convert"), *TRAIN]
WORKSPACE = [frame("??", 0, "at::cuda::getNewWorkspace()"), *FORWARD]


class Recorder:
    """Segments at chosen addresses, blocks at chosen offsets, and every action in order."""

    def __init__(self, *, stream: int = 0, device: int = 0) -> None:
        self.stream = stream
        self.device = device
        self.entries: list[dict[str, Any]] = []
        self.segments: dict[int, dict[str, Any]] = {}
        self.live: dict[int, tuple[int, int, list[Any], str]] = {}
        self.annotations: list[dict[str, Any]] = []
        self.time_us = 1_700_000_000_000_000

    def _entry(self, action: str, addr: int, size: int, frames: list[Any], stream: int) -> None:
        self.time_us += 10
        entry = {
            "action": action,
            "addr": addr,
            "size": size,
            "stream": stream,
            "time_us": self.time_us,
            "frames": frames,
        }
        if action == "oom":
            entry["device_free"] = entry.pop("addr")
        self.entries.append(entry)

    def reserve(
        self, address: int, size: int, *, stream: int | None = None, recorded: bool = True, **more: Any
    ) -> None:
        stream = self.stream if stream is None else stream
        small = more.pop("small", size == 2 * MIB)
        self.segments[address] = {
            "device": self.device,
            "address": address,
            "total_size": size,
            "stream": stream,
            "segment_type": "small" if small else "large",
            "segment_pool_id": more.pop("pool", (0, 0)),
            "is_expandable": False,
            "frames": [],
            **more,
        }
        if recorded:
            self._entry("segment_alloc", address, size, [], stream)

    def release(self, address: int, frames: list[Any] = TRAIN) -> None:
        segment = self.segments.pop(address)
        self._entry("segment_free", address, segment["total_size"], frames, segment["stream"])

    def alloc(self, address: int, size: int, frames: list[Any] = TRAIN, *, recorded: bool = True) -> None:
        given = max((size + 511) // 512, 1) * 512
        self.live[address] = given, size, frames if recorded else [], "active_allocated"
        if recorded:
            self._entry("alloc", address, size, frames, self.stream)

    def free(self, address: int, frames: list[Any] = TRAIN, *, completed: bool = True) -> None:
        given, size, birth, _ = self.live[address]
        self._entry("free_requested", address, size, frames, self.stream)
        if completed:
            del self.live[address]
            self._entry("free_completed", address, size, frames, self.stream)
        else:
            self.live[address] = given, size, birth, "active_awaiting_free"

    def oom(self, size: int, free: int, frames: list[Any] = FORWARD) -> None:
        self._entry("oom", free, size, frames, self.stream)

    def annotate(self, name: str, stage: str) -> None:
        self.time_us += 1
        self.annotations.append({"name": name, "stage": stage, "device": self.device, "time_us": self.time_us})

    def dump(self) -> dict[str, Any]:
        traces: list[list[Any]] = [[] for _ in range(self.device)]
        return {
            "segments": [self._segment(one) for _, one in sorted(self.segments.items())],
            "device_traces": [*traces, self.entries],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": self.annotations,
        }

    def _segment(self, segment: dict[str, Any]) -> dict[str, Any]:
        at, end = segment["address"], segment["address"] + segment["total_size"]
        blocks = []
        for address, (given, size, frames, state) in sorted(self.live.items()):
            if not at <= address < end:
                continue
            if address > at:
                blocks.append(_block(at, address - at))
            blocks.append({"address": address, "size": given, "requested_size": size, "state": state, "frames": frames})
            at = address + given
        if at < end:
            blocks.append(_block(at, end - at))

        def total(key: str, *states: str) -> int:
            return sum(block[key] for block in blocks if block["state"] in states)

        return {
            **segment,
            "allocated_size": total("size", "active_allocated"),
            "active_size": total("size", "active_allocated", "active_awaiting_free"),
            "requested_size": total("requested_size", "active_allocated"),
            "blocks": blocks,
        }


def together(*recorders: Recorder) -> dict[str, Any]:
    """Return the document of recorders of devices 0, 1, ..., in this order."""
    document, *others = (one.dump() for one in recorders)
    for other in others:
        document["segments"] += other["segments"]
        document["device_traces"].append(other["device_traces"][-1])
        document["external_annotations"] += other["external_annotations"]
    return document


def _block(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}


def training_step() -> Recorder:
    """One step of a model: 64 MiB of parameters, activations, gradients, state, a workspace."""
    one = Recorder()
    one.reserve(0x10_0000_0000, 512 * MIB)
    at = 0x10_0000_0000
    one.alloc(at, 64 * MIB, TO_DEVICE)
    one.alloc(at + 64 * MIB, 100 * MIB, FORWARD)
    one.alloc(at + 164 * MIB, 8 * MIB, WORKSPACE)
    one.alloc(at + 172 * MIB, 64 * MIB, BACKWARD)  # the gradient, which stays
    one.alloc(at + 236 * MIB, 20 * MIB, BACKWARD)  # of an activation, which goes
    one.free(at + 236 * MIB, BACKWARD)
    one.free(at + 64 * MIB, BACKWARD)
    one.annotate("Optimizer.step#AdamW.step", "START")
    one.alloc(at + 64 * MIB, 50 * MIB, STATE)
    one.annotate("Optimizer.step#AdamW.step", "END")
    return one


def read(recorder: Recorder | Any) -> Snapshot:
    """Return what a recorder, or a document that is pickled, holds."""
    document = recorder.dump() if isinstance(recorder, Recorder) else recorder
    return read_snapshot(io.BytesIO(pickle.dumps(document, 4)))
