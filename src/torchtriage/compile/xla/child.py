"""A session in a Python that has torch_xla: one model, run one way, counted or timed.

Started like a session of ``torchtriage bench`` and answering the same way; three ways to run the model: ``eager``
on the processor, ``lazy`` (LazyTensor tracing) and ``openxla`` (dynamo).
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchtriage.compile.xla.bridge_marks import BridgeWatch, mark
from torchtriage.core.isolate import session_main
from torchtriage.core.isolate import target as targets
from torchtriage.core.isolate.target import Case, TargetError

LEARNING_RATE = 1e-4
TIMES = ("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime")
SIZES = ("InboundData", "OutboundData")
CLOSE_NS = 1000
"""Before a compilation's end, which metrics report as a float of seconds: good to 0.3 us."""


class XlaSession(session_main.ModelSession):
    """The model of this process on its device, and torch_xla's metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.route = ""
        self.way = {"backend": ""}
        self.on_host: Case | None = None
        self.watch: BridgeWatch | None = None
        self.optimizer: Any = None
        self.output: Any = None
        self.n_steps = 0

    def start(self, target: str, route: str, train: bool, threads: int | None, watched: bool) -> dict[str, Any]:
        """Build the target, move it where the route runs it, and say what it is."""
        torch = session_main.import_torch(threads)
        device = ""
        if route != "eager":
            try:
                import torch_xla
            except ModuleNotFoundError as error:
                hint = f"{sys.executable} -m pip install torch_xla"
                raise TargetError("torch_xla is not installed in this Python", hint) from error
            device = str(torch_xla.device())
        torch.set_grad_enabled(train)
        self.route, self.train = route, train
        self.case = self._built(target, device)
        if train:
            self.optimizer = torch.optim.SGD(self.case.model.parameters(), lr=LEARNING_RATE)
        self.model = self.case.model
        if watched and route != "eager":
            self.watch = BridgeWatch()
            self.watch.install()
        if route == "openxla":
            self.model = torch.compile(self.case.model, backend="openxla")
        self.run = self._stepping()
        if self.wait is not None:
            torch_xla.sync()  # what moving has left undone is none of the first step's
            self.wait()
        return {"device": device or "cpu", "facts": self._facts()}

    def written(self) -> dict[str, int]:
        """Return how much torch_xla has written so far to each file it dumps to, in bytes."""
        return {name: (path.stat().st_size if path.exists() else 0) for name, path in dumped().items()}

    def step(self) -> dict[str, Any]:
        """Run a step under the profiler; return what torch_xla's metrics counted, and causes."""
        import torch

        assert self.watch is not None
        before, fallbacks = _metrics(), self.watch.fallbacks()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            self.run()
            assert self.wait is not None
            self.wait()
        after = _metrics()
        spans = [
            (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
            for event in profile.profiler.kineto_results.events()
        ]
        counts = {name: [now - then for now, then in zip(after[name], before[name], strict=True)] for name in after}
        for graph in self.watch.graphs:
            graph.setdefault("step", self.n_steps)
        self.n_steps += 1
        return {
            "written": self.written(),
            "counts": counts,
            "fallbacks": dict(self.watch.fallbacks() - fallbacks),
            "compiles": _compiles(int(counts["CompileTime"][0]), spans),
        }

    def first_counted(self) -> dict[str, Any]:
        """Make the first call without watching; return its time and how many graphs it compiled."""
        before = 0 if self.route == "eager" else _metrics()["CompileTime"][0]
        (first_ns,) = self._timed(1)
        compiled = None if self.route == "eager" else int(_metrics()["CompileTime"][0] - before)
        return {"ns": first_ns, "compiled": compiled}

    def graphs(self) -> list[dict[str, Any]]:
        """Return the FX graphs that were handed to XLA so far."""
        return self.watch.graphs if self.watch is not None else []

    def answers(self) -> dict[str, Any]:
        """Hold outputs, and gradients where trained, of the last step against eager's."""
        from torchtriage.core.isolate.numerics import check

        if self.on_host is None:
            return {"verdict": "not checked", "reason": "a plain function makes its own tensors"}
        answers = [(name or "output", leaf.detach().cpu()) for name, leaf in targets.named_leaves(self.output)]
        if self.train:
            answers += [
                (f"gradient of {name}", parameter.grad.detach().cpu())
                for name, parameter in self.case.model.named_parameters()
                if parameter.grad is not None
            ]
        return check.hold(self.on_host, answers, train=self.train)

    def _built(self, target: str, device: str) -> Case:
        function = targets.load(target)
        case = targets.build(function, batch_size=None, dtype="", device="", train=self.train)
        if not device:
            return case
        if not case.is_module:
            if "device" not in case.takes:
                raise TargetError(
                    "returned a plain function, which cannot be moved to XLA",
                    "give it a parameter device, or return (model, inputs)",
                )
            return targets.build(function, batch_size=None, dtype="", device=device, train=self.train)
        self.on_host = Case(copy.deepcopy(case.model), case.args, case.kwargs, case.loss, ())
        shared = _shared(case.model)
        targets.cast(case, "", device)
        for first, *others in shared:
            for module, name in others:
                setattr(module, name, getattr(*first))
        return case

    def _stepping(self) -> Callable[[], None]:
        """Return a step that leaves nothing undone: what is pending is sent off at its end."""
        from torchtriage.core.isolate.numerics.check import loss_of

        case, model, optimizer = self.case, self.model, self.optimizer
        finish: Callable[[], None] = lambda: None  # noqa: E731
        if self.route != "eager":
            import torch_xla
            import torch_xla.core.xla_model as xm

            self.wait = xm.wait_device_ops

            def finish() -> None:
                with mark("end"):
                    torch_xla.sync()

        if not self.train:

            def step() -> None:
                self.output = model(*case.args, **case.kwargs)
                finish()

            return step

        def train_step() -> None:
            optimizer.zero_grad(set_to_none=True)
            self.output = model(*case.args, **case.kwargs)
            with mark("loss"):
                loss = loss_of(case, self.output)
            if loss.numel() != 1:
                raise RuntimeError(
                    f"expected one number as loss, found a tensor of shape {tuple(loss.shape)}; if"
                    " eager's is one number, outputs were returned in other positions: torch_xla 2.9's"
                    " bridge does that where a dropout of probability 0 trains"
                )
            loss.backward()
            with mark("optimizer"):
                optimizer.step()
            finish()

        return train_step

    def _device_block(self, n: int) -> dict[str, Any]:
        """Run ``n`` steps one behind the other, and wait once."""
        import time

        assert self.wait is not None
        self.wait()
        begun = time.perf_counter_ns()
        for _ in range(n):
            self.run()
        self.wait()
        return {"queued_ns": time.perf_counter_ns() - begun}

    def _facts(self) -> dict[str, str]:
        import torch

        facts = session_main.facts_of(torch.device("cpu"))
        if self.route != "eager":
            import torch_xla
            import torch_xla.runtime as runtime

            facts["torch_xla"] = str(torch_xla.__version__)
            facts["PJRT device"] = str(runtime.device_type())
        return facts


def dumped() -> dict[str, Path]:
    """Return the files that this process' torch_xla dumps to; the second names its device."""
    debug, saved = (os.environ[f"{name}_FILE"] for name in ("PT_XLA_DEBUG", "XLA_SAVE_TENSORS"))
    return {"debug": Path(debug), "saved": Path(f"{saved}.0")}


def _shared(model: Any) -> list[list[tuple[Any, str]]]:
    places: dict[int, list[tuple[Any, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    return [place for place in places.values() if len(place) > 1]


def _metrics() -> dict[str, tuple[float, float]]:
    """Return samples and their sum so far, of times in nanoseconds and sizes in bytes."""
    import torch_xla.debug.metrics as metrics

    out = {}
    for name in (*TIMES, *SIZES):
        data = metrics.metric_data(name)
        out[name] = (data[0], data[1]) if data else (0, 0.0)
    return out


def _compiles(n: int, spans: list[tuple[int, int, str]]) -> list[dict[str, Any]]:
    """Return the last ``n`` compilations, each with what was open in the profile at its end."""
    import torch_xla.debug.metrics as metrics

    if not n:
        return []
    aliased: Any = (metrics.metric_data("InputOutputAliasCount") or (0, 0, []))[2][-n:]
    compiles = []
    for number, (end_s, dur_ns) in enumerate(metrics.metric_data("CompileTime")[2][-n:]):
        at = int(end_s * 1e9) - CLOSE_NS
        stack = sorted((begun, -ended, name) for begun, ended, name in spans if begun <= at < ended)
        compiles.append(
            {
                "ns": dur_ns,
                "stack": [name for *_, name in stack],
                "aliased": int(aliased[number][1]) if len(aliased) == n else None,
            }
        )
    return compiles


if __name__ == "__main__":
    session_main.main(XlaSession())
