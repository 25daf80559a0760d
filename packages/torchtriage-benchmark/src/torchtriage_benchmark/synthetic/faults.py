"""Faults that only a device has, put into an operator stream by what they do, never by their cost.

Each is a change to a healthy stream: operators, calls and copies at a place in the step. What it
costs comes out of the timeline, and may be nothing where device work hides it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from torchtriage_benchmark.synthetic.accelerators import ACCELERATORS
from torchtriage_benchmark.synthetic.kernels import kernels_of
from torchtriage_benchmark.synthetic.stream import LOADER, Op, Step, Stream
from torchtriage_benchmark.synthetic.timeline import COMPUTE, SIDE, Call, Enqueue, Graph, Stall
from torchtriage_benchmark.synthetic.work import Precision, Work, memcpy

_SIZES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "bool": 1}
Shape = tuple[tuple[int, ...], str]


# -- operators that are not in the recording ---------------------------------------------------


def _op(
    name: str,
    *inputs: Shape | str,
    children: Iterable[Op] = (),
    actions: Iterable[Any] = (),
    work: Iterable[Work] = (),
    host_us: float = 2.0,
    reads: int = 0,
) -> Op:
    """Return an operator. ``inputs`` : a tensor's dims and type, or a scalar as text."""
    tensors = [input_ if isinstance(input_, tuple) else None for input_ in inputs]
    args = {
        "External id": 0,
        "Record function id": 0,
        "Concrete Inputs": ["" if isinstance(input_, tuple) else input_ for input_ in inputs],
        "Input type": [tensor[1] if tensor else "Scalar" for tensor in tensors],
        "Input Strides": [_strides(tensor[0]) if tensor else [] for tensor in tensors],
        "Input Dims": [list(tensor[0]) if tensor else [] for tensor in tensors],
        "Ev Idx": 0,
    }
    return Op(
        name,
        0,
        0,
        args,
        children=list(children),
        actions=list(actions),
        work=list(work),
        host_us=host_us,
        reads=reads,
        put_in=True,
    )


def _strides(dims: tuple[int, ...]) -> list[int]:
    return [math.prod(dims[at + 1 :]) for at in range(len(dims))]


def _bare(*actions: Any, frames: tuple[str, ...] = ()) -> Op:
    """Return calls outside any operator."""
    return Op("(calls)", 0, 0, actions=list(actions), host_us=0.5, put_in=True, frames=frames)


def _bytes(shape: Shape) -> int:
    return math.prod(shape[0]) * _SIZES.get(shape[1], 4)


def _transfer(shape: Shape, copy: Work, *, blocking: bool, stream: int = COMPUTE, target: str = "0") -> Op:
    """Return ``.to(...)`` of one tensor. ``target`` : "0" the device, "" the host."""
    flag = "False" if blocking else "True"
    moved = _op("aten::copy_", shape, shape, flag, host_us=3.0, actions=[Enqueue(copy, stream, blocking)])
    return _op(
        "aten::to",
        shape,
        "6",
        target,
        flag,
        "False",
        "",
        host_us=1.6,
        children=[
            _op(
                "aten::_to_copy",
                shape,
                "6",
                "",
                target,
                "",
                flag,
                "",
                host_us=2.4,
                children=[_op("aten::empty_strided", "[]", "[]", "6", "0", target, "", host_us=2.2), moved],
            )
        ],
    )


def _object(chance: Random) -> str:
    return f"Tensor object at 0x{0x7F0000000000 + 16 * chance.randrange(1 << 32):x}"


def _pointwise(name: str, shape: Shape, *scalars: str) -> Op:
    """Return an operator of one small or large kernel over a tensor."""
    op = _op(name, shape, *scalars, host_us=4.2)
    # pointwise kernels are the same everywhere
    op.work = kernels_of(name, op.args, next(iter(ACCELERATORS.values())), Precision("float"))
    return op


APART_NS = 0.02
"""Between things that are put in at one moment of the recording, to keep their order."""

# -- places ------------------------------------------------------------------------------------


