"""What a run works on, and why two runs must not be compared.

The difference between unlike runs is no saving: another device, other sizes or another model
change the step time for reasons nobody asked about. What a fix changes is let through: the same
layers on the same data may run in another order, batched, compiled or on another stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.finding import Note
from torchtriage.core.names import word_list
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.schema import BACKWARD_NODE, LOADER_NAME
from torchtriage.core.units import format_count, format_share
from torchtriage.diagnose.compare.result import Unlike
from torchtriage.diagnose.compare.served import Served, served, unlike_served
from torchtriage.diagnose.verdict.result import EARLY_END, MISSING_ROWS

MIN_LAYERS = 0.5
"""Share of the smaller run's weight shapes that the other must have: 1.0 between runs of one
program, compiled or not; 0-0.33 between models of one kind (measured)."""
MIN_NAMES = 0.6
"""Likeness of operator names where no weights were recorded: 0.87-1.0 within a program, 0.3-0.5
between training scripts of different models (measured)."""
FEW_LAYERS = 3
"""Fewer shared weight shapes prove nothing where graph replays hide the others."""
SAME_VOLUME = 0.02
"""Relative difference in the arithmetic of one step that is still the same work."""
HIDDEN_ALIKE = 0.05
"""Difference in the share of kernels without operators within which two runs hide as much."""
COLD_SHARE = 0.10
"""First use and compilation in the judged time above which it measures no steady state."""
HOST_MATTERS = 0.02
"""Share of a step in which the device waits for the host, above which profiler options count."""

_PRODUCTS = word_list("""
    aten::linear aten::addmm aten::_addmm_activation aten::addmv aten::mm aten::mv aten::matmul aten::convolution
""")
_BACKWARD = rf"^{BACKWARD_NODE}|Backward\d*$"
_OPTIMIZER = r"^Optimizer\.step#"
_ATTENTION = "aten::scaled_dot_product_attention"
_REPLAY = r"GraphLaunch"
_COMPILED = r"^triton_|CompiledFxGraph|Torch-Compiled Region"


@dataclass(frozen=True)
class Workload:
    """What one run does per step; plain data, so that the trace can be dropped.

    ``calls`` : shapes of the weights in matrix products and convolutions of the forward pass, to how
    often each is used per step and its multiply-adds.
    ``volume`` : multiply-adds of those per step; ``volume_error`` : the relative standard error of
    that mean. ``attention`` : multiply-adds of attention operators per step. ``sized`` : operators
    have shapes. ``compiles``/``replays`` : code of torch.compile, or graph replays, do part of it
    without operators, so that the volume is a lower bound; ``hidden`` : the share of kernels that they launch.
    """

    vendor: str
    device: str
    n_devices: int
    world_size: int | None
    rank: int | None
    per: str
    basis: str
    n_steady: int
    trains: bool
    flags: tuple[str, ...]
    inflation: float
    host_share: float
    calls: dict[tuple[int, ...], tuple[float, float]]
    volume: float
    volume_error: float
    attention: float
    sized: bool
    compiles: bool
    replays: bool
    hidden: float
    names: dict[str, float]
    kernels: dict[str, float]
    notes: tuple[Note, ...]
    cold: bool
    served: Served

    @property
    def layers(self) -> frozenset[tuple[int, ...]]:
        """Shapes of the weights."""
        return frozenset(self.calls)

    @property
    def hides_work(self) -> bool:
        """Whether part of the work shows no operators."""
        return self.compiles or self.replays


def workload(trace: Trace, notes: tuple[Note, ...]) -> Workload:
    """Return what a run works on; ``notes`` are the doctor's about this recording."""
    origin, steps = trace.origin, trace.steps
    calls, volume = _products(trace, *_PRODUCTS)
    mean = float(volume.mean()) if len(volume) else 0.0
    error = 0.0
    if len(volume) > 1 and mean:
        error = float(volume.std(ddof=1) / np.sqrt(len(volume)) / mean)
    late = 0.0
    if trace.devices:
        pieces = trace.devices[0].classes(steps.judged)
        wall = max(sum(classes.wall_ns for classes in pieces), 1)
        late = sum(classes.idle_host_late_ns for classes in pieces) / wall
    return Workload(
        vendor=origin.vendor,
        device=trace.devices[0].name if trace.devices else "",
        n_devices=len(trace.devices),
        world_size=origin.world_size,
        rank=origin.rank,
        per="step" if len(steps) else "window",
        basis=_basis(trace),
        n_steady=steps.n_steady,
        trains=bool((trace.is_kind(Kind.OP, Kind.ANNOTATION) & trace.matching(f"{_BACKWARD}|{_OPTIMIZER}")).any()),
        flags=origin.flags,
        inflation=origin.inflation,
        host_share=late if trace.devices else 1.0,
        calls=calls,
        volume=mean,
        volume_error=error,
        attention=float(_products(trace, _ATTENTION)[1].mean()),
        sized=trace.has_shapes,
        compiles=bool(trace.matching(_COMPILED).any()),
        replays=bool(trace.matching(_REPLAY).any()),
        hidden=_hidden(trace),
        names=_names(trace, Kind.OP),
        kernels=_names(trace, Kind.KERNEL),
        notes=notes,
        cold=_cold(trace, notes),
        served=served(trace),
    )


