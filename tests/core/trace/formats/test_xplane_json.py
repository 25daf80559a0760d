"""The JSON that XLA's profiler writes beside an XPlane: the same rows, and a word where it cannot have them."""

from __future__ import annotations

import gzip
import io
import json
import random
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from builder import rows
from fuzz.fuzz_reader import check_reading
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import DATA
from tests.core.trace.formats.test_xplane import gpu_space, tpu_space
from tests.core.trace.formats.xspace import as_json

from torchtriage import analyze
from torchtriage.api import traces
from torchtriage.core import intervals
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Kind, Trace, read_trace
from torchtriage.core.trace.events import Loss
from torchtriage.core.trace.formats import xplane_json
from torchtriage.core.trace.input import open_source
from torchtriage.core.trace.recorders import XPLANE_JSON, is_xplane_json

Raw = dict[str, Any]


def text_of(events: list[Raw], **keys: Any) -> bytes:
    """Return a file as its writer does, without spaces."""
    head = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, **keys}
    return json.dumps({**head, "traceEvents": events}, separators=(",", ":")).encode()


def of(events: list[Raw], **keys: Any) -> Trace:
    return read_trace(io.BytesIO(text_of(events, **keys)))


def process(pid: int, name: str, *threads: str) -> list[Raw]:
    """Return the names of a process and its threads, which count from 1."""
    label = {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    return [
        label,
        *(
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}}
            for tid, thread in enumerate(threads, 1)
        ),
    ]


def call(pid: int, tid: int, ts: float, dur: float, name: str = "k", **args: Any) -> Raw:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": args}


def notes(events: list[Raw], **keys: Any) -> dict[str, Any]:
    return {note.code: note for note in analyze(of(events, **keys)).notes}


STREAM = "Stream #1(Compute)"
GPU = [
    *process(701, "/host:CPU", "python"),
    *process(1, "/device:GPU:0", STREAM),
    *(call(701, 1, 10.0 * i, 2, "cuLaunchKernel", correlation_id=str(i + 1)) for i in range(8)),
    *(call(1, 1, 10.0 * i + 3, 4, "gemm", correlation_id=str(i + 1)) for i in range(8)),
]


# -- as its XPlane ---------------------------------------------------------------------------------


def seen(trace: Trace) -> Counter[Any]:
    """Return the rows of a trace that both formats have; the time begins with them."""
    both = np.flatnonzero((trace.kind != Kind.INSTANT) & ~trace.where_name(lambda name: name == "copy-start.1"))
    begin = trace.start_ns[both].min()
    call = trace.links.call
    return Counter(
        (
            trace.kind[row],
            trace.name_of(row),
            int(trace.start_ns[row] - begin),
            int(trace.dur_ns[row]),
            trace.lane_label(trace.lane[row]),
            trace.value[row],
            trace.details[trace.detail[row]] if trace.detail[row] >= 0 else None,
            trace.name_of(call[row]) if call[row] >= 0 else "",
        )
        for row in both.tolist()
    )


SPACES = {"GPU": gpu_space(), "TPU": tpu_space(), "TPU with its own steps": tpu_space(with_steps_line=True)}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_rows_steps_and_busy_time_are_those_of_the_xplane(space: bytes) -> None:
    ours, xplane = of(as_json(space)), read_trace(io.BytesIO(space))
    assert ours.report.recorder == XPLANE_JSON
    assert ours.report.tier == "strict"
    assert seen(ours) == seen(xplane)
    assert ours.steps.names == xplane.steps.names
    assert [intervals.length(device.busy) for device in ours.devices] == [
        intervals.length(device.busy) for device in xplane.devices
    ]
    assert ours.origin.vendor == xplane.origin.vendor


@pytest.mark.data
@pytest.mark.parametrize("name", ["AMD-AGI", "openxla", "tensorflow"])
def test_real_files_as_json(name: str) -> None:
    (path,) = (DATA / "gpu2" / "xplane").glob(f"{name}*")
    xplane = analyze(path)
    ours = analyze(of(as_json(gzip.decompress(path.read_bytes()))))
    assert ours.summary is not None
    assert xplane.summary is not None
    assert [device.classes.compute_ns for device in ours.summary.devices] == [
        device.classes.compute_ns for device in xplane.summary.devices
    ]
    assert ours.summary.steps == xplane.summary.steps
    assert ours.findings == xplane.findings


