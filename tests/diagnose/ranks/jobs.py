"""Recordings of jobs in tests: real trace JSON of every rank, read by the real reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder import TraceBuilder

from torchtriage.core.finding import Finding
from torchtriage.diagnose.ranks.job import judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.rank_record import RankRecord, build_record
from torchtriage.diagnose.verdict.verdict import diagnose

STREAM = 7
COMM = 20
TRANSFER = 1000.0
FORWARD, BACKWARD, OPTIMIZER = 2000.0, 3000.0, 500.0
HIDDEN = 2000.0
N_SLOW = 50
N_STEPS = 6
TOKENS = 4096
STEP_NUMBER = 10
"""Of the first step."""


def job(
    n: int = 4,
    *,
    n_steps: int = 6,
    late: Mapping[int, float] | Sequence[Mapping[int, float]] | None = None,
    how: str = "python",
    overlap: float = 0.0,
    **each: Any,
) -> list[TraceBuilder]:
    """Return one builder for each rank of a data-parallel job with one all-reduce per step.

    Parameters
    ----------
    late : mapping or sequence of mappings
        Microseconds by which ranks come late, in every step or step by step.
    how : ``python``, ``loader``, ``device``, ``op``, ``gc``, ``after``, ``range``, ``inside`` or ``slow``
        What the late ranks do in that time; ``after``: Python at the end of the step; ``range``: Python inside an
        annotation, ``HIDDEN`` of it beside the device's work; ``inside``: one operator of all ranks takes longer,
        ``slow``: fifty do.
    overlap : float
        Microseconds of computation on another stream beside each all-reduce.
    each : dict
        For every builder: ``baseTimeNanoseconds`` and the like.
    """
    lates = [late or {}] * n_steps if not isinstance(late, Sequence) else list(late)
    builders = [
        TraceBuilder(
            distributedInfo={
                "backend": "nccl",
                "rank": rank,
                "world_size": n,
                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(n))}],
            },
            host_name=f"host{rank}",
            **each,
        )
        for rank in range(n)
    ]
    begin = [1000.0] * n
    for step in range(n_steps):
        arrivals = []
        carried = lates[step] if how != "after" else (lates[step - 1] if step else {})
        for rank, builder in enumerate(builders):
            extra = carried.get(rank, 0.0)
            arrivals.append(_until_all_reduce(builder, begin[rank], extra, how))
        last = max(arrivals)
        for rank, builder in enumerate(builders):
            all_reduce(builder, arrivals[rank], last + TRANSFER, n)
            if overlap:
                start = arrivals[rank]
                builder.launch(start - 4, 2, start, overlap, "beside", stream=9)
            end = last + TRANSFER
            builder.annotation("Optimizer.step#SGD.step", end, OPTIMIZER + 20)
            builder.op("aten::add_", end + 5, 10)
            builder.launch(end + 6, 5, end + 12, OPTIMIZER)
            finish = end + OPTIMIZER + 30
            builder.step(STEP_NUMBER + step, begin[rank], finish - begin[rank])
            begin[rank] = finish + 5
    for rank, builder in enumerate(builders):
        builder.profiler_stop(begin[rank] + 10, 20)
    return builders


def _until_all_reduce(builder: TraceBuilder, begin: float, extra: float, how: str) -> float:
    """Add a step up to its all-reduce; return when that starts."""
    at = begin + 1
    if how == "after" and extra:
        at += extra
    loader = 300 + (extra if how == "loader" else 0)
    builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, loader)
    at += loader + 5
    builder.op("aten::mm", at, 20)
    builder.launch(at + 2, 5, at + 10, FORWARD, "forward")
    at += 10 + FORWARD
    if how == "op" and extra:
        builder.op("aten::cumsum", at + 1, extra - 2)
        at += extra
    length = BACKWARD + (extra if how == "device" else 0)
    builder.op("autograd::engine::evaluate_function: MmBackward0", at, 30)
    builder.launch(at + 2, 5, at + 10, length, "backward")
    at += 10 + length
    if how == "range":
        hole = HIDDEN + extra if extra else 0.0
        begin = at - HIDDEN - 60
        builder.annotation("## forward ##", begin, hole + 50)
        builder.annotation("# sparse", begin + 5, hole + 40)
        builder.op("aten::view", begin + 10, 5)
        builder.op("exchange", begin + 20 + hole, 10)
        at += extra
    if how in ("inside", "slow"):
        n = N_SLOW if how == "slow" else 1
        for place in range(n):
            builder.op("aten::embedding", at + place * (20 + extra / n), 20 + extra / n)
        at += 20 * n + extra
    if how in ("python", "gc") and extra:
        if how == "gc":
            builder.frame("Python GC", at + 1, extra - 2)
        at += extra
    return at + 10


def all_reduce(
    builder: TraceBuilder,
    start: float,
    end: float,
    n: int,
    *,
    name: str = "allreduce",
    group: str = "0",
    ranks: Sequence[int] | None = None,
    nelems: int = 4096,
    stream: int = COMM,
    **more: Any,
) -> None:
    """Add a collective of a process group."""
    builder.launch(
        start - 8,
        3,
        start,
        end - start,
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        stream=stream,
        **{
            "Collective name": name,
            "In msg nelems": nelems,
            "dtype": "Float",
            "Process Group Name": group,
            "Process Group Ranks": str(list(ranks if ranks is not None else range(n))),
            **more,
        },
    )


def records(builders: Sequence[TraceBuilder], folder: str = "run") -> list[RankRecord]:
    """Return the record of every rank."""
    out = []
    for rank, builder in enumerate(builders):
        trace, path = builder.build(), f"{folder}/rank{rank}.json"
        result = diagnose(trace)
        out.append(build_record(trace, path, replace(result, trace=replace(result.trace, path=path))))
    return out


def write(builders: Sequence[TraceBuilder], folder: Path) -> list[Path]:
    """Write every rank's trace; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rank{rank}.json" for rank in range(len(builders))]
    for path, builder in zip(paths, builders, strict=True):
        path.write_bytes(builder.json())
    return paths


