"""What dynamo's bridge to XLA does, marked in the profile of the step; in the user's process.

The bridge takes each FX graph, runs it once to find operators that XLA does not know, cuts it into parts at those,
and traces and compiles each part (``torch_xla/_dynamo/dynamo_bridge.py``). A mark around each of these, and
PyTorch's own operators between them, say what asked for a compilation: the metrics of torch_xla record when it was.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def mark(*words: object) -> Iterator[None]:
    """Put a span into the profile: ``triage:fx:2``."""
    import torch

    with torch.profiler.record_function(":".join(map(str, ("triage", *words)))):
        yield


class BridgeWatch:
    """FX graphs as they are handed to XLA, and operators run on the host; one for a process."""

    def __init__(self) -> None:
        self.graphs: list[dict[str, Any]] = []
        self._cleared: Counter[str] = Counter()
        self._at = threading.local()  # the backward pass has a thread of its own

    def install(self) -> None:
        """Begin to watch; before anything is compiled."""
        import torch_xla.core.dynamo_bridge as public
        import torch_xla.debug.metrics as metrics
        from torch._dynamo.backends import torchxla as backend
        from torch_xla._dynamo import dynamo_bridge as bridge

        backend.xla_backend_helper = self._handed(backend.xla_backend_helper)
        lower = mark("lower")(bridge.extract_compiled_graph)
        bridge.extract_compiled_graph = public.extract_compiled_graph = lower
        bridge.extract_internal = self._part(bridge.extract_internal)
        collector = bridge.UnsupportedNodesCollector
        collector.get_unsupported_nodes = self._unsupported(collector.get_unsupported_nodes)
        metrics.clear_counters = self._before_clearing(metrics.clear_counters)

    def fallbacks(self) -> Counter[str]:
        """Return how often each operator ran on the host so far; the bridge clears the counters."""
        return self._cleared + self._now()

    def _now(self) -> Counter[str]:
        import torch_xla.debug.metrics as metrics

        return Counter({name: metrics.counter_value(name) or 0 for name in metrics.executed_fallback_ops()})

    def _before_clearing(self, clear: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(clear)
        def wrapped() -> Any:
            self._cleared += self._now()
            return clear()

        return wrapped

    def _handed(self, helper: Callable[..., Any]) -> Callable[..., Any]:
        """Return a helper that numbers FX graphs as they are handed over, and marks their calls."""

        @functools.wraps(helper)
        def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
            number = len(self.graphs)
            self.graphs.append(_described(model))
            run = helper(model, *args, **kwargs)

            @functools.wraps(run)  # keeps the mark of functions that take their arguments as a list
            def called(*values: Any) -> Any:
                before = getattr(self._at, "number", None)
                self._at.number = number
                try:
                    with mark("fx", number):
                        return run(*values)
                finally:
                    self._at.number = before

            return called

        return wrapped

    def _part(self, extract: Callable[..., Any]) -> Callable[..., Any]:
        """Return an extraction that numbers an FX graph's parts, and marks tracing and running."""

        @functools.wraps(extract)
        def wrapped(module: Any, *args: Any, **kwargs: Any) -> Any:
            graph = self._graph()
            graph["parts"].append(_n_ops(module))
            name = len(graph["parts"])
            with mark("part", name):
                run = extract(module, *args, **kwargs)
            return mark("run", name)(run)

        return wrapped

    def _unsupported(self, nodes_of: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(nodes_of)
        def wrapped(collector: Any) -> Any:
            nodes = nodes_of(collector)
            self._graph()["unsupported"] = [str(node.target) for node in nodes if node.op == "call_function"]
            return nodes

        return wrapped

    def _graph(self) -> dict[str, Any]:
        number = getattr(self._at, "number", None)
        if number is None:  # handed over before the watch began
            self.graphs.append({"compile_id": "", "kind": "", "n_ops": None, "parts": [], "unsupported": []})
            self._at.number = number = len(self.graphs) - 1
        return self.graphs[number]


def _described(model: Any) -> dict[str, Any]:
    from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name
    from torch._guards import CompileContext

    # "model__0_forward_1"
    kind = next((name for name in ("forward", "backward", "inference") if f"_{name}_" in get_aot_graph_name()), "")
    return {
        "compile_id": str(CompileContext.current_compile_id() or ""),
        "kind": kind,
        "n_ops": _n_ops(model),
        "parts": [],
        "unsupported": [],
    }


def _n_ops(module: Any) -> int:
    return sum(node.op.startswith("call_") for node in module.graph.nodes)
