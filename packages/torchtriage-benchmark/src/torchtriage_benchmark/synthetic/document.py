"""A run as the profiler writes it: the JSON of a recording on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchtriage_benchmark.synthetic.accelerators import Accelerator
from torchtriage_benchmark.synthetic.stream import Stream
from torchtriage_benchmark.synthetic.timeline import CALL_IDS, CallRow, HostRow, Run, WorkRow
from torchtriage_benchmark.synthetic.work import Work

Event = dict[str, Any]

ENGINE_TID = 71
"""How far the autograd engine's thread number is from the main thread's."""
_MARGIN_NS = 1
"""Annotations on the device begin this much early and end this much late, as Kineto's do."""
_GPU_SORT = 5_000_000


class Clock:
    """A run's times on the recording's clock."""

    def __init__(self, stream: Stream, run: Run) -> None:
        self.shift = stream.steps[0].begin_ns - run.window[0]

    def ns(self, time: float) -> int:
        """Return a moment of the run, in whole ns."""
        return round(time + self.shift)

    def span(self, begin: float, end: float) -> dict[str, float]:
        """Return ``ts`` and ``dur`` in us."""
        return {"ts": self.ns(begin) / 1000, "dur": (self.ns(end) - self.ns(begin)) / 1000}


def document_of(stream: Stream, run: Run, accelerator: Accelerator) -> dict[str, Any]:
    """Return the trace's document."""
    clock = Clock(stream, run)
    beside = {key: value for key, value in stream.document.items() if key != "traceEvents"}
    head: dict[str, Any] = {}
    for key, value in beside.items():
        head[key] = value
        if key == "deviceProperties":
            head[key] = [accelerator.properties]
            head |= {"cupti_version": 26, "cuda_runtime_version": 12080}
            head |= {"cuda_driver_version": 12080}
    events = [
        *_metadata(stream, run),
        *_hosts(stream, run, clock),
        *_flows(stream, run, clock),
        *_frames(stream, run, clock),
        *_device(stream, run, clock, accelerator),
        *_ends(stream, run, clock),
    ]
    return head | {"traceEvents": events}


def _metadata(stream: Stream, run: Run) -> list[Event]:
    rows = [item for item in stream.document["traceEvents"] if item["ph"] == "M"]
    own = [row for row in rows if row["pid"] == stream.pid]
    ts = own[0]["ts"]

    def row(name: str, pid: int, tid: int, args: dict[str, Any]) -> Event:
        return {"ph": "M", "name": name, "ts": ts, "pid": pid, "tid": tid, "args": args}

    found = list(own)
    process = next((item["args"]["name"] for item in own if item["name"] == "process_name"), "python")
    if any(host.thread == "backward" for host in run.hosts):
        tid = stream.tid + ENGINE_TID
        found.append(row("thread_name", stream.pid, tid, {"name": f"thread {tid} (pt_autograd_0)"}))
        found.append(row("thread_sort_index", stream.pid, tid, {"sort_index": tid}))
    # one machine has eight places for devices, whatever is in them
    for device in range(8):
        found += [
            row("process_name", device, 0, {"name": process}),
            row("process_labels", device, 0, {"labels": f"GPU {device}"}),
            row("process_sort_index", device, 0, {"sort_index": _GPU_SORT + device}),
        ]
    for number in sorted({work.stream for work in run.works}):
        found.append(row("thread_name", 0, number, {"name": f"stream {number} "}))
        found.append(row("thread_sort_index", 0, number, {"sort_index": number}))
    return found


def _tid(stream: Stream, thread: str) -> int:
    return stream.tid + (ENGINE_TID if thread == "backward" else 0)


