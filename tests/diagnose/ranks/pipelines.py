"""Recordings of pipelines in tests: passes in the order of textbooks, each as long as it is told, in real trace JSON.

Times in microseconds. Messages take ``HOP``; between two passes a rank does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder import TraceBuilder

FORWARD, BACKWARD = 10_000.0, 20_000.0
HOP = 200.0
BETWEEN = 2_000.0
"""What the optimizer takes at the end of a step."""
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

Order = list[tuple[str, int]]


def gpipe(_rank: int, _p: int, m: int) -> Order:
    """All forward passes, then all backward ones."""
    return [(kind, micro) for kind in "FB" for micro in range(m)]


def one_forward_one_backward(rank: int, p: int, m: int) -> Order:
    """As many forward passes as there are stages from here on, then one of each in turns."""
    warm = min(m, p - rank)
    out = [("F", micro) for micro in range(warm)]
    for micro in range(m):
        out.append(("B", micro))
        out += [("F", warm + micro)] * (warm + micro < m)
    return out


def odd(rank: int, p: int, m: int) -> Order:
    """An order that runs and is no schedule with a name: two backward passes at a time."""
    del rank, p
    half = m // 2
    first = [("F", micro) for micro in range(half)] + [("B", micro) for micro in range(half - 1)]
    rest = [("F", micro) for micro in range(half, m)] + [("B", micro) for micro in range(half - 1, m)]
    return first + rest


def times(
    p: int, m: int, order: object, longer: Sequence[float]
) -> tuple[list[dict[tuple[str, int], tuple[float, float]]], float]:
    """Return begin and end of every pass of each rank, in one step that begins at 0, and when the last ends."""
    orders = [order(rank, p, m) for rank in range(p)]  # type: ignore[operator]
    done: list[dict[tuple[str, int], tuple[float, float]]] = [{} for _ in range(p)]
    at, place = [0.0] * p, [0] * p
    while any(place[rank] < len(orders[rank]) for rank in range(p)):
        for rank in range(p):
            while place[rank] < len(orders[rank]):
                kind, micro = orders[rank][place[rank]]
                source = rank - 1 if kind == "F" else rank + 1
                ready = 0.0
                if 0 <= source < p:
                    if (kind, micro) not in done[source]:
                        break
                    ready = done[source][kind, micro][1] + HOP
                begin = max(at[rank], ready)
                end = begin + (FORWARD if kind == "F" else BACKWARD) * longer[rank]
                done[rank][kind, micro] = begin, end
                at[rank] = end
                place[rank] += 1
    return done, max(at)


def pipeline(
    p: int = 4,
    m: int = 8,
    order: object = one_forward_one_backward,
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
            add(builder, begin, rank, p, done[rank], done, ranks)
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
        if said["Collective name"] == "recv" and before is not None and before.pop("alone", False):
            # the receive's kernel, launched where both are enqueued, is the batch's
            builder.events.remove(before)
            builder.events.remove(launches[before["args"]["correlation"]])
        kernel["alone"] = said["Collective name"] == "send"
    for kernel in kernels:
        kernel.pop("alone", None)


def _pass(builder: TraceBuilder, kind: str, start: float, dur: float) -> None:
    name = "aten::mm" if kind == "F" else "autograd::engine::evaluate_function: MmBackward0"
    builder.op(name, start, dur)


def _on_host(builder, begin, rank, p, mine, done, ranks) -> None:  # type: ignore[no-untyped-def]
    before = begin
    for (kind, _micro), (start, end) in mine.items():
        source = rank - 1 if kind == "F" else rank + 1
        target = rank + 1 if kind == "F" else rank - 1
        if 0 <= source < p:
            builder.annotation("gloo:recv", before - 8, begin + start - before + 6)
        _pass(builder, kind, begin + start, end - start - 20)
        if 0 <= target < p:
            builder.annotation("gloo:send", begin + end - 15, 5)
        before = begin + end


def _on_device(builder, begin, rank, p, mine, done, ranks) -> None:  # type: ignore[no-untyped-def]
    before = begin
    for at, ((kind, _micro), (start, end)) in enumerate(mine.items()):
        source = rank - 1 if kind == "F" else rank + 1
        target = rank + 1 if kind == "F" else rank - 1
        host = begin + at * 60
        group = {"Process Group Name": "0", "In msg nelems": 4096, "dtype": "Float"}
        if 0 <= source < p:
            builder.launch(
                host,
                4,
                before - 8,
                begin + start - before + 6,
                SEND,
                stream=20,
                **{"Collective name": "recv", "Src Rank": ranks[source], "Dst Rank": ranks[rank], **group},
            )
        builder.op("aten::mm" if kind == "F" else "autograd::engine::evaluate_function: MmBackward0", host + 10, 20)
        builder.launch(host + 12, 4, begin + start, end - start - 20, "gemm")
        if 0 <= target < p:
            builder.launch(
                host + 40,
                4,
                begin + end - 15,
                10,
                SEND,
                stream=21,
                **{"Collective name": "send", "Src Rank": ranks[rank], "Dst Rank": ranks[target], **group},
            )
        before = begin + end
