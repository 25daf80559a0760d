"""What is in a folder is what was recorded, and of the programs of the plan."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchtriage.cli.learn.dataset import command
from torchtriage.core.errors import MissingExtraError, UsageError
from torchtriage.learn.dataset import trace_codec
from torchtriage_benchmark.recording.checksums import check_plan, differences, write_index
from torchtriage_benchmark.recording.plan import Item, plan

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 0.25}
DOCUMENT = {"schemaVersion": 1, "traceEvents": [EVENT, {"ph": "M", "name": "x", "args": {"a": 1}}]}


def keep(item: Item, folder: Path) -> None:
    data = trace_codec.pack(DOCUMENT)
    about = asdict(item) | {
        "split": item.split,
        "script": item.script().text,
        "fault_lines": [],
        "intervals_ns": [],
        "step_ns": [1],
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    (folder / f"{item.id}.ttcol").write_bytes(data)
    (folder / f"{item.id}.json").write_text(json.dumps(about))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("eager", "compiled", "ranks", "lookalikes"):
        for item in plan(4, 0, part):
            keep(item, tmp_path)
    write_index(tmp_path, 0)
    return tmp_path


def test_a_folder_as_recorded_differs_nowhere(folder: Path) -> None:
    assert list(differences(folder)) == []
    done = CliRunner().invoke(command, ["verify", "--dir", str(folder)])
    assert (done.exit_code, done.stdout) == (0, f"{folder} is as recorded\n")


def test_each_difference_is_told(folder: Path) -> None:
    (folder / "0000.ttcol").write_bytes(trace_codec.pack({"traceEvents": []}))
    (folder / "c0001.json").unlink()
    moved = json.loads((folder / "r0001.json").read_text()) | {"intervals_ns": [[1, 2]]}
    (folder / "r0001.json").write_text(json.dumps(moved))
    keep(replace(plan(4, 0)[3], id="0777"), folder)
    keep(replace(plan(4, 0, "lookalikes")[1], seed=5), folder)
    found = list(differences(folder))
    assert found == [
        "c0001: missing",
        "0777: not in the index",
        "0000: another trace",
        "l0001: another script",
        "l0001: another about",
        "r0001: another about",
        "0777: not the plan's program",
        "l0001: not the plan's program",
    ]
    assert CliRunner().invoke(command, ["verify", "--dir", str(folder)]).exit_code == 1


def test_recordings_of_another_seed_are_not_taken_for_this_one(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = CliRunner().invoke(command, ["record", "--dir", str(folder), "--count", "20", "--seed", "1", "-q"])
    assert isinstance(done.exception, UsageError)
    assert re.search(r"plan of seed 1 in .*, found another in 0000\.json \(\d+ in all\)", str(done.exception))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before  # the index has its seed


def test_other_files_beside_the_recordings_are_not_looked_at(folder: Path, tmp_path: Path) -> None:
    (folder / "run-2025.json").write_text("{}")
    check_plan(folder, 0)
    check_plan(tmp_path / "none", 0)


def test_without_an_index_nothing_can_be_said(folder: Path) -> None:
    (folder / "index.json").write_text("{}")
    with pytest.raises(UsageError, match="expected an index in"):
        list(differences(folder))


def test_a_recording_becomes_a_table(folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "one.parquet"
    arguments = ["export", "0000", "--dir", str(folder), "--parquet", str(path)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    table = parquet.read_table(path)
    assert table.column_names == ["ph", "cat", "name", "pid", "tid", "id", "ts_ns", "dur_ns", "args"]
    first, second = table.to_pylist()
    assert (first["name"], first["pid"], first["ts_ns"], first["dur_ns"]) == ("aten::mm", "1", 1500, 250)
    assert (second["ts_ns"], second["args"]) == (None, '{"a": 1}')
    assert json.loads(table.schema.metadata[b"trace"]) == {"schemaVersion": 1}


def test_without_pyarrow_it_says_what_is_missing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.learn.dataset.parquet.find_spec", lambda _: None)
    arguments = ["export", "0000", "--dir", str(folder), "--parquet", str(tmp_path / "x")]
    with pytest.raises(MissingExtraError, match="needs pyarrow"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert not (tmp_path / "x").exists()
