"""A slow, obvious reading of a profiler trace, to check the product against.

Plain dictionaries, Python integers and loops; nothing here may import the product. Times are
integer nanoseconds taken from the decimal text of the file, so no figure is rounded. A figure
that a reader may define in two ways is given in both parts (idle before the last row and after
it, gaps up to two microseconds and longer ones) rather than as one sum.

``python tests/reference.py TRACE_OR_FOLDER...`` prints the figures as JSON;
``expected/reference.json`` is that output for the folder of shared traces.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

OP = {"cpu_op", "Operator"}
ANNOTATION = {"user_annotation"}
RUNTIME = {"cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "enqueue", "dequeue"}
KERNEL = {"kernel", "Kernel"}
MEMCPY = {"gpu_memcpy", "Memcpy"}
MEMSET = {"gpu_memset", "Memset"}
GPU = KERNEL | MEMCPY | MEMSET
NOT_WORK = {"Trace", "overhead"}

COMM = re.compile(
    "nccl|rccl|multimem_|cross_device_reduce|one_shot_all|two_shot_all|symm_mem|nvshmem|deepep"
    "|deep_ep|all_reduce|allreduce|all_gather|allgather|reduce_scatter|reducescatter|alltoall"
    "|all_to_all",
    re.IGNORECASE,
)
STEP = re.compile(r"ProfilerStep#(\d+)")
PROFILER_START = re.compile(
    r"torch/profiler/profiler\.py\(\d+\): (__enter__|start|start_trace)$"
    r"|torch/autograd/profiler\.py\(\d+\): _start_trace$"
)
LAUNCH_SLACK_NS = 50_000
EARLY_NS = 1_000_000
BACK_TO_BACK_NS = 2_000
TOP = 5

Row = dict[str, Any]
Interval = tuple[int, int]


def read_document(path: Path) -> Any:
    """Parse a JSON or gzipped JSON file; numbers with a point become `Decimal`."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data.decode("utf-8"), parse_float=Decimal)


def to_ns(microseconds: Any) -> int:
    """Turn a microsecond figure of the file (int, Decimal or text) into nanoseconds."""
    return round(Decimal(microseconds) * 1000)


def read_rows(events: list[Row]) -> list[Row]:
    """Give every complete event as a row, in file order."""
    rows = []
    for index, event in enumerate(events):
        if event.get("ph") != "X":
            continue
        start = to_ns(event["ts"])
        rows.append(
            {
                "index": index,
                "name": str(event.get("name", "")),
                "cat": event.get("cat"),
                "lane": (str(event.get("pid")), str(event.get("tid"))),
                "pid": event.get("pid"),
                "start": start,
                "end": start + to_ns(event.get("dur", 0)),
                "args": event.get("args") or {},
            }
        )
    return rows


def merge(intervals: list[Interval]) -> list[Interval]:
    """Join overlapping and touching intervals."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(rows: list[Row], window: Interval) -> list[Interval]:
    """Give the parts of the rows inside the window."""
    parts = [(max(r["start"], window[0]), min(r["end"], window[1])) for r in rows]
    return [(start, end) for start, end in parts if end > start]


def covered_ns(intervals: list[Interval]) -> int:
    """Measure the union of the intervals."""
    return sum(end - start for start, end in merge(intervals))


def is_comm(row: Row) -> bool:
    """Whether a kernel row moves data between ranks."""
    return row["cat"] in KERNEL and ("Collective name" in row["args"] or COMM.search(row["name"]) is not None)


def read_mtia(rows: list[Row]) -> None:
    """Give MTIA's rows, all of one category, that of what they are."""
    for row in rows:
        if row["cat"] == "mtia_ccp_events" and not row["name"].startswith("event_"):
            row["cat"] = "gpu_memcpy" if row["name"] == "dma_request" else "kernel"


