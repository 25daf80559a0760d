"""What files of samples hold, and a clear answer to each that holds none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtriage.core.errors import SampleError
from torchtriage.core.samples import Better, Kind, Machine, Run, Series, Session
from torchtriage.measure.gate.importers import NOWHERE, encode_runs, read_runs, read_sessions

HERE = Run("", "a" * 40, "topic", "b" * 40, 1e9, Machine((("cpu", "here"),)), (("python", "3"),), ())

PYTEST: dict[str, Any] = {
    "machine_info": {
        "node": "vm",
        "processor": "",
        "machine": "x86_64",
        "release": "6.1",
        "system": "Linux",
        "python_implementation": "CPython",
        "python_version": "3.11.7",
        "cpu": {"count": 2, "brand_raw": "Intel(R) Xeon(R) Processor @ 2.50GHz"},
    },
    "commit_info": {
        "id": "5332257c9027de94498ff32057f04951f3d0ceda",
        "time": "2026-11-21T22:14:36+00:00",
        "dirty": True,
        "project": "shop",
        "branch": "(detached head)",
    },
    "benchmarks": [
        {
            "name": "test_sum",
            "fullname": "t/test_b.py::test_sum",
            "stats": {"min": 1e-5, "rounds": 3, "data": [3.5e-05, 3e-05, 4e-05], "iterations": 1},
        },
        {"name": "test_p[10]", "fullname": "t/test_b.py::test_p[10]", "stats": {"rounds": 1, "data": [1e-06]}},
    ],
    "datetime": "2026-11-21T22:14:40.123456+00:00",
    "version": "5.1.0",
}

# as asv 0.6.6 writes it: rows end after the last column with a value, NaN skipped, null failed
ASV = """{"commit_hash": "2f80428dd0d880fe80371faa27f946ecbccf89a7", "env_name": "existing",
"date": 1795299324000, "params": {"arch": "x86_64", "cpu": "Xeon", "machine": "vm", "num_cpu": "2",
"os": "Linux 6.18", "ram": "25276514304", "python": "3.11"}, "python": "3.11", "requirements": {},
"env_vars": {}, "result_columns": ["result", "params", "version", "started_at", "duration",
"stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number", "stats_repeat",
"samples", "profile"], "results": {
"b.Skip.time_s": [[1.8e-06, NaN], [["1", "2"]], "4a9", 1795299325786, 0.4, [-Infinity, null],
  [Infinity, null], [1e-06, null], [1e-06, null], [1, null], [1, null], [[1.8e-06, 1.9e-06], null]],
"b.Suite.time_sum": [[1e-06, 2e-06, 3e-06, 4e-06], [["10", "100"], ["'a'", "'b'"]], "1df",
  1795299326230, 1.0, [], [], [], [], [], [], [[1e-06], [2e-06], [3e-06], [4e-06]]],
"b.mem_list": [[8056], [], "264", 1795299327248, 0.2], "b.peakmem_list": [[24731648], [], "082",
  1795299327487, 0.2], "b.time_fails": [null, [], "e05", 1795299327756, 0.2],
"b.track_loss": [[-0.25], [], "b67", 1795299328240, 0.2], "b.track_rows": [[3], [], "b68",
  1795299328240, 0.2]}, "durations": {}, "version": 2}"""
UNITS = {
    "b.Suite.time_sum": {"unit": "seconds", "param_names": ["n", "how"]},
    "b.track_loss": {"unit": "nats", "param_names": []},
    "version": 2,
}


def saved(folder: Path, content: Any, name: str = "x.json") -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_run_that_was_written_comes_back(tmp_path: Path) -> None:
    series = Series("m", "s", "lower", "latency", (Session((0.1, 1 / 3), (0.1, 0.2), 4, 1e9 + 0.25),))
    runs = [replace(HERE, benchmark=f"é{n}\n", series=(series,), traces=("t.json",)) for n in (1, 2)]
    path = saved(tmp_path, encode_runs(runs))
    assert list(read_runs(path).runs) == runs
    # one that is known from here stands in for nothing that the file tells
    assert list(read_runs(path, here=replace(HERE, branch="other")).runs) == runs


def test_the_least_of_our_own_format(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        {
            "benchmark": "bert",
            "series": [
                {"metric": "step", "unit": "ms", "sessions": [[1, 2.5], {"values": [3]}]},
                {"metric": "rate", "unit": "samples/s", "sessions": [[7]]},
                {"metric": "peak", "unit": "MiB", "sessions": [[0]]},
                {"metric": "breaks", "unit": "1", "sessions": [[0]]},
                {"metric": "top-1", "unit": "%", "kind": "accuracy", "sessions": [[71.5]]},
                {"metric": "loss", "unit": "nats", "kind": "accuracy", "better": "lower", "sessions": [[-2]]},
                {"metric": "compile", "unit": "s", "kind": "compile_time", "sessions": [[9]]},
            ],
        },
    )
    (run,) = read_runs(path, here=HERE).runs
    assert (run.benchmark, run.commit, run.branch, run.parent) == ("bert", "a" * 40, "topic", "b" * 40)
    assert run.series[0].sessions == (Session((1.0, 2.5)), Session((3.0,)))
    assert [(one.kind, one.better) for one in run.series] == [
        ("latency", "lower"),
        ("throughput", "higher"),
        ("memory", "lower"),
        ("count", "lower"),
        ("accuracy", "higher"),
        ("accuracy", "lower"),
        ("compile_time", "lower"),
    ]


def test_a_run_of_another_commit_takes_no_branch_from_here(tmp_path: Path) -> None:
    document = {
        "benchmark": "b",
        "commit": "c" * 40,
        "machine": {"cpu": "there"},
        "series": [{"metric": "m", "unit": "s", "sessions": [[1]]}],
    }
    (run,) = read_runs(saved(tmp_path, document), here=HERE).runs
    assert (run.commit, run.branch, run.parent) == ("c" * 40, "", None)
    assert run.machine == Machine((("cpu", "there"),))
    assert run.environment == ()


def test_metrics_alone_are_one_session_measured_here(tmp_path: Path) -> None:
    lines = [
        {"metric": "step", "unit": "s", "values": [0.1, 0.2]},
        {"metric": "breaks", "unit": "1", "value": 3},
        {"metric": "step", "unit": "s", "values": [0.3]},
    ]
    path = saved(tmp_path, "\n".join(map(json.dumps, lines)) + "\n\n", "decode.jsonl")
    told = read_runs(path, here=HERE)
    (run,) = told.runs
    assert run.benchmark == "decode"
    assert run.machine == HERE.machine
    assert "assumed to be measured on this one" in told.notes[0]
    assert [one.sessions for one in run.series] == [(Session((0.1, 0.2, 0.3)),), (Session((3.0,)),)]
    assert read_runs(saved(tmp_path, lines)).runs[0].series == run.series
    assert read_runs(path).notes == ()


def test_pytest_benchmark(tmp_path: Path) -> None:
    (run,) = read_runs(saved(tmp_path, PYTEST), here=HERE).runs
    assert (run.benchmark, run.commit) == ("shop", PYTEST["commit_info"]["id"])
    assert (run.branch, run.parent) == ("", None)
    assert run.recorded_at_s == pytest.approx(1795299280.123456, abs=1e-3)
    assert [(one.metric, one.unit, one.kind) for one in run.series] == [
        ("t/test_b.py::test_sum", "s", "latency"),
        ("t/test_b.py::test_p[10]", "s", "latency"),
    ]
    assert run.series[0].sessions[0].values == (3.5e-05, 3e-05, 4e-05)
    assert dict(run.machine.fields) == {
        "architecture": "x86_64",
        "cores": "2",
        "cpu": "Intel(R) Xeon(R) Processor @ 2.50GHz",
        "host": "vm",
        "kernel": "6.1",
        "os": "Linux",
    }
    assert dict(run.environment)["uncommitted changes"] == "yes"
    assert dict(run.environment)["committed_at_s"] == "1795299276"
    # CI knows the branch where the checkout does not
    here = replace(HERE, commit=PYTEST["commit_info"]["id"], benchmark="mine")
    (run,) = read_runs(saved(tmp_path, PYTEST), here=here).runs
    assert (run.benchmark, run.branch, run.parent) == ("mine", "topic", "b" * 40)


def test_files_of_pytest_benchmark_are_sessions_of_one_run(tmp_path: Path) -> None:
    second = {**PYTEST, "datetime": "2026-11-21T22:15:40+00:00"}
    other = json.loads(json.dumps(PYTEST))
    other["machine_info"]["cpu"]["count"] = 64
    paths = [saved(tmp_path, one, f"{n}.json") for n, one in enumerate([PYTEST, second, other])]
    both, alone = read_sessions(paths).runs
    assert [len(one.sessions) for one in both.series] == [2, 2]
    assert both.series[0].sessions[1].started_s == both.recorded_at_s
    assert [len(one.sessions) for one in alone.series] == [1, 1]


def test_runs_that_were_interleaved_stay_apart(tmp_path: Path) -> None:
    series = Series("m", "s", "lower", "latency", (Session((0.1,), None, 0),))
    environment = (("interleaving", "x"), ("side", "before"))
    run = replace(HERE, benchmark="b", series=(series,), environment=environment)
    paths = [saved(tmp_path, encode_runs([run]), f"{n}.jsonl") for n in range(2)]
    assert len(read_sessions(paths).runs) == 2
    two = saved(tmp_path, encode_runs([replace(run, environment=())] * 2), "two.jsonl")
    assert len(read_sessions([two]).runs) == 2


def test_what_comes_through_a_pipe_is_of_now_whatever_stands_before_it(tmp_path: Path) -> None:
    file = saved(tmp_path, metric())
    os.utime(file, (5e8, 5e8))
    read, write = os.pipe()
    with os.fdopen(write, "wb") as pipe:
        pipe.write(file.read_bytes())
    (both,) = read_sessions([file, f"/dev/fd/{read}"], here=HERE).runs
    os.close(read)
    assert both.recorded_at_s == HERE.recorded_at_s


def test_pytest_benchmark_without_samples_says_how_to_save_them(tmp_path: Path) -> None:
    bare = json.loads(json.dumps(PYTEST))
    del bare["benchmarks"][1]["stats"]["data"]
    with pytest.raises(SampleError) as told:
        read_runs(saved(tmp_path, bare))
    assert "benchmarks[1].stats.data" in str(told.value)
    assert "--benchmark-save-data" in told.value.hint


def test_asv(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "vm"
    folder.mkdir(parents=True)
    saved(tmp_path / "results", UNITS, "benchmarks.json")
    told = read_runs(saved(folder, ASV), here=HERE)
    (run,) = told.runs
    assert (run.benchmark, run.commit) == ("asv", "2f80428dd0d880fe80371faa27f946ecbccf89a7")
    assert run.recorded_at_s == 1795299328.24
    assert dict(run.environment)["committed_at_s"] == "1795299324"
    assert dict(run.machine.fields)["memory"] == "24 GiB"
    assert dict(run.machine.fields)["os"] == "Linux"
    found = {one.metric: (one.unit, one.kind, one.sessions[0].values) for one in run.series}
    assert found == {
        "b.Skip.time_s(1)": ("s", "latency", (1.8e-06, 1.9e-06)),
        "b.Suite.time_sum(n=10, how='a')": ("s", "latency", (1e-06,)),
        "b.Suite.time_sum(n=10, how='b')": ("s", "latency", (2e-06,)),
        "b.Suite.time_sum(n=100, how='a')": ("s", "latency", (3e-06,)),
        "b.Suite.time_sum(n=100, how='b')": ("s", "latency", (4e-06,)),
        "b.mem_list": ("B", "memory", (8056.0,)),
        "b.peakmem_list": ("B", "memory", (24731648.0,)),
        "b.track_loss": ("nats", "accuracy", (-0.25,)),
        "b.track_rows": ("1", "accuracy", (3.0,)),
    }
    assert told.notes[0] == "asv: left out 1 that failed and 1 that were skipped"
    assert told.notes[1].startswith("asv: 4 have only a median")


@pytest.mark.parametrize(
    ("unit", "value", "kind"),
    [
        (None, 2.5, "accuracy"),
        ("unit", 3, "accuracy"),
        ("1", 3, "count"),
        ("1", 2.5, "accuracy"),
        ("nats", 2.5, "accuracy"),
        ("img/s", 2.5, "throughput"),
    ],
)
def test_what_asv_tracks_is_a_count_only_where_that_is_said(
    tmp_path: Path, unit: str | None, value: float, kind: str
) -> None:
    folder = tmp_path / "results" / "vm"
    folder.mkdir(parents=True)
    about = {"b.track_loss": {"unit": unit}} if unit else {}
    saved(tmp_path / "results", about, "benchmarks.json")
    (run,) = read_runs(saved(folder, ASV.replace("-0.25", str(value))), here=HERE).runs
    assert {one.metric: one.kind for one in run.series}["b.track_loss"] == kind


@pytest.mark.parametrize("names", [5, {"a": 1}, "n"])
def test_names_of_asvs_parameters_that_are_no_list_are_left_out(tmp_path: Path, names: Any) -> None:
    folder = tmp_path / "results" / "vm"
    folder.mkdir(parents=True)
    saved(tmp_path / "results", {"b.Suite.time_sum": {"param_names": names}}, "benchmarks.json")
    (run,) = read_runs(saved(folder, ASV), here=HERE).runs
    assert "b.Suite.time_sum(10, 'a')" in {one.metric for one in run.series}


def test_what_was_taken_from_here_is_said(tmp_path: Path) -> None:
    file = saved(tmp_path, {"benchmark": "b", "series": metric()["series"]})
    assert HERE.commit
    assert HERE.machine.fields
    assert read_runs(file, here=HERE).notes == (
        f"{file} names no machine: assumed to be measured on this one",
        f"{file} names no commit: assumed to be measured at {HERE.commit[:10]}",
    )
    whole = {**metric(), "commit": "c" * 40, "machine": {"cpu": "A"}}
    assert read_runs(saved(tmp_path, whole), here=HERE).notes == ()
    # a file that is judged, not imported, takes nothing
    assert read_runs(file).notes == ()


NAN = float("nan")


def metric(**change: Any) -> dict[str, Any]:
    return {"benchmark": "b", "series": [{"metric": "m", "unit": "s", "sessions": [[1.0]], **change}]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "found an empty file"),
        (" \n", "found an empty file"),
        (b"\x80\x02}q\x00", "found a binary file"),
        (b"\x1f\x8b\x08\x00", "found a binary file"),
        ("hello", "found 'hello' at line 1, column 1"),
        ('{"benchmark": "b", "series": [', "line 1, column 31"),
        ('{"metric": "m", "unit": "s", "value": 1}\n{"metric": ', "at line 2"),
        ("[" * 100_000, "found"),
        ('{"metric": "m", "unit": "s", "value": ' + "9" * 5000 + "}", "found"),
        ("[]", "found an empty list"),
        ("[1, 2, 3]", "$[0]: expected an object"),
        ("12.5", "$: expected an object"),
        ("null", "expected an object"),
        ({"traceEvents": [], "schemaVersion": 1}, "an object with traceEvents, schemaVersion"),
        ({"schema": "torchtriage-samples/9", "series": []}, "found 'torchtriage-samples/9'"),
        ({"benchmark": "b", "series": []}, "at least one metric"),
        ({"benchmark": "b", "series": {}}, "$.series: expected a list, found an object"),
        ({"series": [{"metric": "m", "unit": "s", "sessions": [[1]]}]}, "name of the benchmark"),
        (metric(sessions=[]), "at least one session"),
        (metric(sessions=[[]]), "session 1: expected samples, found none"),
        (metric(sessions=[[1], [1, "2"]]), '[0].sessions[1][1]: expected a number, found "2"'),
        (metric(sessions=[[1.0, None]]), "[1]: expected a number, found null"),
        (metric(sessions=[[True]]), "expected a number, found true"),
        (metric(sessions=[[NAN, 1]]), "b: m, session 1: expected finite numbers, found nan as"),
        (metric(sessions=[[1.0, float("-inf")]]), "found -inf as value 2 of 2"),
        (metric(sessions=[[1, 0.0, 2]]), "values above zero, found zero: 0 as value 2 of 3"),
        (metric(sessions=[[1.0, -1e-3]]), "found a negative one: -0.001 as value 2 of 2"),
        (metric(unit="B", sessions=[[-1.0]]), "of zero or more, found a negative one"),
        (metric(unit=""), "expected"),
        (metric(unit=None), "$.series[0].unit: expected text, found null"),
        (metric(unit="furlong"), "the unit does not say which"),
        (metric(unit="s", kind="speed"), "expected one of latency, throughput, memory, comp"),
        (metric(better="faster"), 'expected one of lower, higher, found "faster"'),
        (metric(metric=""), "expected a metric, found an empty one"),
        (metric(sessions=[{"values": [1, 2], "cpu_values": [1]}]), "for each of 2 values, found 1"),
        (metric(sessions=[{"values": [1], "round": -1}]), "expected a round from 0, found -1"),
        (metric(sessions=[{"values": [1], "round": 0.5}]), "expected a whole number, found 0.5"),
        ({"benchmark": "b", "series": metric()["series"] * 2}, "each metric once, found it twice"),
        ({**metric(), "commit": 5}, "$.commit: expected text, found 5"),
        ({**metric(), "commit": "a\0b"}, "characters that no file can hold"),
        ({**metric(), "benchmark": "\ud800"}, "characters that no file can hold"),
        ({**metric(), "environment": {"a": 1}}, "$.environment.a: expected text, found 1"),
        ({**metric(), "machine": {"fields": [["a"]]}}, "expected a name and a value"),
        ({"metric": "m", "unit": "s"}, "$.values: expected a list of numbers, found null"),
        ({**PYTEST, "benchmarks": []}, "at least one metric"),
        ({**PYTEST, "datetime": "yesterday"}, "$.datetime: expected a time"),
        (ASV.replace('"version": 2', '"version": 1'), "format version 2, found 1"),
        (ASV.replace("[1e-06, 2e-06, 3e-06, 4e-06]", "[1e-06]"), "expected a list of 4"),
    ],
)
def test_what_holds_no_samples_is_one_clear_line(tmp_path: Path, content: Any, told: str) -> None:
    path = saved(tmp_path, content)
    with pytest.raises(SampleError) as error:
        read_runs(path)
    assert told in f"{error.value} {error.value.hint}"
    assert str(path) in str(error.value)
    assert "\n" not in error.value.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="No such file"):
        read_runs(tmp_path / "none.json")
    with pytest.raises(SampleError, match="cannot be read"):
        read_runs(tmp_path)


def test_one_constant_or_single_samples_are_read(tmp_path: Path) -> None:
    """Nothing is wrong with them as a file: what follows from so few is the check's to say."""
    for sessions in ([[1.0]], [[2.0, 2.0], [2.0, 2.0]]):
        assert read_runs(saved(tmp_path, metric(sessions=sessions))).runs[0].n_values in (1, 4)