def unlike(before: Workload, after: Workload, *, across: bool = False) -> tuple[Unlike, ...]:
    """Return every reason why two runs must not be compared, the plainest first; none is good.

    ``across`` : two kinds of device are what is compared.
    """
    if across and before.device and after.device and before.n_devices == after.n_devices:
        before = replace(before, device=after.device, vendor=after.vendor)
    return tuple(reason for check in _CHECKS for reason in check(before, after))


def limits(before: Workload, after: Workload) -> tuple[Note, ...]:
    """Return what a reader must know about a comparison that was made all the same."""
    return tuple(note for check in _LIMITS for note in check(before, after))


# -- reasons -----------------------------------------------------------------------------------


def _unusable(before: Workload, after: Workload) -> Iterator[Unlike]:
    for side, run in (("before", before), ("after", after)):
        refusal = next((note for note in run.notes if note.level == "refuse"), None)
        if refusal is not None:
            yield Unlike(
                "unusable",
                f"the run {side} cannot be analysed: {refusal.message}",
                refusal.message if side == "before" else "",
                refusal.message if side == "after" else "",
                refusal.fix,
            )


def _rows(before: Workload, after: Workload) -> Iterator[Unlike]:
    # what is not in one of the files would look like time that was saved
    sides = [
        next((note for note in run.notes if note.code in (*MISSING_ROWS, EARLY_END) and note.level != "refuse"), None)
        for run in (before, after)
    ]
    lacking = [note for note in sides if note is not None]
    if len(lacking) == 1:
        side, whole = ("before", "after") if sides[0] else ("after", "before")
        message = f"rows are missing in the run {side}, not in the one {whole}: missing rows are no saving"
    elif any(note.code == EARLY_END for note in lacking):
        message = "rows are missing in both runs: they may not show the same work"
    else:
        return
    first, second = (note.message if note else "" for note in sides)
    yield Unlike("missing-rows", message, first, second, lacking[0].fix)


def _device(before: Workload, after: Workload) -> Iterator[Unlike]:
    first, second = _device_text(before), _device_text(after)
    known = (before.device and after.device) or before.vendor != after.vendor
    if before.n_devices != after.n_devices or (known and first != second):
        yield Unlike(
            "device",
            f"recorded on different devices: {first} before, {second} after",
            first,
            second,
            "record both runs on the same kind of device"
            + (", or compare the two kinds with --across" if before.n_devices == after.n_devices else ""),
        )


def _device_text(run: Workload) -> str:
    if not run.n_devices:
        return "the CPU only" if run.vendor == "cpu" else f"{run.vendor} without device rows"
    name = run.device or f"a device of kind {run.vendor}"
    return name if run.n_devices == 1 else f"{run.n_devices} x {name}"


