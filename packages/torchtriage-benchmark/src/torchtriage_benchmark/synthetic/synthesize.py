"""The benchmark's synthetic part: device timelines made from recorded CPU operator streams.

A group is a healthy program on a class of device, and twins of it with a fault: one that only a
device has, put into the stream, or one that was recorded, with its stream. The same recordings
and seed give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.errors import TraceFormatError, UsageError
from torchtriage.core.names import word_list
from torchtriage.learn.dataset import trace_codec
from torchtriage.learn.dataset.recordings import TRACE, DatasetItem, read_item
from torchtriage_benchmark.recording.checksums import check_plan
from torchtriage_benchmark.recording.plan import Item, plan, split_of
from torchtriage_benchmark.recording.program_generator import programs
from torchtriage_benchmark.synthetic.accelerators import ACCELERATORS
from torchtriage_benchmark.synthetic.batch_scaling import scaled
from torchtriage_benchmark.synthetic.document import Clock, document_of
from torchtriage_benchmark.synthetic.faults import FAULTS, LOOKALIKES, Scene, Shape, Spots, graphed, uploads
from torchtriage_benchmark.synthetic.gpu_build import to_device
from torchtriage_benchmark.synthetic.stream import LOADER, Stream, read_stream
from torchtriage_benchmark.synthetic.timeline import Machine, Run, Stall, run
from torchtriage_benchmark.synthetic.work import Precision

PART = "synthetic"
SOURCES, SOURCES_SEED = 600, 0
"""The programs they are made from: the first of the eager part's plan, of this seed."""
TIMED, SETTLE = 10, 3
MIN_COST = 0.01
"""Of a step. A fault that costs less here is hidden by the device's work, and none."""
RECORDED = frozenset(
    word_list("""
        LCH015 LCH016 OPT040 OPT041 CFG042 CFG043 CFG044 KRN025 CPY012 CPY013 DAT018 DAT019 HST020 HST021 SYN004
    """)
)
"""Faults of the eager part that are the same on a device; their streams are taken."""
_CERTAIN = frozenset({"CFG042", "CFG043", "CFG044", "KRN022"})
"""Wrong whatever they cost."""
_PIXELS = frozenset({"CPY007", "CPY008", "CPY009"})
"""Need batches that are worth a copy."""
_DTYPES = {"tf32": "float", "float": "float", "bf16": "c10::BFloat16", "fp16": "c10::Half"}
MAX_FACTOR = 1024
_SMALLER = {"H100": "A100", "A100": "L4", "A10G": "L4"}
"""What a program moves to that cannot fill a device with any batch."""


@dataclass(frozen=True)
class SyntheticItem:
    """One synthetic recording.

    ``base`` : the eager clean program it stands for; ``source`` : the eager item its stream is of.
    ``code`` : the fault's, empty for a healthy one; ``lookalike`` : what a healthy one has that
    looks like a fault.
    """

    id: str
    base: str
    source: str
    family: str
    mode: str
    loader: bool
    batch: int
    seed: int
    code: str
    severity: int
    twin: str
    stacks: bool
    accelerator: str
    precision: str
    graph: bool
    planes: bool
    lookalike: str = ""

    @property
    def split(self) -> str:
        """Where its family belongs."""
        return split_of(self.family)


def synthetic_plan(count: int, seed: int) -> tuple[SyntheticItem, ...]:
    """Return ``count`` items; a longer plan begins with the shorter one of its seed."""
    found: list[SyntheticItem] = []
    for item in _items(Random(f"synthetic {seed}")):
        if len(found) == count:
            break
        found.append(item)
    return tuple(found)


def _items(chance: Random) -> Iterator[SyntheticItem]:
    eager = plan(SOURCES, SOURCES_SEED)
    bases = [item for item in eager if not item.code and item.batch > 1]
    twins: dict[str, list[Item]] = {}
    for twin in eager:
        if twin.code in RECORDED:
            twins.setdefault(twin.twin, []).append(twin)
    taken: Counter[str] = Counter()
    number = 0
    while True:
        for base in bases:
            for item in _group(base, twins.get(base.id, []), taken, chance, number):
                # no healthy program where tensor cores stand by: its number stays free
                if item.precision != "float":
                    yield item
                number += 1