def read_ascend(rows: list[Row], events: list[Row]) -> None:
    """Give Ascend's rows, which have no category, one by their process; calls the lane of the program's thread."""
    names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    devices = [pid for pid, name in names.items() if name == "Ascend Hardware"]
    if not devices:
        return
    program = {row["lane"][1]: row["lane"] for row in rows if row["cat"] in OP}
    calls: dict[tuple[str, str], list[Row]] = defaultdict(list)
    work: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        process = names.get(row["pid"])
        if process == "Ascend Hardware" and not re.match("(?i)(event|notify)_", row["name"]):
            row["cat"] = "gpu_memcpy" if row["name"].upper().startswith("MEMCPY") else "kernel"
            row["args"] = {**row["args"], "device": devices.index(row["pid"])}
            work[(*row["lane"], row["start"])] = row
        elif process == "CANN":
            row["cat"] = "cuda_runtime"
            calls[row["lane"]].append(row)
    begun = {}
    for event in events:
        if event.get("cat") == "HostToDevice" and event["ph"] == "s":
            at = to_ns(event["ts"])
            around = [row for row in calls[str(event["pid"]), str(event["tid"])] if row["start"] <= at <= row["end"]]
            if around:
                begun[event["id"]] = max(around, key=lambda row: (row["start"], row["index"]))
    for event in events:
        if event.get("cat") == "HostToDevice" and event["ph"] == "f" and event["id"] in begun:
            call = begun[event["id"]]
            row = work[str(event["pid"]), str(event["tid"]), to_ns(event["ts"])]
            for end in (call, row):
                end["args"] = {**end["args"], "correlation": call["index"]}
    for rows_of_lane in calls.values():
        for row in rows_of_lane:
            row["lane"] = program.get(row["lane"][1], row["lane"])


def device_of(row: Row) -> str:
    """Name the device of a GPU row."""
    return str(row["args"].get("device", row["pid"]))


def stream_of(row: Row) -> tuple[str, str]:
    """Name the stream of a GPU row."""
    return device_of(row), str(row["args"].get("stream", row["lane"][1]))


def find_steps(rows: list[Row]) -> list[Row]:
    """Find the step annotations of the host, by start."""
    steps = [r for r in rows if r["cat"] in OP | ANNOTATION and STEP.fullmatch(r["name"])]
    return sorted(steps, key=lambda r: (r["start"], r["index"]))


def find_stop_sync(rows: list[Row]) -> Row | None:
    """Find the profiler's own stop: the last device sync, if no op encloses it."""
    syncs = [r for r in rows if r["cat"] in RUNTIME and r["name"].endswith("DeviceSynchronize")]
    if not syncs:
        return None
    last = max(syncs, key=lambda r: (r["start"], r["index"]))
    for row in rows:
        encloses = row["start"] <= last["start"] and row["end"] >= last["end"]
        if encloses and row["cat"] in OP and row["lane"] == last["lane"]:
            return None
    return last


def step_boundaries(steps: list[Row], gpu: list[Row]) -> list[int]:
    """Place the boundaries of the steps where their GPU work begins.

    Work without a launch that starts within the first step, and before any with one on its stream
    (on any stream where its own has none), is the backlog from before the recording: it counts as
    enqueued before that step. So does what starts later, yet before work of its stream that the first
    step launched. (If no work has a launch, its own start says when it was enqueued.)
    """
    linked = [row for row in gpu if row["launch"]]
    first: dict[tuple[str, str], int] = {}
    for row in linked:
        first[stream_of(row)] = min(row["start"], first.get(stream_of(row), row["start"]))
    earliest = min(first.values(), default=0)
    early: dict[tuple[str, str], int] = {}
    for row in linked:
        if row["launch"]["start"] < steps[0]["end"]:
            early[stream_of(row)] = min(row["start"], early.get(stream_of(row), row["start"]))
    boundaries = []
    for host in [s["start"] for s in steps] + [steps[-1]["end"]]:
        boundary = host
        for row in gpu:
            launch = row["launch"]
            begun = launch["start"] if launch else row["start"]
            first_on_stream = first.get(stream_of(row), earliest)
            until = early.get(stream_of(row), min(steps[0]["end"], first_on_stream))
            if linked and launch is None and row["start"] < until:
                begun = min(begun, steps[0]["start"] - 1)
            if begun < host:
                boundary = max(boundary, row["end"])
        boundaries.append(boundary)
    return boundaries