def _job(before: Workload, after: Workload) -> Iterator[Unlike]:
    first, second = before.world_size or 1, after.world_size or 1
    if first != second:
        yield Unlike(
            "ranks",
            f"jobs of different size: {format_count(first, 'rank')} before, {second:,} after",
            str(first),
            str(second),
            "record both runs with the same number of ranks",
        )


def _mode(before: Workload, after: Workload) -> Iterator[Unlike]:
    if before.trains != after.trains:
        words = {True: "training", False: "inference"}
        yield Unlike(
            "mode",
            f"{words[before.trains]} before, {words[after.trains]} after",
            words[before.trains],
            words[after.trains],
            "record the same phase of the program in both runs",
        )


def _model(before: Workload, after: Workload) -> Iterator[Unlike]:
    shared = before.layers & after.layers
    few = min(len(before.layers), len(after.layers))
    # one that computes no layers of the other's, and hides none, is another model
    bare = any(run.sized and not run.layers and not run.hides_work for run in (before, after))
    unlike = len(shared) < MIN_LAYERS * few or (bare and bool(before.layers or after.layers))
    if not unlike and few >= FEW_LAYERS:
        return
    # code without operators may hide layers: the operators around it decide
    if unlike and (bare or not shared or not (before.hides_work or after.hides_work)):
        share = len(shared) / max(few, 1)
        yield Unlike(
            "model",
            f"different layers: {format_share(share)} of the weight shapes occur in both runs",
            _shapes(before.layers - after.layers),
            _shapes(after.layers - before.layers),
            "record the same model in both runs",
        )
        return
    # an engine's steps are called alike whatever they replay
    marked = before.per == after.per == "step" and not (before.served or after.served)
    if before.compiles != after.compiles and marked and not unlike:
        return  # compiled code shows no operators to go by; steps are at least marked alike
    what, first, second = "operators", before.names, after.names
    if (not (first and second)) or (not marked and (before.replays or after.replays) and not unlike):
        what, first, second = "kernels", before.kernels, after.kernels
    elif before.layers and after.layers and not unlike:
        return
    alike = _likeness(first, second)
    if alike < MIN_NAMES:
        yield Unlike(
            "model",
            f"different {what}: those of the two runs are {format_share(alike)} alike",
            _top(first, second),
            _top(second, first),
            "record the same model in both runs",
        )


def _shapes(shapes: frozenset[tuple[int, ...]]) -> str:
    ordered = sorted(shapes, key=lambda shape: (-math.prod(shape), shape))[:3]
    return ", ".join("x".join(map(str, item)) for item in ordered)


def _top(names: dict[str, float], others: dict[str, float]) -> str:
    own = sorted(names, key=lambda name: (others.get(name, 0) - names[name], name))
    return ", ".join(name for name in own[:3] if names[name] > others.get(name, 0))


def _sizes(before: Workload, after: Workload) -> Iterator[Unlike]:
    if not before.volume or not after.volume or before.per != after.per:
        return
    slack = 1 + SAME_VOLUME + 3 * math.hypot(before.volume_error, after.volume_error)
    ratio = after.volume / before.volume
    # where graphs or compiled code hide work, less of it is seen, never more; two windows that hide
    # as much in the same way hide the same
    alike = (before.compiles, before.replays) == (after.compiles, after.replays)
    alike &= abs(before.hidden - after.hidden) < HIDDEN_ALIKE
    strict = alike and before.per == "window"
    less = ratio < 1 / slack and (strict or not after.hides_work)
    more = ratio > slack and (strict or not before.hides_work)
    if not (less or more):
        # layers in plain sight in both runs, called as often, compute the same
        ratio = next((other for other in _ratios(before, after) if not 1 / slack < other < slack), 1.0)
        less, more = ratio < 1, ratio > 1
    if less or more:
        what = f"{ratio:.3g} times" if ratio > 1 else f"{format_share(ratio)} of"
        layers, rest = "the layers", ""
        if before.hides_work or after.hides_work:
            seen = before.layers | after.layers
            others = f", {len(seen) - 3} more" if len(seen) > 3 else ""
            layers = f"the layers recorded as operators ({_shapes(seen)}{others})"
            rest = "; of the kernels, graphs or compiled code without sizes launch"
            rest += f" {format_share(before.hidden)} before, {format_share(after.hidden)} after"
        yield Unlike(
            "shapes",
            f"different sizes: {layers} compute {what} what they did before per {before.per}{rest}",
            f"{before.volume / 1e9:.4g} G multiply-adds per {before.per} with recorded sizes",
            f"{after.volume / 1e9:.4g} G multiply-adds per {after.per} with recorded sizes",
            "record both runs with the same batch size and input shapes",
        )