class Spots:
    """The moments of a step where a statement of the program may stand."""

    def __init__(self, stream: Stream) -> None:
        self.frames = sorted(
            (round(frame["ts"] * 1000), round((frame["ts"] + frame["dur"]) * 1000)) for frame in stream.frames
        )

    def between(self, begin_ns: float, end_ns: float) -> float:
        """Return the moment in between with the fewest Python frames around."""
        near = [frame for frame in self.frames if frame[0] < end_ns and frame[1] > begin_ns]
        times = [begin_ns + 0.1, *(end + 0.1 for _, end in near if begin_ns < end < end_ns)]
        return min(times, key=lambda at: (sum(a <= at < b for a, b in near), at))

    def after_fetch(self, step: Step) -> float:
        """Return the moment the batch is there."""
        at = next((n for n, op in enumerate(step.ops) if op.name.startswith(LOADER)), None)
        if at is None:
            return self.between(step.begin_ns, step.ops[0].begin_ns)
        return self.between(step.ops[at].end_ns, step.ops[at + 1].begin_ns)

    def after_forward(self, step: Step) -> float:
        """Return the moment the result and its loss are there."""
        at = next((n for n, op in enumerate(step.ops) if _is_backward(op)), len(step.ops))
        end = step.ops[at].begin_ns if at < len(step.ops) else step.end_ns
        return self.between(step.ops[at - 1].end_ns, end)

    def at_end(self, step: Step) -> float:
        """Return the moment before the step ends."""
        return self.between(step.ops[-1].end_ns, step.end_ns)

    def in_forward(self, step: Step, n: int) -> list[float]:
        """Return ``n`` moments between the forward pass's operators, or fewer."""
        begun = next((k for k, op in enumerate(step.ops) if op.name.startswith(LOADER)), -1) + 1
        ended = next((k for k, op in enumerate(step.ops) if _is_backward(op)), len(step.ops))
        inside = step.ops[begun:ended]
        if len(inside) < 2:
            return []
        chosen = sorted({1 + k * (len(inside) - 1) // n for k in range(n)} - {len(inside)})
        return [self.between(inside[k - 1].end_ns, inside[k].begin_ns) for k in chosen]


def _is_backward(op: Op) -> bool:
    return op.name.startswith(("Optimizer.zero_grad#", "autograd::engine::"))


def put(step: Step, at_ns: float, ops: Iterable[Op]) -> None:
    """Put operators into a step at a moment, behind what was put there before."""
    there = [item.begin_ns for item in step.ops if item.put_in and 0 <= item.begin_ns - at_ns < 50]
    begin_ns = max(there) + APART_NS if there else at_ns
    for number, op in enumerate(ops):
        for node in op.walk():
            node.begin_ns = node.end_ns = begin_ns + APART_NS * number
        step.ops.append(op)
    step.ops.sort(key=lambda item: item.begin_ns)


# -- uploads: every healthy program has them ---------------------------------------------------


def uploads(stream: Stream, inputs: list[Shape], spots: Spots, how: str) -> None:
    """Put the batch's copies to the device into every step.

    ``how`` : "prefetched" on a side stream while the step before computes; "enqueued" from pinned
    memory without waiting; "blocking" from pinned memory; "pageable".
    """
    kind = "HtoD (Pageable -> Device)" if how == "pageable" else "HtoD (Pinned -> Device)"
    for step in stream.steps:
        ops = []
        if how == "prefetched":
            ops.append(_bare(Call("cudaStreamWaitEvent", takes_us=1.3, on=COMPUTE, until=SIDE)))
        side = SIDE if how == "prefetched" else COMPUTE
        for shape in inputs:
            op = _transfer(shape, memcpy(kind, _bytes(shape)), stream=side, blocking=how in ("blocking", "pageable"))
            op.fault = how in ("blocking", "pageable")
            ops.append(op)
        if how == "prefetched":
            ops.append(_bare(Call("cudaEventRecord", takes_us=1.8, on=SIDE)))
        put(step, spots.after_fetch(step), ops)


def graphed(stream: Stream) -> None:
    """Replay everything after the uploads as one captured graph, in every step."""
    gone = []
    for step in stream.steps:
        first = next(at for at, op in enumerate(step.ops) if not op.put_in and _computes(op))
        rest = step.ops[first:]
        gone.append((rest[0].begin_ns, step.end_ns))
        work = tuple(item for op in rest for inner in op.walk() for item in inner.work if item.kind == "kernel")
        step.ops = step.ops[:first]
        step.end_ns = round(rest[0].begin_ns) + 1
        frames = ("torch/cuda/graphs.py(140): replay", "<built-in method replay of CUDAGraph>")
        launch = _bare(Graph(work), frames=frames)
        put(step, rest[0].begin_ns, [launch])
    stream.frames = [
        frame for frame in stream.frames if not any(begin <= frame["ts"] * 1000 < end for begin, end in gone)
    ]


def _computes(op: Op) -> bool:
    return not op.name.startswith(LOADER) and any(node.work for node in op.walk())


# -- faults ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A stream to put a fault into, its batch, and what the forward pass ends with."""

    stream: Stream
    spots: Spots
    inputs: list[Shape]
    result: Shape
    chance: Random


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    ``put`` : does it with a severity. ``severities`` : from light to heavy. ``modes`` : programs it
    fits.
    """

    code: str
    put: Callable[[Scene, int], None]
    severities: tuple[int, ...] = (1,)
    modes: tuple[str, ...] = ("train", "infer")
    settings: tuple[tuple[str, Any], ...] = ()
    """What it changes about the machine or the build instead of, or beside, the stream."""
    clean: tuple[tuple[str, Any], ...] = ()
    """What its clean twin needs to have."""
    shows: str = "ops"
    """Where: in its own "ops" and their work, in the whole "phase" after the batch is there, or in
    kernels of some kinds alone, such as "layout"."""


def _each(scene: Scene, at: Callable[[Step], float], make: Callable[[], list[Op]]) -> None:
    for step in scene.stream.steps:
        ops = make()
        for op in ops:
            op.fault = True
        put(step, at(step), ops)


def _spread(scene: Scene, n: int, make: Callable[[], list[Op]]) -> None:
    for step in scene.stream.steps:
        for at in scene.spots.in_forward(step, n):
            ops = make()
            for op in ops:
                op.fault = True
            put(step, at, ops)


def _read(chance: Random, what: str = "item") -> Op:
    value: Shape = ((), "bool" if what == "is_nonzero" else "float")
    local = _op("aten::_local_scalar_dense", value, host_us=2.0, reads=4 if what == "item" else 1)
    op = _op("aten::item", value, host_us=1.2, children=[local])
    if what == "is_nonzero":
        op = _op("aten::is_nonzero", value, host_us=1.0, children=[op])
    op.frames = (f"<built-in method {what} of {_object(chance)}>",)
    return op


def _scalar_reads(scene: Scene, n: int) -> None:
    if n == 1:
        _each(scene, scene.spots.after_forward, lambda: [_read(scene.chance)])
        return

    def check() -> list[Op]:
        flat: Shape = (scene.result[0], "bool")
        return [
            _pointwise("aten::gt", scene.result, "0"),
            _pointwise("aten::any", flat),
            _read(scene.chance, "is_nonzero"),
        ]

    _spread(scene, n, check)


def _mask_selects(scene: Scene, n: int) -> None:
    def select() -> list[Op]:
        mask: Shape = (scene.result[0], "bool")
        sweep = Work(
            "kernel",
            "void at_cuda_detail::cub::DeviceSelectSweepKernel<int, long*, "
            "bool*, long*, int*>(long*, bool*, long*, int*, int)",
            "select",
            9 * math.prod(mask[0]),
            0.0,
            registers=39,
            shared=5120,
        )
        count = Work(
            "kernel",
            "void at_cuda_detail::cub::DeviceReduceSingleTileKernel<at_cuda_"
            "detail::cub::DeviceReducePolicy<int, int, at_cuda_detail::cub::Sum>::"
            "Policy600, int*, int*, int>(int*, int*, int)",
            "select",
            math.prod(mask[0]),
            0.0,
        )
        sized = _op("aten::nonzero", mask, host_us=14.0, work=[count], reads=4, actions=[Enqueue(sweep)])
        picked = _pointwise("aten::index_select", scene.result)
        index = _op("aten::index", scene.result, "", host_us=6.0, children=[sized], work=picked.work)
        return [_pointwise("aten::gt", scene.result, "0"), index]

    if n == 1:
        _each(scene, scene.spots.after_forward, select)
    else:
        _spread(scene, n, select)


def _synchronizes(scene: Scene, n: int) -> None:
    def wait() -> list[Op]:
        return [
            _bare(
                Call("cudaDeviceSynchronize", "device", 4.0),
                frames=("torch/cuda/__init__.py(1085): synchronize", "<built-in function _cuda_synchronize>"),
            )
        ]

    if n == 1:
        _each(scene, scene.spots.at_end, wait)
    else:
        _spread(scene, n, wait)


def _constants(scene: Scene, n: int) -> None:
    width = scene.chance.choice((3, 16, 64, 256))

    def upload() -> list[Op]:
        shape: Shape = ((width,), "float")
        lift = _op("aten::lift_fresh", shape, host_us=0.8)
        inner = _op("detach_", shape, host_us=0.4)
        detach = _op("aten::detach_", shape, host_us=1.0, children=[inner])
        copy = memcpy("HtoD (Pageable -> Device)", _bytes(shape))
        return [lift, detach, _transfer(shape, copy, blocking=True)]

    _spread(scene, n, upload)


def _readbacks(scene: Scene, n: int) -> None:
    def take() -> list[Op]:
        shape = scene.result
        copy = memcpy("DtoH (Device -> Pageable)", _bytes(shape))
        op = _transfer(shape, copy, blocking=True, target="")
        op.frames = (f"<built-in method cpu of {_object(scene.chance)}>",)
        return [op]

    if n == 1:
        _each(scene, scene.spots.after_forward, take)
    else:
        _spread(scene, n, take)


def _ping_pong(scene: Scene, n: int) -> None:
    def trip() -> list[Op]:
        shape = max(scene.inputs, key=_bytes)
        down = _transfer(shape, memcpy("DtoH (Device -> Pageable)", _bytes(shape)), blocking=True, target="")
        down.frames = (f"<built-in method cpu of {_object(scene.chance)}>",)
        # one pass over the array at what one core reads and writes
        host = _bare(Stall(us=_bytes(shape) / 3_500), frames=("<built-in function clip>",))
        up = _transfer(shape, memcpy("HtoD (Pageable -> Device)", _bytes(shape)), blocking=True)
        up.frames = (f"<built-in method to of {_object(scene.chance)}>",)
        return [down, host, up]

    for _ in range(n):
        _each(scene, scene.spots.after_fetch, trip)


def _tiny_copies(scene: Scene, n: int) -> None:
    shape: Shape = ((scene.chance.choice((1, 4, 32, 128)),), "float")

    def rows() -> list[Op]:
        copy = memcpy("HtoD (Pinned -> Device)", _bytes(shape))
        found = []
        for at in range(n):
            picked = [
                _op(
                    "aten::select",
                    ((n, *shape[0]), "float"),
                    "0",
                    str(at),
                    host_us=2.2,
                    children=[_op("aten::as_strided", ((n, *shape[0]), "float"), "[]", "", host_us=0.5)],
                )
                for _ in range(2)
            ]
            moved = _op("aten::copy_", shape, shape, "True", host_us=3.2, actions=[Enqueue(copy)])
            found += [*picked, moved]
        return found

    _each(scene, scene.spots.after_fetch, rows)


def _allocations(scene: Scene, n: int) -> None:
    """Segments that the cache cannot serve; every third time it has to free some first."""
    for step in scene.stream.steps:
        homes = [op for top in step.ops for op in top.walk() if op.work and op.children == []]
        for number in range(n):
            home = homes[(2 * number + 1) * len(homes) // (2 * n + 1)]
            calls = [Call("cudaMalloc", takes_us=120 + 500 * scene.chance.random())]
            if number % 3 == 0:
                free = [Call("cudaFree", "device", 150 + 350 * scene.chance.random()) for _ in range(2)]
                calls = [Call("cudaMalloc", takes_us=90.0), *free, *calls]
            home.children = [_bare(*calls)]
            home.fault = True


def _emptied_cache(scene: Scene, n: int) -> None:
    """Give the cache back after each step; the next takes it anew."""
    frames = ("torch/cuda/memory.py(224): empty_cache", "<built-in function _cuda_emptyCache>")
    for step in scene.stream.steps:
        homes = [op for top in step.ops for op in top.walk() if op.work and op.children == []]
        for home in homes[: max(n, 1)]:
            home.children = [_bare(Call("cudaMalloc", takes_us=90 + 300 * scene.chance.random()))]
            home.fault = True
        frees = [Call("cudaFree", "device", 80 + 250 * scene.chance.random()) for _ in range(n)]
        call = _bare(*frees, frames=frames)
        call.fault = True
        put(step, scene.spots.at_end(step), [call])


def _nothing(_scene: Scene, _n: int) -> None:
    """Change nothing in the stream: the settings do."""


FAULTS = {
    item.code: item
    for item in (
        Fault("SYN001", _scalar_reads, (1, 4, 12)),
        Fault("SYN002", _mask_selects, (1, 3)),
        Fault("SYN003", _synchronizes, (1, 6)),
        Fault("SYN005", _constants, (2, 8, 24)),
        Fault("CPY006", _readbacks, (1, 3)),
        Fault("CPY007", _nothing, settings=(("upload", "pageable"),)),
        Fault("CPY008", _nothing, settings=(("upload", "blocking"),)),
        Fault("CPY009", _ping_pong, (1, 2)),
        Fault("CPY010", _tiny_copies, (64, 128, 256)),
        Fault("CPY011", _nothing, settings=(("planes", True),), clean=(("planes", False),), shows="layout"),
        Fault("LCH014", _nothing, clean=(("graph", True),), settings=(("graph", False),), shows="phase"),
        Fault("KRN022", _nothing, settings=(("rate", "float"),), clean=(("precision", "tf32"),), shows="gemm conv"),
        Fault("MEM027", _allocations, (3, 8, 20)),
        Fault("MEM028", _emptied_cache, (4, 12, 30)),
        Fault("CFG044", _nothing, settings=(("blocking", True),), shows="phase"),
    )
}


# -- what looks like a fault and is none -------------------------------------------------------


def _now_and_then(scene: Scene) -> None:
    step = scene.stream.steps[len(scene.stream.steps) // 2]
    put(step, scene.spots.at_end(step), [_read(scene.chance)])


def _host_scalars(scene: Scene) -> None:
    for step in scene.stream.steps:
        ops = []
        for _ in range(120):
            local = _op("aten::_local_scalar_dense", ((), "float"), host_us=0.3)
            ops.append(_op("aten::item", ((), "float"), host_us=0.6, children=[local]))
        put(step, scene.spots.at_end(step), ops)


def _small_pinned(scene: Scene) -> None:
    for step in scene.stream.steps:
        shape: Shape = ((64,), "float")
        copy = memcpy("HtoD (Pinned -> Device)", _bytes(shape))
        put(step, scene.spots.after_fetch(step), [_transfer(shape, copy, blocking=False)])


def _first_allocations(scene: Scene) -> None:
    step = scene.stream.steps[0]
    homes = [op for top in step.ops for op in top.walk() if op.work and not op.children]
    for home in homes[:6]:
        home.children = [_bare(Call("cudaMalloc", takes_us=200.0))]


def _late_reads(scene: Scene) -> None:
    """Read the value of the step before: its event has long happened."""
    for step in scene.stream.steps:
        ops = [
            _bare(Call("cudaEventSynchronize", takes_us=2.4, until=SIDE + 1)),
            _bare(Call("cudaEventRecord", takes_us=1.5)),
        ]
        put(step, scene.spots.at_end(step), ops)


def _queries(scene: Scene) -> None:
    for step in scene.stream.steps:
        ops = [_bare(Call("cudaEventQuery", takes_us=1.9)) for _ in range(40)]
        put(step, scene.spots.after_fetch(step), ops)


LOOKALIKES: dict[str, Callable[[Scene], None]] = {
    "a scalar read in one of the steps": _now_and_then,
    "scalars of the host": _host_scalars,
    "a small pinned upload": _small_pinned,
    "allocations in the first step": _first_allocations,
    "a value read one step late": _late_reads,
    "events asked and not waited for": _queries,
}