def _hosts(stream: Stream, run: Run, clock: Clock) -> list[Event]:
    found = []
    for number, host in enumerate(run.hosts):
        args = dict(host.args)
        args["External id"] = number + 1
        if "Ev Idx" in args:
            args["Ev Idx"] = number
        found.append(
            {
                "ph": "X",
                "cat": "user_annotation" if host.annotation else "cpu_op",
                "name": host.name,
                "pid": stream.pid,
                "tid": _tid(stream, host.thread),
                **clock.span(host.begin, host.end),
                "args": args,
            }
        )
    return found


def _flows(stream: Stream, run: Run, clock: Clock) -> list[Event]:
    """Return the arrows from forward operators to backward ones, where both are still there."""
    came: dict[int, HostRow] = {}
    for host_row in run.hosts:
        if host_row.op is not None and not host_row.op.put_in:
            came.setdefault(round(host_row.op.begin_ns), host_row)
    arrows = [item for item in stream.document["traceEvents"] if item.get("cat") == "fwdbwd"]
    ends: dict[int, list[Event]] = {}
    for arrow in arrows:
        ends.setdefault(arrow["id"], []).append(arrow)
    found: list[Event] = []
    for pair in ends.values():
        hosts = [came[at] for arrow in pair if (at := round(arrow["ts"] * 1000)) in came]
        if len(hosts) == len(pair):
            found += (
                arrow | {"tid": _tid(stream, host.thread), "ts": clock.ns(host.begin) / 1000}
                for arrow, host in zip(pair, hosts, strict=True)
            )
    return found


def _frames(stream: Stream, run: Run, clock: Clock) -> list[Event]:
    """Return the Python frames, with those that were put in, numbered anew."""
    if not stream.frames:
        return []
    rows: list[tuple[int, int, int, Event]] = []
    for frame in stream.frames:
        begin = clock.ns(run.at(frame["ts"] * 1000))
        end = clock.ns(run.at((frame["ts"] + frame["dur"]) * 1000))
        rows.append((begin, -end, frame["args"]["Python id"], frame))
    frame_args = {"Python parent id": 0, "Python id": 0, "Ev Idx": 0}
    for number, (name, begun, ended, _) in enumerate(run.frames):
        new = {"name": name, "args": dict(frame_args)}
        rows.append((clock.ns(begun), -clock.ns(ended), 1_000_000_000 + number, new))
    rows.sort(key=lambda row: row[:3])
    found: list[Event] = []
    around: list[tuple[int, int]] = []
    for number, (begin, minus_end, _, item) in enumerate(rows, 1):
        while around and -minus_end > around[-1][0]:
            around.pop()
        parent = around[-1][1] if around else None
        around.append((-minus_end, number))
        args = dict(item["args"])
        args["Python parent id"], args["Python id"] = parent, number
        args["Ev Idx"] = len(run.hosts) + number - 1
        found.append(
            {
                "ph": "X",
                "cat": "python_function",
                "name": item["name"],
                "pid": stream.pid,
                "tid": stream.tid,
                "ts": begin / 1000,
                "dur": (-minus_end - begin) / 1000,
                "args": args,
            }
        )
    return found


def _device(stream: Stream, run: Run, clock: Clock, accelerator: Accelerator) -> list[Event]:
    found: list[Event] = []
    begun, ended = run.window
    works = [work for work in run.works if work.end > begun and work.begin < ended]
    seen = {call.correlation for call in run.calls}
    rows: list[tuple[float, int, CallRow | WorkRow]] = [
        *((call.begin, 0, call) for call in run.calls),
        *((work.begin, 1, work) for work in works),
    ]
    for _, _, item in sorted(rows, key=lambda row: row[:2]):
        if isinstance(item, CallRow):
            found += _call(stream, item, clock)
        else:
            found += _work(item, clock, accelerator, item.seen and item.correlation in seen)
    found += _annotations(run, works, clock)
    return found


