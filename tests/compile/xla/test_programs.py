"""Dumps are read without torch_xla, whatever is among them, and what is missing is not zero."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner
from compile.xla.test_dumps import DEBUG, REPORT, SAVED
from tests.conftest import DATA

from torchtriage.cli.main import cli
from torchtriage.compile.xla import programs
from torchtriage.compile.xla.programs import read_dumps
from torchtriage.compile.xla.verdict import judge
from torchtriage.core.errors import LogError

HARMED = gzip.compress(b"x", mtime=0)[:10] + b"\xff" * 20
"""A gzip whose head is whole and whose body is not."""


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    (tmp_path / "log.txt").write_text(f"{DEBUG}\n{REPORT}")
    with gzip.open(tmp_path / "saved.txt.gz", "wt") as file:
        file.write(SAVED)
    (tmp_path / "notes.md").write_text("nothing")
    (tmp_path / "module_0000.m.3.ir-with-opt.ll").write_text("define")
    (tmp_path / "weights.bin").write_bytes(b"\0\1\2")
    return tmp_path


def test_a_folder_is_one_program(dumps: Path) -> None:
    (one,) = read_dumps([str(dumps)])
    assert (one.n_compiled, one.n_compiled_told, one.n_executed_told, one.n_saved) == (3, 1, 1, 2)
    assert one.compile_ms == pytest.approx(29_996.941409)
    assert [(each.name, each.kind) for each in one.fallbacks] == [("aten::nonzero", "shape")]
    assert [(graph.hash, graph.cause, graph.first_step) for graph in one.graphs] == [
        ("c74c3b91", "step", 0),
        ("97a5", "read", 1),
        ("11", "read", 1),
    ]
    assert {each.name: each.count for each in one.skipped} == {
        "files of an XLA dump that are no HLO text": 1,
        "files that are not text, damaged, unreadable or too large": 1,
        "files without a dump": 1,
    }
    assert {note.code for note in one.notes} == {"counts-differ"}


def test_one_file_is_a_program_too(dumps: Path) -> None:
    (one,) = read_dumps([str(dumps / "log.txt")])
    assert (one.n_compiled, one.n_saved) == (3, None)
    assert judge(programs=[one]).verdict[0] == "3 HLO graphs compiled, as the metrics count"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "found an empty file"),
        (b"hello\n", "found other text"),
        (b"\0\1\2\3", "found a binary file"),
        (b"\x1f\x8b\x08\x00", "found one that cannot be read"),
        (HARMED, "found one that cannot be read"),
    ],
)
def test_what_is_no_dump_is_one_clear_line(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    with pytest.raises(LogError, match=said):
        read_dumps([str(path)])
    result = CliRunner().invoke(cli, ["xla", str(path)])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_neither_is_an_empty_folder_or_nothing(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="found none in 0 files"):
        read_dumps([str(tmp_path)])
    with pytest.raises(LogError, match="expected a readable file"):
        read_dumps([str(tmp_path / "missing.txt")])


def test_damage_in_a_folder_does_not_hide_the_rest(dumps: Path) -> None:
    (dumps / "harmed.txt.gz").write_bytes(HARMED)
    (dumps / "cut.txt.gz").write_bytes(gzip.compress(REPORT.encode())[:60])
    (one,) = read_dumps([str(dumps)])
    assert one.n_compiled == 3
    skipped = {each.name: each.count for each in one.skipped}
    assert skipped["files that are not text, damaged, unreadable or too large"] == 3


def test_reports_of_several_files_are_not_one_program(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text(REPORT)
    (tmp_path / "rank1.txt").write_text("Metric: CompileTime\n  TotalSamples: 2\n  Accumulator: 05s\n")
    (tmp_path / "saved.txt").write_text(SAVED)
    first, second, rest = read_dumps([str(tmp_path)])
    assert [(one.n_compiled, len(one.fallbacks), one.n_saved) for one in (first, second, rest)] == [
        (3, 1, None),
        (2, 0, None),
        (None, 0, 2),
    ]
    assert [Path(one.name).name for one in (first, second, rest)] == ["rank0.txt", "rank1.txt", tmp_path.name]
    assert [note.code for note in first.notes] == ["reports-of-several-files"]


def test_a_report_that_begins_inside_a_metric_is_cut(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("  Accumulator: 05s\nCounter: MarkStep\n  Value: 2\n")
    (one,) = read_dumps([str(tmp_path)])
    assert [note.code for note in one.notes] == ["report-cut"]


def test_a_small_gzip_of_much_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_BYTES", 1 << 20)
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"x" * (3 << 20)))
    with pytest.raises(LogError, match="at most 1 MiB, unpacked"):
        read_dumps([str(tmp_path / "x.txt.gz")])


def test_models_and_dumps_do_not_mix(dumps: Path) -> None:
    result = CliRunner().invoke(cli, ["xla", "models.py:gpt", str(dumps)])
    assert result.exit_code == 2
    assert "expected models or dumps, found both" in result.output


def test_a_python_without_torch_xla_is_named(tmp_path: Path) -> None:
    model = tmp_path / "m.py"
    model.write_text("")
    result = CliRunner().invoke(cli, ["xla", f"{model}:f", "--python", "/bin/false"])
    assert result.exit_code == 2
    assert "this Python has no torch_xla" in result.output
    assert "--python PATH" in result.output


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("issue_3266_resnet_gpu_excerpt.txt", "9 HLO graphs compiled and 42 executions"),
        ("docs_troubleshoot_sample_2.txt", "1 HLO graph compiled and 1 execution, as PT_XLA_DEBUG"),
        ("docs_troubleshoot_sample_3.txt", "202 HLO graphs compiled, as the metrics count"),
        ("decoder_50layers_scan_layers_compile_metrics.txt", "3 HLO graphs compiled"),
        ("docs_troubleshoot_sample_1.txt", "No count of HLO graphs in the dumps"),
        ("issue_2019_counters_excerpt.txt", "No count of HLO graphs in the dumps"),
        ("as_stride_spmd_hlo.log", "HLO graphs in the dumps"),
        ("module_0002.jit_f.before_optimizations.txt", "1 HLO graph in the dumps"),
    ],
)
def test_dumps_from_public_repositories(name: str, said: str) -> None:
    found = sorted((DATA / "logs" / "xla").glob(name.replace("module_0002.jit_f.before", "*before")))
    result = judge(programs=read_dumps([str(found[0])]))
    assert said in result.verdict[0]