def merged(builders: Sequence[TraceBuilder], *, devices: Sequence[int] | None = None) -> TraceBuilder:
    """Return one recording of all ranks, as tools write it that offset process ids and name the rank of each event."""
    whole = TraceBuilder()
    for rank, builder in enumerate(builders):
        for event in builder.events:
            args = {**event.get("args", {}), "rank": rank, "pid_raw": event["pid"]}
            if "device" in args:
                args["device"] = event["pid"] = rank if devices is None else devices[rank]
            if "correlation" in args:
                args["correlation"] += 100_000 * rank
            whole.events.append({**event, "pid": event["pid"] + 100_000_000 * rank, "args": args})
    return whole


def shifted(builder: TraceBuilder, by: float) -> TraceBuilder:
    """Return a builder whose clock is ahead by microseconds."""
    for event in builder.events:
        event["ts"] += by
    return builder


def ranks_of(n: int, **meta: Sequence[Any]) -> list[TraceBuilder]:
    return [
        TraceBuilder(
            distributedInfo={
                "backend": "nccl",
                "rank": rank,
                "world_size": n,
                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(n))}],
            },
            host_name="host",
            **{key: values[rank] for key, values in meta.items()},
        )
        for rank in range(n)
    ]


def meet(
    builders: Sequence[TraceBuilder],
    at: Sequence[float],
    name: str,
    nelems: Sequence[int] | None = None,
    took: float = 200,
    size: int = 0,
) -> list[float]:
    """Let ranks exchange, all of them or in groups of ``size``; return when each goes on."""
    n = len(builders)
    size = size or n
    left = []
    for first in range(0, n, size):
        ranks = range(first, first + size)
        end = max(at[rank] for rank in ranks) + took
        for rank in ranks:
            group = "0" if size == n else f"part {first}"
            elements = nelems[rank] if nelems is not None else TOKENS
            all_reduce(builders[rank], at[rank], end, n, name=name, group=group, ranks=ranks, nelems=elements)
        left += [end + 10] * size
    return left


def steps_of(builders: list[TraceBuilder], arrive: Callable[[int, float], list[float]]) -> list[TraceBuilder]:
    """Return the ranks after steps that end with a collective; ``arrive`` : when each comes to it."""
    begin = 1000.0
    for step in range(N_STEPS):
        end = meet(builders, arrive(step, begin + 20), "allreduce")[0] + 20
        for builder in builders:
            builder.step(10 + step, begin, end - begin)
        begin = end + 5
    for builder in builders:
        builder.profiler_stop(begin + 10, 20)
    return builders


def found(builders: list[TraceBuilder], without: int = -1) -> dict[str, Finding]:
    """Return the findings of a job by their codes; ``without`` : a rank whose recording is missing."""
    ranks = [record for rank, record in enumerate(records(builders)) if rank != without]
    (job,) = detect_jobs(ranks)
    return {finding.code: finding for finding in judge(ranks, job, min_share=0.01).findings}