def _group(
    base: Item, recorded: list[Item], taken: Counter[str], chance: Random, number: int
) -> Iterator[SyntheticItem]:
    """Yield a healthy program and its twins."""
    accelerator = ACCELERATORS[chance.choice([item for item in ACCELERATORS if item != "T4"] * 2 + ["T4"])]
    if base.mode == "train" and accelerator.precisions[0] == "fp16":
        accelerator = ACCELERATORS["A100"]  # fp16 training needs a scaler that was not recorded
    precisions = accelerator.precisions if base.mode == "infer" else accelerator.precisions[:1]
    precision = chance.choice(precisions)
    conv = "conv" in programs()[base.family].has
    fitting = [code for code in FAULTS if _fits(code, base, conv, precision, accelerator.name)]
    chance.shuffle(fitting)
    fitting.sort(key=lambda code: taken[code])
    first = fitting[0]
    wanted = dict(FAULTS[first].clean)
    chosen = [first]
    if not wanted.get("graph"):
        chosen += [item for item in fitting[1:] if not dict(FAULTS[item].clean).get("graph")][:1]
    clean = SyntheticItem(
        f"s{number:04d}",
        base.id,
        base.id,
        base.family,
        base.mode,
        base.loader,
        base.batch,
        chance.randrange(10**6),
        "",
        0,
        f"s{number:04d}",
        base.stacks,
        accelerator.name,
        precision,
        bool(wanted.get("graph")),
        not conv,
    )
    yield clean
    for code in chosen:
        taken[code] += 1
        number += 1
        yield replace(clean, id=f"s{number:04d}", code=code, severity=chance.choice(FAULTS[code].severities))
    if clean.graph:
        return
    if recorded:
        number += 1
        recording = chance.choice(recorded)
        yield replace(clean, id=f"s{number:04d}", source=recording.id, code=recording.code, severity=recording.severity)
    if chance.random() < 0.4:
        number += 1
        yield replace(clean, id=f"s{number:04d}", lookalike=chance.choice(list(LOOKALIKES)))


def _fits(code: str, base: Item, conv: bool, precision: str, accelerator: str) -> bool:
    if base.mode not in FAULTS[code].modes:
        return False
    if code in _PIXELS:
        return programs()[base.family].task != "language"
    if code == "CPY011":
        return conv
    if code == "KRN022":
        # the fp32 units of an A10G are as fast as its TF32 ones
        return precision == "tf32" and accelerator != "A10G"
    return True


# -- one item ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How one item went. ``failure`` : empty when it was made, or was there before."""

    item: SyntheticItem
    failure: str = ""
    kept: bool = False


def synthesize(
    items: Iterable[SyntheticItem], folder: Path, *, report: Callable[[Outcome], None] = lambda _: None
) -> tuple[Outcome, ...]:
    """Make items in a folder that has the eager recordings they are made from.

    ``ID.ttcol`` is the trace, ``ID.json`` what is known of it. What is there is kept.

    Raises UsageError: the recordings, or timelines that are there, are of another seed.
    """
    check_plan(folder, SOURCES_SEED)
    items, outcomes = tuple(items), []
    for item in items:
        _check_kept(item, folder / f"{item.id}.json")
    for item in items:
        outcomes.append(_make(item, folder))
        report(outcomes[-1])
    return tuple(outcomes)


def _check_kept(item: SyntheticItem, path: Path) -> None:
    """Check that what is there of an item is of it; where it runs, and a fault that costs nothing, may differ."""
    wanted = {key: value for key, value in asdict(item).items() if key not in ("accelerator", "code")}
    if path.exists() and not wanted.items() <= read_item(path).about.items():
        raise UsageError(
            f"expected the timeline {item.id} of this seed in {path}, found another",
            hint="give the --seed it was made with, or remove the folder's timelines (s*.json, s*.ttcol)",
        )


def _make(item: SyntheticItem, folder: Path) -> Outcome:
    path = folder / f"{item.id}.json"
    if path.exists():
        return Outcome(item, kept=True)
    try:
        about, document = made(item, folder)
    except (UsageError, TraceFormatError) as error:
        return Outcome(item, str(error))
    trace = trace_codec.pack(document)
    about["sha256"] = hashlib.sha256(trace).hexdigest()
    for name, data in ((f"{item.id}{TRACE}", trace), (path.name, json.dumps(about, indent=1).encode())):
        draft = folder / f"{name}.draft"
        draft.write_bytes(data)
        draft.replace(folder / name)
    return Outcome(item)