def plain_window(rows: list[Row], stop_sync: Row | None) -> Interval | None:
    """Take the window of a trace without steps, from where the profiler has started, if stacks show that."""
    starts = [r["start"] for r in rows if r["cat"] not in NOT_WORK]
    first_work = min((r["start"] for r in rows if r["cat"] not in NOT_WORK | {"python_function"}), default=0)
    starting = [r["end"] for r in rows if PROFILER_START.search(r["name"]) and r["start"] < first_work]
    closing = OP | ANNOTATION | RUNTIME | GPU
    ends = [r["end"] for r in rows if r["cat"] in closing and r is not stop_sync]
    if not starts or not ends:
        return None
    return max(min(starts), min(max(starting, default=0), first_work)), max(ends)


def backlog_end(gpu: list[Row], start: int) -> int:
    """Find when the devices have worked off what was enqueued before the recording and is not in it.

    The first row of a stream that starts over a millisecond after its launch, while its device shows work for
    less than half of that, waited for such work. Uploads wait for the host, which stages them.
    """
    first: dict[tuple[str, str], Row] = {}
    for row in sorted(gpu, key=lambda r: (r["start"], r["index"])):
        first.setdefault(stream_of(row), row)
    for row in first.values():
        if row["launch"] is None or row["name"].startswith("Memcpy HtoD"):
            continue
        wait = (row["launch"]["end"], row["start"])
        own = [other for other in gpu if device_of(other) == device_of(row)]
        if wait[1] - wait[0] > EARLY_NS and 2 * covered_ns(clip(own, wait)) < wait[1] - wait[0]:
            start = max(start, row["start"])
    return start


def split_window(gpu: list[Row], window: Interval) -> dict[str, int]:
    """Split the window of one device into classes of time that add up to it."""
    compute = clip([r for r in gpu if r["cat"] not in MEMCPY and not is_comm(r)], window)
    comm = clip([r for r in gpu if is_comm(r)], window)
    copy = clip([r for r in gpu if r["cat"] in MEMCPY], window)
    return {
        "compute_ns": covered_ns(compute),
        "comm_only_ns": covered_ns(compute + comm) - covered_ns(compute),
        "copy_only_ns": covered_ns(compute + comm + copy) - covered_ns(compute + comm),
        "busy_ns": covered_ns(compute + comm + copy),
        "idle_ns": window[1] - window[0] - covered_ns(compute + comm + copy),
        "comm_ns": covered_ns(comm),
        "copy_ns": covered_ns(copy),
    }


def split_idle(gpu: list[Row], window: Interval) -> dict[str, int]:
    """Split the idle time of one device by why the row after each gap was not there yet."""
    idle = {
        "idle_back_to_back_ns": 0,
        "idle_host_late_ns": 0,
        "idle_queued_ns": 0,
        "idle_unknown_ns": 0,
        "idle_tail_ns": 0,
    }
    previous_end = window[0]
    before: Row | None = None
    seen = False
    for row in sorted(gpu, key=lambda r: (r["start"], r["index"])):
        if not seen:
            previous_end = min(row["start"], window[0])
            seen = True
        if row["start"] > previous_end:
            inside = min(row["start"], window[1]) - max(previous_end, window[0])
            if inside > 0:
                if row["start"] - previous_end <= BACK_TO_BACK_NS:
                    kind = "idle_back_to_back_ns"
                elif row["launch"] is None:
                    kind = "idle_unknown_ns"
                elif before is row["launch"]:  # two kernels of one graph launch
                    kind = "idle_queued_ns"
                elif row["launch"]["end"] > previous_end:
                    kind = "idle_host_late_ns"
                    returned = row["launch"]["end"]
                    if row["start"] - returned > LAUNCH_SLACK_NS:
                        # enqueued, yet not started for long: from there on it was queued
                        late = min(returned, window[1]) - max(previous_end, window[0])
                        idle["idle_host_late_ns"] += max(late, 0)
                        inside -= max(late, 0)
                        kind = "idle_queued_ns"
                else:
                    kind = "idle_queued_ns"
                idle[kind] += inside
        previous_end = max(previous_end, row["end"])
        before = row["launch"]
    idle["idle_tail_ns"] = max(0, window[1] - max(previous_end, window[0]))
    return idle


