"""Compiled graphs, each in a function of its own, and the thread that compiles them."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

_NUMBER = itertools.count()
_wanted = threading.local()
"""Whether this thread wants a graph's answer or none."""
_LIMIT = 4096
_SWITCH_S = 0.0005
"""Python's threads take turns this often while one compiles: at the usual 5 ms a request of 50 operators waits 50
turns."""


class CompiledGraph:
    """What is compiled for one bucket and kind of call.

    torch keeps compiled code, and the limit of recompilations, by code object: each graph has one of its own, so
    many buckets stay below the limit, no call walks the guards of another bucket, and what is evicted is freed.
    """

    def __init__(self, model: Any, options: dict[str, Any], *, dynamic: bool) -> None:
        def call(args: Any, kwargs: Any) -> Any:
            # True is a constant of the graph: it shows whether the graph is what ran; unlike
            # is_compiling() it is False for eager code while another thread compiles
            compiled = torch.compiler.is_dynamo_compiling()
            if not compiled and getattr(_wanted, "graph", False):
                return None, False
            return model(*args, **kwargs), compiled

        code = call.__code__.replace(co_name=f"bucket_{next(_NUMBER)}")
        self._function = types.FunctionType(code, globals(), code.co_name, None, call.__closure__)
        self._is_inductor = options.get("backend", "inductor") == "inductor"
        how = None if dynamic else False
        self._compiled: Callable[..., tuple[Any, bool]] = torch.compile(self._function, dynamic=how, **options)
        self._ready: Callable[..., tuple[Any, bool]] = torch._dynamo.run(self._function)

    def compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """Return the result, compiling what is not compiled yet, and whether a graph ran."""
        if self._is_inductor:
            _keep_module_calls()
        with _many_graphs():
            return self._compiled(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """Return the result of a graph without ever compiling; None and False where its guards fail: nothing ran."""
        _wanted.graph = True
        try:
            return self._ready(args, kwargs)
        finally:
            _wanted.graph = False


@functools.cache
def _keep_module_calls() -> None:
    """Give Inductor the empty graph that it would trace for itself, once in a process.

    While torch.fx traces, ``nn.Module.__call__`` is its own in all threads, and any module that another thread
    calls raises: "module is not installed as a submodule".
    """
    from torch._inductor.loop_body import InterpreterShim

    if hasattr(InterpreterShim, "_dummy_gm"):
        graph = torch.fx.Graph()
        graph.output(graph.placeholder("value"))
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        InterpreterShim._dummy_gm = staticmethod(lambda: module)


@contextlib.contextmanager
def _many_graphs() -> Iterator[None]:
    """Let parts of a model behind a graph break be compiled for every bucket."""
    known: Any = torch._dynamo.config
    names = ("recompile_limit", "accumulated_recompile_limit")
    if not hasattr(known, names[0]):
        names = ("cache_size_limit", "accumulated_cache_size_limit")
    raised = {name: max(_LIMIT, getattr(known, name)) for name in names if hasattr(known, name)}
    with known.patch(raised):
        yield


class CompileThread:
    """One thread that does jobs in order and ends when there are none.

    It is no daemon: a process that ends waits for the compilation that runs, and the rest is dropped; a thread
    killed inside of a compiler can take the process down.

    ``imports`` : a module that the jobs will import.
    """

    def __init__(self, name: str, imports: str = "") -> None:
        self._name, self._imports = name, imports
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()

    def submit(self, job: Callable[[], None]) -> None:
        """Do this after what waits already."""
        with self._lock:
            self._jobs.append(job)
            self._idle.clear()
            if self._thread is None or not self._thread.is_alive():  # a forked child has none
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=False)
                self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is left to do; return whether that is so."""
        thread = self._thread
        if thread is threading.current_thread() or (thread and not thread.is_alive()):
            return not self._jobs  # a forked child has no thread that would report it
        return self._idle.wait(timeout_s)

    def _work(self) -> None:
        with _frequent_turns():
            _set_aside(self._imports)
            while (job := self._next()) is not None:
                job()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if not threading.main_thread().is_alive():
                self._jobs.clear()
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            self._idle.set()
            return None


def _set_aside(imports: str) -> None:
    """Take what is there already from Python's garbage collector, for good, once in a process.

    Compiling makes so many objects that the collector goes through all there are, and every thread waits: 0.2 s and
    more where torch's compiler is imported. What is left for it is what comes now.
    """
    if gc.get_freeze_count():  # the program does so itself, or it was done before
        return
    if imports:
        with contextlib.suppress(ImportError):  # reported when the job fails
            importlib.import_module(imports)
    gc.freeze()


_turns = threading.Lock()
_n_frequent = 0
_usual_s = 0.005


@contextlib.contextmanager
def _frequent_turns() -> Iterator[None]:
    global _n_frequent, _usual_s
    with _turns:
        _n_frequent += 1
        if _n_frequent == 1:
            _usual_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_SWITCH_S, _usual_s))
    try:
        yield
    finally:
        with _turns:
            _n_frequent -= 1
            if _n_frequent == 0:
                sys.setswitchinterval(_usual_s)
