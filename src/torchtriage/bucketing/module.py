"""``tt.BucketedModule``: a module whose inputs are padded to few sizes, each compiled once.

>>> model = tt.BucketedModule(encoder, pad={"input_ids": {1: "seq"}}, mask="attention_mask")
>>> model.precompile(lengths, example={"input_ids": ids})
>>> model(input_ids=ids)
"""

from __future__ import annotations

import copy
import itertools
import math
import threading
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from torchtriage.bucketing.advice import Advice, advise
from torchtriage.bucketing.layout import Crop, read_crop, read_fill, read_masks, read_pad
from torchtriage.bucketing.planner import HORIZON, WINDOW, Planner, given
from torchtriage.bucketing.planning import Plan, Work, plan
from torchtriage.bucketing.statistics import BucketingWarning, Stats
from torchtriage.errors import MissingExtraError, PaddingError, TriageError, UsageError

try:
    import torch

    from torchtriage.bucketing import saving, tensors
    from torchtriage.bucketing.examine import HINT, Verdict, examine, wait_for
    from torchtriage.bucketing.graphs import Graph, Worker
    from torchtriage.bucketing.tensors import Call, Context, Reader

    _Module: Any = torch.nn.Module
except ModuleNotFoundError as _missing:  # the class can be named, not made
    if _missing.name != "torch":
        raise
    _Module = object

__all__ = ["BucketedModule"]

_ATTEMPTS = 3
_OPTIONS = ("backend", "mode", "options", "fullgraph")
_NO_PLAN, _RARE = "no plan yet", "no bucket that large"
_REFUSED, _HIDDEN = "padding is refused", "an argument cannot be padded"
_WAITING, _FAILED, _ONCE = "being compiled", "the bucket failed", "a kind of call seen once"
_STALLED, _GUARD = "compiled in the call", "a guard of the graph failed"

Key = tuple[tuple[int, ...], tuple[Any, ...], Any]
"""Sizes of the bucket, kind of call and context."""


@dataclass
class _Entry:
    """A graph and what is known of it. ``bucket`` is empty for the dynamic one."""

    bucket: Mapping[str, int]
    state: Literal["waiting", "ready", "failed"] = "waiting"
    graph: Any = None
    crop: Mapping[str, Crop] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    n_guard_failures: int = 0
    why: str = ""

    @property
    def name(self) -> str:
        return _name(self.bucket) or "dynamic"


