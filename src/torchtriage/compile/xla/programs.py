"""What the dumps of a program say: any of a metrics report, debug output, saved tensors, modules.

A folder's files are one program's; which kind each is shows in its text, so that a log of a program that printed
its metrics report between other lines is read too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchtriage.compile.logs.entries import BLOCK_BYTES
from torchtriage.compile.logs.read import opened
from torchtriage.compile.logs.result import Count
from torchtriage.compile.xla.causes import CauseReason, from_dump, is_lowering, kind_of, user_line
from torchtriage.compile.xla.dumps import (
    Analysis,
    HloModule,
    Metrics,
    SavedGraph,
    read_debug,
    read_metrics,
    read_module,
    read_saved,
)
from torchtriage.compile.xla.result import Fallback, HloGraph, XlaProgram
from torchtriage.core.errors import LogError
from torchtriage.core.finding import Frame, Note

HOW = (
    "print(torch_xla.debug.metrics.metrics_report()), PT_XLA_DEBUG_LEVEL=2,"
    " XLA_SAVE_TENSORS_FILE=graphs.txt or XLA_FLAGS=--xla_dump_to=DIR"
)
MAX_BYTES = 256 << 20
"""Of one file, unpacked."""
_MODULE_FILE = re.compile(r"^module_\d+\..*\.(?:before_optimizations|[\w-]*after_optimizations)\.txt(?:\.gz)?$")
_MODULE_NAME = re.compile(r"^(?P<id>module_\d+\..+?)\.(?P<when>before_optimizations|[\w-]*after_optimizations)\.txt")
_COMPILED_BY = re.compile(r"^(?:Unexpected )?(?:Compilation|Execution|Post Compilation) Analysis: ", re.M)
_METRIC = re.compile(r"^(?:Metric|Counter): \S", re.M)
_FALLBACK = re.compile(r"^aten::\w|^torchvision::\w")
_OTHER = re.compile(r"^pt-xla-profiler: (?P<text>.*)$")


@dataclass
class _Read:
    """What was found in one program's files; ``reports`` : the metrics of each file that has some."""

    reports: dict[str, Metrics] = field(default_factory=dict)
    analyses: list[Analysis] | None = None
    saved: list[SavedGraph] | None = None
    modules: dict[str, dict[str, HloModule]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    paths: list[str] = field(default_factory=list)
    n_reports: int = 1

    @property
    def metrics(self) -> Metrics | None:
        """Return the one report, None without."""
        return next(iter(self.reports.values()), None)


def read_dumps(paths: Sequence[str]) -> list[XlaProgram]:
    """Return one program for the files given, and one for each folder.

    Metrics reports of several files are of several processes, or times: each is a program then.

    Raises LogError: there is no dump of torch_xla or XLA among them.
    """
    programs: list[XlaProgram] = []
    files = [Path(path) for path in paths if not Path(path).is_dir()]
    if files:
        name = str(files[0]) if len(files) == 1 else f"{len(files)} files"
        programs += _programs(name, files)
    for folder in (Path(path) for path in paths if Path(path).is_dir()):
        inside = sorted(file for file in folder.rglob("*") if file.is_file())
        programs += _programs(str(folder), inside, folder=True)
    return programs


def _programs(name: str, files: Sequence[Path], *, folder: bool = False) -> Iterator[XlaProgram]:
    read = _Read()
    for path in files:
        if folder and path.name.startswith("module_") and not _MODULE_FILE.match(path.name):
            read.skipped["files of an XLA dump that are no HLO text"] += 1
            continue
        try:
            text = _text(path)
        except LogError:
            if not folder:
                raise
            read.skipped["files that are not text, damaged, unreadable or too large"] += 1
            continue
        if _take(read, path, text):
            read.paths.append(str(path))
        elif folder:
            read.skipped["files without a dump"] += 1
        else:
            what = "other text" if text.strip() else "an empty file"
            raise LogError(f"expected a dump of torch_xla or XLA, found {what}", where=str(path), hint=HOW)
    if not read.paths:
        raise LogError(f"expected dumps of torch_xla or XLA, found none in {len(files)} files", where=name, hint=HOW)
    if len(read.reports) < 2:
        yield _summary(name, read)
        return
    for file, report in read.reports.items():
        yield _summary(file, _Read({file: report}, skipped=read.skipped, paths=[file], n_reports=len(read.reports)))
        read.skipped = Counter()
    if read.analyses or read.saved or read.modules or read.messages:
        others = [path for path in read.paths if path not in read.reports]
        yield _summary(name, replace(read, reports={}, paths=others or read.paths))


def _text(path: Path) -> str:
    data = bytearray()
    with opened(str(path)) as (stream, name, _):
        while block := stream.read(BLOCK_BYTES):
            data += block
            if len(data) > MAX_BYTES:
                raise LogError(f"expected at most {MAX_BYTES >> 20} MiB, unpacked", where=name)
            if b"\0" in data[:4096]:
                raise LogError("expected text, found a binary file", where=name, hint=HOW)
    return data.decode("utf-8", "replace")


def _take(read: _Read, path: Path, text: str) -> bool:
    """Read what a file has; return whether it has any of it."""
    lines = text.split("\n")
    known = False
    if _METRIC.search(text):
        read.reports[str(path)] = read_metrics(lines)
        known = True
    if _COMPILED_BY.search(text):
        read.analyses = [*(read.analyses or []), *read_debug(lines)]
        known = True
    if "## BEGIN_GRAPH" in text and "TensorsGraphInfo:" in text:
        read.saved = [*(read.saved or []), *read_saved(lines)]
        known = True
    elif text.lstrip().startswith("HloModule ") or "\nHloModule " in text:
        named = _MODULE_NAME.match(path.name)
        for number, part in enumerate(re.split(r"^(?=HloModule )", text, flags=re.M)):
            module = read_module(part)
            if module is not None:
                key = named["id"] if named else f"{path.name}#{number}"
                when = named["when"] if named else "printed"
                read.modules.setdefault(key, {})[when] = module
                known = True
    messages = [match["text"].strip() for line in lines if (match := _OTHER.match(line))]
    read.messages += messages
    return known or bool(messages)


def _summary(name: str, read: _Read) -> XlaProgram:
    metrics = read.metrics.metrics if read.metrics else {}
    counters = read.metrics.counters if read.metrics else {}

    def n(key: str) -> int | None:
        return metrics[key].n if key in metrics else None

    def total(key: str, scale: float = 1.0) -> float | None:
        value = metrics[key].total if key in metrics else None
        return None if value is None else value * scale

    if read.metrics is not None and read.metrics.n_skipped:
        read.skipped["lines that are no part of the metrics report"] += read.metrics.n_skipped
    analyses = read.analyses
    host = [Fallback(key, kind_of(key), count, None) for key, count in counters.items() if _FALLBACK.match(key)]
    return XlaProgram(
        name=name,
        paths=tuple(read.paths),
        n_compiled=n("CompileTime"),
        n_executed=n("ExecuteTime"),
        n_compiled_told=_reported(analyses, "compilation"),
        n_executed_told=_reported(analyses, "execution"),
        n_modules=len(read.modules) or None,
        n_saved=len({entry.hash for entry in read.saved}) if read.saved is not None else None,
        compile_ms=total("CompileTime", 1e-6),
        execute_ms=total("ExecuteTime", 1e-6),
        to_device=n("TransferToDeviceTime"),
        from_device=n("TransferFromDeviceTime"),
        to_device_bytes=total("OutboundData"),
        from_device_bytes=total("InboundData"),
        fallbacks=tuple(sorted(host, key=lambda row: (-row.first_step, row.name))),
        graphs=_graphs(read),
        counters=tuple(Count(key, count) for key, count in sorted(counters.items())),
        skipped=tuple(Count(key, count) for key, count in read.skipped.items()),
        notes=tuple(_notes(read)),
    )


def _reported(analyses: Sequence[Analysis] | None, kind: str) -> int | None:
    return None if analyses is None else sum(analysis.kind == kind for analysis in analyses)


def _graphs(read: _Read) -> tuple[HloGraph, ...]:
    """Return the graphs that debug output and saved tensors name, else those of the modules."""
    analyses, saved = read.analyses or [], read.saved or []
    blocks: dict[str, list[Analysis]] = {}
    for analysis in analyses:
        blocks.setdefault(analysis.hash, []).append(analysis)
    stored: dict[str, SavedGraph] = {}
    for graph in saved:
        stored.setdefault(graph.hash, graph)
    order = list(dict.fromkeys([*blocks, *stored]))
    if not order:
        return tuple(
            _of_modules(number, key, whens) for number, (key, whens) in enumerate(sorted(read.modules.items()))
        )
    runs = Counter(entry.hash for entry in saved if not is_lowering(entry.frames))
    ran = [analysis for analysis in analyses if analysis.kind == "execution"]
    runs += Counter(execution.hash for execution in ran if not saved or "dynamo is executing" in execution.cause)
    rows = []
    for number, key in enumerate(order):
        mine = sorted(blocks.get(key, []), key=lambda block: block.kind != "compilation")
        first = mine[0] if mine else None
        graph_saved = stored.get(key)
        frames = (first.frames if first else ()) or (graph_saved.frames if graph_saved else ())
        module = graph_saved.module if graph_saved else None
        why = from_dump(first.cause if first else "", frames)
        row = _of_module(number, key, module, why, frame=user_line(frames), n_runs=runs[key])
        if first:
            row = replace(row, n_inputs=first.n_inputs, n_outputs=first.n_outputs)
        rows.append(replace(row, n_aliased=None))
    return tuple(rows)


def _of_modules(number: int, key: str, whens: dict[str, HloModule]) -> HloGraph:
    module = whens.get("before_optimizations") or next(iter(whens.values()))
    after = next((optimised for when, optimised in whens.items() if "after" in when), None)
    text = f"module {module.name}"
    if after is not None and after is not module:
        text += f", {after.n_ops} instructions when optimised"
    text += "; an HLO module does not record why it was compiled"
    return _of_module(number, key, module, CauseReason("unknown", text, expected=True))


def _of_module(
    number: int, key: str, module: HloModule | None, why: CauseReason, *, frame: Frame | None = None, n_runs: int = 0
) -> HloGraph:
    return HloGraph(
        number=number,
        hash=key,
        cause=why.cause,
        reason=why.reason,
        extra=not why.expected,
        op="",
        fx="",
        frame=frame,
        step=None,
        n_inputs=len(module.inputs) if module else None,
        n_outputs=len(module.outputs) if module else None,
        n_aliased=module.aliased if module else None,
        n_ops=module.n_ops if module else None,
        compile_ms=None,
        first_step=n_runs,
        per_step=None,
    )


def _notes(read: _Read) -> Iterator[Note]:
    for text in dict.fromkeys(read.messages):
        yield Note("pt-xla-profiler", "info", f"torch_xla's own profiler: {text}")
    metrics = read.metrics
    if read.n_reports > 1:
        yield Note(
            "reports-of-several-files",
            "info",
            f"{read.n_reports} files have metrics reports: each is shown by itself, for they may be of several"
            " processes, or of one at several times",
        )
    if metrics is not None:
        if metrics.cut:
            yield Note(
                "report-cut",
                "warn",
                "the metrics report begins or ends in the middle: what is missing in it is not zero",
            )
        if metrics.repeated:
            yield Note(
                "several-reports", "info", "there are several metrics reports; they count up, and the last is reported"
            )
        compiled = metrics.metrics.get("CompileTime")
        blocks = _reported(read.analyses, "compilation")
        if compiled is not None and blocks is not None and compiled.n != blocks:
            yield Note(
                "counts-differ",
                "warn",
                f"the metrics count {compiled.n} compilations and PT_XLA_DEBUG reports {blocks}: blocks are printed by"
                " the first process alone, not in threads without Python, as the backward pass is",
                "add XLA_SAVE_TENSORS_FILE, which has all of them",
            )
    n_cut = sum(not analysis.hash for analysis in read.analyses or [])
    if n_cut:
        yield Note("blocks-cut", "warn", f"{n_cut} blocks of PT_XLA_DEBUG are cut")
    unexpected = sum(analysis.unexpected for analysis in read.analyses or [])
    if unexpected:
        yield Note(
            "unexpected-execution",
            "warn",
            f"{unexpected} executions inside a region of torch_xla.compile that allows none",
        )
