"""``tt.BucketedModule``: a module whose inputs are padded to few sizes, each compiled once.

>>> model = tt.BucketedModule(encoder, pad={"input_ids": {1: "seq"}}, mask="attention_mask")
>>> model.precompile(lengths, example={"input_ids": ids})
>>> model(input_ids=ids)
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any, Literal

import numpy as np

from torchtriage.compile.bucketing.advice import BucketAdvice, advise
from torchtriage.compile.bucketing.declarations import read_crop, read_fill, read_masks, read_pad
from torchtriage.compile.bucketing.planner import HORIZON, given
from torchtriage.compile.bucketing.planning import BucketPlan, Work, plan
from torchtriage.compile.bucketing.statistics import BucketingWarning, Stats
from torchtriage.core.errors import MissingExtraError, TriageError, UsageError

try:
    import torch

    from torchtriage.compile.bucketing import cache_file, tensors
    from torchtriage.compile.bucketing.serving import BucketGraph, Server, time_of
    from torchtriage.compile.bucketing.tensors import CallContext, ModelCall

    _Module: Any = torch.nn.Module
except ModuleNotFoundError as _missing:  # the class can be named, not made
    if _missing.name != "torch":
        raise
    _Module = object

_OPTIONS = ("backend", "mode", "options", "fullgraph")


class BucketedModule(_Module):  # type: ignore[misc]
    """A module that pads its inputs to few sizes and compiles one graph for each.

    It has the parameters, buffers, children and names of ``model``, so optimizers, ``state_dict``, ``to`` and
    ``train`` work as before; other attributes are the model's, and ``_orig_mod`` is the model itself.

    Parameters
    ----------
    pad : int or dict
        Dimensions whose size varies: ``1`` (of every tensor input), ``{"x": 1}``, or with names where several vary,
        ``{"ids": {0: "batch", 1: "seq"}}``. Inputs are named as ``forward``'s parameters, with dots into containers:
        ``batch.ids``, ``pair.0``.
    buckets : "auto", ints, dict or Plan
        Sizes to pad to, for each axis. ``"auto"`` chooses them from the first requests, or from what
        :meth:`precompile` is given, and follows when sizes drift.
    crop : int or dict, optional
        What to cut off outputs, as for ``pad``; a function of axes where a dimension is not the size itself
        (``{2: lambda seq: seq // 2}``). Found out by comparing shapes when not given.
    fill : number or dict
        The padding's value, for each input, 0 by default: ``{"input_ids": 50256, "labels": -100}``. A padding token
        that the model masks by itself has to be named.
    mask : str or dict, optional
        Inputs that say what is real: made where a call has none, padded where it has. ``"attention_mask"``, or
        ``{"key_padding_mask": Mask(False, True)}``.
    check : "first", "always" or "never"
        Compare with the unpadded answer: before a bucket is first used, in every call (for tests: raises
        ``PaddingError``), or not at all.
    background : bool
        Compile in a thread and answer by the fallback meanwhile. In training mode, where running the model twice
        would change it, calls wait for their compilation.
    fallback : "eager" or "dynamic"
        What serves sizes without a bucket: the model itself, or a graph with dynamic sizes.
    max_buckets, max_graphs, multiple_of : int
        Sizes that ``"auto"`` may plan (combinations, of several axes), graphs that are kept: the one not used for
        longest is dropped; what buckets of ``"auto"`` are multiples of.
    work : function
        What a request costs by size, linear unless given; see :func:`torchtriage.compile.bucketing.plan`.
    **options
        ``backend``, ``mode``, ``options``, ``fullgraph`` of :func:`torch.compile`.

    Raises MissingExtraError: torch is not installed, or older than 2.4; UsageError: a declaration does not fit
    ``forward``, or contradicts itself.
    """

    def __init__(
        self,
        model: Any,
        *,
        pad: Any = None,
        buckets: Any = "auto",
        crop: Any = None,
        fill: Any = None,
        mask: Any = None,
        check: Literal["first", "always", "never"] = "first",
        background: bool = True,
        fallback: Literal["eager", "dynamic"] = "eager",
        max_buckets: int = 8,
        max_graphs: int = 32,
        multiple_of: int = 1,
        work: Work = np.asarray,
        **options: Any,
    ) -> None:
        _check_model(model)
        _check_choices(options, check=check, fallback=fallback)
        if min(max_buckets, max_graphs, multiple_of) < 1:
            raise UsageError("expected max_buckets, max_graphs and multiple_of of at least 1")
        super().__init__()
        pads = read_pad(pad)
        axes = tuple(dict.fromkeys(axis for dims in pads.values() for axis in dims.values()))
        self._settings: dict[str, Any] = {
            "pad": pads,
            "crop": read_crop(crop, axes),
            "fill": read_fill({} if fill is None else fill, tuple(pads)),
            "masks": read_masks(mask, pads),
            "check": check,
            "background": background,
            "fallback": fallback,
            "max_graphs": max_graphs,
            "planning": {"max_buckets": max_buckets, "multiple_of": multiple_of, "work": work},
            "options": options,
        }
        self._wrap(model, given(buckets, axes))

    def _wrap(self, model: Any, plan_: BucketPlan | None) -> None:
        """Become the model to whoever looks; make what is not copied: locks, graphs, counts."""
        # the model's own: names have no prefix, and what is added or moved is so in both
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[name] = model.__dict__[name]
        self.__dict__["_orig_mod"] = model
        self.training = model.training
        self._server = Server(model, self._settings, plan_)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, by a bucket's graph where one is ready."""
        if torch.compiler.is_dynamo_compiling():  # inside of an outer graph
            return self._orig_mod(*args, **kwargs)
        server = self._server
        call = server.reader.read(args, kwargs)
        context = CallContext.now(self._orig_mod.training, call.devices)
        entry, reason, texts = server.choose(call, context)
        for text in texts:
            warnings.warn(text, BucketingWarning, stacklevel=4)
        return server.answer(entry, reason, call, context)

    @property
    def plan(self) -> BucketPlan | None:
        """The buckets in use; None before ``"auto"`` has planned."""
        return self._server.planner.plan

    def precompile(self, sizes: Any = None, example: Any = None, *, wait: bool = True) -> Stats:
        """Compile the buckets before requests come, in the context (grad mode, autocast) they have.

        ``sizes`` : of each request to expect. With ``buckets="auto"`` the plan is made from them; given buckets are
        compiled as far as a size falls into them. Without, what was seen so far, or every bucket. ``example`` : one
        call: an argument, a tuple of arguments, or a dict of named ones, whose values are cut or repeated to each
        size. Without, an earlier call's. ``wait`` : return when all are ready, not at once.

        Raises PaddingError: an output depends on the padding; TriageError: a bucket could not be compiled; UsageError:
        there is no example, there are no sizes, or the model is in training mode.
        """
        if self._orig_mod.training:
            raise UsageError(
                "precompile() compiles for evaluation; in training the calls compile",
                hint="model.eval(), and under torch.no_grad() if requests are",
            )
        server, planner = self._server, self._server.planner
        if example is not None:
            given_ = server.reader.read(*tensors.inputs_of(example))
            server.example = server.reader.resized(given_)
        call = server.example
        if call is None:
            raise UsageError("no call was seen yet: give an example", hint='example={"x": x}')
        if call.hidden or set(call.sizes) != set(planner.axes) or min(call.sizes.values()) < 1:
            raise UsageError(f"the example needs a size of {', '.join(planner.axes)}")
        context = CallContext.now(False, call.devices)
        history = self._expect(sizes, call)
        if history:
            wanted = planner.wanted(history)
        else:
            assert self.plan is not None
            combined = itertools.product(*self.plan.buckets.values())
            wanted = [dict(zip(self.plan.buckets, combination, strict=True)) for combination in combined]
        if not wanted:
            text = f"no size falls into a bucket ({self.plan}): nothing is compiled"
            warnings.warn(text, BucketingWarning, stacklevel=2)
        most = self._settings["max_graphs"]
        if len(wanted) > most:
            raise UsageError(
                f"{len(wanted)} buckets are wanted, and max_graphs keeps {most}", hint=f"max_graphs={len(wanted)}"
            )
        entries = []
        for entry, new in server.graphs_of(wanted, call, context):
            entries.append(entry)
            if new is not None and wait:
                server.prepare(entry, new, context)
            elif new is not None:
                server.thread.submit(partial(server.prepare, entry, new, context))
        if wait:
            server.thread.wait()
            if server.refused is not None:
                raise server.refused
            failed = [entry for entry in entries if entry.state == "failed"]
            if failed:
                first = f"bucket {failed[0].name}: {failed[0].why}"
                raise TriageError(f"{len(failed)} of {len(entries)} buckets were not compiled; {first}")
        return self.stats()

    def _expect(self, sizes: Any, call: ModelCall) -> list[tuple[int, ...]]:
        """Have a plan, for these sizes where there are some; return the sizes of the requests to expect."""
        axes = self._server.reader.axes
        if sizes is None:
            if self.plan is None:
                self._server.planner.make()
            return self._server.planner.history
        columns = sizes if isinstance(sizes, Mapping) else {axes[0]: sizes}
        if set(columns) != set(axes):
            raise UsageError(f"expected sizes of {', '.join(axes)}, found {', '.join(map(str, columns))}")
        columns = {axis: columns[axis] for axis in axes}
        plan(columns, max_buckets=1)  # says what is wrong with them
        planner = self._server.planner
        if planner.auto:
            args, kwargs = self._server.reader.plain(call)
            run_s = min(time_of(lambda: self._orig_mod(*args, **kwargs), call) for _ in range(2))
            planner.eager_s.append(run_s / planner.work_of(call.sizes))
            planner.make(columns)
        history = list(zip(*(map(int, columns[axis]) for axis in axes), strict=True))
        planner.extend(history)
        return history

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is left to compile in the background; return whether that is so."""
        return self._server.thread.wait(timeout_s)

    def advise(self, n_requests: int = HORIZON) -> BucketAdvice:
        """Measure buckets, a dynamic graph and eager on sizes seen, and say which costs least.

        Compiles a dynamic graph and takes some seconds: not for a thread that serves requests.

        Raises UsageError: nothing was seen or compiled yet.
        """
        server, planner = self._server, self._server.planner
        example, history = server.example, sorted(planner.history)
        with server.lock:
            ready = [(key, entry) for key, entry in server.entries.items() if entry.state == "ready"]
            ready = [(key, entry) for key, entry in ready if not key[2].training]
        if example is None or not history or not ready:
            raise UsageError("no bucket is compiled yet", hint="call precompile() first")
        context = ready[-1][0][2]
        graphs = {key[0]: entry for key, entry in ready if key[1:] == (example.kind, context)}
        seconds: dict[str, list[float]] = {"buckets": [], "dynamic": [], "eager": []}
        assert planner.plan is not None  # it is what is ready
        with context.entered(example.devices):
            dynamic = BucketGraph({})
            again = server.reader.resized(example)
            dynamic_compile_s = server.make_dynamic(dynamic, again)
            for sizes in (history[i * len(history) // 15] for i in range(15)):
                named = dict(zip(planner.axes, sizes, strict=True))
                entry = graphs.get(tuple((planner.plan.bucket_of(named) or {}).values()))
                if entry is None:
                    continue
                call = server.reader.resized(example, named)
                args, kwargs = server.reader.plain(call)
                ways: dict[str, Callable[[], Any]] = {
                    "buckets": partial(server.run, entry, call),
                    "dynamic": partial(dynamic.graph.compile, args, kwargs),
                    "eager": partial(self._orig_mod, *args, **kwargs),
                }
                for way, run in ways.items():
                    run()
                    seconds[way].append(min(time_of(run, call) for _ in range(5)))
        if not seconds["buckets"]:
            raise UsageError("no size seen falls into a compiled bucket", hint="precompile()")
        mean = {way: fmean(times) for way, times in seconds.items()}
        compiles = sorted(planner.compile_s)
        return advise(
            bucket_s=mean["buckets"],
            dynamic_s=mean["dynamic"],
            eager_s=mean["eager"],
            n_compiles=len(graphs),
            compile_s=compiles[len(compiles) // 2],
            dynamic_compile_s=dynamic_compile_s,
            n_requests=n_requests,
        )

    def save(self, path: Any) -> None:
        """Write the plan, the sizes seen and torch's compile caches to one file.

        The caches are of all that this process compiled (``torch.compiler.save_cache_artifacts``).
        """
        if self.plan is None:
            raise UsageError("there is no plan to save yet", hint="call precompile() first")
        cache_file.save(path, self.plan, self._server.planner.history)

    def load(self, path: Any) -> BucketedModule:
        """Take over plan, sizes and caches that :meth:`save` wrote; return the module itself.

        ``precompile()`` then finds most of its work done. Caches hold code that will run: load only files you would
        import.

        Raises UsageError: the file is no saved plan, or it is for other axes.
        """
        plan_, history, warned = cache_file.load(path, self._server.reader.axes)
        if warned:
            warnings.warn(warned, BucketingWarning, stacklevel=2)
        if self._server.planner.auto:
            self._server.planner.plan = plan_
        self._server.planner.extend(history)
        return self

    def stats(self) -> Stats:
        """Return what happened so far; its ``metrics()`` are for a monitor."""
        return self._server.stats()

    def reset_stats(self) -> None:
        """Count from here on."""
        with self._server.lock:
            self._server.counts = Stats()
            self._server.planner.n_replans = 0

    def __getattr__(self, name: str) -> Any:
        """Return the model's attribute where the wrapper has none."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("_orig_mod")
            if model is None or name.startswith("__"):
                raise
            return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what the model has on the model, so that it counts."""
        model = self.__dict__.get("_orig_mod")
        if model is None or name[:1] == "_" or name == "training" or not hasattr(model, name):
            super().__setattr__(name, value)
        else:
            setattr(model, name, value)

    def train(self, mode: bool = True) -> BucketedModule:
        """Set the mode of the model and of all its parts."""
        self._orig_mod.train(mode)
        self.training = mode
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> BucketedModule:
        self._orig_mod._apply(fn, recurse)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's state, by the model's names."""
        return self._orig_mod.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model's state, by the model's names."""
        return self._orig_mod.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._orig_mod._load_from_state_dict(*args, **kwargs)

    def extra_repr(self) -> str:
        """Return the buckets."""
        return f"buckets: {self.plan or 'not planned yet'}"

    def __getstate__(self) -> dict[str, Any]:
        """Return model, settings and plan; graphs are compiled again where they are needed."""
        return {
            "model": self._orig_mod,
            "settings": self._settings,
            "plan": self.plan,
            "auto": self._server.planner.auto,
            "history": self._server.planner.history,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become what was pickled or copied."""
        super().__init__()
        self._settings = state["settings"]
        self._wrap(state["model"], state["plan"])
        self._server.planner.auto = state["auto"]
        self._server.planner.extend(state["history"])


def _check_model(model: Any) -> None:
    if _Module is object:
        raise MissingExtraError("BucketedModule needs torch", hint="pip install 'torchtriage[torch]'")
    if not hasattr(torch, "get_autocast_dtype"):
        raise MissingExtraError(
            f"BucketedModule needs torch 2.4 or newer, found {torch.__version__}", hint="pip install --upgrade torch"
        )
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"expected an nn.Module, found {type(model).__name__}")
    if isinstance(model, BucketedModule):
        raise UsageError("the module is bucketed already")
    if "_orig_mod" in model._modules:
        raise UsageError("expected a module that is not compiled", hint="pass the module itself: ._orig_mod")


def _check_choices(options: Mapping[str, Any], *, check: Any, fallback: Any) -> None:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise UsageError(
            f"BucketedModule has no option {unknown[0]!r}",
            hint=f"besides its own it takes {', '.join(_OPTIONS)} of torch.compile",
        )
    for name, value, known in (
        ("check", check, ("first", "always", "never")),
        ("fallback", fallback, ("eager", "dynamic")),
    ):
        if value not in known:
            raise UsageError(f"{name}: expected {' or '.join(known)}, found {value!r:.60}")
