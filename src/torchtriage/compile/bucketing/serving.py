"""Calls of a bucketed module: which graph serves each, and graphs examined, compiled and counted."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch

from torchtriage.compile.bucketing import tensors
from torchtriage.compile.bucketing.declarations import Crop
from torchtriage.compile.bucketing.graphs import CompiledGraph, CompileThread
from torchtriage.compile.bucketing.padding_check import HINT, PaddingVerdict, call_is_off, examine, wait_for
from torchtriage.compile.bucketing.planner import WINDOW, Planner
from torchtriage.compile.bucketing.planning import BucketPlan
from torchtriage.compile.bucketing.statistics import Stats
from torchtriage.compile.bucketing.tensors import CallContext, ModelCall, Reader
from torchtriage.core.errors import PaddingError, TriageError

_ATTEMPTS = 3
_NO_PLAN, _RARE = "no plan yet", "no bucket that large"
_REFUSED, _HIDDEN = "padding is refused", "an argument cannot be padded"
_WAITING, _FAILED, _ONCE = "being compiled", "the bucket failed", "a kind of call seen once"
_STALLED, _GUARD = "compiled in the call", "a guard of the graph failed"

Key = tuple[tuple[int, ...], tuple[Any, ...], Any]
"""Sizes of the bucket, kind of call and context."""


@dataclass
class BucketGraph:
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
        """Return its sizes, or ``dynamic``."""
        return name_of(self.bucket) or "dynamic"


class Server:
    """Serves the calls of one model from graphs of a few sizes; safe to use from several threads.

    ``settings`` : as :class:`~torchtriage.compile.bucketing.module.BucketedModule` has read them.
    """

    def __init__(self, model: Any, settings: dict[str, Any], plan: BucketPlan | None) -> None:
        self.model, self.settings = model, settings
        self.reader = Reader(model, settings["pad"], settings["fill"], settings["masks"])
        self.planner = Planner(self.reader.axes, plan, **settings["planning"])
        self.lock = threading.RLock()
        is_inductor = settings["options"].get("backend", "inductor") == "inductor"
        self.thread = CompileThread("torchtriage-buckets", "torch._inductor.compile_fx" if is_inductor else "")
        self.entries: OrderedDict[Key, BucketGraph] = OrderedDict()
        self.dynamic: OrderedDict[Key, BucketGraph] = OrderedDict()
        self.example: ModelCall | None = None
        self.refused: PaddingError | None = None
        self.counts = Stats()
        self.warned: set[str] = set()
        self.new_warnings: list[str] = []
        self._seen: Counter[tuple[Any, ...]] = Counter()

    def stats(self) -> Stats:
        """Return what happened since the counts began."""
        with self.lock:
            entries = [*self.entries.values(), *self.dynamic.values()]
            failures = {entry.name: entry.why for entry in entries if entry.state == "failed"}
            if self.refused is not None:
                failures["all"] = str(self.refused)
            return replace(
                self.counts,
                reasons=self.counts.reasons.copy(),
                bucket_hits=self.counts.bucket_hits.copy(),
                replans=self.planner.n_replans,
                ready=sum(entry.state == "ready" for entry in entries),
                waiting=sum(entry.state == "waiting" for entry in entries),
                failures=failures,
                buckets="" if self.planner.plan is None else str(BucketPlan(self.planner.plan.buckets)),
            )

    def choose(self, call: ModelCall, context: CallContext) -> tuple[BucketGraph | None, str, list[str]]:
        """Return what serves the call, or why nothing does, and what to warn of."""
        with self.lock:
            self.counts.requests += 1
            if self.planner.observe(call.sizes):
                self.thread.submit(partial(self.review, context))
            entry, reason = self._choose(call, context)
            texts, self.new_warnings = self.new_warnings, []
        return entry, reason, texts

    def answer(self, entry: BucketGraph | None, reason: str, call: ModelCall, context: CallContext) -> Any:
        """Return the model's answer by what :meth:`choose` chose."""
        if entry is None:
            return self._unpadded(call, context, reason)
        if entry.state == "waiting":
            return self._now(entry, call, context)
        return self._serve(entry, call, context)

    def _choose(self, call: ModelCall, context: CallContext) -> tuple[BucketGraph | None, str]:
        """Return what serves the call, or why nothing does; has compiled what is missing.

        An entry that waits is returned only where the call is to compile it itself.
        """
        if self.refused is not None:
            return None, _REFUSED
        if call.hidden:
            self.warn(f"{call.hidden} may hold tensors that cannot be padded: not bucketed")
            return None, _HIDDEN
        if min(call.sizes.values()) < 1:
            return None, "a size is 0"
        if self.example is None:
            self.example = self.reader.resized(call)
        if self.planner.plan is None:
            return None, _NO_PLAN
        bucket = self.planner.plan.bucket_of(call.sizes)
        if bucket is None:
            return None, _RARE
        key = (tuple(bucket.values()), call.kind, context)
        if key not in self.entries and not self._admitted(key):
            return None, _ONCE
        entry, is_new = self.entry(self.entries, key, bucket)
        if entry.state == "ready" or (entry.state == "waiting" and not self._apart(context)):
            return entry, ""
        if is_new:
            self._later(entry, call, context)
        if entry.state == "failed":
            return None, _FAILED
        return self._larger(bucket, call, context), _WAITING

    def _larger(self, bucket: Mapping[str, int], call: ModelCall, context: CallContext) -> BucketGraph | None:
        """Return the smallest ready graph the call fits into, at most of twice the size."""
        most = 2 * math.prod(bucket.values())
        fitting = [
            entry
            for (_, kind, where), entry in self.entries.items()
            if entry.state == "ready"
            and (kind, where) == (call.kind, context)
            and math.prod(entry.bucket.values()) <= most
            and all(entry.bucket[axis] >= size for axis, size in call.sizes.items())
        ]
        # the latest of several that are equally small
        return min(reversed(fitting), key=lambda entry: math.prod(entry.bucket.values()), default=None)

    def _admitted(self, key: Key) -> bool:
        """Return whether to compile for this kind of call: the first, and others from twice on.

        What differs between calls but is not padded would be compiled for again and again.
        """
        _, kind, context = key
        same = {entry[2] for entry in self.entries if entry[1] == kind}
        if same or not self.entries:
            if same and context not in same:
                known = min(same, key=lambda other: len(other.unlike(context)))
                # training and evaluation differ anyway; a grad mode is easily forgotten
                if known.training == context.training:
                    self.warn(
                        f"graphs so far are for calls with {known.unlike(context)}; a call with"
                        f" {context.unlike(known)} needs its own: precompile() as requests come"
                    )
            return True
        self._seen[kind] += 1
        if len(self._seen) == 8:
            self.warn(
                f"{self._varying()} differs from call to call and is not padded: each value needs"
                " graphs of its own; declare it in pad="
            )
        elif len(self._seen) > WINDOW:
            self._seen.clear()
        return self._seen[kind] > 1

    def _varying(self) -> str:
        """Return which part of a call has most values, among the kinds seen."""
        columns: dict[str, set[Any]] = defaultdict(set)
        for kind in self._seen:
            for path, fact in zip(kind[1], kind[2:], strict=False):
                if len(fact) == 2:
                    columns[path].add(fact)
                    continue
                for dim, size in enumerate(fact[2]):
                    columns[f"dimension {dim} of {path}"].add(size)
        return max(columns, key=lambda column: len(columns[column]), default="something")

    def entry(
        self, known: OrderedDict[Key, BucketGraph], key: Key, bucket: Mapping[str, int]
    ) -> tuple[BucketGraph, bool]:
        """Return the graph of this key and whether it is new; drops the one unused for longest."""
        entry = known.get(key)
        if entry is not None:
            known.move_to_end(key)
            return entry, False
        known[key] = entry = BucketGraph(bucket)
        if len(known) > self.settings["max_graphs"]:
            known.popitem(last=False)
            self.counts.evicted += 1
        return entry, True

    def _serve(self, entry: BucketGraph, call: ModelCall, context: CallContext, *, reason: str = "") -> Any:
        always = self.settings["check"] == "always"
        off, plain = self._is_off(entry, call, context) if always else ("", None)
        args, kwargs = self.reader.padded(call, entry.bucket)
        begun = time.perf_counter()
        if reason and context.training:  # compiles where it must: a call has to run once, and only once
            out, compiled = entry.graph.compile(args, kwargs)
            self._compiled(entry, time.perf_counter() - begun, compiled)
        else:
            out, compiled = entry.graph.run(args, kwargs)
            if not compiled:  # what was checked is not what is called now: nothing has run
                with self.lock:
                    self._again(entry, call, context)
                return self._unpadded(call, context, _GUARD)
        result = tensors.crop(out, entry.crop, call.sizes)
        with self.lock:
            if reason:
                self.counts.reasons[reason] += 1
            else:
                self.counts.bucket_hits[entry.name] += 1
                self.counts.real_size += math.prod(call.sizes.values())
                self.counts.padded_size += math.prod(entry.bucket.values())
        off = off or (tensors.difference(result, plain, context.coarse) if plain is not None else "")
        if off:
            where = f"bucket {entry.name} at {name_of(call.sizes)}"
            raise PaddingError(f"{where}: {off} without padding", hint=HINT)
        return result

    def _is_off(self, entry: BucketGraph, call: ModelCall, context: CallContext) -> tuple[str, Any]:
        with self._aside(call, context):
            return call_is_off(self.model, self.reader, call, entry.bucket, entry.crop, context)

    @contextlib.contextmanager
    def _aside(self, call: ModelCall, context: CallContext) -> Iterator[None]:
        """Check in the call itself without taking its random numbers."""
        devices = range(torch.cuda.device_count()) if "cuda" in call.devices else ()
        with torch.random.fork_rng(devices), context.entered(call.devices):
            yield

    def _unpadded(self, call: ModelCall, context: CallContext, reason: str) -> Any:
        """Answer without padding: by a dynamic graph where that is wanted, else by the model."""
        args, kwargs = self.reader.plain(call)
        entry = None
        with self.lock:
            self.counts.reasons[reason] += 1
            dynamic = self.settings["fallback"] == "dynamic" and not context.training
            if dynamic and reason in (_RARE, _WAITING):
                entry, is_new = self.entry(self.dynamic, ((), call.kind, context), {})
                if is_new:
                    self._later(entry, call, context)
        if entry is not None and entry.state == "ready":
            out, compiled = entry.graph.run(args, kwargs)
            if compiled:
                return out
            with self.lock:
                self._again(entry, call, context)
        return self.model(*args, **kwargs)

    def run(self, entry: BucketGraph, call: ModelCall) -> Any:
        """Return the answer of a ready graph, cropped; nothing is counted."""
        out, _ = entry.graph.run(*self.reader.padded(call, entry.bucket))
        return tensors.crop(out, entry.crop, call.sizes)

    def _apart(self, context: CallContext) -> bool:
        mode = self.settings["options"].get("mode") or ""
        records = mode in ("reduce-overhead", "max-autotune") and torch.cuda.is_available()
        return bool(self.settings["background"]) and not context.training and not records

    def _later(self, entry: BucketGraph, call: ModelCall, context: CallContext) -> None:
        example = self.reader.resized(call)
        self.thread.submit(partial(self.prepare, entry, example, context))

    def _again(self, entry: BucketGraph, call: ModelCall, context: CallContext) -> None:
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

    def _now(self, entry: BucketGraph, call: ModelCall, context: CallContext) -> Any:
        """Compile in this call; another one for the same bucket waits and is served."""
        begun = time.perf_counter()
        result, served = None, False
        with entry.lock:
            if entry.state == "waiting":
                if context.training:
                    self._probe(entry, call, context)
                else:
                    self.prepare(entry, call, context)
                if entry.graph is not None:
                    result, served = self._serve(entry, call, context, reason=_STALLED), True
        took_s = time.perf_counter() - begun
        with self.lock:
            counts = self.counts
            counts.stalls += 1
            counts.stall_s += took_s
            counts.longest_stall_s = max(counts.longest_stall_s, took_s)
        if served:
            return result
        if entry.state == "ready":
            return self._serve(entry, call, context)
        return self._unpadded(call, context, _FAILED)

    def _probe(self, entry: BucketGraph, call: ModelCall, context: CallContext) -> None:
        """Examine a bucket as the call uses it; the call itself compiles."""
        try:
            if self.settings["check"] == "never" and self.settings["crop"] is not None:
                verdict = PaddingVerdict(self.settings["crop"])
            else:
                with self._aside(call, context):
                    example = self.reader.resized(call)
                    verdict = self._examined(entry, example, context)
            if self._settle(entry, verdict):
                entry.graph = CompiledGraph(self.model, self.settings["options"], dynamic=False)
        except Exception as error:  # reported at the next call, and in stats()
            self._failed(entry, _describe(error))

    def prepare(self, entry: BucketGraph, call: ModelCall, context: CallContext) -> None:
        """Examine, compile and time one bucket; errors are kept, reported and counted."""
        try:
            with context.entered(call.devices):
                if not entry.bucket:
                    self.make_dynamic(entry, call)
                elif self.refused is None:
                    self._make(entry, call, context)
                else:
                    self._failed(entry, self.refused.message, tell=False)
        except Exception as error:  # reported at the next call, and in stats()
            self._failed(entry, _describe(error))

    def _make(self, entry: BucketGraph, call: ModelCall, context: CallContext) -> None:
        verdict = self._examined(entry, call, context)
        if not self._settle(entry, verdict):
            return
        args, kwargs = self.reader.padded(call, entry.bucket)
        graph = entry.graph or CompiledGraph(self.model, self.settings["options"], dynamic=False)
        begun = time.perf_counter()
        out, compiled = graph.compile(args, kwargs)
        wait_for(call)
        took_s = time.perf_counter() - begun
        if self.settings["check"] != "never" and compiled and not verdict.is_random:
            # what is cropped may be anything, also NaN in the one and 0 in the other
            eager = tensors.crop(self.model(*args, **kwargs), entry.crop, call.sizes)
            off = tensors.difference(tensors.crop(out, entry.crop, call.sizes), eager, context.coarse)
            if off:
                raise TriageError(f"compiled answers are not eager's: {off}")
        run_s = time_of(lambda: graph.run(args, kwargs), call)
        self.planner.graph_s.append(run_s / self.planner.work_of(entry.bucket))
        entry.graph = graph
        self._compiled(entry, took_s, compiled)

    def make_dynamic(self, entry: BucketGraph, call: ModelCall) -> float:
        """Compile for sizes that vary; return the seconds it took."""
        args, kwargs = self.reader.plain(call)
        for at, dims in call.dims.items():
            for dim, _ in dims:
                torch._dynamo.maybe_mark_dynamic(call.leaves[at], dim)
        entry.graph = entry.graph or CompiledGraph(self.model, self.settings["options"], dynamic=True)
        begun = time.perf_counter()
        _, compiled = entry.graph.compile(args, kwargs)
        took_s = time.perf_counter() - begun
        self._compiled(entry, took_s, compiled)
        return took_s

    def _examined(self, entry: BucketGraph, call: ModelCall, context: CallContext) -> PaddingVerdict:
        verdict = examine(
            self.model,
            self.reader,
            call,
            entry.bucket,
            context,
            crop=self.settings["crop"],
            check=self.settings["check"] != "never",
            least=self.planner.least(entry.bucket),
        )
        if verdict.eager_s:
            self.planner.eager_s.append(verdict.eager_s / self.planner.work_of(entry.bucket))
        return verdict

    def _settle(self, entry: BucketGraph, verdict: PaddingVerdict) -> bool:
        """Keep what was found out; return whether the bucket may be used."""
        with self.lock:
            if verdict.off:
                error = PaddingError(f"bucket {entry.name}: {verdict.off}", hint=verdict.hint)
                self.refused = self.refused or error
                self._failed(entry, verdict.off, tell=False)
                self.warn(f"calls are answered without padding from now on: {error}")
                return False
            entry.crop = verdict.crop
            self.counts.checked += verdict.checked
            self.counts.unchecked += not verdict.checked
            return True

    def _compiled(self, entry: BucketGraph, took_s: float, compiled: bool) -> None:
        with self.lock:
            self.counts.compiles += 1
            self.counts.compile_s += took_s
            self.planner.compile_s.append(took_s)
            if compiled:
                entry.state = "ready"
            else:
                self._failed(entry, "torch.compile left the model as it is: see TORCH_LOGS=dynamo")

    def _failed(self, entry: BucketGraph, why: str, *, tell: bool = True) -> None:
        with self.lock:
            entry.state, entry.why, entry.graph = "failed", why, None
            if tell:
                self.warn(f"bucket {entry.name} is served unpadded: {why}")

    def warn(self, text: str) -> None:
        """Warn at the next call, once for each text: a thread's own warnings reach nobody."""
        with self.lock:
            if text not in self.warned:
                self.warned.add(text)
                self.new_warnings.append(text)

    def review(self, context: CallContext) -> None:
        """Look at the plan, and compile what a new one needs; in the compiling thread."""
        try:
            if self.planner.review() and self.example is not None and self._apart(context):
                for entry, call in list(
                    self.graphs_of(self.planner.wanted(self.planner.history), self.example, context)
                ):
                    if call is not None:
                        self.thread.submit(partial(self.prepare, entry, call, context))
        except Exception as error:  # the present plan stays
            self.warn(f"the plan was not changed: {_describe(error)}")

    def graphs_of(
        self, buckets: Sequence[Mapping[str, int]], example: ModelCall, context: CallContext
    ) -> Iterator[tuple[BucketGraph, ModelCall | None]]:
        """Yield the graph of each bucket, with a call to compile it from where it is new."""
        for bucket in buckets:
            with self.lock:
                key = (tuple(bucket.values()), example.kind, context)
                entry, is_new = self.entry(self.entries, key, bucket)
            yield entry, self.reader.resized(example, self.planner.least(bucket)) if is_new else None


def name_of(sizes: Mapping[str, int]) -> str:
    """Return sizes as text: ``128``, or ``batch 4, seq 128``."""
    if len(sizes) == 1:
        return str(next(iter(sizes.values())))
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def _describe(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:400]


def time_of(run: Callable[[], Any], call: ModelCall) -> float:
    """Return the seconds that a run takes, its devices' work included."""
    begun = time.perf_counter()
    run()
    wait_for(call)
    return time.perf_counter() - begun