def _ratios(before: Workload, after: Workload) -> Iterator[float]:
    for weight, (n, volume) in before.calls.items():
        n_after, other = after.calls.get(weight, (0.0, 0.0))
        if n == n_after and volume and other:
            yield other / volume


def _lengths(before: Workload, after: Workload) -> Iterator[Unlike]:
    """Attention has no weights: its sizes are compared where both runs have the same operator in plain sight."""
    if not (before.attention and after.attention) or before.per != after.per or before.hides_work or after.hides_work:
        return
    ratio = after.attention / before.attention
    if not 1 / (1 + SAME_VOLUME) <= ratio <= 1 + SAME_VOLUME:
        what = f"{ratio:.3g} times" if ratio > 1 else f"{format_share(ratio)} of"
        yield Unlike(
            "shapes",
            f"different sizes: attention computes {what} what it did before per {before.per}",
            f"{before.attention / 1e9:.4g} G multiply-adds per {before.per}",
            f"{after.attention / 1e9:.4g} G multiply-adds per {after.per}",
            "record both runs with the same batch size and sequence length",
        )


def _batch(before: Workload, after: Workload) -> Iterator[Unlike]:
    yield from unlike_served(before.served, after.served)


def _steps(before: Workload, after: Workload) -> Iterator[Unlike]:
    if (before.per, before.basis) != (after.per, after.basis):
        yield Unlike(
            "steps",
            f"steps of different kinds: {before.basis} before, {after.basis} after",
            before.basis,
            after.basis,
            "mark the iterations of both runs alike",
        )
    for side, run in (("before", before), ("after", after)):
        if run.cold:
            yield Unlike(
                "cold-start",
                f"the run {side} has no steady step: it holds first use or compilation",
                side if side == "before" else "",
                side if side == "after" else "",
                "warm up before the recording begins",
            )


def _recorder(before: Workload, after: Workload) -> Iterator[Unlike]:
    if before.inflation == after.inflation or before.n_devices or after.n_devices:
        return
    yield Unlike(
        "profiler",
        "recorded with different profiler options, which slow the host down differently:"
        f" {_flags(before)} before, {_flags(after)} after",
        _flags(before),
        _flags(after),
        "record both runs with the same profile(...) arguments",
    )


def _flags(run: Workload) -> str:
    slow = [flag for flag in run.flags if flag in ("record_shapes", "with_stack")]
    return ", ".join(slow) or "neither shapes nor stacks"


_CHECKS = (_unusable, _rows, _device, _job, _mode, _model, _batch, _sizes, _lengths, _steps, _recorder)


# -- limits ------------------------------------------------------------------------------------


def _different_options(before: Workload, after: Workload) -> Iterator[Note]:
    if before.inflation == after.inflation:
        return
    if max(before.host_share, after.host_share) < HOST_MATTERS:
        return  # the device never waits for the host
    yield Note(
        "profiler-options",
        "warn",
        f"recorded with different profiler options ({_flags(before)} before, {_flags(after)}"
        " after): part of the change in host time is the profiler's",
        "record both runs with the same profile(...) arguments",
    )


