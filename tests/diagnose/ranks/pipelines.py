"""Recordings of pipelines in tests: passes in the order of textbooks, each as long as it is told, in real trace JSON.

Times in microseconds. Messages take ``HOP``; between two passes a rank does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from builder import TraceBuilder

FORWARD, BACKWARD = 10_000.0, 20_000.0
HOP = 200.0
BETWEEN = 2_000.0
"""What the optimizer takes at the end of a step."""
PASSES = {"F": "aten::mm", "B": "autograd::engine::evaluate_function: MmBackward0"}
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

Task = tuple[int, str, int]
"""Stage, forward F or backward B, micro-batch."""
Order = Callable[[int, int, int], list[Task]]
Times = list[dict[Task, tuple[float, float]]]


def gpipe(rank: int, _p: int, m: int) -> list[Task]:
    """All forward passes, then all backward ones."""
    return [(rank, kind, micro) for kind in "FB" for micro in range(m)]


def one_by_one(rank: int, _p: int, m: int) -> list[Task]:
    """Each micro-batch through both passes before the next."""
    return [(rank, kind, micro) for micro in range(m) for kind in "FB"]


def one_forward_one_backward(rank: int, p: int, m: int) -> list[Task]:
    """As many forward passes as there are stages from here on, then one of each in turns."""
    forward = [(rank, "F", micro) for micro in range(m)]
    return _in_turns(forward, [(rank, "B", micro) for micro in range(m)], min(m, p - rank))


def interleaved(rank: int, p: int, m: int) -> list[Task]:
    """Two stages on each rank: p micro-batches through one, then through the other, as Megatron has it."""
    turns = [(chunk, turn * p + micro) for turn in range(m // p) for chunk in (0, 1) for micro in range(p)]
    forward = [(chunk * p + rank, "F", micro) for chunk, micro in turns]
    backward = [((1 - chunk) * p + rank, "B", micro) for chunk, micro in turns]
    return _in_turns(forward, backward, min(2 * m, p + 2 * (p - rank - 1) + 1))


def odd(rank: int, _p: int, m: int) -> list[Task]:
    """An order that runs and is no schedule with a name: backward passes lag behind by a half, and one more."""
    half = m // 2
    first = [("F", micro) for micro in range(half)] + [("B", micro) for micro in range(half - 1)]
    rest = [("F", micro) for micro in range(half, m)] + [("B", micro) for micro in range(half - 1, m)]
    return [(rank, kind, micro) for kind, micro in first + rest]


def _in_turns(forward: list[Task], backward: list[Task], n_warm: int) -> list[Task]:
    out = forward[:n_warm]
    for at, task in enumerate(backward):
        out += [task, *forward[n_warm + at : n_warm + at + 1]]
    return out


def times(p: int, m: int, order: Order, longer: Sequence[float]) -> tuple[Times, float]:
    """Return begin and end of every pass of each rank, in one step that begins at 0, and when the last ends."""
    orders = [order(rank, p, m) for rank in range(p)]
    v = len(orders[0]) // (2 * m)
    done: Times = [{} for _ in range(p)]
    at, place = [0.0] * p, [0] * p
    while any(place[rank] < len(orders[rank]) for rank in range(p)):
        for rank in range(p):
            while place[rank] < len(orders[rank]):
                stage, kind, micro = orders[rank][place[rank]]
                source = stage - 1 if kind == "F" else stage + 1
                ready = 0.0
                if 0 <= source < p * v:
                    if (source, kind, micro) not in done[source % p]:
                        break
                    ready = done[source % p][source, kind, micro][1] + HOP
                begin = max(at[rank], ready)
                end = begin + (FORWARD if kind == "F" else BACKWARD) * longer[rank] / v
                done[rank][stage, kind, micro] = begin, end
                at[rank] = end
                place[rank] += 1
    return done, max(at)


def pipeline(
    p: int = 4,
    m: int = 8,
    order: Order = one_forward_one_backward,
    *,
    longer: Sequence[float] | None = None,
    device: bool = False,
    batched: bool = False,
    n_steps: int = 5,
    ranks: Sequence[int] | None = None,
    world: int | None = None,
) -> list[TraceBuilder]:
    """Return one builder for each rank of a pipeline; ``longer`` : how many times as long the passes of each take.

    ``device`` : kernels of NCCL that name their peers, else gloo, which names none. ``batched`` : a send goes with the
    receive after it into one kernel, which names nothing. ``ranks`` : numbers of the ranks.
    """
    longer = longer or [1.0] * p
    ranks = ranks or list(range(p))
    done, length = times(p, m, order, longer)
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(world or p))}]
    if world:
        groups.append({"pg_name": f"pp{ranks[0]}", "pg_desc": "mesh_pp", "ranks": list(ranks)})
    builders = []
    for rank, number in enumerate(ranks):
        builder = TraceBuilder(
            vendor="cuda" if device else "cpu",
            distributedInfo={
                "backend": "nccl" if device else "gloo",
                "rank": number,
                "world_size": world or p,
                "pg_config": groups,
            },
            host_name="host",
        )
        for step in range(n_steps):
            begin = 1_000.0 + step * (length + BETWEEN + 100)
            add = _on_device if device else _on_host
            add(builder, begin, p, done[rank], ranks)
            end = begin + length
            builder.annotation("Optimizer.step#SGD.step", end + 10, BETWEEN - 20)
            builder.op("aten::add_", end + 20, BETWEEN - 50)
            if device:
                builder.launch(end + 30, 5, end + 40, BETWEEN - 100)
            builder.step(10 + step, begin - 50, length + BETWEEN + 50)
        if device:
            builder.profiler_stop(begin + length + BETWEEN + 100, 10)
        if batched:
            _batch(builder)
        builders.append(builder)
    return builders


def _batch(builder: TraceBuilder) -> None:
    """Make one kernel of each send and the receive that follows, and move what they say to calls of the host."""
    launches = {event["args"]["correlation"]: event for event in builder.events if event["cat"] == "cuda_runtime"}
    kernels = sorted(
        (event for event in builder.events if event["name"] == SEND),
        key=lambda event: launches[event["args"]["correlation"]]["ts"],
    )
    for at, kernel in enumerate(kernels):
        call = launches[kernel["args"]["correlation"]]
        said = {key: kernel["args"].pop(key) for key in list(kernel["args"]) if key[0].isupper() or key == "dtype"}
        builder.event("record_param_comms", "cpu_op", call["ts"] - 3, 2, **said)
        before = kernels[at - 1] if at else None
        near = before is not None and call["ts"] - launches[before["args"]["correlation"]]["ts"] < 200
        if said["Collective name"] == "recv" and near and before.pop("alone", False):
            # the receive's kernel, launched where both are enqueued, is the batch's
            builder.events.remove(before)
            builder.events.remove(launches[before["args"]["correlation"]])
        kernel["alone"] = said["Collective name"] == "send"
    for kernel in kernels:
        kernel.pop("alone", None)


def _on_host(builder: TraceBuilder, begin: float, p: int, mine: dict[Task, tuple[float, float]], _: object) -> None:
    v = len({stage for stage, _, _ in mine})
    before = begin
    for (stage, kind, _), (start, end) in mine.items():
        source, target = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
        if 0 <= source < p * v:
            builder.annotation("gloo:recv", before - 8, begin + start - before + 6)
        builder.op(PASSES[kind], begin + start, end - start - 20)
        if 0 <= target < p * v:
            builder.annotation("gloo:send", begin + end - 15, 5)
        before = begin + end


def _on_device(
    builder: TraceBuilder, begin: float, p: int, mine: dict[Task, tuple[float, float]], ranks: Sequence[int]
) -> None:
    v = len({stage for stage, _, _ in mine})
    before = begin
    group = {"Process Group Name": "0", "In msg nelems": 4096, "dtype": "Float"}
    for at, ((stage, kind, _), (start, end)) in enumerate(mine.items()):
        source, target = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
        host = begin + at * 60
        if 0 <= source < p * v:
            ends = {"Collective name": "recv", "Src Rank": ranks[source % p], "Dst Rank": ranks[stage % p]}
            builder.launch(host, 4, before - 8, begin + start - before + 6, SEND, stream=20, **ends, **group)
        builder.op(PASSES[kind], host + 10, 20)
        builder.launch(host + 12, 4, begin + start, end - start - 20, "gemm")
        if 0 <= target < p * v:
            ends = {"Collective name": "send", "Src Rank": ranks[stage % p], "Dst Rank": ranks[target % p]}
            builder.launch(host + 40, 4, begin + end - 15, 10, SEND, stream=21, **ends, **group)
        before = begin + end
