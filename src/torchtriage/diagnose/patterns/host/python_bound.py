"""The step waits while the host runs Python, holds a lock or does I/O.

Looks like: stretches of at least 1 ms in which the device is idle because the next launch is late, and in which the
    launching thread spent less than half of the time in operators or runtime calls; together 5 % of the step. Time in
    loaders, garbage collection, ``time.sleep`` and the profiler itself is excluded, and so are the waits of a loop that
    keeps its own pace, such as a controller's for its next tick (the doctor's ``paced-loop`` says its slack). On a CPU:
    the same stretches of the main thread, between ops, where the same frames run between the same ops in step after
    step; waits inside the backward engine and in calls of torch.distributed are not Python.
Slow because: nothing is enqueued while the host prepares inputs, waits for a lock or writes a file.
Cost: the device idle time outside ops (on a CPU: the host time); low counts half of it, divided by the profiler's
    inflation.
Fix: by what runs there: preprocessing goes to workers, a walk over the modules is done once, files are read ahead and
    written behind, waits come after the next launch; a loop over elements becomes one operation on the whole array or
    tensor, and what is the same in every step is computed once.
Leave it when: the work depends on the result of this very step and cannot be prepared earlier.
Source: PyTorch performance tuning guide; measured: image preprocessing of TimeSformer, 217 of 382 ms. Stretches below
    1 ms are module code between ops, which launch-bound covers.
"""

import re
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.frames import hot_frame, own_time_ns, parse_frame, top_frames
from torchtriage.core.units import format_ns, ms
from torchtriage.diagnose.patterns._host_gaps import (
    MAX_STEPS,
    MIN_SHARE,
    MIN_STRETCH_NS,
    between_ops,
    has_its_place,
    loaders_and_first_use,
)
from torchtriage.diagnose.patterns._late_launches import MAX_WORK
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Pattern, Spans, Trace

