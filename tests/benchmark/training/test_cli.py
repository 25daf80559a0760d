"""``torchtriage benchmark learn`` and ``analyze --detector``, as they are typed."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from benchmark.training.made_up import recordings
from click.testing import CliRunner

from torchtriage.cli.main import cli
from torchtriage.diagnose.detector.detector import Detector
from torchtriage_benchmark.training import boosting, training_set

SAMPLE = str(files("torchtriage").joinpath("cli/sample/sample_cpu_training.json.gz"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(boosting, "ROUNDS", 10)
    monkeypatch.setattr(boosting, "TYPE_ROUNDS", 4)
    monkeypatch.setattr(training_set, "examples", lambda *_, **__: recordings())
    return tmp_path


def test_train_writes_weights_and_their_card(folder: Path) -> None:
    out = folder / "weights.npz"
    done = CliRunner().invoke(cli, ["benchmark", "learn", "train", str(folder), "--out", str(out), "-q"])
    assert done.exit_code == 0, done.output
    card = out.with_suffix(".md").read_text()
    assert card in done.output
    detector = Detector.load(out)
    assert str(detector.about["data"]) in card
    assert "| detector | test |" in card
    rows = recordings()[0].features
    assert np.isfinite(detector.judge(rows).probability).all()


def test_a_file_that_cannot_be_written_is_refused_before_any_review(folder: Path) -> None:
    (folder / "labels.jsonl").touch()
    for out in (folder / "nowhere" / "weights.npz", folder / "labels.jsonl"):
        done = CliRunner().invoke(cli, ["benchmark", "learn", "iterate", str(folder), "--out", str(out), "-q"])
        assert done.exit_code == 2, done.output
        assert str(out) in done.stderr
        assert "before:" not in done.stdout


def test_no_training_begins_for_weights_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_set, "examples", lambda *_, **__: pytest.fail("read already"))
    out = str(folder / "nowhere" / "weights.npz")
    done = CliRunner().invoke(cli, ["benchmark", "learn", "train", str(folder), "--out", out, "-q"])
    assert (done.exit_code, "the folder does not exist" in done.stderr) == (2, True), done.output


def test_a_table_has_a_row_for_each_system_and_split(folder: Path) -> None:
    arguments = ["--system", "z-scores", "--system", "k-means", "-q"]
    done = CliRunner().invoke(cli, ["benchmark", "learn", "table", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    rows = [line.split(" | ")[:2] for line in done.output.splitlines()[2:]]
    assert rows == [
        ["| z-scores", "validation"],
        ["| z-scores", "test"],
        ["| k-means", "validation"],
        ["| k-means", "test"],
    ]


def test_the_table_tells_that_the_network_needs_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage_benchmark.commands.learn.find_spec", lambda _: None)
    asked: list[str] = []
    monkeypatch.setattr(
        "torchtriage_benchmark.training.leaderboard.table", lambda _, names, **__: asked.extend(names) or ""
    )
    done = CliRunner().invoke(cli, ["benchmark", "learn", "table", str(folder), "-q"])
    assert done.exit_code == 0, done.output
    assert "left out: network, which needs torch" in done.stderr
    assert asked
    assert "network" not in asked


def test_an_unknown_system_and_an_empty_folder_are_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["benchmark", "learn", "table", str(tmp_path), "--system", "x"])
    assert done.exit_code == 2
    assert "expected a system, found x" in done.output
    done = CliRunner().invoke(cli, ["benchmark", "learn", "table", str(tmp_path)])
    assert done.exit_code == 2
    assert "expected recordings of the benchmark" in done.output


def test_the_detector_changes_nothing_but_suspicions() -> None:
    def told(*options: str) -> dict[str, object]:
        done = CliRunner().invoke(cli, ["analyze", SAMPLE, "--json", "-q", *options])
        assert done.exit_code == 0, done.output
        (result,) = json.loads(done.stdout)["results"]
        assert isinstance(result, dict)
        return result

    without, found = told(), told("--detector")
    assert without["suspicions"] == []
    assert {**found, "suspicions": []} == without
