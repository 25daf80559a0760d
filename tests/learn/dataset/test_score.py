"""Scores are what their definitions say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from torchtriage.cli.learn.dataset import command
from torchtriage.core.errors import UsageError
from torchtriage.learn.dataset import trace_codec
from torchtriage.learn.dataset.predictions import Prediction, Predictions, read_predictions
from torchtriage.learn.dataset.recordings import DatasetItem, dataset_items
from torchtriage.learn.dataset.score import area_under_roc, average_precision, score
from torchtriage_benchmark.recording.plan import plan

N_STEPS, STEP_US, N_OPS = 5, 16_000.0, 32


def synthetic(ops_us: float) -> dict[str, Any]:
    """Return a recording of steps full of operators."""
    events: list[dict[str, Any]] = []
    for step in range(N_STEPS):
        begin = 1e6 + step * STEP_US
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step}",
                "pid": 1,
                "tid": 1,
                "ts": begin,
                "dur": STEP_US - 1,
            }
        )
        events += [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::mm",
                "pid": 1,
                "tid": 1,
                "ts": begin + 1 + at * STEP_US / N_OPS,
                "dur": ops_us,
            }
            for at in range(N_OPS)
        ]
    return {"schemaVersion": 1, "traceEvents": events}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of twelve recordings; the second quarter of each faulty step is the fault."""
    import hashlib
    from dataclasses import asdict

    path = tmp_path_factory.mktemp("benchmark")
    for item in plan(12, 0):
        data = trace_codec.pack(synthetic(300))
        begins = [1e6 + step * STEP_US + STEP_US / 4 for step in range(N_STEPS)]
        spans = [[int(begin * 1e3), int((begin + STEP_US / 4) * 1e3)] for begin in begins]
        about = asdict(item) | {
            "split": item.split,
            "fault_lines": [40],
            "intervals_ns": spans if item.code else [],
            "step_ns": [16_000_000 if item.code else 12_000_000] * 10,
            "script": "",
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        (path / f"{item.id}.ttcol").write_bytes(data)
        (path / f"{item.id}.json").write_text(json.dumps(about))
    return path


def test_the_area_and_the_precision_of_known_orders() -> None:
    truth = np.array([True, False, True, False])
    assert area_under_roc(truth, np.array([4.0, 3, 2, 1])) == 0.75
    assert area_under_roc(truth, np.array([4.0, 1, 3, 2])) == 1
    assert area_under_roc(truth, np.zeros(4)) == 0.5
    assert area_under_roc(truth, np.array([2.0, 2, 1, 0])) == pytest.approx(2.5 / 4)
    assert np.isnan(area_under_roc(np.ones(3, bool), np.arange(3.0)))
    assert average_precision(truth, np.array([4.0, 3, 2, 1])) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(truth, np.zeros(4)) == 0.5
    assert np.isnan(average_precision(np.zeros(3, bool), np.arange(3.0)))


def test_one_who_knows_everything_scores_one_and_shuffled_labels_a_half(folder: Path) -> None:
    items = list(dataset_items(folder))
    knows = Predictions(
        "knows",
        {
            item.id: Prediction(
                tuple(item.faulty.astype(float)),
                {item.code: 1.0} if item.code else {},
                (40,) if item.code else (),
                (3.5, 4.5) if item.code else None,
                severe=False,
            )
            for item in items
        },
    )
    best = score(items, knows)[0]
    names = (
        "auroc",
        "auprc",
        "type_accuracy",
        "macro_f1",
        "detected",
        "quiet",
        "not_severe",
        "overlap",
        "line_accuracy",
        "saving",
    )
    assert [getattr(best, name).value for name in names] == [1.0] * len(names)
    rng = np.random.default_rng(0)
    truth = np.concatenate([item.faulty for item in items])
    areas = [area_under_roc(rng.permutation(truth), truth.astype(float)) for _ in range(50)]
    assert abs(np.mean(areas) - 0.5) < 0.03


def test_the_window_labels_are_the_second_quarter(folder: Path) -> None:
    for item in dataset_items(folder):
        expected = ([False] * 4 + [True] * 4 + [False] * 8) * N_STEPS
        assert item.faulty.tolist() == (expected if item.code else [False] * 80)


def test_what_is_not_predicted_counts_as_found_healthy_and_is_told(folder: Path) -> None:
    items = list(dataset_items(folder))
    row = score(items, Predictions("silent", {}))[0]
    assert row.missing == row.n_items == 12
    assert (row.auroc.value, row.detected.value, row.quiet.value) == (0.5, 0.0, 1.0)
    assert row.line_accuracy.n == 0
    assert np.isnan(row.line_accuracy.value)


def test_groups_are_told_apart_where_there_are_several(folder: Path) -> None:
    items = list(dataset_items(folder))
    silent = Predictions("silent", {})
    names = [one.group for one in score(items, silent)]
    assert not [name for name in names if name.startswith(("part", "device", "torch", "look"))]
    changed = [
        DatasetItem(
            one.about
            | {
                "part": ("eager", "ranks")[at % 2],
                "device": ("cpu", "cuda")[at % 2],
                "torch": ("2.9", "2.13")[at % 3 == 0],
                "severity": at,
                "code": one.code and "LCH016",
                "lookalike": "" if one.code else ("cat", "")[at % 2],
            },
            one.path,
        )
        for at, one in enumerate(items)
    ]
    rows = {one.group: one for one in score(changed, silent)}
    assert rows["part eager"].n_items == rows["device cuda"].n_items == 6
    assert rows["torch 2.9"].n_items == 8
    assert rows["severity light"].n_items == rows["severity heavy"].n_items == 1
    assert rows["severity middle"].n_items == sum(bool(item.code) for item in items) - 2
    like = rows["look-alikes"]
    assert (like.n_items, like.quiet.n, like.type_accuracy.n) == (2, 2, 0)


def test_all_right_is_not_certain_and_twins_are_one_program(folder: Path) -> None:
    items = list(dataset_items(folder))
    silent = score(items, Predictions("silent", {}))[0]
    n_programs = len({(item.about["family"], item.about["seed"]) for item in items if not item.code})
    assert silent.quiet.n == n_programs == 4
    assert str(silent.quiet) == "1.00 (0.51-1.00)"
    ranks = [DatasetItem(item.about | {"seed": 0, "family": "vit"}, item.path) for item in items]
    one = score(ranks, Predictions("silent", {}))[0]
    assert str(one.quiet) == "1.00 (0.21-1.00)"
    assert str(one.auroc) == "0.50"  # there is nothing to draw


def test_who_never_says_severe_is_not_scored_for_it(folder: Path, tmp_path: Path) -> None:
    items = list(dataset_items(folder))
    zeros = [0.0] * 80
    path = tmp_path / "system.json"
    for answer, shown in (({}, "-"), ({"severe": False}, "1.00 (0.51-1.00)"), ({"severe": True}, "0.75 (0.13-0.98)")):
        says = {item.id: {"windows": zeros} for item in items} | {"0000": {"windows": zeros} | answer}
        path.write_text(json.dumps({"system": "system", "items": says}))
        found = read_predictions(path)
        assert str(score(items, found)[0].not_severe) == shown
        path.write_text(found.to_json())
        assert read_predictions(path) == found


def test_windows_of_another_number_are_refused(folder: Path) -> None:
    items = list(dataset_items(folder))
    with pytest.raises(UsageError, match=r"each of the 80 windows of item 0000, found 3"):
        score(items, Predictions("odd", {"0000": Prediction((1.0, 2.0, 3.0))}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected predictions"),
        ("[]", "expected predictions"),
        ("{}", "expected predictions"),
        ('{"system": "x", "items": {"0000": {}}}', "prediction of item 0000"),
        ('{"system": "x", "items": {"0000": {"windows": ["a"]}}}', "prediction of item 0000"),
        ('{"system": "x", "items": {"0000": {"windows": [NaN]}}}', "not finite"),
        ('{"system": "x", "items": {"0000": {"windows": [1], "saving_ms": [1]}}}', "item 0000"),
    ],
)
def test_bad_predictions_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "predictions.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_predictions(path)


def test_the_commands(folder: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    done = run(command, ["score", "rules", "--dir", str(folder), "--predictions", str(tmp_path / "rules.json")])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("| rules | recordings | auroc |")
    again = run(command, ["score", str(tmp_path / "rules.json"), "--dir", str(folder)])
    assert again.stdout == done.stdout
    out = tmp_path / "one.json"
    assert run(command, ["export", "0001", "--dir", str(folder), "-o", str(out)]).exit_code == 0
    assert json.loads(out.read_text()) == synthetic(300)
    windows = json.loads(run(command, ["windows", "--dir", str(folder)]).stdout)
    assert len(windows["0000"]) == 80
    for wrong in (["export", "9999", "--dir", str(folder)], ["score", "rules", "--dir", str(tmp_path)]):
        assert isinstance(run(command, wrong).exception, UsageError)


def test_no_output_replaces_what_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner().invoke
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    before = {path: path.read_bytes() for path in copied.iterdir()}
    monkeypatch.chdir(copied)
    done = run(command, ["export", "0001", "--dir", "."])
    assert (done.exit_code, json.loads(Path("0001.trace.json").read_text())) == (0, synthetic(300))
    for words in (
        ["export", "0001", "--dir", ".", "-o", "0000.json"],
        ["export", "0001", "--dir", ".", "--parquet", "0001.ttcol"],
        ["score", "rules", "--dir", ".", "--predictions", "0001.json"],
        ["score", "rules", "--dir", ".", "--predictions", "nowhere/p.json"],
    ):
        assert isinstance(run(command, words).exception, UsageError), words
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("key", ["twin", "severity", "fault_lines"])
def test_a_recording_of_which_something_is_unknown_is_refused(folder: Path, tmp_path: Path, key: str) -> None:
    about = json.loads((folder / "0000.json").read_text())
    del about[key]
    (tmp_path / "0000.json").write_text(json.dumps(about))
    with pytest.raises(UsageError, match=f"found none of {key}"):
        list(dataset_items(tmp_path))


def test_a_recording_that_was_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("0000.json", "0000.ttcol"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "0000.ttcol").write_bytes(trace_codec.pack(synthetic(200)))
    (one,) = dataset_items(tmp_path)
    with pytest.raises(Exception, match="found another in"):
        one.document()
