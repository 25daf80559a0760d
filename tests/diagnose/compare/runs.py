"""Training runs to compare, built event by event. Times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass

from tests.builder import TraceBuilder

from torchtriage.core.trace import Trace

N_STEPS = 8
WIGGLE = (0.0, 3.0, -2.0, 1.0, -3.0, 2.0, -1.0, 0.0)
"""Steps never last the same; added to the first kernel of each."""


@dataclass(frozen=True)
class Script:
    """One training loop on a GPU: load, forward, backward, optimizer, maybe a readback."""

    loader: float = 200.0
    workers: int = 0
    linear: float = 300.0
    kernel: str = "sgemm"
    batch: int = 32
    width: int = 64
    foreach: bool = False
    reads_loss: bool = False
    trains: bool = True
    device: str = "NVIDIA H100"
    shapes: bool = True
    stacks: bool = False
    mark: str = ""
    n_steps: int = N_STEPS
    slower: float = 1.0
    """Factor on everything, as on a busy machine."""

    def build(self) -> Trace:
        return self.builder().build()

    def builder(self) -> TraceBuilder:
        trace = TraceBuilder(device=self.device)
        at = 1000.0
        for i in range(self.n_steps):
            at = self._step(trace, i, at)
        return trace

    def _step(self, trace: TraceBuilder, index: int, start: float) -> float:
        slow = self.slower
        at = start
        kind = "MultiProcessing" if self.workers else "SingleProcess"
        load = self.loader * slow
        name = f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        trace.annotation(name, at + 1, load)
        at += load + 2
        begun = at
        dims = [[self.batch, self.width], [self.width, self.width], [self.width]]
        for layer in range(4):
            wiggle = WIGGLE[index % len(WIGGLE)] if layer == 0 else 0.0
            at = self._op(trace, "aten::linear", at, self.linear * slow + wiggle, dims)
        if self.trains:
            trace.op("autograd::engine::evaluate_function: AddmmBackward0", at, 20 * slow, seq=1)
            trace.launch(at + 2, 5, at + 9, 100 * slow, "bgemm")
            at += 112 * slow
            at = self._optimizer(trace, at)
        if self.reads_loss:
            trace.op("aten::item", at, 60)
            trace.op("aten::_local_scalar_dense", at + 1, 58)
            trace.copy(at + 2, 8, at + 20, 2, kind="DtoH (Device -> Pageable)")
            trace.sync(at + 11, 45)
            at += 62
        if self.mark:
            trace.annotation(self.mark, begun, at - begun)
        if self.stacks:
            trace.frame("train.py(10): step", start, at - start)
        trace.step(index, start, at - start)
        return at

    def _op(self, trace: TraceBuilder, name: str, at: float, kernel: float, dims: list) -> float:
        types = ["float", "float", "float"]
        shaped = {"dims": dims, "types": types} if self.shapes else {}
        trace.op(name, at, 20 * self.slower, **shaped)
        trace.launch(at + 4, 5, at + 11, kernel, self.kernel)
        # the host waits for nobody: the next operator comes when the kernel is done
        return at + 11 + kernel + 3

    def _optimizer(self, trace: TraceBuilder, at: float) -> float:
        calls = 1 if self.foreach else 8
        name = "aten::_foreach_add_" if self.foreach else "aten::add_"
        begun = at
        for _ in range(calls):
            trace.op(name, at + 1, 12 * self.slower)
            trace.launch(at + 3, 5, at + 10, 10 * self.slower, name)
            at += 25 * self.slower
        trace.annotation("Optimizer.step#SGD.step", begun, at - begun)
        return at
