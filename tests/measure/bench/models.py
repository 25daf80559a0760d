"""Targets for the tests, good and bad, and backends that do what a compiler should not."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch


def linear(batch_size: int = 4) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU()), torch.randn(batch_size, 32)


def with_dropout() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5))
    return model, torch.randn(4, 32)


def with_break() -> Any:
    def model(x: Any) -> Any:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    return model, torch.randn(4)


def of_70_graphs() -> Any:
    """Return a model whose own frame is not compiled, of 70 functions that are."""
    names: dict[str, Any] = {}
    exec("\n".join(f"def f{at}(x): return x + {at}" for at in range(70)), names)
    functions = [names[f"f{at}"] for at in range(70)]

    def model(x: Any) -> Any:
        for function in functions:
            torch._dynamo.graph_break()
            x = function(x)
        return x

    return model, torch.randn(4)


def function() -> Any:
    weight, x = torch.randn(32, 32), torch.randn(4, 32)
    return lambda: x @ weight


def named(batch_size: int, dtype: Any, device: Any = None) -> Any:
    return torch.nn.Linear(8, 8, dtype=dtype), {"input": torch.randn(batch_size, 8, dtype=dtype)}


def spectrum() -> Any:
    class Spectrum(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(super().forward(x))

    return Spectrum(32, 32), torch.randn(4, 32)


def module_alone() -> Any:
    return torch.nn.Linear(2, 2)


def number() -> Any:
    return 3


def bad_inputs() -> Any:
    return torch.nn.Linear(2, 2), 3


def bad_loss() -> Any:
    return torch.nn.Linear(2, 2), torch.randn(2), 3


def needs_more(size: int) -> Any:
    return torch.nn.Linear(size, 2), torch.randn(size)


def needs_cuda() -> Any:
    return torch.nn.Linear(2, 2).to("cuda"), torch.randn(2)


def raises() -> Any:
    print("the target's own words do not disturb")
    raise RuntimeError("no weights here\nsecond line")


def module_of_its_own(dtype: Any = None) -> Any:
    out = 2 if dtype == torch.bfloat16 else 3
    return torch.nn.Linear(2, out, dtype=dtype), torch.randn(2, dtype=dtype)


def relu() -> Any:
    return torch.nn.ReLU(), torch.randn(16, 16)


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def all_nan() -> Any:
    return _Function(torch.log), -torch.ones(4, 4)


def some_nan() -> Any:
    return _Function(torch.log), torch.tensor([-1.0, 0.0, 1.0, 2.0])


def overflows() -> Any:
    """In float16 the first element is infinite, in float64 it is not."""
    return _Function(torch.exp), torch.tensor([20.0, 1.0, 2.0, 3.0])


not_callable = 5


# -- backends ----------------------------------------------------------------------------------


def _changed(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def backend(graph: Any, _inputs: Any) -> Any:
        return lambda *args: tuple(change(one) for one in graph.forward(*args))

    return backend


def _one_wrong(value: Any) -> Any:
    out = value.clone()
    out.view(-1)[7] += 0.5
    return out


def ulp(value: Any) -> Any:
    return torch.nextafter(value, torch.full_like(value, 10.0))


def bf16(value: Any) -> Any:
    return value.bfloat16().float()


def _fill(fill: float, where: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: torch.where(where(value), torch.full_like(value, fill), value)


def _crash(_graph: Any, _inputs: Any) -> Any:
    print("about to end", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(_graph: Any, _inputs: Any) -> Any:
    time.sleep(1000)


_seen: list[Any] = []


def _slow_first(graph: Any, _inputs: Any) -> Any:
    if not _seen:
        time.sleep(1.0)
    _seen.append(graph)
    return graph.forward


def _refuse(_graph: Any, _inputs: Any) -> Any:
    raise ValueError("this graph cannot be compiled")


BACKENDS = {
    "test_ulp": _changed(ulp),
    "test_bf16": _changed(bf16),
    "test_wrong": _changed(_one_wrong),
    "test_conjugate": _changed(torch.conj),
    "test_scaled": _changed(lambda value: value * 1.2),
    "test_shape": _changed(lambda value: value[:-1]),
    "test_nan": _changed(lambda value: value / 0 * 0),
    "test_nan_for_0": _changed(_fill(float("nan"), lambda value: value == 0)),
    "test_0_for_nan": _changed(_fill(0.0, torch.isnan)),
    "test_most_for_inf": _changed(torch.nan_to_num),
    "test_nan_last": _changed(_fill(float("nan"), lambda value: torch.arange(value.numel()).view_as(value) == 3)),
    "test_crash": _crash,
    "test_hang": _hang,
    "test_slow_first": _slow_first,
    "test_refuse": _refuse,
}

for name, backend in BACKENDS.items():
    if name not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(backend, name=name)