PATTERN = Pattern.of(__name__, "HST020", "The step waits for Python", order=370, needs="ops gaps")
_GUIDE = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
FIX = Fix(
    text="Look at what runs there: turn a loop over elements into one operation on the whole array or tensor, and"
    " compute what is the same in every step once, before the loop.",
    code="""image = (image * scale + offset).clamp(0, 1)  # in place of a loop over its pixels
plan = make_plan(model)  # in place of the same plan in every step""",
    link=_GUIDE,
)
_LOADED = Fix(
    text="Move this work to DataLoader workers or another thread: prepare the next batch while the device computes.",
    code="""upcoming = executor.submit(preprocess, next_raw)  # while the device computes
...
outputs = model(upcoming.result())""",
    link=_GUIDE,
)
_WALKED = Fix(
    text="Walk the modules once and keep the list: it is the same in every step.",
    code="""blocks = [block for block in model.modules() if isinstance(block, Block)]  # once
for block in blocks:
    block.set_context(context)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.named_modules",
)
_AWAITED = Fix(
    text="Enqueue the next work before waiting, and find out who holds the lock or fills the queue late.",
    code="""outputs = model(batch)  # enqueued: the device works while the host waits
item = results.get()""",
    link="https://docs.python.org/3/library/queue.html",
)
_WRITTEN = Fix(
    text="Read ahead and write behind in another thread, in fewer and larger pieces.",
    code="executor.submit(write_results, outputs.to('cpu', non_blocking=True))",
    link="https://docs.python.org/3/library/concurrent.futures.html",
)
_UNKNOWN = Fix(
    text="Record two or three steps with Python stacks: they name the code that runs there.",
    code="profile(with_stack=True)",
    link="https://docs.pytorch.org/docs/stable/profiler.html",
)

_ENGINE = r"^<built-in method run_backward of"
_PAUSE = r"P(?<!.P)ython GC|<(?<!.<)built-in function (?:collect|sleep)>|torch(?<![^/]torch)/(?:autograd/)?profiler"
"""Garbage collection is another finding; who sleeps meant to; the profiler is not the program."""
_EXCHANGE = (
    r"(^|/)torch/distributed/(distributed_c10d|c10d_logger)\.py"
    r"|^<built-in method (wait|barrier|send|recv\w*|_?(broadcast|all|reduce|gather|scatter)\w*)"
    r" of (PyCapsule|pybind11_)"
)
"""On the host these wait for other ranks, which is communication."""
_MACHINERY = (
    r"(^|/)torch/(optim/\w+\.py"
    r"|nn/(functional\.py|modules/((?!module\.py)\w+\.py|module\.py\(\d+\): _(wrapped_)?call_impl$)))"
)
"""What only calls operators takes microseconds: what holds that up is the machine, and nothing that could be kept."""
_KINDS = {
    "module walk": (r"named_(modules|parameters|buffers|children)|torch/nn/modules/module\.py.*: modules$", _WALKED),
    "preprocessing": (r"PIL|cv2|numpy|image|tokeniz|transforms|scipy|librosa|feature_extract|decode", _LOADED),
    "waiting": (r"lock|queue|threading|acquire|\bwait\b|select|poll|sleep", _AWAITED),
    "input and output": (r"\bopen\b|json|pickle|\bread|\bwrite|socket|requests|serialization|ssl", _WRITTEN),
}
_UNSEEN = "not known without stacks"


def find(trace: Trace) -> Claims:
    """Yield one claim for the stretches of host work that hold the device up."""
    on_device = bool(trace.devices)
    if not on_device and not (trace.is_host_only and trace.has_stacks):
        return  # uncovered time may as well be a wait for a device that was not recorded
    stretches = _device_stretches(trace) if on_device else _host_stretches(trace)
    spans = intervals.union(np.concatenate([intervals.EMPTY, *stretches.values()]))
    lost = intervals.intersect(spans, trace.steps.judged)
    lost_ns = intervals.length(lost)
    if not lost_ns or lost_ns < MIN_SHARE * intervals.length(trace.steps.judged):
        return
    if not on_device and not (has_its_place(trace, lost) and _recurs(trace, lost)):
        return
    n_steps = trace.steps.n_steady
    evidence: dict[str, Any] = {
        ("gpu_idle_ms_per_step" if on_device else "host_ms_per_step"): ms(lost_ns / n_steps),
        "share_of_step": round(lost_ns / intervals.length(trace.steps.judged), 6),
        "n_stretches_per_step": round(len(lost) / n_steps, 2),
        "longest_stretch_ms": ms(int((lost[:, 1] - lost[:, 0]).max())),
    }
    hot, frames = _attribute(trace, stretches, evidence)
    if hot >= 0 and re.search(_MACHINERY, trace.name_of(hot)):
        return
    kind = evidence.setdefault("kind", _UNSEEN)
    evidence["profiler_inflation"] = trace.origin.inflation
    where = ""
    if hot >= 0 and (frame := parse_frame(trace.name_of(hot))) is not None:
        where = f", more than half of it in {frame.function}() of {frame.file}"
    lost_of = f"{format_ns(lost_ns / n_steps)} of {format_ns(trace.steps.wall_ns)}"
    yield Claim(
        message=f"the {trace.origin.device_word} stands idle for {lost_of} {trace.steps.per} while host code runs"
        f" between operators{where}"
        if on_device
        else f"the main thread spends {lost_of} {trace.steps.per} between operators{where}",
        certainty="likely" if len(frames) else "hint",
        rows=frames if len(frames) else _next_rows(trace, spans),
        spans=spans,
        gain_low=0.5 / trace.origin.inflation,
        time_class="idle" if on_device else "host",
        method="idle time of the device outside ops of the launching thread"
        if on_device
        else "time of the main thread outside ops",
        evidence=evidence,
        fix=_UNKNOWN if kind == _UNSEEN else _KINDS[kind][1] if kind in _KINDS else FIX,
        anchor=hot,
        edits=(Edit("threads", factor=0.5, best=0.0, spans=spans),),
    )


def _device_stretches(trace: Trace) -> dict[int, Spans]:
    device = trace.devices[0]
    gaps, work = device.gaps, device.host_work
    length = gaps.spans[:, 1] - gaps.spans[:, 0]
    late = (gaps.blame == 0) & (length >= MIN_STRETCH_NS)
    late &= intervals.covered(gaps.spans, work) < MAX_WORK * length
    found = {}
    for lane in distinct(device.gap_lane[late]).tolist():
        mine = gaps.spans[late & (device.gap_lane == lane)]
        found[lane] = _without_others(trace, lane, intervals.subtract(intervals.union(mine), work))
    return found


def _host_stretches(trace: Trace) -> dict[int, Spans]:
    exchanges = trace.matching(_EXCHANGE, Kind.PYTHON) & (trace.lane == trace.steps.lane)
    free = intervals.subtract(between_ops(trace), intervals.union(trace.spans_of(np.flatnonzero(exchanges))))
    free = intervals.subtract(free, _engine(trace))
    free = free[free[:, 1] - free[:, 0] >= MIN_STRETCH_NS]
    return {trace.steps.lane: _without_others(trace, trace.steps.lane, free)}


def _engine(trace: Trace) -> Spans:
    """Return the time inside the backward engine in which it called no Python.

    It waits there for other threads, and for other ranks.
    """
    engine = trace.matching(_ENGINE, Kind.PYTHON)
    parent = trace.frames.parent
    called = np.flatnonzero((parent >= 0) & engine[parent])
    rows = np.flatnonzero(engine)
    return intervals.subtract(trace.time_of(rows), trace.time_of(called))


def _recurs(trace: Trace, lost: Spans) -> bool:
    """Return whether the same frames take the time in step after step.

    A thread that loses its core to another process stretches a different frame each time.
    """
    steps = trace.steps
    walls = intervals.spans(steps.start_ns, steps.end_ns)[steps.steady][:MAX_STEPS]
    if len(walls) < 3:
        return True
    by_step = []
    for wall in walls:
        _, own = own_time_ns(trace, steps.lane, intervals.intersect(lost, wall[None, :]))
        by_step.append(np.bincount(trace.name, weights=own, minlength=len(trace.names)))
    usual = np.percentile(by_step, 50, axis=0, method="lower").sum()
    return bool(2 * usual >= np.sum(by_step) / len(walls))


def _without_others(trace: Trace, lane: int, spans: Spans) -> Spans:
    # a thread that sleeps beside the loop, such as one that looks at stacks, does not hold it up
    rows = np.flatnonzero(trace.matching(_PAUSE, Kind.PYTHON) & (trace.lane == lane))
    spans = intervals.subtract(intervals.subtract(spans, loaders_and_first_use(trace)), trace.time_of(rows))
    return spans if trace.steps.pace is None else intervals.subtract(spans, trace.steps.pace.waits)


def _attribute(trace: Trace, stretches: dict[int, Spans], evidence: dict[str, Any]) -> tuple[int, Ints]:
    """Name the frames that ran meanwhile; return the hottest one and all of them."""
    if not trace.has_stacks:
        return -1, np.empty(0, np.int64)
    found: tuple[Ints, Ints] | None = None
    span_ns = 0
    for lane, spans in stretches.items():
        inside = intervals.intersect(spans, trace.steps.judged)
        found = own_time_ns(trace, lane, inside, found)
        span_ns += intervals.length(inside)
    if found is None or not found[1].any():
        return -1, np.empty(0, np.int64)
    total, own = found
    frames = np.flatnonzero(own)
    best = top_frames(trace, own)
    hot = hot_frame(trace, total, span_ns)
    if hot >= 0:
        evidence["hot_frame"] = trace.name_of(hot)
    evidence["kind"] = _kind(trace, own, hot)
    evidence["top_frames_ms_per_step"] = {name: ms(ns / trace.steps.n_steady) for name, ns in best}
    return hot, frames


def _kind(trace: Trace, own_ns: Ints, hot: int) -> str:
    """Return what most of the time is: by the function it is spent in, else by the frames that run themselves."""
    if hot >= 0:
        for kind, (pattern, _) in _KINDS.items():
            if re.search(pattern, trace.name_of(hot)):
                return kind
    rows = np.flatnonzero(own_ns)
    by_name = trace.sum_by_name(rows, own_ns)
    spent = {trace.names[code]: by_name[code] for code in np.flatnonzero(by_name).tolist()}
    for kind, (pattern, _) in _KINDS.items():
        mine = sum(ns for name, ns in spent.items() if re.search(pattern, name))
        if 2 * mine > by_name.sum():
            return kind
    return "python"


def _next_rows(trace: Trace, spans: Spans) -> Ints:
    if not trace.devices:
        return np.empty(0, np.int64)
    gaps = trace.devices[0].gaps
    return gaps.next_row[intervals.covered(gaps.spans, spans) > 0]
