"""A structured log (``TORCH_TRACE``), taken in entry by entry: each kind by what understands it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec.json import decode

from torchtriage.compile.logs.breaks import parse_break, parse_restart
from torchtriage.compile.logs.entries import LogEntry, Readable, read_entries
from torchtriage.compile.logs.graphs import count_ops, inlined, kernels_of
from torchtriage.compile.logs.guards import parse_guards, parse_old_guards
from torchtriage.compile.logs.process_log import Compilation, ProcessLog
from torchtriage.compile.logs.recompiles import GuardFailure, parse_failure
from torchtriage.core.finding import Frame

MAX_GRAPHS = 24
MAX_GRAPH_BYTES = 2 << 20
"""Of one graph that is kept to be drawn."""
_AT_LIMIT = re.compile(r"(?:recompile|cache_size|cache size|accumulated)[_ ]\w{0,40}limit", re.IGNORECASE)
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Unsupported|Failed|Interrupt)\b.*")
_NO_BREAK = re.compile(
    r"^(?:SpeculationRestart|TensorifyScalarRestart|AutogradGradRestart|UnspecializeRestart"
    r"|CompileCollectiveRestart|StepUnsupported)|^(?:<class ')?[\w.]*RestartAnalysis(?:'>)?$|^$"
)
"""Why dynamo begins again without a graph break."""
_CACHE = re.compile(r"^(?P<name>\w+?)_cache_(?P<what>hit|miss|bypass)$")
_STAGES = {
    "before_pre_grad_graph": ("before autograd", 0),
    "after_pre_grad_graph": ("before autograd", 1),
    "before_joint_graph": ("joint", 0),
    "after_joint_graph": ("joint", 1),
    "before_post_grad_graph": ("after autograd", 0),
    "after_post_grad_graph": ("after autograd", 1),
    "inductor_post_grad_graph": ("after autograd", 1),
}
_GRAPHS = {
    "dynamo_output_graph": "dynamo",
    "aot_forward_graph": "forward",
    "aot_inference_graph": "forward",
    "aot_backward_graph": "backward",
    "inductor_post_grad_graph": "after autograd",
    "compiled_autograd_graph": "compiled autograd",
}


_TEXTS = ("fail_type", "fail_reason")
_NUMBERS = ("guard_count", "graph_op_count", "guard_latency_us")
MAX_NUMBER = 1 << 53


class _Envelope(msgspec.Struct):
    frame_id: int | None = None
    frame_compile_id: int | None = None
    attempt: int | None = None
    compiled_autograd_id: int | None = None
    rank: int | None = None
    has_payload: str | None = None

    @property
    def compile_id(self) -> str:
        autograd = "" if self.compiled_autograd_id is None else f"!{self.compiled_autograd_id}"
        frame = "" if None in (self.frame_id, self.frame_compile_id) else f"{self.frame_id}/{self.frame_compile_id}"
        return "/".join(filter(None, (autograd, frame)))


class _Call(msgspec.Struct):
    line: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)] = 0
    name: str = ""
    filename: int | str = -1


class _Stack(msgspec.Struct):
    stack: list[_Call] = []


class _Start(msgspec.Struct):
    dynamo_start: _Stack


class _Artifact(msgspec.Struct):
    name: str


class _WithArtifact(msgspec.Struct):
    artifact: _Artifact


class _Text(msgspec.Struct, rename={"text": "str"}):
    text: tuple[str, Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]


class _Special(msgspec.Struct):
    symbol: str = ""
    sources: list[str] = []
    value: str | int | float = ""


class _WithSpecial(msgspec.Struct):
    symbolic_shape_specialization: _Special


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_DEFECTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, KeyError, TypeError)


def read_structured(log: ProcessLog, stream: Readable) -> ProcessLog:
    """Take in all entries of a structured log; what cannot be read is counted and left out."""
    reader = _EntryReader(log)
    try:
        for entry in read_entries(stream):
            log.n_read += 1
            reason = reader.take(entry)
            if reason is None:
                log.n_used += 1
            else:
                log.skipped[reason] += 1
    except (EOFError, OSError) as error:
        log.end = f"the file cannot be read to its end: {error}"
    reader.finish()
    return log


class _EntryReader:
    """Hands each entry to what understands its kind."""

    def __init__(self, log: ProcessLog) -> None:
        self.log = log
        self.files: dict[int, str] = {}
        self.kinds: dict[str, Callable[[LogEntry, str], str | None]] = {
            "str": self._text,
            "chromium_event": lambda entry, _: log.phases.add(entry.indented),
            "dynamo_start": self._start,
            "artifact": self._artifact,
            "compilation_metrics": self._metrics,
            "bwd_compilation_metrics": self._metrics,
            "aot_autograd_backward_compilation_metrics": self._metrics,
            "compilation_metrics_runtime": self._runtime,
            "dynamo_guards": self._old_guards,
            "dynamo_cpp_guards_str": self._guards,
            "inductor_output_code": self._code,
            "symbolic_shape_specialization": self._special,
            **dict.fromkeys(_GRAPHS, self._graph),
        }
        self.before: dict[tuple[str, str], Counter[str]] = {}
        self.waiting: dict[str, list[list[GuardFailure]]] = {}
        self.envelope = _Envelope()

    def take(self, entry: LogEntry) -> str | None:
        """Use an entry; return why not, if so."""
        if not entry.kind:
            blank = not entry.json.strip() and not entry.indented.strip()
            return "empty line" if blank else "line that is no record"
        if not self.log.started:
            self.log.started = entry.stamp.decode("ascii", "replace")
        try:
            self.envelope = _ENVELOPE.decode(entry.json)
        except _DEFECTS:
            return "header with damaged JSON"
        self.log.kinds[entry.kind] += 1
        if self.log.logged_rank is None:
            self.log.logged_rank = entry.rank if self.envelope.rank is None else self.envelope.rank
        take = self.kinds.get(entry.kind)
        if take is None:
            return f"not part of this report: {entry.kind}"
        if entry.is_cut:
            return "payload longer than 32 MiB"
        if self.envelope.has_payload is not None and not entry.indented:
            return "payload missing"
        try:
            return take(entry, self.envelope.compile_id)
        except _DEFECTS:
            return f"damaged: {entry.kind}"

    def finish(self) -> None:
        self.log.phases.finish()
        for compile_id in [*self.waiting]:
            self._explain(self.log.compilation(compile_id))
        for compilation in self.log.compilations:
            # a backward alone has no frame of its own
            if not compilation.has_metrics:
                compilation.dur_ns = self.log.phases.by_compile_ns.get(compilation.id)
        self.log.finish()

    def _explain(self, compilation: Compilation) -> None:
        """Give a compilation the reasons that were logged before it began."""
        for failures in self.waiting.pop(compilation.id, ()):
            self.log.saw_recompile(failures, compilation)

    def _payload(self, entry: LogEntry) -> str:
        data = entry.payload
        digest = self.envelope.has_payload
        if digest is not None and not entry.is_whole(digest):
            self.log.n_damaged += 1
        return data.decode("utf-8", "replace")

    def _text(self, entry: LogEntry, _: str) -> None:
        text, number = decode(entry.json, type=_Text).text
        self.files[number] = text

    def _start(self, entry: LogEntry, compile_id: str) -> None:
        calls = decode(entry.json, type=_Start).dynamo_start.stack
        compilation = self.log.compilation(compile_id)
        if compilation.has_metrics or (compilation.is_started and not self.envelope.attempt):
            compilation = self._again(compile_id)  # after a reset
        compilation.is_started = True
        self._explain(compilation)
        frames = [
            Frame(
                file if isinstance(file := call.filename, str) else self.files.get(file, ""), call.line, call.name, True
            )
            for call in reversed(calls)
        ]
        if frames and not compilation.name:
            # torch 2.4 logs the compiler's own frames instead of the function: metrics name it
            if not frames[0].file.endswith("_dynamo/convert_frame.py"):
                first = frames.pop(0)
                compilation.name, compilation.file, compilation.line = first.function, first.file, first.line
            compilation.stack = tuple(frames)

    def _again(self, compile_id: str) -> Compilation:
        self.before = {key: ops for key, ops in self.before.items() if key[0] != compile_id}
        return self.log.begin(compile_id)

    def _metrics(self, entry: LogEntry, compile_id: str) -> str | None:
        values = decode(entry.json)[entry.kind]
        if not isinstance(values, dict):
            raise ValueError("expected an object")
        compilation = self.log.compilation(compile_id)
        self.log.torch = self.log.torch or str(values.get("pytorch_version") or "")
        skip = values.get("cudagraph_skip_reason")
        if skip:
            self.log.cudagraph_skips[str(skip)] += 1
        dur_ns = _duration_ns(values)
        if entry.kind != "compilation_metrics" or values.get("is_forward") is False:
            compilation.backward_ns += dur_ns or 0
            return None
        if compilation.has_metrics:
            compilation = self._again(compile_id)
        self._explain(compilation)
        compilation.has_metrics = True
        compilation.dur_ns = dur_ns if dur_ns is not None else compilation.dur_ns
        compilation.n_attempts = max(compilation.n_attempts, (self.envelope.attempt or 0) + 1)
        config = str(values.get("dynamo_config") or "")
        if '"automatic_dynamic_shapes": false' in config:
            self.log.automatic_dynamic = False
        if values.get("co_name") and compilation.resumed_at is None:
            compilation.name = str(values["co_name"])
        if values.get("co_filename"):
            compilation.file = str(values["co_filename"])
            line = values.get("co_firstlineno")
            compilation.line = line if isinstance(line, int) and 0 <= line < 1 << 31 else compilation.line
        metrics = {name: values[name] for name in _TEXTS if values.get(name) and isinstance(values[name], str)}
        metrics |= {name: values[name] for name in _NUMBERS if _is_number(values.get(name))}
        if isinstance(values.get("has_guarded_code"), bool):
            metrics["has_guarded_code"] = values["has_guarded_code"]
        compilation.metrics = metrics
        fail = str(values.get("fail_reason") or "")
        if _AT_LIMIT.search(fail):
            compilation.limit = fail.split("\n", 1)[0]
        restarts = values.get("restart_reasons") or []
        restarts = [restarts] if isinstance(restarts, str) else list(restarts)
        if not compilation.n_breaks:
            for text in map(str, restarts):
                if not _NO_BREAK.search(text.strip()):
                    self.log.saw_break(parse_restart(text), compilation)
        return None

    def _runtime(self, entry: LogEntry, compile_id: str) -> str | None:
        values = decode(entry.json)[entry.kind]
        skip = values.get("cudagraph_skip_reason") if isinstance(values, dict) else None
        if not skip:
            return "not part of this report: compilation_metrics_runtime"
        self.log.cudagraph_skips[str(skip)] += 1
        return None

    def _artifact(self, entry: LogEntry, compile_id: str) -> str | None:
        name = decode(entry.json, type=_WithArtifact).artifact.name
        self.log.kinds["artifact"] -= 1
        self.log.kinds[f"artifact {name}"] += 1
        if name == "recompile_reasons":
            return self._recompile(entry, compile_id)
        if name == "dynamo_graph_break_reason":
            graph_break = parse_break(self._payload(entry))
            if graph_break is None:
                return "damaged: dynamo_graph_break_reason"
            self.log.saw_break(graph_break, self.log.compilation(compile_id))
        elif name in _STAGES:
            self._stage(name, compile_id, self._payload(entry))
        elif cache := _CACHE.match(name):
            self._cache(cache["name"], cache["what"], compile_id, entry)
        elif name == "torch_version":
            self.log.torch = str(decode(entry.payload).get("pytorch_version") or "")
        elif name == "dynamo_error":
            lines = self._payload(entry).strip().split("\n")
            errors = [line for line in lines if _ERROR.match(line)]
            self.log.compilation(compile_id).error = (errors or lines)[-1][:500]
        elif name == "inductor_collective_schedule":
            self.log.schedules[compile_id] = self._payload(entry)[:100_000]
        else:
            return f"not part of this report: artifact {name}"
        return None

    def _recompile(self, entry: LogEntry, compile_id: str) -> str | None:
        text = self._payload(entry)
        logged = decode(text) if text.lstrip()[:1] in ("[", '"') else text
        reasons = [logged] if isinstance(logged, str) else map(str, logged)
        failures = [parse_failure(reason) for reason in reasons]
        if not failures:
            return "recompilation without a reason"
        # logged before the compilation begins that they are the reason of
        self.waiting.setdefault(compile_id, []).append(failures)
        return None

    def _cache(self, name: str, what: str, compile_id: str, entry: LogEntry) -> None:
        self.log.caches[name, what] += 1
        self.log.compilation(compile_id).cache[f"{name} {what}"] += 1
        facts: Any = None
        if entry.indented:
            try:
                facts = decode(entry.indented)
            except _DEFECTS:
                self.log.n_damaged += 1
        facts = facts if isinstance(facts, dict) else {}
        saved = facts.get("time_saved_ns")
        if what == "hit" and isinstance(saved, int) and _is_number(saved):
            self.log.cache_saved_ns[name] += saved
        elif what == "bypass":
            self.log.bypasses[name, str(facts.get("cache_bypass_reason") or "not recorded")[:300]] += 1

    def _stage(self, name: str, compile_id: str, text: str) -> None:
        stage, side = _STAGES[name]
        key = (compile_id, stage)
        counted = count_ops(text)
        if side == 0:
            self.before[key] = counted
        elif key in self.before:
            self.log.n_staged[stage] += 1
            self.log.ops_before.update({(stage, op): n for op, n in self.before.pop(key).items()})
            self.log.ops_after.update({(stage, op): n for op, n in counted.items()})

    def _graph(self, entry: LogEntry, compile_id: str) -> None:
        text = self._payload(entry)
        kind = _GRAPHS[entry.kind]
        self.log.n_graphs[kind] += 1
        if entry.kind == "dynamo_output_graph":
            self.log.compilation(compile_id).has_graph = True
            self.log.inlined.update(inlined(text))
        elif entry.kind in _STAGES:
            self._stage(entry.kind, compile_id, text)
        if len(text) <= MAX_GRAPH_BYTES and len(self.log.graphs) < MAX_GRAPHS:
            self.log.graphs.append((compile_id, kind, text))

    def _code(self, entry: LogEntry, compile_id: str) -> None:
        kernels = kernels_of(self._payload(entry))
        log = self.log
        log.n_output_codes += 1
        for _, kind, n_fused in kernels.generated:
            log.n_generated[kind] += 1
            if n_fused:
                log.n_fused += n_fused
                log.n_fused_into += 1
        log.library.update(kernels.library)
        log.fallback.update(kernels.fallback)

    def _guards(self, entry: LogEntry, compile_id: str) -> None:
        self.log.compilation(compile_id).guards = parse_guards(self._payload(entry))

    def _old_guards(self, entry: LogEntry, compile_id: str) -> None:
        rows = decode(entry.indented)
        compilation = self.log.compilation(compile_id)
        if compilation.guards is None:
            compilation.guards = parse_old_guards([str(row.get("code") or "") for row in rows])

    def _special(self, entry: LogEntry, _: str) -> None:
        special = decode(entry.json, type=_WithSpecial, strict=False).symbolic_shape_specialization
        self.log.specialized[f"{', '.join(special.sources) or special.symbol} = {special.value}"] += 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < MAX_NUMBER


def _duration_ns(values: dict[str, Any]) -> int | None:
    for name, scale in (
        ("duration_us", 1e3),
        ("entire_frame_compile_time_s", 1e9),
        ("dynamo_cumulative_compile_time_us", 1e3),
        ("inductor_compile_time_s", 1e9),
    ):
        value = values.get(name)
        if isinstance(value, int | float) and 0 <= value * scale < 1e18:
            return int(value * scale)
    return None