def top_kernels(gpu: list[Row]) -> list[dict[str, Any]]:
    """List the kernel names with the most time in the whole file (mean = total / count)."""
    durations: dict[str, list[int]] = defaultdict(list)
    for row in gpu:
        if row["cat"] in KERNEL:
            durations[row["name"]].append(row["end"] - row["start"])
    order = sorted(durations, key=lambda name: (-sum(durations[name]), name))
    return [
        {"name": name, "count": len(durations[name]), "total_ns": sum(durations[name]), "max_ns": max(durations[name])}
        for name in order[:TOP]
    ]


def op_self_time(rows: list[Row]) -> dict[str, Any]:
    """Total the self time of ops by name: duration less that of direct children on the lane.

    Children are ops, annotations and runtime calls. Rows that cross another row are counted.
    """
    children: Counter[int] = Counter()
    crossings = 0
    lanes: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["cat"] in OP | ANNOTATION | RUNTIME:
            lanes[row["lane"]].append(row)
    for lane in lanes.values():
        stack: list[Row] = []
        for row in sorted(lane, key=lambda r: (r["start"], -r["end"], r["index"])):
            while stack and stack[-1]["end"] <= row["start"]:
                stack.pop()
            if stack and row["end"] > stack[-1]["end"]:
                crossings += 1
            if stack:
                children[stack[-1]["index"]] += row["end"] - row["start"]
            stack.append(row)
    total: Counter[str] = Counter()
    for row in rows:
        if row["cat"] in OP:
            total[row["name"]] += row["end"] - row["start"] - children[row["index"]]
    order = sorted(total, key=lambda name: (-total[name], name))
    return {"crossings": crossings, "total_ns": sum(total.values()), "top": {name: total[name] for name in order[:TOP]}}


def memory_instants(events: list[Row]) -> dict[str, dict[str, int]]:
    """Total the allocator's instants by device type and id."""
    memory: dict[str, dict[str, int]] = {}
    for event in events:
        if event.get("name") != "[memory]" or event.get("ph") != "i":
            continue
        args = event["args"]
        device = f"{args.get('Device Type')}:{args.get('Device Id')}"
        entry = memory.setdefault(device, {"count": 0, "alloc_bytes": 0, "free_bytes": 0, "max_allocated_bytes": 0})
        entry["count"] += 1
        entry["alloc_bytes"] += max(0, args["Bytes"])
        entry["free_bytes"] += max(0, -args["Bytes"])
        entry["max_allocated_bytes"] = max(entry["max_allocated_bytes"], args.get("Total Allocated", 0))
    return memory