def made(item: SyntheticItem, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is known of an item, and its trace's document.

    Raises UsageError: a recording it is made from is not in the folder.
    """
    clean = replace(item, id=item.twin, source=item.base, code="", severity=0, lookalike="")
    base, source = _recording(folder, item.base), _recording(folder, item.source)
    accelerator, factor, healthy_ns = _healthy(clean, base)
    item = replace(item, accelerator=accelerator)
    scene = _Scene(item, source, factor)
    steps_ns = scene.timed()
    code, hidden = item.code, ""
    gained_ns = median(steps_ns) - healthy_ns
    if code and code not in _CERTAIN and gained_ns < MIN_COST * healthy_ns:
        code, hidden = "", item.code
    found = scene.profiled()
    host, device = scene.label(found) if code else ([], [])
    about = asdict(item) | {
        "part": PART,
        "code": code,
        "hidden": hidden,
        "task": programs()[item.family].task,
        "split": item.split,
        "device": f"synthetic {item.accelerator}",
        "torch": source.about["torch"],
        "batch_factor": factor,
        "fault_lines": [],
        "intervals_ns": _union([*host, *device]),
        "host_intervals_ns": _union(host),
        "device_intervals_ns": _union(device),
        "step_ns": steps_ns,
        "source_sha256": source.about["sha256"],
        "script": base.about["script"],
    }
    return about, document_of(scene.stream, found, scene.accelerator)


@cache
def _healthy(clean: SyntheticItem, base: DatasetItem) -> tuple[str, int, float]:
    """Return where a healthy program runs, how many times its batch, and the time of a step."""
    factor = _factor(clean, base)
    while not clean.graph and factor > MAX_FACTOR and clean.accelerator in _SMALLER:
        clean = replace(clean, accelerator=_SMALLER[clean.accelerator])
        factor = _factor(clean, base)
    factor = min(factor, MAX_FACTOR)
    return clean.accelerator, factor, median(_Scene(clean, base, factor).timed())


@cache
def _recording(folder: Path, number: str) -> DatasetItem:
    path = folder / f"{number}.json"
    if not path.exists():
        raise UsageError(
            f"expected the recording {number} to make it from, found none in {folder}",
            hint="torchtriage benchmark dataset record makes it",
        )
    return read_item(path)


@lru_cache(maxsize=4)
def _document(kept: DatasetItem) -> dict[str, Any]:
    return kept.document()


@lru_cache(maxsize=4)
def _brief(kept: DatasetItem) -> dict[str, Any]:
    """Return the operators of one step alone."""
    document = _document(kept)
    marks = [item for item in document["traceEvents"] if item["name"].startswith("ProfilerStep#")]
    mark = sorted(marks, key=lambda mark: float(mark["ts"]))[1]
    begin, end = mark["ts"], mark["ts"] + mark["dur"]
    inside = [
        item
        for item in document["traceEvents"]
        if item.get("cat") in ("cpu_op", "user_annotation") and begin <= item["ts"] < end
    ]
    return document | {"traceEvents": inside}


def _union(spans: list[tuple[int, int]]) -> list[list[int]]:
    union: list[list[int]] = intervals.union(np.array(spans, np.int64).reshape(-1, 2)).tolist()
    return union


def _drawn(chance: Random, low: float, high: float) -> float:
    return math.exp(math.log(low) + (math.log(high) - math.log(low)) * chance.random())


_ASKING = 0.7
"""Of the programs: with versions of the libraries that ask the runtime before each product."""


def _machine(item: SyntheticItem, inflation: float, **more: Any) -> Machine:
    """Return what a pair of twins runs on: drawn from their common seed."""
    chance = Random(f"machine {item.seed}")
    speed = _drawn(chance, 0.45, 0.95)
    slowed = inflation * _drawn(chance, 0.85, 1.15)
    device = ACCELERATORS[item.accelerator]
    pageable = _drawn(chance, *device.pageable_gbps)

    def share(group: str) -> float:
        return _drawn(Random(f"{item.seed} {group}"), 0.62, 1.08)

    asks = Random(f"queries {item.seed}").random() < _ASKING
    return Machine(device, speed, slowed, cache(share), pageable, asks=asks, **more)


def _inflation(stream: Stream) -> float:
    """Return what the profiler makes of host time, with shapes, and with stacks beside them."""
    return 2.2 if stream.document.get("with_stack") else 2.0


class _Scene:
    """An item's stream on its device."""

    def __init__(self, item: SyntheticItem, source: DatasetItem, factor: int, *, brief: bool = False) -> None:
        self.item, self.accelerator = item, ACCELERATORS[item.accelerator]
        fault = FAULTS.get(item.code) if item.source == item.base else None
        self.fault = fault
        settings = dict(fault.settings) if fault else {}
        stream = self.stream = read_stream((_brief if brief else _document)(source))
        chance = Random(f"stream {item.seed} {item.code} {item.lookalike}")
        if item.source != item.base:
            _mark(stream, source.about["intervals_ns"])
        period_us = _fetch(stream, item, chance)
        inputs = _inputs(stream, item.batch, factor, _DTYPES[item.precision])
        scaled(stream, item.batch, factor)
        rate = settings.get("rate", "tf32" if item.precision == "tf32" else "float")
        planes = settings.get("planes", item.planes)
        converts = planes and not item.planes
        to_device(stream, self.accelerator, Precision(rate, converts), _DTYPES[item.precision], planes=planes)
        spots = Spots(stream)
        result = _result(stream, item.batch * factor)
        size = sum(math.prod(dims) for dims, _ in inputs)
        usual = "prefetched" if size >= 1 << 18 else "enqueued"
        uploads(stream, inputs, spots, settings.get("upload", usual))
        scene = Scene(stream, spots, inputs, result, chance)
        if fault is not None:
            fault.put(scene, item.severity)
        if item.lookalike:
            LOOKALIKES[item.lookalike](scene)
        if settings.get("graph", item.graph):
            graphed(stream)
        self.machine = _machine(item, _inflation(stream), period_us=period_us, blocking=bool(settings.get("blocking")))

    def timed(self) -> list[int]:
        """Return the times of some steps without the profiler."""
        chance = Random(f"timed {self.item.seed} {self.item.id}")
        return run(self.stream, self.machine, chance, profiled=False, n_steps=SETTLE + TIMED).step_ns[SETTLE:]

    def profiled(self) -> Run:
        """Return what the profiler would see."""
        return run(self.stream, self.machine, Random(f"profiled {self.item.seed} {self.item.id}"))

    def label(self, found: Run) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return when the fault was at work on the host, and on the device."""
        clock = Clock(self.stream, found)
        shows = self.fault.shows if self.fault else "ops"

        def spans(rows: Iterable[Any]) -> list[tuple[int, int]]:
            return [(clock.ns(row.begin), clock.ns(row.end)) for row in rows]

        begun = found.window[0]
        works = [work for work in found.works if work.seen and work.begin >= begun]
        if shows == "ops":
            host = spans(host for host in found.hosts if host.fault)
            host += [(clock.ns(call.begin), clock.ns(call.end)) for call in found.calls if call.fault]
            return host, spans(work for work in works if work.fault)
        if shows == "phase":
            return _phases(found, clock), spans(works)
        kinds = tuple(shows.split())
        return [], spans(work for work in works if work.work.group.startswith(kinds) and work.work.rate == "float")


def _phases(found: Run, clock: Clock) -> list[tuple[int, int]]:
    """Return each step from its first work on the device to its end."""
    rows = []
    steps = [host for host in found.hosts if host.name.startswith("ProfilerStep#")]
    for step in steps:
        inside = [call for call in found.calls if step.begin <= call.begin < step.end]
        if inside:
            rows.append((clock.ns(inside[0].begin), clock.ns(inside[-1].end)))
    return rows


# -- what a program has on a device that the recording has not ---------------------------------


def _mark(stream: Stream, intervals_ns: list[list[int]]) -> None:
    """Mark the operators that ran while the recorded fault was at work."""
    at = 0
    for op in sorted(stream.ops(), key=lambda item: item.begin_ns):
        while at < len(intervals_ns) and intervals_ns[at][1] <= op.begin_ns:
            at += 1
        if at < len(intervals_ns) and op.begin_ns >= intervals_ns[at][0]:
            op.fault = op.end_ns <= intervals_ns[at][1]


def _fetch(stream: Stream, item: SyntheticItem, chance: Random) -> float:
    """Let workers load the batches, unless that is the fault; return a late loader's period, us."""
    if item.code == "DAT018":
        return 0.0
    loads = [op for step in stream.steps for op in step.ops if op.name.startswith(LOADER)]
    period_us = 0.0
    if item.code == "DAT019":
        ends = [op.end_ns for op in loads]
        period_us = median(b - a for a, b in pairwise(ends)) / 1000
    spans = []
    usual_us = _drawn(chance, 90, 320)
    for op in loads:
        spans.append((op.begin_ns, op.end_ns))
        op.name = f"{LOADER}_MultiProcessingDataLoaderIter.__next__"
        op.children = []
        op.actions = [Stall(us=usual_us, until_ready=period_us > 0)]
    stream.frames = [
        frame
        for frame in stream.frames
        if not any(a < frame["ts"] * 1000 and (frame["ts"] + frame["dur"]) * 1000 < b for a, b in spans)
    ]
    return period_us


_LOSSES = ("aten::cross_entropy_loss", "aten::mse_loss", "aten::l1_loss", "aten::smooth_l1_loss")


def _inputs(stream: Stream, batch: int, factor: int, dtype: str) -> list[Shape]:
    """Return the tensors of a batch: the model's input, and what the loss compares with."""
    found: list[Shape] = []
    step = stream.steps[0]
    kinds = {4: "float", 2: "long int"}

    def add(dims: list[int], kind: str) -> None:
        shape: Shape = ((dims[0] * factor, *dims[1:]), dtype if kind == "float" else kind)
        if shape not in found:
            found.append(shape)

    for top in step.ops:
        if top.name.startswith(LOADER):
            continue
        for op in top.walk():
            dims, types = op.args.get("Input Dims") or [], op.args.get("Input type") or []
            for dim, kind in zip(dims, types, strict=False):
                if not found and dim and kinds.get(len(dim)) == kind and dim[0] == batch:
                    add(dim, kind)
            if op.name in _LOSSES and len(dims) > 1 and dims[1] and dims[1][0] % batch == 0:
                add(dims[1], types[1])
    return found or [((batch * factor, 64), "float")]


def _result(stream: Stream, batch: int) -> Shape:
    """Return what the forward pass ends with: the last tensor of the batch before the backward."""
    last: Shape = ((batch, 16), "float")
    for op in stream.steps[0].ops:
        if op.name.startswith(("Optimizer.zero_grad#", "autograd::engine::")):
            break
        dims, types = op.args.get("Input Dims") or [], op.args.get("Input type") or []
        for item, kind in list(zip(dims, types, strict=False))[:1]:
            if (
                isinstance(item, list)
                and len(item) > 1
                and isinstance(item[0], int)
                and item[0] % batch == 0
                and kind in ("float", "c10::BFloat16", "c10::Half")
            ):
                last = (tuple(item), kind)
    return last


def _factor(item: SyntheticItem, base: DatasetItem) -> int:
    """Return how many times as large a batch this device gets, beyond ``MAX_FACTOR`` if too many.

    People choose the batch so that the device has enough to do. A program that is replayed as a
    graph has a small one, which is why it needs to be.
    """
    chance = Random(f"factor {item.seed}")
    wanted = _drawn(chance, 0.12, 0.3) if item.graph else _drawn(chance, 1.1, 2.6)
    eager = replace(item, graph=False)

    def fills(factor: int) -> bool:
        host, device = _loads(eager, base, factor)
        return device >= wanted * host

    factor = 16
    if fills(factor):
        while factor > 1 and fills(factor // 2):
            factor //= 2
    else:
        factor = 32
        while factor <= MAX_FACTOR and not fills(factor):
            factor *= 2
    return max(factor // 2, 1) if item.graph else factor


def _loads(item: SyntheticItem, base: DatasetItem, factor: int) -> tuple[float, float]:
    """Return how long the host and the device work for a step, under the profiler."""
    scene = _Scene(item, base, factor, brief=True)
    found = run(scene.stream, scene.machine, Random(f"loads {item.seed}"))
    device = sum(work.end - work.begin for work in found.works if work.seen and work.stream == 7)
    host = found.hosts[0].end - found.hosts[0].begin
    waited = sum(call.end - call.begin for call in found.calls if call.waits)
    return max(host - waited, 1.0), device