def test_the_same_metric_in_two_units_is_refused(tmp_path: Path) -> None:
    lines = [{"metric": "m", "unit": unit, "value": 1} for unit in ("s", "ms")]
    with pytest.raises(SampleError, match="expected m in s"):
        read_runs(saved(tmp_path, "\n".join(map(json.dumps, lines))))
    documents = [{**metric(unit=unit), "commit": "c"} for unit in ("s", "ms")]
    paths = [saved(tmp_path, one, f"{n}.json") for n, one in enumerate(documents)]
    with pytest.raises(SampleError, match="in s as in the files before, found ms"):
        read_sessions(paths)


def leaves(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values of a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    out = []
    for key, value in items:
        out.append((*path, key))
        if isinstance(value, dict | list):
            out += leaves(value, (*path, key))
    return out


SEEDS = [
    PYTEST,
    json.loads(ASV.replace("NaN", "1.0").replace("-Infinity", "1").replace("Infinity", "1")),
    {**metric(), "machine": {"cpu": "x"}, "environment": [["a", "b"]], "traces": ["t"]},
]


@pytest.mark.parametrize("seed", SEEDS, ids=["pytest-benchmark", "asv", "ours"])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_document_brings_a_traceback(tmp_path: Path, seed: Any, data: st.DataObject) -> None:
    document = json.loads(json.dumps(seed))
    path = data.draw(st.sampled_from(leaves(document)))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(
        st.sampled_from([None, True, -1, 0, 1.5, 10**400, float("nan"), "", "x", "\0", "\ud800", [], [[]], {}])
    )
    try:
        runs = read_runs(saved(tmp_path, document)).runs
    except SampleError:
        return
    for run in runs:
        run.check()


@pytest.fixture(scope="session")
def published() -> Callable[[Any], list[str]]:
    """Return a function for what is wrong with a document by the published schema."""
    import jsonschema

    path = Path(__file__).parents[3] / "docs" / "schema" / "torchtriage-samples-1.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    for form in (schema["anyOf"][0]["properties"]["series"]["items"], schema["anyOf"][1]):
        assert form["properties"]["kind"]["enum"] == [*get_args(Kind), None]
        assert form["properties"]["better"]["enum"] == [*get_args(Better), None]
    validator = jsonschema.Draft202012Validator(schema)
    return lambda document: [error.message for error in validator.iter_errors(document)]


def test_the_schema_and_the_reader_agree(tmp_path: Path, published: Any) -> None:
    series = Series("m", "s", "lower", "latency", (Session((0.1, 0.2), (0.1, 0.2), 4, 1e9),))
    run = replace(HERE, benchmark="b", series=(series,), traces=("t",))
    for document in (
        json.loads(encode_runs([run])),
        metric(),
        {**metric(), "machine": {"cpu": "x"}, "environment": [["a", "b"]]},
        {"metric": "m", "unit": "s", "value": 1},
        {"metric": "m", "unit": "furlong", "kind": "count", "values": [1, 2]},
    ):
        assert published(document) == []
        read_runs(saved(tmp_path, document))
    for document in (
        metric(sessions=[]),
        metric(sessions=[["1"]]),
        metric(unit=None),
        metric(kind="speed"),
        {"benchmark": "b"},
        {"metric": "m", "unit": "s"},
    ):
        assert published(document)
        with pytest.raises(SampleError):
            read_runs(saved(tmp_path, document), here=replace(NOWHERE, benchmark="b"))