def test_fractions_of_a_nanosecond_touch_where_they_do_in_the_xplane() -> None:
    label = process(1, "/device:GPU:0", STREAM)
    times = [(2.0009, 0.0002), (2.0011, 1e-06), (98765432109.876543, 0.5), (-1.2505, 0.001)]
    trace = of([*label, *(call(1, 1, *time) for time in times)])
    assert trace.start_ns.tolist() == [2000, 2001, 98765432109876, -1251]
    assert trace.end_ns.tolist() == [2001, 2001, 98765432110376, -1250]


def test_names_are_those_of_the_xplane_where_what_is_shown_is_shorter() -> None:
    shown = call(1, 1, 90, 4, "fusion", long_name="%fusion.3 = f32[8] fusion(%p)", hlo_category="all-reduce fusion")
    trace = of([*GPU, shown, call(701, 1, 88, 1, "Cast", long_name="model/add:Cast")])
    assert ("fusion.3", 90_000, 4000) in rows(trace, Kind.KERNEL)
    assert rows(trace, Kind.ANNOTATION) == [("model/add:Cast", 88_000, 1000)]
    assert intervals.length(trace.devices[0].communication) == 4000


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("sort_keys", [False, True])
def test_written_again_by_others(separators: tuple[str, str], sort_keys: bool) -> None:
    """As JAX does for Perfetto, without metadata, and XProf's trace viewer, with numbers as numbers."""
    events = [
        {**event, "args": {key: int(value) for key, value in event["args"].items()}} if event["ph"] == "X" else event
        for event in GPU
    ]
    text = json.dumps({"traceEvents": events}, separators=separators, sort_keys=sort_keys)
    trace = read_trace(io.BytesIO(text.encode()))
    assert trace.report.recorder == XPLANE_JSON
    assert (trace.links.call[trace.works] >= 0).sum() == 8


# -- links of a TPU --------------------------------------------------------------------------------


def tpu(run_of_end: str = "5", enqueued_at: float = 90.0) -> Trace:
    """Return a program of the second TPU: a call enqueues it, another tells of its end."""
    run = {"run_id": "5", "queue_id": "0", "core_type": "0"}
    return of(
        [
            *process(701, "/host:CPU", "queue"),
            *process(3, "/device:TPU:0", "XLA Modules", "XLA Ops"),
            *process(11, "/device:TPU:1", "XLA Modules", "XLA Ops"),
            call(701, 1, 120.0, 1, "CompleteCallbacks", **run | {"run_id": run_of_end}, device_ordinal="1"),
            call(701, 1, enqueued_at, 1, "DoEnqueueProgram", **run, device_ordinal="1"),
            call(701, 1, 80.0, 1, "DoEnqueueProgram", **run, device_ordinal="2"),
            call(3, 1, 100.0, 10, "jit_f", **run),
            call(3, 2, 101.0, 9, "fusion.1", hlo_category="loop fusion"),
            call(11, 1, 100.0, 10, "jit_f", **run),
            call(11, 2, 101.0, 9, "fusion.1", hlo_category="loop fusion"),
        ]
    )


def test_a_program_is_linked_to_the_first_call_about_its_run() -> None:
    trace = tpu()
    assert rows(trace, Kind.RUNTIME) == [("DoEnqueueProgram", 90_000, 1000)]
    calls = {
        trace.lanes[trace.lane[row]].device: int(trace.links.call[row]) for row in np.flatnonzero(trace.works).tolist()
    }
    assert calls[0] == -1
    assert trace.start_ns[calls[1]] == 90_000


def test_what_was_enqueued_before_the_recording_has_no_call() -> None:
    assert not rows(tpu(enqueued_at=115.0), Kind.RUNTIME)


def test_calls_and_cores_of_a_run() -> None:
    """The earliest call enqueues it, in whatever order they stand; each core has runs of its own."""
    run = {"run_id": "5", "queue_id": "0", "device_ordinal": "0"}
    labels = [*process(701, "/host:CPU", "queue"), *process(3, "/device:TPU:0", "XLA Modules")]
    for order in (1, -1):
        calls = [
            call(701, 1, 80.0, 1, "Execute", **run, core_type="0"),
            call(701, 1, 90.0, 1, "Transfer", **run, core_type="0"),
            call(701, 1, 95.0, 1, "Of another core", **run, core_type="1"),
        ][::order]
        programs = [call(3, 1, at, 10, "jit_f", **run, core_type=core) for at, core in ((100.0, "0"), (120.0, "1"))]
        trace = of([*labels, *calls, *programs])
        linked = [trace.name_of(trace.links.call[row]) for row in np.flatnonzero(trace.works)]
        assert linked == ["Execute", "Of another core"]