def _sizes_unknown(before: Workload, after: Workload) -> Iterator[Note]:
    missing = [side for side, run in (("before", before), ("after", after)) if not run.volume]
    if missing:
        yield Note(
            "sizes-unknown",
            "warn",
            f"no input shapes of layers {' and '.join(missing)}: both runs are assumed"
            " to compute the same model and sizes",
            "record the inputs of operators, too",
        )
    elif before.hides_work or after.hides_work:
        yield Note(
            "sizes-unknown",
            "info",
            "graphs or compiled code hide some operators: that both runs compute the same sizes is"
            " checked for the others only",
        )


def _other_code(before: Workload, after: Workload) -> Iterator[Note]:
    for what, item, other in (
        ("compiled code (torch.compile)", before.compiles, after.compiles),
        ("graph replays", before.replays, after.replays),
    ):
        if item != other:
            yield Note(
                "other-code",
                "info",
                f"{what} in the run {'before' if item else 'after'} only: operators whose work it"
                f" does show as {'new' if item else 'gone'} or {'larger' if item else 'smaller'}",
            )


def _device_unknown(before: Workload, after: Workload) -> Iterator[Note]:
    if before.n_devices and not (before.device and after.device):
        yield Note(
            "device-unknown",
            "warn",
            "the recording does not name its device: both runs are assumed to have used the same one",
            "record with a newer profiler",
        )


def _one_each(before: Workload, after: Workload) -> Iterator[Note]:
    if min(before.n_steady, after.n_steady) < 2:
        what = "step" if before.per == "step" else "window without steps"
        yield Note(
            "no-noise",
            "warn",
            f"one {what} on a side: its variation is unknown, so only large changes are reported",
            "record 5 or more steps in both runs, with prof.step() in each",
        )


def _other_rank(before: Workload, after: Workload) -> Iterator[Note]:
    if None not in (before.rank, after.rank) and before.rank != after.rank:
        yield Note(
            "other-rank",
            "info",
            f"rank {before.rank} before, rank {after.rank} after",
            "compare the same rank of both jobs",
        )


def recordings(before: Workload, after: Workload) -> Iterator[Note]:
    """Yield what either recording cannot be trusted with."""
    for side, run in (("before", before), ("after", after)):
        for note in run.notes:
            if note.level == "warn":
                yield Note(note.code, "warn", f"{side}: {note.message}", note.fix)


_LIMITS = (_different_options, _sizes_unknown, _other_code, _device_unknown, _one_each, _other_rank, recordings)


# -- reading a run -----------------------------------------------------------------------------


def _basis(trace: Trace) -> str:
    basis = trace.window.basis
    if "ProfilerStep" in basis:
        return "ProfilerStep# marks"
    if trace.serving is not None and len(trace.serving.rows):
        return f"steps of {trace.serving.engine}"
    found = basis.partition("steps by ")[2]
    return re.sub(r"^\d+ ", "", found) if found else "one window"


def _cold(trace: Trace, notes: tuple[Note, ...]) -> bool:
    """Return whether no step is free of first use: then all of them were taken as steady."""
    if any(note.code == "cold-start" for note in notes) and not len(trace.steps):
        return True
    rows = trace.first_use
    step_of = trace.steps.of_host(rows)
    inside = rows[trace.steps.in_steady(step_of)]
    wall = max(int((trace.steps.judged[:, 1] - trace.steps.judged[:, 0]).sum()), 1)
    spans = trace.time_of(inside)
    return intervals.length(spans) > COLD_SHARE * wall


def _hidden(trace: Trace) -> float:
    """Return the share of kernels that graphs or compiled code launch, by count."""
    rows = np.flatnonzero(trace.kind == Kind.KERNEL)
    call = trace.links.call[rows]
    call = call[call >= 0]
    code = trace.matching(f"{_COMPILED}|{_REPLAY}")
    return float((code | trace.tree.under(code))[call].mean()) if len(call) else 0.0