class BucketedModule(_Module):  # type: ignore[misc]
    """A module that pads its inputs to few sizes and compiles one graph for each.

    It has the parameters, buffers, children and names of ``model``, so optimizers, ``state_dict``,
    ``to`` and ``train`` work as before; other attributes are the model's, and ``_orig_mod`` is the
    model itself.

    Parameters
    ----------
    model : nn.Module
        What is called.
    pad : int or dict
        Dimensions whose size varies: ``1`` (of every tensor input), ``{"x": 1}``, or with names
        where several vary, ``{"ids": {0: "batch", 1: "seq"}}``. Inputs are named as ``forward``'s
        parameters, with dots into containers: ``batch.ids``, ``pair.0``.
    buckets : "auto", ints, dict or Plan
        Sizes to pad to, for each axis. ``"auto"`` chooses them from the first requests, or from
        what :meth:`precompile` is given, and follows when sizes drift.
    crop : int or dict, optional
        What to cut off outputs, as for ``pad``; a function of axes where a dimension is not the
        size itself (``{2: lambda seq: seq // 2}``). Found out by comparing shapes when not given.
    fill : number or dict
        The padding's value, for each input: ``{"input_ids": 50256, "labels": -100}``.
    mask : str or dict, optional
        Inputs that say what is real: made where a call has none, padded where it has.
        ``"attention_mask"``, or ``{"key_padding_mask": Mask(False, True)}``.
    check : "first", "always" or "never"
        Compare with the unpadded answer: before a bucket is first used, in every call (for tests:
        raises ``PaddingError``), or not at all.
    background : bool
        Compile in a thread and answer by the fallback meanwhile. In training mode, where running
        the model twice would change it, calls wait for their compilation.
    fallback : "eager" or "dynamic"
        What serves sizes without a bucket: the model itself, or a graph with dynamic sizes.
    max_buckets, max_graphs : int
        Sizes that ``"auto"`` may plan (combinations, of several axes), and graphs that are kept:
        the one not used for longest is dropped.
    multiple_of : int
        Buckets of ``"auto"`` are multiples of it.
    work : function
        What a request costs by size, linear unless given; see :func:`torchtriage.bucketing.plan`.
    **options
        ``backend``, ``mode``, ``options``, ``fullgraph`` of :func:`torch.compile`.

    Raises
    ------
    MissingExtraError
        torch is not installed, or older than 2.4.
    UsageError
        A declaration does not fit ``forward``, or contradicts itself.
    """

    _compile_s: float
    _stall_s: float
    _longest_s: float

    def __init__(
        self,
        model: Any,
        *,
        pad: Any = None,
        buckets: Any = "auto",
        crop: Any = None,
        fill: Any = 0,
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
        _check_torch()
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
            "fill": read_fill(fill, tuple(pads)),
            "masks": read_masks(mask, pads),
            "check": check,
            "background": background,
            "fallback": fallback,
            "max_graphs": max_graphs,
            "planning": {"max_buckets": max_buckets, "multiple_of": multiple_of, "work": work},
            "options": options,
        }
        self._wrap(model, given(buckets, axes))

    def _wrap(self, model: Any, plan_: Plan | None) -> None:
        """Become the model to whoever looks; make what is not copied: locks, graphs, counts."""
        # the model's own: names have no prefix, and what is added or moved is so in both
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[name] = model.__dict__[name]
        self.__dict__["_orig_mod"] = model
        self.training = model.training
        set_ = self._settings
        self._reader = Reader(model, set_["pad"], set_["fill"], set_["masks"])
        self._planner = Planner(self._reader.axes, plan_, **set_["planning"])
        self._lock = threading.RLock()
        is_inductor = set_["options"].get("backend", "inductor") == "inductor"
        compiler = "torch._inductor.compile_fx" if is_inductor else ""
        self._worker = Worker("torchtriage-buckets", compiler)
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._dynamic: OrderedDict[Key, _Entry] = OrderedDict()
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._example: Call | None = None
        self._refused: PaddingError | None = None
        self._told: set[str] = set()
        self._to_tell: list[str] = []
        self.reset_stats()

    # -- a call ------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, by a bucket's graph where one is ready."""
        if torch.compiler.is_dynamo_compiling():  # inside of an outer graph
            return self._orig_mod(*args, **kwargs)
        call = self._reader.read(args, kwargs)
        context = Context.now(self._orig_mod.training, call.devices)
        with self._lock:
            self._n_requests += 1
            if self._planner.observe(call.sizes):
                self._worker.submit(lambda: self._review(context))
            entry, reason = self._choose(call, context)
            warned, self._to_tell = self._to_tell, []
        for text in warned:
            warnings.warn(text, BucketingWarning, stacklevel=4)
        if entry is None:
            return self._unpadded(call, context, reason)
        if entry.state == "waiting":
            return self._now(entry, call, context)
        return self._serve(entry, call, context)

    def _choose(self, call: Call, context: Context) -> tuple[_Entry | None, str]:
        """Return what serves the call, or why nothing does; has compiled what is missing.

        An entry that waits is returned only where the call is to compile it itself.
        """
        if self._refused is not None:
            return None, _REFUSED
        if call.hidden:
            self._tell(f"{call.hidden} may hold tensors that cannot be padded: not bucketed")
            return None, _HIDDEN
        if min(call.sizes.values()) < 1:
            return None, "a size is 0"
        if self._example is None:
            self._example = self._reader.read(*tensors.resized(call, call.sizes))
        if self._planner.plan is None:
            return None, _NO_PLAN
        bucket = self._planner.bucket_of(call.sizes)
        if bucket is None:
            return None, _RARE
        key = (tuple(bucket.values()), call.kind, context)
        if key not in self._entries and not self._admitted(key):
            return None, _ONCE
        entry, is_new = self._entry(self._entries, key, bucket)
        if entry.state == "ready" or (entry.state == "waiting" and not self._apart(context)):
            return entry, ""
        if is_new:
            self._later(entry, call, context)
        if entry.state == "failed":
            return None, _FAILED
        return self._larger(bucket, call, context), _WAITING

    def _larger(self, bucket: Mapping[str, int], call: Call, context: Context) -> _Entry | None:
        """Return the smallest ready graph the call fits into, at most of twice the size."""
        best: tuple[float, _Entry | None] = (2.0 * math.prod(bucket.values()), None)
        for (_, kind, where), entry in self._entries.items():
            if entry.state == "ready" and where == context and kind == call.kind:
                n_elements = math.prod(entry.bucket.values())
                fits = all(entry.bucket[axis] >= size for axis, size in call.sizes.items())
                if fits and n_elements <= best[0]:
                    best = n_elements, entry
        return best[1]

    def _admitted(self, key: Key) -> bool:
        """Return whether to compile for this kind of call: the first, and others from twice on.

        What differs between calls but is not padded would be compiled for again and again.
        """
        _, kind, context = key
        same = {one[2] for one in self._entries if one[1] == kind}
        if same or not self._entries:
            if same and context not in same:
                known = min(same, key=lambda one: len(one.unlike(context)))
                # training and evaluation differ anyway; a grad mode is easily forgotten
                if known.training == context.training:
                    self._tell(
                        f"graphs so far are for calls with {known.unlike(context)}; a call with"
                        f" {context.unlike(known)} needs its own: precompile() as requests come"
                    )
            return True
        self._seen[kind] += 1
        if len(self._seen) == 8:
            self._tell(
                f"{self._varying()} differs from call to call and is not padded: each value needs"
                " graphs of its own; declare it in pad="
            )
        elif len(self._seen) > WINDOW:
            self._seen.clear()
        return self._seen[kind] > 1

    def _varying(self) -> str:
        """Return which part of a call has most values, among the kinds seen."""
        columns: dict[str, set[Any]] = {}
        for kind in self._seen:
            for path, fact in zip(kind[1], kind[2:], strict=False):
                if len(fact) == 2:
                    columns.setdefault(path, set()).add(fact)
                    continue
                for dim, size in enumerate(fact[2]):
                    columns.setdefault(f"dimension {dim} of {path}", set()).add(size)
        return max(columns, key=lambda one: len(columns[one]), default="something")

    def _entry(
        self, known: OrderedDict[Key, _Entry], key: Key, bucket: Mapping[str, int]
    ) -> tuple[_Entry, bool]:
        """Return the graph of this key and whether it is new; drops the one unused for longest."""
        entry = known.get(key)
        if entry is not None:
            known.move_to_end(key)
            return entry, False
        known[key] = entry = _Entry(bucket)
        if len(known) > self._settings["max_graphs"]:
            known.popitem(last=False)
            self._n_evicted += 1
        return entry, True

    def _serve(self, entry: _Entry, call: Call, context: Context, *, reason: str = "") -> Any:
        args, kwargs = self._reader.padded(call, entry.bucket)
        begun = time.perf_counter()
        if context.training:  # compiles where it must: a call has to run once, and only once
            out, compiled = entry.graph.compile(args, kwargs)
            if reason:
                self._compiled(entry, time.perf_counter() - begun, compiled)
        else:
            out, compiled = entry.graph.run(args, kwargs)
        result = tensors.crop(out, entry.crop, call.sizes)
        with self._lock:
            if reason:
                self._reasons[reason] += 1
            elif compiled:
                self._bucket_hits[entry.name] += 1
                self._n_real += math.prod(call.sizes.values())
                self._n_padded += math.prod(entry.bucket.values())
            else:
                self._reasons[_GUARD] += 1
                self._again(entry, call, context)
        if self._settings["check"] == "always" and not context.training:
            self._compare(result, call, context, entry)
        return result

    def _unpadded(self, call: Call, context: Context, reason: str) -> Any:
        """Answer without padding: by a dynamic graph where that is wanted, else by the model."""
        args, kwargs = self._reader.plain(call)
        entry = None
        with self._lock:
            self._reasons[reason] += 1
            dynamic = self._settings["fallback"] == "dynamic" and not context.training
            if dynamic and reason in (_RARE, _WAITING):
                entry, is_new = self._entry(self._dynamic, ((), call.kind, context), {})
                if is_new:
                    self._later(entry, call, context)
        if entry is not None and entry.state == "ready":
            out, compiled = entry.graph.run(args, kwargs)
            if not compiled:
                with self._lock:
                    self._again(entry, call, context)
            return out
        return self._orig_mod(*args, **kwargs)

    def _compare(self, result: Any, call: Call, context: Context, entry: _Entry) -> None:
        args, kwargs = self._reader.plain(call)
        off = tensors.difference(result, self._orig_mod(*args, **kwargs), context.coarse)
        if off:
            where = f"bucket {entry.name} at {_name(call.sizes)}"
            raise PaddingError(f"{where}: {off} without padding", hint=HINT)

    # -- compiling ---------------------------------------------------------------------------------

    def _apart(self, context: Context) -> bool:
        """Return whether another thread may compile: CUDA graphs belong to the one that records."""
        mode = self._settings["options"].get("mode") or ""
        records = mode in ("reduce-overhead", "max-autotune") and torch.cuda.is_available()
        return bool(self._settings["background"]) and not context.training and not records

    def _later(self, entry: _Entry, call: Call, context: Context) -> None:
        """Compile in the background, from copies: the caller may change what it passed."""
        kept = self._reader.read(*tensors.resized(call, call.sizes))
        self._worker.submit(lambda: self._prepare(entry, kept, context))

    def _again(self, entry: _Entry, call: Call, context: Context) -> None:
        """Compile once more, for what has changed since; after some times, give up."""
        if entry.state != "ready":
            return
        entry.n_guard_failures += 1
        if entry.n_guard_failures > _ATTEMPTS:
            self._failed(entry, "its guards fail again and again: see TORCH_LOGS=recompiles")
            return
        entry.state = "waiting"
        if self._apart(context):
            self._later(entry, call, context)

    def _now(self, entry: _Entry, call: Call, context: Context) -> Any:
        """Compile in this call; another one for the same bucket waits and is served."""
        begun = time.perf_counter()
        result, served = None, False
        with entry.lock:
            if entry.state == "waiting":
                if context.training:
                    self._probe(entry, call, context)
                else:
                    self._prepare(entry, call, context)
                if entry.graph is not None:
                    result, served = self._serve(entry, call, context, reason=_STALLED), True
        took_s = time.perf_counter() - begun
        with self._lock:
            self._n_stalls += 1
            self._stall_s += took_s
            self._longest_s = max(self._longest_s, took_s)
        if served:
            return result
        if entry.state == "ready":
            return self._serve(entry, call, context)
        return self._unpadded(call, context, _FAILED)

    def _probe(self, entry: _Entry, call: Call, context: Context) -> None:
        """Examine a bucket on a copy in evaluation mode: running the model would change it."""
        try:
            if self._settings["check"] == "never" and self._settings["crop"] is not None:
                verdict = Verdict(self._settings["crop"])
            else:
                devices = range(torch.cuda.device_count()) if "cuda" in call.devices else ()
                with torch.random.fork_rng(devices), torch.no_grad():
                    model = copy.deepcopy(self._orig_mod).eval()
                    verdict = self._examined(model, entry, call, context)
            if self._settle(entry, verdict):
                entry.graph = Graph(self._orig_mod, self._settings["options"], dynamic=False)
        except Exception as error:  # told at the next call, and in stats()
            self._failed(entry, _words(error))

    def _prepare(self, entry: _Entry, call: Call, context: Context) -> None:
        """Examine, compile and time one bucket; what goes wrong is kept, told and counted."""
        try:
            with context.entered(call.devices):
                if not entry.bucket:
                    self._make_dynamic(entry, call)
                elif self._refused is None:
                    self._make(entry, call, context)
                else:
                    self._failed(entry, self._refused.message, tell=False)
        except Exception as error:  # told at the next call, and in stats()
            self._failed(entry, _words(error))

    def _make(self, entry: _Entry, call: Call, context: Context) -> None:
        model = self._orig_mod
        if not self._settle(entry, self._examined(model, entry, call, context)):
            return
        args, kwargs = self._reader.padded(call, entry.bucket)
        graph = entry.graph or Graph(model, self._settings["options"], dynamic=False)
        begun = time.perf_counter()
        out, compiled = graph.compile(args, kwargs)
        wait_for(call)
        took_s = time.perf_counter() - begun
        if self._settings["check"] != "never" and compiled:
            # what is cropped may be anything, also NaN in the one and 0 in the other
            eager = tensors.crop(model(*args, **kwargs), entry.crop, call.sizes)
            off = tensors.difference(
                tensors.crop(out, entry.crop, call.sizes), eager, context.coarse
            )
            if off:
                raise TriageError(f"compiled answers are not eager's: {off}")
        run_s = _time(lambda: graph.run(args, kwargs), call)
        self._planner.graph_s.append(run_s / self._planner.work_of(entry.bucket))
        entry.graph = graph
        self._compiled(entry, took_s, compiled)

    def _make_dynamic(self, entry: _Entry, call: Call) -> float:
        args, kwargs = self._reader.plain(call)
        for at, dims in call.dims.items():
            for dim, _ in dims:
                torch._dynamo.maybe_mark_dynamic(call.leaves[at], dim)
        entry.graph = entry.graph or Graph(self._orig_mod, self._settings["options"], dynamic=True)
        begun = time.perf_counter()
        _, compiled = entry.graph.compile(args, kwargs)
        took_s = time.perf_counter() - begun
        self._compiled(entry, took_s, compiled)
        return took_s

    def _examined(self, model: Any, entry: _Entry, call: Call, context: Context) -> Verdict:
        verdict = examine(
            model, self._reader, call, entry.bucket, context,
            crop=self._settings["crop"], check=self._settings["check"] != "never",
        )  # fmt: skip
        if verdict.eager_s:
            self._planner.eager_s.append(verdict.eager_s / self._planner.work_of(entry.bucket))
        return verdict

    def _settle(self, entry: _Entry, verdict: Verdict) -> bool:
        """Keep what was found out; return whether the bucket may be used."""
        with self._lock:
            if verdict.off:
                error = PaddingError(f"bucket {entry.name}: {verdict.off}", hint=verdict.hint)
                self._refused = self._refused or error
                self._failed(entry, verdict.off, tell=False)
                self._tell(f"calls are answered without padding from now on: {error}")
                return False
            entry.crop = verdict.crop
            self._n_checked += verdict.checked
            self._n_unchecked += not verdict.checked
            if verdict.note:
                self._tell(f"padding cannot be checked: {verdict.note}")
            return True

    def _compiled(self, entry: _Entry, took_s: float, compiled: bool) -> None:
        with self._lock:
            self._n_compiles += 1
            self._compile_s += took_s
            self._planner.compile_s.append(took_s)
            if compiled:
                entry.state = "ready"
            else:
                self._failed(entry, "torch.compile left the model as it is: see TORCH_LOGS=dynamo")

    def _failed(self, entry: _Entry, why: str, *, tell: bool = True) -> None:
        with self._lock:
            entry.state, entry.why, entry.graph = "failed", why, None
            if tell:
                self._tell(f"bucket {entry.name} is served unpadded: {why}")

    def _tell(self, text: str) -> None:
        """Warn at the next call, once for each text: a thread's own warnings reach nobody."""
        with self._lock:
            if text not in self._told:
                self._told.add(text)
                self._to_tell.append(text)

    def _review(self, context: Context) -> None:
        """Look at the plan, and compile what a new one needs; in the worker's thread."""
        try:
            if self._planner.review() and self._example is not None:
                for entry, call in self._missing(self._example, context):
                    self._worker.submit(_job(self._prepare, entry, call, context))
        except Exception as error:  # the present plan stays
            self._tell(f"the plan was not changed: {_words(error)}")

    def _missing(self, example: Call, context: Context) -> list[tuple[_Entry, Call]]:
        """Return new entries for the wanted buckets, each with a call to compile it from."""
        made = []
        if not self._apart(context):
            return []
        for bucket in self._planner.wanted():
            with self._lock:
                key = (tuple(bucket.values()), example.kind, context)
                entry, is_new = self._entry(self._entries, key, bucket)
            if is_new:
                resized = tensors.resized(example, self._planner.least(bucket))
                made.append((entry, self._reader.read(*resized)))
        return made

    # -- what users call ---------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The buckets in use; None before ``"auto"`` has planned."""
        return self._planner.plan

    def precompile(self, sizes: Any = None, example: Any = None, *, wait: bool = True) -> Stats:
        """Compile the buckets before requests come, in the context (grad mode, autocast) they have.

        Parameters
        ----------
        sizes : ints or dict of ints, optional
            The size of each request to expect. With ``buckets="auto"`` the plan is made from them;
            given buckets are compiled as far as a size falls into them. Without, what was seen so
            far, or every bucket.
        example : tensor, tuple or dict, optional
            One call: an argument, a tuple of arguments, or named ones. Its values are cut or
            repeated to each size. Without, an earlier call's.
        wait : bool
            Return when all are ready; else at once, while the background thread compiles.

        Raises
        ------
        PaddingError
            The check found that an output depends on the padding.
        TriageError
            A bucket could not be compiled.
        UsageError
            There is no example, there are no sizes, or the model is in training mode.
        """
        if self._orig_mod.training:
            raise UsageError(
                "precompile() compiles for evaluation; in training the calls compile",
                hint="model.eval(), and under torch.no_grad() if requests are",
            )
        if example is not None:
            given_ = self._reader.read(*tensors.inputs_of(example))
            self._example = self._reader.read(*tensors.resized(given_, given_.sizes))
        call = self._example
        if call is None:
            raise UsageError("no call was seen yet: give an example", hint='example={"x": x}')
        if call.hidden or set(call.sizes) != set(self._reader.axes) or min(call.sizes.values()) < 1:
            raise UsageError(f"the example needs a size of {', '.join(self._reader.axes)}")
        context = Context.now(False, call.devices)
        self._expect(sizes, call)
        if self._planner.history:
            wanted = self._planner.wanted()
        else:
            assert self.plan is not None
            combined = itertools.product(*self.plan.buckets.values())
            wanted = [dict(zip(self.plan.buckets, one, strict=True)) for one in combined]
        if len(wanted) > self._settings["max_graphs"]:
            raise UsageError(
                f"{len(wanted)} buckets are wanted, and max_graphs keeps"
                f" {self._settings['max_graphs']}",
                hint=f"max_graphs={len(wanted)}",
            )
        entries = []
        for bucket in wanted:
            with self._lock:
                key = (tuple(bucket.values()), call.kind, context)
                entry, is_new = self._entry(self._entries, key, bucket)
            entries.append(entry)
            if not is_new:
                continue
            kept = self._reader.read(*tensors.resized(call, self._planner.least(bucket)))
            if wait:
                self._prepare(entry, kept, context)
            else:
                self._worker.submit(_job(self._prepare, entry, kept, context))
        if wait:
            self._worker.wait()
            self._raise_failures(entries)
        return self.stats()

    def _expect(self, sizes: Any, call: Call) -> None:
        """Have a plan, for these sizes where there are some."""
        axes = self._reader.axes
        if sizes is None:
            if self.plan is None:
                self._planner.make()
            return
        columns = sizes if isinstance(sizes, Mapping) else {axes[0]: sizes}
        if set(columns) != set(axes):
            raise UsageError(
                f"expected sizes of {', '.join(axes)}, found {', '.join(map(str, columns))}"
            )
        columns = {axis: columns[axis] for axis in axes}
        plan(columns, max_buckets=1)  # says what is wrong with them
        if self._planner.auto:
            args, kwargs = self._reader.plain(call)
            run_s = min(_time(lambda: self._orig_mod(*args, **kwargs), call) for _ in range(2))
            self._planner.eager_s.append(run_s / self._planner.work_of(call.sizes))
            self._planner.make(columns)
        self._planner.extend(zip(*(map(int, columns[axis]) for axis in axes), strict=True))

    def _raise_failures(self, entries: list[_Entry]) -> None:
        if self._refused is not None:
            raise self._refused
        failed = [entry for entry in entries if entry.state == "failed"]
        if failed:
            raise TriageError(
                f"{len(failed)} of {len(entries)} buckets were not compiled; bucket"
                f" {failed[0].name}: {failed[0].why}"
            )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is left to compile in the background; return whether that is so."""
        return self._worker.wait(timeout_s)

    def advise(self, n_requests: int = HORIZON) -> Advice:
        """Measure buckets, a dynamic graph and eager on sizes seen, and say which costs least.

        Compiles a dynamic graph and takes some seconds: not for a thread that serves requests.

        Raises
        ------
        UsageError
            Nothing was seen or compiled yet.
        """
        example, history = self._example, sorted(self._planner.history)
        with self._lock:
            ready = [(key, one) for key, one in self._entries.items() if one.state == "ready"]
            ready = [(key, one) for key, one in ready if not key[2].training]
        if example is None or not history or not ready:
            raise UsageError("no bucket is compiled yet", hint="call precompile() first")
        context = ready[-1][0][2]
        graphs = {key[0]: one for key, one in ready if key[1:] == (example.kind, context)}
        seconds: dict[str, list[float]] = {"buckets": [], "dynamic": [], "eager": []}
        with context.entered(example.devices):
            dynamic = _Entry({})
            again = self._reader.read(*tensors.resized(example, example.sizes))
            dynamic_compile_s = self._make_dynamic(dynamic, again)
            for sizes in (history[at * len(history) // 15] for at in range(15)):
                named = dict(zip(self._reader.axes, sizes, strict=True))
                entry = graphs.get(tuple((self._planner.bucket_of(named) or {}).values()))
                if entry is None:
                    continue
                call = self._reader.read(*tensors.resized(example, named))
                args, kwargs = self._reader.plain(call)
                ways: dict[str, Callable[[], Any]] = {
                    "buckets": _job(self._run, entry, call),
                    "dynamic": _job(dynamic.graph.compile, args, kwargs),
                    "eager": lambda a=args, k=kwargs: self._orig_mod(*a, **k),  # type: ignore[misc]
                }
                for way, run in ways.items():
                    run()
                    seconds[way].append(min(_time(run, call) for _ in range(5)))
        if not seconds["buckets"]:
            raise UsageError("no size seen falls into a compiled bucket", hint="precompile()")
        mean = {way: sum(all_) / len(all_) for way, all_ in seconds.items()}
        compiles = sorted(self._planner.compile_s)
        return advise(
            bucket_s=mean["buckets"], dynamic_s=mean["dynamic"], eager_s=mean["eager"],
            n_compiles=len(graphs), compile_s=compiles[len(compiles) // 2],
            dynamic_compile_s=dynamic_compile_s, n_requests=n_requests,
        )  # fmt: skip

    def _run(self, entry: _Entry, call: Call) -> Any:
        out, _ = entry.graph.run(*self._reader.padded(call, entry.bucket))
        return tensors.crop(out, entry.crop, call.sizes)

    def save(self, path: Any) -> None:
        """Write the plan, the sizes seen and torch's compile caches to one file.

        The caches are of all that this process compiled (``torch.compiler.save_cache_artifacts``).
        """
        if self.plan is None:
            raise UsageError("there is no plan to save yet", hint="call precompile() first")
        saving.save(path, self.plan, self._planner.history)

    def load(self, path: Any) -> BucketedModule:
        """Take over plan, sizes and caches that :meth:`save` wrote; return the module itself.

        ``precompile()`` then finds most of its work done. Caches hold code that will run: load only
        files you would import.

        Raises
        ------
        UsageError
            The file is no saved plan, or it is for other axes.
        """
        plan_, history, warned = saving.load(path, self._reader.axes)
        if warned:
            warnings.warn(warned, BucketingWarning, stacklevel=2)
        if self._planner.auto:
            self._planner.plan = plan_
        self._planner.extend(history)
        return self

    def stats(self) -> Stats:
        """Return what happened so far; its ``metrics()`` are for a monitor."""
        with self._lock:
            entries = [*self._entries.values(), *self._dynamic.values()]
            failures = {one.name: one.why for one in entries if one.state == "failed"}
            if self._refused is not None:
                failures["all"] = str(self._refused)
            real = self._n_real
            return Stats(
                requests=self._n_requests,
                hits=sum(self._bucket_hits.values()),
                reasons=dict(self._reasons),
                bucket_hits=dict(self._bucket_hits),
                padding=(self._n_padded - real) / real if real else 0.0,
                compiles=self._n_compiles,
                compile_s=self._compile_s,
                stalls=self._n_stalls,
                stall_s=self._stall_s,
                longest_stall_s=self._longest_s,
                checked=self._n_checked,
                unchecked=self._n_unchecked,
                replans=self._planner.n_replans,
                evicted=self._n_evicted,
                ready=sum(one.state == "ready" for one in entries),
                waiting=sum(one.state == "waiting" for one in entries),
                failures=failures,
                buckets="" if self.plan is None else str(Plan(self.plan.buckets)),
            )

    def reset_stats(self) -> None:
        """Count from here on."""
        with self._lock:
            self._n_requests = self._n_compiles = self._n_stalls = self._n_evicted = 0
            self._n_checked = self._n_unchecked = self._n_real = self._n_padded = 0
            self._compile_s = 0.0
            self._stall_s = 0.0
            self._longest_s = 0.0
            self._planner.n_replans = 0
            self._reasons: Counter[str] = Counter()
            self._bucket_hits: Counter[str] = Counter()

    # -- what nn.Module does, the model does -------------------------------------------------------

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
            "auto": self._planner.auto,
            "history": self._planner.history,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become what was pickled or copied."""
        super().__init__()
        self._settings = state["settings"]
        self._wrap(state["model"], state["plan"])
        self._planner.auto = state["auto"]
        self._planner.extend(state["history"])


def _check_torch() -> None:
    if _Module is object:
        raise MissingExtraError(
            "BucketedModule needs torch", hint="pip install 'torchtriage[torch]'"
        )
    if not hasattr(torch, "get_autocast_dtype"):
        raise MissingExtraError(
            f"BucketedModule needs torch 2.4 or newer, found {torch.__version__}",
            hint="pip install --upgrade torch",
        )


def _check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"expected an nn.Module, found {type(model).__name__}")
    if isinstance(model, BucketedModule):
        raise UsageError("the module is bucketed already")
    if "_orig_mod" in model._modules:
        raise UsageError(
            "expected a module that is not compiled", hint="pass the module itself: ._orig_mod"
        )


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


def _name(sizes: Mapping[str, int]) -> str:
    """Return sizes in words: ``128``, or ``batch 4, seq 128``."""
    if len(sizes) == 1:
        return str(next(iter(sizes.values())))
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:400]


def _job(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: function(*args)


def _time(run: Callable[[], Any], call: Call) -> float:
    begun = time.perf_counter()
    run()
    wait_for(call)
    return time.perf_counter() - begun