# -- what is something else ------------------------------------------------------------------------


def test_kinetos_files_are_not_mistaken() -> None:
    label = {"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "python"}}
    note = {"ph": "X", "cat": "user_annotation", "pid": 7, "tid": 7, "ts": 1, "dur": 3, "name": "/device:GPU:0"}
    ops = [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": i, "dur": 1} for i in range(4)]
    for events in ([note, label, *ops], [label, {**note, "args": {"name": "/host:CPU"}}, label, *ops]):
        trace = of(events)
        assert trace.report.recorder == ""
        assert len(rows(trace, Kind.OP)) == 4


@pytest.mark.parametrize("n_labels", [0, 400])
def test_kinetos_calls_are_read_whatever_their_process_is_called(n_labels: int) -> None:
    """Behind more labels than are looked at, its calls are calls of XLA."""
    labels = [event for pid in range(n_labels) for event in process(100 + pid, f"/device:GPU:{pid}", "x" * 100)]
    ops = [{"ph": "X", "cat": "cpu_op", "name": "add", "pid": 7, "tid": 7, "ts": i, "dur": 1} for i in range(3000)]
    trace = of([*labels, *process(7, "/host:CPU"), *ops])
    assert len(trace) == 3000
    assert (trace.report.recorder == XPLANE_JSON) == (n_labels > 0)


def test_arrows_of_xprof_have_categories() -> None:
    arrow = {"pid": 701, "tid": 1, "name": "e", "ts": 1, "dur": 1, "bind_id": 5, "cat": "tpu_launch", "ph": "X"}
    assert of([*GPU, arrow]).report.recorder == XPLANE_JSON


@pytest.mark.parametrize(
    "process", ["/job:localhost/replica:0/task:0/gpu:0", "/device:GPU:0/stream:all Compute", "/host:CPU Compute"]
)
@pytest.mark.parametrize("category", [{"cat": "Op"}, {}])
def test_tensorflows_first_timelines_are_refused(process: str, category: Raw) -> None:
    """As ``timeline.py`` of TensorFlow 1 writes them: a process for each device and kind of work."""
    label = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": process}}
    ops = [{"ph": "X", **category, "name": "MatMul", "pid": 1, "tid": 0, "ts": i, "dur": 1} for i in range(4)]
    assert notes([label, *ops])["not-pytorch"].level == "refuse"


def test_what_it_is_costs_little_to_find_out() -> None:
    began = time.process_time()
    for head in (b'"process_name"', b'"process_name" {"name":', b'{"name":"/host:a', b'"cat"', b'"id":1,'):
        assert not is_xplane_json(head * (65536 // len(head)))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "events",
    [
        [*GPU, *process(2, "/device:GPU:0", STREAM), call(2, 1, 3, 4)],
        [*GPU, *process(1, "/device:GPU:1", STREAM), call(1, 1, 4, 4)],
        [*GPU, *process(702, "/host:CPU", "python"), call(702, 1, 3, 4)],
    ],
)
def test_two_hosts_are_refused(events: list[Raw]) -> None:
    with pytest.raises(TraceFormatError, match="the profile of one host, found two") as caught:
        of(events)
    assert "ranks" not in str(caught.value)


def test_labels_twice_are_one_host() -> None:
    assert seen(of([*process(1, "/device:GPU:0", STREAM), *GPU])) == seen(of(GPU))


# -- what it cannot show ---------------------------------------------------------------------------


def test_the_doctor_says_what_it_lacks() -> None:
    report = analyze(of(GPU))
    found = {note.code: note for note in report.notes}
    assert "neither the device's name and size" in found["other-recorder"].message
    assert not any("torch.profiler" in note.fix or "activities=" in note.fix for note in found.values())
    unchecked = {item.code: item for item in report.not_checked}
    assert {"SYN001", "LCH014", "KRN024"} <= unchecked.keys()
    assert ".xplane.pb" in unchecked["KRN024"].how_to_record
    assert "activities=" not in unchecked["SYN001"].how_to_record


def test_it_is_not_written_again() -> None:
    refused = pytest.raises(TraceFormatError, match="found the profile of JAX, TensorFlow or PyTorch/XLA")
    with refused, open_source(io.BytesIO(text_of(GPU))):
        pass


def test_what_is_no_call_is_counted() -> None:
    counter = {"ph": "C", "pid": 1, "ts": 1, "name": "memory", "args": {"bytes": 5}}
    unread = {"events that are no calls": 1, "events of unknown kinds": 2}
    odd = {"pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "k"}
    assert notes([*GPU, counter, odd, odd | {"ph": "?"}, {}])["other-recorder"].evidence["unread"] == unread


def test_calls_in_two_parts_are_lost() -> None:
    parts = [{"ph": phase, "pid": 1, "tid": 1, "ts": ts, "name": "k"} for phase, ts in (("B", 1), ("E", 2))]
    report = of([*GPU, *parts]).report
    assert (report.n_lost, report.loss) == (1, ("calls that begin and end in events of their own",))


def test_only_the_first_million_events_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "missing-kernels" not in notes(GPU)
    monkeypatch.setattr(xplane_json, "MOST_EVENTS", 15)  # more: of a writer that was set to end elsewhere, if at all
    assert "missing-kernels" not in notes(GPU)
    monkeypatch.setattr(xplane_json, "MOST_EVENTS", 16)
    found = notes(GPU)
    assert "its first million events" in found["salvaged"].message
    assert found["missing-kernels"].level == "warn"


def test_what_was_left_out_of_a_picture_is_missing() -> None:
    assert "missing-kernels" not in notes(GPU, filteredByVisibility=False)
    assert "missing-kernels" in notes(GPU, filteredByVisibility=True)


@pytest.mark.parametrize("without", [{"pid": 1, "name": "process_name"}, {"pid": 1, "name": "thread_name"}])
def test_work_without_a_name_is_lost_and_said_so(without: Raw) -> None:
    events = [event for event in GPU if event["ph"] == "X" or not without.items() <= event.items()]
    trace = of(events)
    assert not trace.devices
    assert trace.report.n_lost == 8
    assert trace.report.loss == ("events of processes or threads without a name",)
    assert analyze(trace).refused


def test_planes_beyond_the_limit_are_lost_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xplane_json, "MAX_PLANES", 2)
    more = [*process(2, "/device:GPU:1", STREAM), call(2, 1, 3, 4), call(701, 2, 3, 4)]
    trace = of([*GPU, *more])
    assert len(trace) == 17
    assert (trace.report.n_lost, trace.report.loss) == (1, ("events of more than 2 planes",))


def test_threads_as_text() -> None:
    events = [{**event, "tid": str(event["tid"])} if "tid" in event else event for event in GPU]
    assert seen(of(events)) == seen(of(GPU))
    report = of([*GPU, {**call(1, 1, 90, 1), "tid": "main"}]).report
    assert (report.n_lost, report.loss) == (1, ("events of threads whose ids are no numbers",))


def test_planes_and_lines_that_are_not_read_cost_nothing() -> None:
    trace = of([*GPU, *process(9, "/custom:counters", "t"), call(9, 1, 1, 1)])
    assert trace.report.tier == "strict"
    assert len(trace) == 16


def test_times_that_are_none() -> None:
    odd = [call(701, 1, 5, -3.5), {"ph": "X", "pid": 701, "tid": 1, "name": "a", "ts": 6}]
    odd += [{"ph": "X", "pid": 701, "tid": 1, "name": "b", "dur": 6}]
    for beyond in (1e300, 1e308, -1e308, 10**400, -(10**400)):
        odd += [call(701, 1, beyond, 2), call(701, 1, 7, beyond)]
    with warnings.catch_warnings(action="error"):
        report = of([*GPU, *odd]).report
    assert (report.n_negative_dur, report.n_no_dur, report.n_no_time) == (1, 1, 11)


@pytest.mark.parametrize("value", [None, [], {"a": [1]}, -5, 1 << 70, 0.5, True, "x", "", "9" * 5000])
def test_statistics_of_any_type(value: Any) -> None:
    args = dict.fromkeys(xplane_json._Args.__struct_fields__, value)
    trace = of([*GPU, call(1, 1, 90, 4, "odd", **args), call(701, 1, 88, 1, "odd", **args)])
    assert len(trace) == 18
    assert not analyze(trace).crashes


@pytest.mark.parametrize("args", [None, [], "x", 5])
def test_arguments_of_any_type(args: Any) -> None:
    trace = of([*GPU, {**call(1, 1, 90, 4), "args": args}])
    assert len(trace) == 17
    assert (trace.links.call[trace.works] >= 0).sum() == 8


@pytest.mark.parametrize("damage", [b"\xff", b"\\ud800"])
def test_arguments_that_are_damaged_are_kept(damage: bytes) -> None:
    copied = call(1, 1, 90, 4, "MemcpyH2D", memcpy_details="size:4 kind_src:DAMAGE", correlation_id="8")
    trace = read_trace(io.BytesIO(text_of([*GPU, copied]).replace(b"DAMAGE", damage)))
    assert trace.report.n_repaired == 1
    assert (trace.links.call[trace.works] >= 0).sum() == 9


def test_arguments_nested_too_deep_are_counted() -> None:
    found = xplane_json._Found(Loss())
    deep = msgspec.Raw(b'{"args":{"step_num":%b%b}}' % (b"[" * 10_000, b"]" * 10_000))
    assert found._arguments_of(deep).step_num is None
    assert found.unread == {"arguments of events that are damaged": 1}


# -- damage ----------------------------------------------------------------------------------------


def test_a_cut_file_says_so() -> None:
    rng = random.Random(0)
    noise = [call(701, 1, 100.0 + i, 0.5, f"{rng.random()}") for i in range(20_000)]
    packed = gzip.compress(text_of([*GPU, *noise]))
    trace = read_trace(io.BytesIO(packed[: len(packed) // 2]))
    assert len(trace.devices[0].rows) == 8
    assert "the compressed stream ends early" in trace.report.loss[-1]
    assert "cut short" in {note.code: note for note in analyze(trace).notes}["missing-kernels"].message


TEXTS = tuple(text_of(as_json(space)) for space in SPACES.values())


@settings(max_examples=200, deadline=2000)
@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.integers(0, 9000), st.binary(max_size=4)), min_size=1, max_size=6))
def test_mutated_files(text: bytes, changes: list[tuple[int, bytes]]) -> None:
    raw = bytearray(text)
    for at, new in changes:
        at %= len(raw)
        raw[at : at + len(new)] = new
    check_reading(bytes(raw))


HOSTILE: dict[str, list[Raw]] = {
    "many processes": [
        event for pid in range(20_000) for event in (*process(pid, f"/device:GPU:{pid}", STREAM), call(pid, 1, pid, 1))
    ],
    "many threads": [*process(1, "/host:CPU", "t"), *(call(1, tid, tid, 1) for tid in range(50_000))],
    "many names": [*process(1, "/host:CPU", "t"), *(call(1, 1, i, 1, f"n{i}") for i in range(50_000))],
    "many runs": [
        *process(3, "/device:TPU:0", "XLA Modules"),
        *process(1, "/host:CPU", "t"),
        *(call(1, 1, i, 1, run_id=str(i), device_ordinal="0") for i in range(20_000)),
        *(call(3, 1, i, 1, run_id=str(i)) for i in range(20_000)),
    ],
    "a device of a large number": [*process(1, "/device:GPU:" + "9" * 5000, STREAM), call(1, 1, 1, 1)],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_files_made_to_hurt(kind: str) -> None:
    began = time.process_time()
    check_reading(text_of(HOSTILE[kind]), chunk_bytes=1 << 18)
    assert time.process_time() - began < 8


def test_without_events() -> None:
    with pytest.raises(TraceFormatError, match="expected profiler events") as caught:
        of(process(1, "/device:TPU:0", "XLA Ops"))
    assert "jax.profiler" in str(caught.value)


@pytest.mark.parametrize("beside", ["host.trace.json.gz", "host.xplane.pb"])
def test_perfettos_copy_is_no_other_rank(beside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("plugins", "profile", "D1")
    folder.mkdir(parents=True)
    files = folder / beside, folder / "perfetto_trace.json.gz"
    for file in files:
        file.write_bytes(gzip.compress(text_of(GPU)))
    for paths in ([Path()], ["plugins"], [folder], files, [f"{folder}/*"]):
        assert traces.find_traces(paths) == [files[0]]
    monkeypatch.chdir(folder)
    assert traces.find_traces(["."]) == [Path(beside)]
    assert traces.find_traces(["perfetto_trace.json.gz"]) == [Path("perfetto_trace.json.gz")]


def test_ranks_of_pytorch_are_no_copies(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("host_1.2.pt.trace.json.gz", "perfetto_trace.json")]
    for file in files:
        file.write_bytes(b'{"traceEvents":[]}')
    assert traces.find_traces([tmp_path]) == files