def _products(trace: Trace, *names: str) -> tuple[dict[tuple[int, ...], tuple[float, float]], NDArray[np.float64]]:
    """Return the calls of each weight shape per step, and the multiply-adds of each steady step of the forward pass.

    Outermost products only (linear calls addmm), attention's left out: its kernels differ by
    implementation, and its products have no weights.
    """
    steps = trace.steps
    mask = (trace.kind == Kind.OP) & trace.named(*names)
    rows = np.flatnonzero(mask)
    rows = rows[steps.in_steady(steps.of_host(rows))]
    within = trace.tree.under(mask | (trace.matching(_BACKWARD) & (trace.kind == Kind.OP)))
    rows = rows[~within[rows]]
    code = trace.detail[rows].astype(np.int64) * len(trace.names) + trace.name[rows]
    first, where = np.unique(code, return_index=True, return_inverse=True)[1:]
    sizes = np.zeros(len(first))
    counts = np.bincount(where, minlength=len(first))
    calls: dict[tuple[int, ...], tuple[float, float]] = {}
    for i, (row, dims) in enumerate(zip(rows[first].tolist(), trace.details_of("dims", rows[first]), strict=True)):
        weight, sizes[i] = _product(trace.name_of(row), dims)
        if weight:
            n, volume = calls.get(weight, (0.0, 0.0))
            per_step = counts[i] / steps.n_steady
            calls[weight] = n + per_step, volume + per_step * sizes[i]
    each = np.bincount(steps.of_host(rows), weights=sizes[where], minlength=max(len(steps), 1)).astype(float)
    return calls, each[steps.steady] if len(steps) else each


def _product(name: str, dims: object) -> tuple[tuple[int, ...], float]:
    """Return the weight's shape and the multiply-adds of one product; nothing if it has none."""
    shapes = [
        item
        for item in (dims if isinstance(dims, list) else [])
        if isinstance(item, list) and item and all(isinstance(size, int) for size in item)
    ]
    if name in ("aten::addmm", "aten::_addmm_activation", "aten::addmv"):
        shapes = shapes[1:]  # the first is the bias
    if len(shapes) < 2:
        return (), 0.0
    left, right = shapes[:2]
    if name == "aten::convolution":
        # of the input's size: outputs are not recorded, and stride and padding stay the same
        return tuple(right), math.prod(left) * math.prod(right) / max(right[1 % len(right)], 1)
    if name == "aten::linear":
        return tuple(sorted(right)), math.prod(left) * right[0]
    if name == _ATTENTION:  # of queries and keys
        return (), math.prod(left) * right[-2] if len(right) > 1 else 0.0
    if len(left) > 2 and len(right) > 2:
        return (), 0.0
    if name in ("aten::mv", "aten::addmv"):
        return tuple(sorted(left)), math.prod(left)
    return tuple(sorted(right)), math.prod(left) * (right[-1] if len(right) > 1 else 1)


def _names(trace: Trace, kind: Kind) -> dict[str, float]:
    # what a loader does on the main thread goes to its workers, and is no part of the model
    loads = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.matching(LOADER_NAME)
    rows = np.flatnonzero((trace.kind == kind) & ~trace.tree.under(loads))
    of = trace.steps.of_host if kind == Kind.OP else trace.steps.of_work
    rows = rows[trace.steps.in_steady(of(rows))]
    counts = np.bincount(trace.name[rows], minlength=1)
    n = trace.steps.n_steady
    return {trace.names[code]: int(counts[code]) / n for code in np.flatnonzero(counts).tolist()}


def _likeness(first: dict[str, float], second: dict[str, float]) -> float:
    """Return the cosine of two tables of counts, their square roots compared; 1 for the same."""
    dot = sum(math.sqrt(count * second.get(name, 0)) for name, count in first.items())
    norm = math.sqrt(sum(first.values()) * sum(second.values()))
    return dot / norm if norm else float(not first and not second)
