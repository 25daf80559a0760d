"""``torchtriage export``: the same rows in every form, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from builder import TraceBuilder
from click.testing import CliRunner, Result

from torchtriage.api import tables
from torchtriage.api.traces import sample_path
from torchtriage.cli.main import cli


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder().step(0, 0, 100).step(1, 100, 100).op("aten::mm", 10, 30).op("aten::mm", 110, 30)
    builder.launch(12, 4, 20, 30, "gemm <é>")
    builder.launch(112, 4, 120, 40, "gemm <é>")
    builder.kernel("orphan", 160, 5, correlation=99)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**builder.meta, "traceEvents": builder.events}))
    return path


def export(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, arguments)], catch_exceptions=False)


def test_csv(trace: Path, tmp_path: Path) -> None:
    done = export(trace, "--csv", tmp_path / "kernels.csv")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "wrote" in done.stderr
    with (tmp_path / "kernels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["dur_ns"], row["op"], row["launch_ns"]) for row in rows] == [
        ("gemm <é>", "30000", "aten::mm", "12000"),
        ("gemm <é>", "40000", "aten::mm", "112000"),
        ("orphan", "5000", "", ""),
    ]


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_table_in_every_form(trace: Path, tmp_path: Path, name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet, feather = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.feather")
    files = {form: tmp_path / f"out.{form}" for form in tables.FORMS}
    done = export(trace, "--table", name, *(part for form, file in files.items() for part in (f"--{form}", file)))
    assert done.exit_code == 0, done.output
    found = [parquet.read_table(files["parquet"]), feather.read_table(files["arrow"])]
    assert (
        found[0].to_pylist()
        == found[1].to_pylist()
        == pyarrow.table(tables.load_tables([trace], [name])[name]).to_pylist()
    )
    with files["csv"].open(encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == found[0].column_names
        assert len(list(csv.reader(file))) == found[0].num_rows


def test_the_selected_part(trace: Path, tmp_path: Path) -> None:
    export(trace, "--steps", "1", "--csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").count("\n") == 3


def test_a_recording_that_cannot_be_analysed_does_not_hide_the_findings_of_others(tmp_path: Path) -> None:
    refused = TraceBuilder().op("aten::mm", 10, 20)
    for at in (10, 20, 110):
        refused.call("cudaLaunchKernel", at, 4)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**refused.meta, "traceEvents": refused.events}))
    for name, files in (("alone", [sample_path()]), ("both", [sample_path(), other])):
        done = export(*files, "--table", "findings", "--csv", tmp_path / f"{name}.csv")
        assert done.exit_code == 0, done.output
        assert ("left out: " in done.stderr) == (name == "both")
    alone = (tmp_path / "alone.csv").read_text("utf-8")
    assert alone.count("\n") > 1
    assert (tmp_path / "both.csv").read_text("utf-8") == alone
    done = export(other, "--table", "findings", "--csv", tmp_path / "none.csv")
    assert (done.exit_code, "cannot be analysed" in done.stderr) == (2, True)


def test_what_it_refuses(trace: Path, tmp_path: Path) -> None:
    done = export(trace)
    assert (done.exit_code, "add --csv FILE, --parquet FILE or --arrow FILE" in done.stderr) == (2, True)
    done = export(trace, "--table", "kernel", "--csv", tmp_path / "out.csv")
    assert (done.exit_code, "expected one of the tables kernels, ops" in done.stderr) == (2, True)
    done = export(trace, "--csv", trace)
    assert (done.exit_code, "found the input itself" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_without_pyarrow_the_extra_is_named(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    done = export(trace, "--parquet", tmp_path / "out.parquet")
    assert (done.exit_code, "pip install 'torchtriage[parquet]'" in done.stderr) == (2, True)


def test_a_failure_leaves_what_was_there(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.csv"
    out.write_text("before")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(tables, "write_csv", fail)
    done = export(trace, "--csv", out)
    assert (done.exit_code, "cannot be written: disk full" in done.stderr) == (2, True)
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "trace.json"]