def _call(stream: Stream, call_row: CallRow, clock: Clock) -> list[Event]:
    tid = _tid(stream, call_row.thread)
    args: dict[str, Any] = {"External id": call_row.row + 1} if call_row.row >= 0 else {}
    args |= {"cbid": CALL_IDS[call_row.name], "correlation": call_row.correlation}
    span = clock.span(call_row.begin, call_row.end)
    call = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": call_row.name,
        "pid": stream.pid,
        "tid": tid,
        **span,
        "args": args,
    }
    arrow = {
        "ph": "s" if call_row.enqueues or call_row.waits else "f",
        "id": call_row.correlation,
        "pid": stream.pid,
        "tid": tid,
        "ts": span["ts"],
        "cat": "ac2g",
        "name": "ac2g",
    }
    return [call, arrow if arrow["ph"] == "s" else arrow | {"bp": "e"}]


def _work(work_row: WorkRow, clock: Clock, accelerator: Accelerator, seen: bool) -> list[Event]:
    span = clock.span(work_row.begin, work_row.end)
    args: dict[str, Any] = {"External id": work_row.row + 1} if seen and work_row.row >= 0 else {}
    place = {"device": 0, "context": 1, "stream": work_row.stream, "correlation": work_row.correlation}
    if work_row.work.kind == "kernel":
        args |= {"queued": 0, **place, **_occupancy(work_row.work, accelerator)}
    else:
        rate = work_row.work.n_bytes / max(span["dur"] * 1000, 1)
        args |= {**place, "bytes": work_row.work.n_bytes, "memory bandwidth (GB/s)": rate}
    work = {
        "ph": "X",
        "cat": work_row.work.kind,
        "name": work_row.work.name,
        "pid": 0,
        "tid": work_row.stream,
        **span,
        "args": args,
    }
    arrow = {
        "ph": "f",
        "id": work_row.correlation,
        "pid": 0,
        "tid": work_row.stream,
        "ts": span["ts"],
        "cat": "ac2g",
        "name": "ac2g",
        "bp": "e",
    }
    return [work, arrow]


def _occupancy(work: Work, accelerator: Accelerator) -> dict[str, Any]:
    threads = work.block[0] * work.block[1] * work.block[2]
    blocks = work.n_blocks / accelerator.n_sms
    warps = blocks * -(-threads // 32)
    full = accelerator.threads_per_sm // 32
    by_registers = 65536 // max(work.registers * 32, 1)
    return {
        "registers per thread": work.registers,
        "shared memory": work.shared,
        "blocks per SM": round(blocks, 6),
        "warps per SM": round(warps, 6),
        "grid": list(work.grid),
        "block": list(work.block),
        "est. achieved occupancy %": round(100 * min(warps, by_registers, full) / full),
    }


def _annotations(run: Run, works: Iterable[WorkRow], clock: Clock) -> list[Event]:
    """Return the annotations' spans on each stream: from their first work to their last."""
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for work in works:
        if work.annotation >= 0 and work.seen:
            key = work.annotation, work.stream
            begin, end = spans.get(key, (work.begin, work.end))
            spans[key] = min(begin, work.begin), max(end, work.end)
    return [
        {
            "ph": "X",
            "cat": "gpu_user_annotation",
            "name": run.hosts[row].name,
            "pid": 0,
            "tid": number,
            **clock.span(begin - _MARGIN_NS, end + _MARGIN_NS),
            "args": {"External id": row + 1},
        }
        for (row, number), (begin, end) in sorted(spans.items())
    ]


def _ends(stream: Stream, run: Run, clock: Clock) -> list[Event]:
    """Return the profiler's own rows, as long as the run took."""
    found = []
    for item in stream.document["traceEvents"]:
        if item.get("cat") == "Trace":
            end = clock.ns(run.window[1]) / 1000
            found.append(item | {"dur": round(end - item["ts"], 3)})
        elif item["ph"] == "i" or (item["ph"] == "M" and item["pid"] != stream.pid):
            late = item["name"] == "Record Window End"
            found.append(item | ({"ts": clock.ns(run.window[1]) / 1000} if late else {}))
    return found
