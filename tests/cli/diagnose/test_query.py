"""``torchtriage query``: the cookbook, every form of an answer, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builder import TraceBuilder
from click.testing import CliRunner, Result
from docs.cookbook import QUESTIONS

from torchtriage.api import tables
from torchtriage.api.traces import analyze, sample_path
from torchtriage.cli.main import cli

try:
    import duckdb
except ImportError:
    duckdb = None  # type: ignore[assignment]

needs_duckdb = pytest.mark.skipif(
    duckdb is None, reason="duckdb is not installed here: pip install 'torchtriage[query]'"
)


def write(folder: Path, rank: int, *, kernel: float = 30) -> Path:
    builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2})
    for i in range(5):
        at = 100.0 * i
        builder.step(i, at, 100).op("aten::mm", at + 10, 30, dims=[[2, 3], [3, 4]])
        builder.launch(at + 12, 4, at + 20, kernel, "gemm")
        builder.copy(at + 60, 5, at + 70, 8, size=4096)
        builder.launch(
            at + 80,
            2,
            at + 84,
            6,
            "ncclDevKernel_AllReduce",
            **{"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"},
        )
    memory = {"Bytes": 64, "Addr": 5, "Device Type": 1, "Device Id": 0, "Total Allocated": 128}
    builder.event("[memory]", "cpu_instant_event", 130, 0, ph="i", **memory)
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({**builder.meta, "traceEvents": builder.events}))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path, 0)


def ask(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, ["query", *map(str, arguments)], catch_exceptions=False)


ANSWERS: tuple[dict[str, Any], ...] = (
    {"name": "gemm", "calls": 10, "ms": 0.4},
    {"category": "GEMM", "ms": 0.4, "percent": 40 / 0.46},
    {"op": "aten::mm", "kernels": 10, "ms": 0.4},
    {"step": 0, "name": "ProfilerStep#0", "ms": 0.1, "judged": False},
    {"ms": 0.1, "of_median": 1.0},
    {"name": "aten::mm", "calls": 10, "self_ms": 0.26},
    {"name": "cudaLaunchKernel", "calls": 20, "longest_ms": 0.004, "ms": 0.06},
    {"us_median_p95_most": [6.0, 8.0, 8.0]},
    {"short": 10, "kernels": 20, "percent": 6 / 0.46},
    {"name": "gemm", "calls": 10, "p95_of_median": 1.25},
    {"gap_ms": 0.034, "op": None},
    {"name": "Memcpy HtoD (Pageable -> Device)", "copies": 10, "mb": 0.04096, "gb_per_s": 0.512},
    {"input_dims": "[[2, 3], [3, 4]]", "calls": 10, "device_ms": 0.4},
    {"times": 2, "mean_ms": 0.1},
    {"device": 0, "stream": 7, "kernels": 20, "ms": 0.46},
    {"collective": "allreduce", "times": 10, "ms": 0.06, "exposed_ms": 0.06, "mb": 0.00032},
    {"step_ms": 0.1, "comm_ms": 0.024},
    {"name": "gemm", "least_ms": 0.15, "most_ms": 0.25, "slowest_rank": 1},
    {"device_type": 1, "device": 0, "mb": 0.000128, "at_ns": 130_000, "step": 1},
)
"""What the first row of each answer holds, computed by hand."""


@needs_duckdb
@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_the_cookbook_on_a_job(tmp_path: Path, number: int) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1, kernel=50)
    done = ask(tmp_path, "--json", QUESTIONS[number][1])
    assert done.exit_code == 0, done.output
    first, expected = json.loads(done.stdout)[0], ANSWERS[number]
    for name, value in expected.items():
        assert first[name] == (pytest.approx(value) if isinstance(value, float | list) else value), name


@needs_duckdb
def test_the_last_question_is_what_analyze_says() -> None:
    found = analyze(sample_path()).findings
    rows = json.loads(ask(sample_path(), "--json", QUESTIONS[19][1]).stdout)
    assert [row["code"] for row in rows] == [finding.code for finding in found if finding.saves]
    assert (rows[0]["code"], rows[0]["file"][-16:]) == ("DAT018", "record_sample.py")


def test_the_cookbook_has_twenty_questions_on_every_table() -> None:
    assert len(QUESTIONS) == 20
    text = " ".join(sql for _, sql in QUESTIONS)
    assert [name for name in tables.TABLES if f"from {name}" not in text] == []


@needs_duckdb
@pytest.mark.data
def test_the_cookbook_on_real_recordings(recordings: Path) -> None:
    from torchtriage.api.traces import find_traces

    folder = recordings / "distributed" / "dlrm_v100_8ranks"
    loaded = tables.load_tables(find_traces([folder]), list(tables.TABLES))
    with duckdb.connect() as connection:
        for name, table in loaded.items():
            connection.register(name, table)
        found = {question: connection.execute(sql).fetchall() for question, sql in QUESTIONS}
    assert [question for question, rows in found.items() if not rows] == [QUESTIONS[18][0]]  # no memory events
    assert len(found[QUESTIONS[16][0]]) == 8


@needs_duckdb
def test_an_answer_for_people(trace: Path) -> None:
    sql = "select name, count(*) as n, null as nothing, avg(dur_ns) as mean_ns from kernels group by name order by name"
    assert ask(trace, sql).stdout.split("\n")[:3] == [
        "  name                     n  nothing  mean_ns",
        "  gemm                     5     null    30000",
        "  ncclDevKernel_AllReduce  5     null     6000",
    ]
    assert "No rows." in ask(trace, "select * from kernels where step = 99").stdout


@needs_duckdb
def test_an_answer_as_csv_and_json(trace: Path, tmp_path: Path) -> None:
    sql = "select name, op, 'a,\"b\"' as text, 'nan'::double as odd from kernels where name = 'gemm' and step = 0"
    rows = list(csv.reader(io.StringIO(ask(trace, "--csv", sql).stdout)))
    assert rows == [["name", "op", "text", "odd"], ["gemm", "aten::mm", 'a,"b"', "nan"]]
    assert json.loads(ask(trace, "--json", sql).stdout) == [
        {"name": "gemm", "op": "aten::mm", "text": 'a,"b"', "odd": None}
    ]
    assert json.loads(ask(trace, "--json", "select * from kernels limit 0").stdout) == []
    out = tmp_path / "answer.csv"
    assert ask(trace, "--csv", "-o", out, "select count(*) as n from kernels").stdout == ""
    assert out.read_text() == "n\n10\n"


@needs_duckdb
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select [1.0, 'nan'::double] as a", [1.0, None]),
        ("select array_agg(one) as a from (select unnest([1.5, 'inf'::double]) as one)", [1.5, None]),
        ("select map([1.5], [2]) as a", {"1.5": 2}),
        ("select map([date '2026-01-02'], ['nan'::double]) as a", {"2026-01-02": None}),
        (
            "select {'b': 'nan'::double, 'c': uuid '00000000-0000-0000-0000-000000000001'} as a",
            {"b": None, "c": "00000000-0000-0000-0000-000000000001"},
        ),
        ("select 1::hugeint << 100 as a", 1 << 100),
    ],
)
def test_nested_values_as_json(trace: Path, sql: str, expected: Any) -> None:
    done = ask(trace, "--json", sql)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [{"a": expected}]


@needs_duckdb
@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_a_failure_leaves_what_was_there(trace: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    out.write_text("before")
    failing = "select case when i < 60000 then i else error('late') end as n from range(70000) t(i)"
    done = ask(trace, form, "-o", out, failing)
    assert (done.exit_code, "late" in done.stderr) == (2, True)
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rank0.json"]


@needs_duckdb
@pytest.mark.parametrize("sql", ["", ";", "/* nothing */"])
def test_no_statement_is_refused(trace: Path, sql: str) -> None:
    done = ask(trace, sql)
    assert (done.exit_code, "expected a query, found no statement" in done.stderr) == (2, True)


@needs_duckdb
def test_a_query_of_the_selected_part(trace: Path) -> None:
    assert ask(trace, "--csv", "--steps", "1-2", "select count(*) as n from kernels").stdout == "n\n4\n"
    refused = ask(trace, "--steps", "7", "select 1 from kernels")
    assert (refused.exit_code, "expected steps 7, found steps 0-4" in refused.stderr) == (2, True)


@needs_duckdb
def test_ranks_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1, kernel=50)
    sql = "select rank, sum(dur_ns) as ns from kernels where name = 'gemm' group by rank order by rank"
    assert ask(tmp_path, "--csv", sql).stdout == "rank,ns\n0,150000\n1,250000\n"
    assert ask(tmp_path, "--csv", "--rank", 1, sql).stdout == "rank,ns\n1,250000\n"
    refused = ask(tmp_path, "--rank", 5, sql)
    assert (refused.exit_code, "expected rank 5, found ranks 0, 1" in refused.stderr) == (2, True)


@needs_duckdb
@pytest.mark.parametrize(
    "sql", ["selec", "select * from nothing", "select no_column from kernels", "select 1/0; selec"]
)
def test_a_query_that_cannot_be_answered(trace: Path, sql: str) -> None:
    done = ask(trace, sql)
    assert done.exit_code == 2
    assert "DuckDB cannot answer" in done.stderr
    assert "the tables are kernels, ops" in done.stderr


@needs_duckdb
def test_within_a_bound_on_memory(trace: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("bounds are for Linux")
    from torchtriage.core.engine import find_engine

    if find_engine().library is None:
        pytest.skip("needs the native library")
    done = ask(trace, "--max-memory", "256M", "--csv", "select count(*) as n from kernels")
    assert done.stdout == "n\n10\n"


def test_without_duckdb_the_extra_is_named(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    done = ask(trace, "select 1")
    assert done.exit_code == 2
    assert "pip install 'torchtriage[query]'" in done.stderr


def test_a_query_alone_is_refused(trace: Path) -> None:
    done = ask("select 1")
    assert (done.exit_code, "expected a trace and a query" in done.stderr) == (2, True)


def test_duckdb_is_loaded_only_for_a_query() -> None:
    code = "import torchtriage as tt, sys; tt.load; assert not {'duckdb', 'pyarrow'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
