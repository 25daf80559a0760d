"""Device timelines made from a CPU recording: what a profiler would write, and true labels."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from invariants import check_trace

from torchtriage.cli.learn.dataset import command
from torchtriage.core import intervals
from torchtriage.core.errors import UsageError
from torchtriage.core.trace import Kind, read_trace
from torchtriage.learn.dataset import trace_codec
from torchtriage.learn.dataset.predictions import Predictions
from torchtriage.learn.dataset.recordings import DatasetItem
from torchtriage.learn.dataset.score import score
from torchtriage_benchmark.recording.plan import plan
from torchtriage_benchmark.synthetic.accelerators import ACCELERATORS
from torchtriage_benchmark.synthetic.batch_scaling import scaled
from torchtriage_benchmark.synthetic.faults import FAULTS
from torchtriage_benchmark.synthetic.stream import Op, Step, Stream, read_stream
from torchtriage_benchmark.synthetic.synthesize import SyntheticItem, made, synthesize, synthetic_plan

N_STEPS = 2
CODES = ("", "SYN001", "SYN003", "CPY007", "MEM027", "KRN022", "CFG044")


def item(code: str = "", number: int = 0, **more: Any) -> SyntheticItem:
    """Return an item made from the recorded program."""
    known: dict[str, Any] = {
        "severity": FAULTS[code].severities[-1] if code else 0,
        "accelerator": "A100",
        "precision": "tf32",
        "graph": False,
        "planes": True,
        "lookalike": "",
    }
    return SyntheticItem(
        id=f"s{number:04d}",
        base="0000",
        source="0000",
        family="vit",
        mode="train",
        loader=False,
        batch=8,
        seed=5,
        code=code,
        twin="s0000",
        stacks=True,
        **(known | more),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one recorded program, as the eager part has it."""
    path = tmp_path_factory.mktemp("benchmark")
    packed = files("torchtriage").joinpath("cli", "sample", "sample_cpu_training.json.gz").read_bytes()
    document = json.loads(gzip.decompress(packed))
    events = document["traceEvents"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    ends = sorted(step["ts"] + step["dur"] for step in steps)
    # two steps are enough, and half the time
    document["traceEvents"] = [event for event in events if event["ph"] == "M" or event["ts"] < ends[N_STEPS - 1]]
    trace = trace_codec.pack(document)
    (path / "0000.ttcol").write_bytes(trace)
    about = {
        "id": "0000",
        "code": "",
        "family": "",
        "split": "",
        "twin": "0000",
        "severity": 0,
        "fault_lines": [],
        "torch": "2.13.0",
        "script": plan(1, 0)[0].script().text,
        "intervals_ns": [],
        "step_ns": [],
        "sha256": hashlib.sha256(trace).hexdigest(),
    }
    (path / "0000.json").write_text(json.dumps(about))
    return path


@pytest.fixture(scope="module")
def kept(folder: Path) -> dict[str, DatasetItem]:
    """Return items by their faults."""
    items = [item(code, number) for number, code in enumerate(CODES)]
    outcomes = synthesize(items, folder)
    assert [outcome.failure for outcome in outcomes] == [""] * len(items)
    assert all(one.kept for one in synthesize(items, folder))
    return {
        code: DatasetItem(json.loads((folder / f"s{number:04d}.json").read_text()), folder / f"s{number:04d}.ttcol")
        for number, code in enumerate(CODES)
    }


def test_the_same_bytes_every_time(folder: Path, kept: dict[str, DatasetItem]) -> None:
    about, document = made(item("SYN001", CODES.index("SYN001")), folder)
    assert hashlib.sha256(trace_codec.pack(document)).hexdigest() == kept["SYN001"].about["sha256"]
    assert about["step_ns"] == kept["SYN001"].about["step_ns"]


def test_a_reader_finds_nothing_wrong(kept: dict[str, DatasetItem]) -> None:
    for one in kept.values():
        trace = one.trace
        check_trace(trace)
        assert trace.origin.vendor == "cuda"
        assert len(trace.steps) == N_STEPS
        launched = trace.links.call[np.flatnonzero(trace.works)]
        # what was enqueued while the profiler warmed up has no launch
        assert (launched >= 0).mean() > 0.4


def test_device_work_obeys_its_queue(kept: dict[str, DatasetItem]) -> None:
    trace = kept[""].trace
    rows = np.flatnonzero(trace.works)
    call = trace.links.call[rows]
    known = call >= 0
    assert (trace.start_ns[rows[known]] > trace.start_ns[call[known]]).all()
    for lane in np.unique(trace.lane[rows]).tolist():
        mine = rows[trace.lane[rows] == lane]
        mine = mine[np.argsort(trace.start_ns[mine])]
        assert (trace.start_ns[mine[1:]] >= trace.end_ns[mine[:-1]]).all()


def test_operators_and_calls_nest(kept: dict[str, DatasetItem]) -> None:
    for one in (kept[""], kept["MEM027"]):
        trace = one.trace
        calls = np.flatnonzero((trace.kind == Kind.RUNTIME) & trace.links.launches)
        assert (trace.tree.nearest(calls, trace.kind == Kind.OP) >= 0).mean() > 0.99


def test_the_label_is_where_the_fault_is(kept: dict[str, DatasetItem]) -> None:
    assert not kept[""].about["intervals_ns"]
    assert not kept[""].faulty.any()
    reads = kept["SYN001"]
    trace = reads.trace
    spans = np.array(reads.about["host_intervals_ns"])
    named = np.flatnonzero(trace.named("aten::_local_scalar_dense"))
    inside = intervals.owner(spans, trace.start_ns[named]) >= 0
    assert inside.sum() == N_STEPS * 12  # each step, each read
    assert 0.0 < reads.faulty.mean() < 1.0
    copies = kept["CPY007"]
    trace = copies.trace
    pageable = np.flatnonzero(trace.matching("Pageable -> Device"))
    device = np.array(copies.about["device_intervals_ns"])
    held = intervals.covered(np.stack([trace.start_ns[pageable], trace.end_ns[pageable]], 1), device)
    assert (held > 0).sum() >= N_STEPS
    slow = np.array(kept["KRN022"].about["device_intervals_ns"])
    assert len(slow)
    assert not kept["KRN022"].about["host_intervals_ns"]


def test_faults_cost_what_the_timeline_says(kept: dict[str, DatasetItem]) -> None:
    healthy = np.median(kept[""].about["step_ns"])
    for code in CODES[1:]:
        about = kept[code].about
        assert about["code"] == code, about["hidden"]
        assert np.median(about["step_ns"]) > 1.01 * healthy, code


def test_a_fault_that_costs_nothing_is_none(folder: Path) -> None:
    about, _ = made(item("SYN005", 20, severity=1), folder)
    light, _ = made(item("", 21, lookalike="scalars of the host"), folder)
    assert light["code"] == ""
    assert not light["intervals_ns"]
    gained = np.median(about["step_ns"])
    assert (about["code"] == "SYN005") != (about["hidden"] == "SYN005"), gained
    assert bool(about["intervals_ns"]) == bool(about["code"])


def test_a_graph_replays_the_same_kernels(folder: Path) -> None:
    _, eager = made(item("LCH014", 22, graph=True), folder)
    _, replayed = made(item("", 23, graph=True), folder)

    def kernels(document: dict[str, Any]) -> list[str]:
        steps = defaultdict(list)
        for one in document["traceEvents"]:
            if one.get("cat") == "kernel" and one["args"].get("External id"):
                steps[one["name"]].append(one)
        return sorted((name, len(rows)) for name, rows in steps.items())  # type: ignore[misc]

    # the last step's may still be in the queue when the window ends
    assert dict(kernels(replayed)).keys() == dict(kernels(eager)).keys()  # type: ignore[arg-type]
    calls = [one for one in replayed["traceEvents"] if one["name"] == "cudaGraphLaunch"]
    assert len(calls) == N_STEPS


def test_nothing_tells_of_the_fault(kept: dict[str, DatasetItem]) -> None:
    texts = {code: one.document() for code, one in kept.items()}
    for code, document in texts.items():
        text = json.dumps(document)
        assert "torchtriage" not in text
        assert "(calls)" not in text
        assert not code or code not in text
        events = document["traceEvents"]
        for key in ("External id",):
            numbers = {event["args"][key] for event in events if event.get("cat") in ("cpu_op", "user_annotation")}
            assert numbers == set(range(1, len(numbers) + 1))
        frames = [event for event in events if event.get("cat") == "python_function"]
        ids = [frame["args"]["Python id"] for frame in frames]
        assert sorted(ids) == list(range(1, len(ids) + 1))
        keys = {(event.get("cat"), tuple(event)) for event in events}
        assert keys <= {(one.get("cat"), tuple(one)) for one in texts["SYN001"]["traceEvents"]} | {
            (one.get("cat"), tuple(one)) for one in texts[""]["traceEvents"]
        }
    heads = {json.dumps({k: v for k, v in one.items() if k != "traceEvents"}) for one in texts.values()}
    assert len(heads) == 1


def test_args_are_what_real_recordings_have(kept: dict[str, DatasetItem]) -> None:
    # kinds and their args in recordings of torch 2.6 to 2.9 on an H100 and a B200
    real = {
        "kernel": {
            "External id",
            "queued",
            "device",
            "context",
            "stream",
            "correlation",
            "registers per thread",
            "shared memory",
            "blocks per SM",
            "warps per SM",
            "grid",
            "block",
            "est. achieved occupancy %",
        },
        "gpu_memcpy": {"External id", "device", "context", "stream", "correlation", "bytes", "memory bandwidth (GB/s)"},
        "cuda_runtime": {"External id", "cbid", "correlation"},
        "gpu_user_annotation": {"External id"},
    }
    events = kept["SYN001"].document()["traceEvents"]
    for cat, wanted in real.items():
        found = {tuple(event["args"]) for event in events if event.get("cat") == cat}
        assert found, cat
        assert set(max(found, key=len)) == wanted
        assert all(set(one) <= wanted for one in found)
    last = max((event for event in events if event.get("cat") == "cuda_runtime"), key=lambda x: x["ts"])
    assert (last["name"], set(last["args"])) == ("cudaDeviceSynchronize", {"cbid", "correlation"})


@pytest.mark.data
def test_real_recordings_have_the_same_kinds(kept: dict[str, DatasetItem], recordings: Path) -> None:
    packed = (recordings / "llm/b200_eager.json.gz").read_bytes()
    real = json.loads(gzip.decompress(packed))["traceEvents"]
    ours = kept[""].document()["traceEvents"]

    def shapes(events: list[dict[str, Any]]) -> dict[tuple[str, str], set[tuple[str, ...]]]:
        found = defaultdict(set)
        for event in events:
            found[event["ph"], str(event.get("cat"))].add(tuple(sorted(event)))
        return found

    theirs = shapes(real)
    for kind, keys in shapes(ours).items():
        if kind in theirs:
            assert keys <= theirs[kind], kind


def test_more_samples_scale_what_holds_them(folder: Path) -> None:
    stream = read_stream(trace_codec.read(folder / "0000.ttcol"))
    before = [(op.name, op.args.get("Input Dims")) for op in stream.ops()]
    scaled(stream, 8, 4)
    after = [(op.name, op.args.get("Input Dims")) for op in stream.ops()]
    for (name, old), (_, new) in zip(before, after, strict=True):
        if name == "aten::conv2d":
            assert new[0] == [32, *old[0][1:]]
            assert new[1:] == old[1:]
        if name == "aten::addmm":
            assert new[1][0] == 4 * old[1][0]
            assert new[2] == old[2]
        if name == "aten::_fused_adamw_":
            assert new == old


def test_they_are_scored_apart(kept: dict[str, DatasetItem]) -> None:
    said = Predictions("nothing", {})
    groups = {one.group: one for one in score([kept[""], kept["SYN001"]], said)}
    assert groups["all"].n_items == 0
    assert groups["synthetic all"].n_items == 2
    assert groups["synthetic SYN001"].n_items == 2


def test_plans_begin_alike_and_families_keep_their_split() -> None:
    short, long = synthetic_plan(40, 0), synthetic_plan(90, 0)
    assert long[:40] == short
    assert [one.id for one in long] == sorted({one.id for one in long})
    assert synthetic_plan(40, 1) != short
    clean = {one.id: one for one in long if one.id == one.twin}
    for one in long:
        twin = clean.get(one.twin)
        assert twin is not None
        assert (twin.split, twin.seed) == (one.split, one.seed)
    assert {one.code for one in long} >= {"SYN001", "CPY007", "LCH014", "KRN022", "MEM027"}


def test_healthy_programs_use_the_tensor_cores_their_device_has() -> None:
    planned = synthetic_plan(200, 0)
    assert {item.accelerator for item in planned} == set(ACCELERATORS)
    assert not [item.id for item in planned if item.precision == "float"]


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected the recording 0000"):
        made(item(), tmp_path)
    result = CliRunner().invoke(command, ["synthesize", "--dir", str(tmp_path), "--count", "2", "-q"])
    assert result.exit_code == 1
    assert "0 made, 0 were there, 2 failed" in result.output
    assert "torchtriage benchmark dataset record" in result.output or "expected the recording" in result.output


def test_recordings_of_another_plan_make_no_timelines(folder: Path, tmp_path: Path) -> None:
    kept = json.loads((folder / "0000.json").read_text()) | {"script": plan(1, 1)[0].script().text}
    (tmp_path / "0000.json").write_text(json.dumps(kept))
    (tmp_path / "0000.ttcol").write_bytes((folder / "0000.ttcol").read_bytes())
    with pytest.raises(UsageError, match=r"plan of seed 0 in .*, found another in 0000\.json \(1 in all\)"):
        synthesize([item()], tmp_path)
    assert not (tmp_path / "s0000.json").exists()


def test_timelines_of_another_seed_are_not_taken_for_this_one(folder: Path, kept: dict[str, DatasetItem]) -> None:
    with pytest.raises(UsageError, match="expected the timeline s0000 of this seed"):
        synthesize([replace(item(), seed=6)], folder)


def test_not_a_recording_of_steps() -> None:
    with pytest.raises(UsageError, match="0 steps"):
        read_stream({"traceEvents": []})


def test_round_trip_of_the_published_json(kept: dict[str, DatasetItem], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(kept[""].document()))
    assert read_trace(path).steps.wall_ns == kept[""].trace.steps.wall_ns


def test_strides_are_no_sizes() -> None:
    args = {
        "Input Dims": [[2, 8, 8, 8], [16, 8, 2, 2], [], [], []],
        "Input type": ["float", "float", "", "ScalarList", "ScalarList"],
        "Concrete Inputs": ["", "", "", "[2, 2]", "[0, 0]"],
    }
    sized = {"Input Dims": [[2, 8, 64], []], "Input type": ["float", "ScalarList"], "Concrete Inputs": ["", "[2, 512]"]}
    ops = [Op("aten::conv2d", 0, 5, args), Op("aten::view", 6, 7, sized)]
    stream = Stream([Step("ProfilerStep#1", 0, 9, {}, ops)], [], {}, 1, 1)
    scaled(stream, 2, 4)
    assert ops[0].args["Input Dims"][0] == [8, 8, 8, 8]
    assert ops[0].args["Concrete Inputs"] == args["Concrete Inputs"]
    assert ops[1].args["Concrete Inputs"] == ["", "[8, 512]"]