def reference(path: Path | str) -> dict[str, Any]:
    """Compute the reference figures of one trace file.

    Parameters
    ----------
    path
        A JSON trace, plain or gzipped.

    Returns
    -------
    dict
        Integer figures; times in ns as the file counts them (``baseTimeNanoseconds`` apart).

    Raises
    ------
    ValueError, EOFError
        The file is not JSON (this reader repairs nothing) or not a trace.
    """
    document = read_document(Path(path))
    events = document if isinstance(document, list) else document.get("traceEvents")
    if not isinstance(events, list):
        raise ValueError("no traceEvents")
    rows = read_rows(events)
    result: dict[str, Any] = {
        "events": len(events),
        "phase": dict(sorted(Counter(str(e.get("ph")) for e in events).items())),
        "category": dict(sorted(Counter(str(r["cat"]) for r in rows).items())),
        "zero_duration_rows": sum(r["end"] == r["start"] for r in rows),
    }
    # a reader that goes through doubles may round a half the other way
    fine = [e for e in events if e.get("ph") == "X" and Decimal(e.get("dur", 0)) * 1000 % 1]
    if fine:
        result["fine_rows"] = len(fine)
    if isinstance(document, dict) and "baseTimeNanoseconds" in document:
        result["base_time_ns"] = int(document["baseTimeNanoseconds"])

    read_mtia(rows)
    read_ascend(rows, events)
    launches: dict[str, Row] = {}
    for row in sorted(rows, key=lambda r: (r["start"], r["index"])):
        if row["cat"] in RUNTIME and row["args"].get("correlation") is not None:
            launches.setdefault(str(row["args"]["correlation"]), row)
    gpu = [r for r in rows if r["cat"] in GPU]
    for row in gpu:
        row["launch"] = launches.get(str(row["args"].get("correlation")))

    orphans = [r for r in gpu if r["launch"] is None]
    owned = Counter(r["launch"]["index"] for r in gpu if r["launch"] and "GraphLaunch" in r["launch"]["name"])
    result["gpu_rows"] = len(gpu)
    result["gpu_sum_ns"] = sum(r["end"] - r["start"] for r in gpu)
    result["orphan_rows"] = len(orphans)
    result["orphan_sum_ns"] = sum(r["end"] - r["start"] for r in orphans)
    result["graph_launches"] = sum("GraphLaunch" in r["name"] for r in rows if r["cat"] in RUNTIME)
    result["graph_owned_rows"] = sum(owned.values())
    result["graph_owned_rows_max"] = max(owned.values(), default=0)
    result["comm_rows"] = sum(is_comm(r) for r in gpu)

    stop_sync = find_stop_sync(rows)
    if stop_sync:
        result["stop_sync_ns"] = [stop_sync["start"], stop_sync["end"]]
    steps = find_steps(rows)
    if steps:
        boundaries = step_boundaries(steps, gpu)
        result["step"] = [int(STEP.fullmatch(s["name"])[1]) for s in steps]  # type: ignore[index]
        result["step_host_start_ns"] = [s["start"] for s in steps]
        result["step_boundary_ns"] = boundaries
        window: Interval | None = (boundaries[0], boundaries[-1])
    else:
        window = plain_window(rows, stop_sync)
    if window:
        begin = backlog_end(gpu, window[0])
        if begin < window[1]:
            window = begin, window[1]
            if steps:
                result["step_boundary_ns"] = [max(boundary, begin) for boundary in boundaries]
        result["window_ns"] = list(window)
        result["devices"] = {}
        for device in sorted({device_of(r) for r in gpu}):
            own = [r for r in gpu if device_of(r) == device]
            split = split_window(own, window)
            split.update(split_idle(own, window))
            result["devices"][device] = split

    result["kernel_names"] = len({r["name"] for r in gpu if r["cat"] in KERNEL})
    result["top_kernels"] = top_kernels(gpu)
    result["memory"] = memory_instants(events)
    result["op_self"] = op_self_time(rows)
    return result


def main(arguments: list[str]) -> None:
    """Write the figures of files, or of every trace below a folder, one line for each file."""
    files = {}
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            files.update({str(p.relative_to(path)): p for p in sorted(path.rglob("*.json*"))})
        else:
            files[argument] = path
    entries = []
    for name, path in files.items():
        try:
            figures = reference(path)
        except (ValueError, EOFError) as error:
            figures = {"unreadable": type(error).__name__}
        entries.append(f"{json.dumps(name)}: {json.dumps(figures, separators=(',', ':'))}")
    sys.stdout.write("{\n" + ",\n".join(entries) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
