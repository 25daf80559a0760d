"""Which settings a plan has, how they are called, and which targets are refused before work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from measure.bench.sessions import OPENED, TargetClient, filled, measured

import torchtriage as tt
from torchtriage.core.errors import UsageError
from torchtriage.measure.bench.checkpoint import Checkpoint
from torchtriage.measure.bench.plan import BenchPlan, check_target, settings, target_of
from torchtriage.measure.bench.result import Setting
from torchtriage.measure.bench.run import measure


def test_eager_comes_once_and_the_rest_in_every_combination() -> None:
    found = settings(["eager", "default"], ["aot_eager"], [1, 8], ["auto", "on"])
    assert len(found) == 2 * (1 + 2 + 2)
    assert len({one.key for one in found}) == len({one.name for one in found}) == len(found)


def test_the_most_precise_dtype_is_the_standard_of_the_others() -> None:
    plan = BenchPlan("m.py:f", settings(["eager"], dtypes=["bfloat16", "float32", "float16"]))
    assert [plan.standard(setting) for setting in plan.settings] == ["float32", "", "float32"]
    assert BenchPlan("m.py:f", settings(["eager"])).standard(settings(["eager"])[0]) == ""
    alone = settings(["eager"], dtypes=["bfloat16"])
    assert BenchPlan("m.py:f", alone).standard(alone[0]) == ""


def test_inductor_as_a_backend_is_the_default_mode() -> None:
    assert settings(["default"], ["inductor"]) == settings(["default"])


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (Setting("eager", "", "auto", None, ""), "model  # eager"),
        (Setting("default", "inductor", "auto", 8, ""), "model = torch.compile(model)"),
        (
            Setting("max-autotune", "inductor", "on", 8, ""),
            'model = torch.compile(model, mode="max-autotune", dynamic=True)',
        ),
        (
            Setting("", "aot_eager", "off", None, "bfloat16"),
            'model = torch.compile(model.to(torch.bfloat16), backend="aot_eager", dynamic=False)',
        ),
    ],
)
def test_the_line_of_code_does_what_was_measured(setting: Setting, line: str) -> None:
    assert setting.line == line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"modes": ["fast"]}, "expected a mode out of eager, default"),
        ({"modes": []}, "at least one mode"),
        ({"dtypes": ["int8"]}, "expected a dtype out of"),
        ({"dynamic": ["maybe"]}, "expected a dynamic out of auto, on, off"),
        ({"batch_sizes": [0]}, "batch sizes of 1 or more"),
        ({"batch_sizes": ["8"]}, "batch sizes of 1 or more, found '8'"),
        ({"modes": "eager"}, "expected a list, found modes='eager'"),
        ({"batch_sizes": 8}, "expected a list, found batch_sizes=8"),
    ],
)
def test_settings_that_do_not_exist_are_refused(given: dict[str, list[str]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0),
        ("max_rounds", 0),
        ("steps", -3),
        ("steps", 2.5),
        ("threads", 0),
        ("seconds", -1.0),
        ("seconds", 0.0),
        ("seconds", float("nan")),
        ("timeout_s", float("inf")),
        ("warm_up_s", -1.0),
        ("warm_up_s", float("nan")),
        ("deadline_ms", float("nan")),
    ],
)
def test_numbers_that_measure_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"expected {name} (of|above) .*, found {value!r}"):
        BenchPlan("m.py:f", settings(["eager"]), **{name: value})  # type: ignore[arg-type]


def test_asked_for_rounds_are_run() -> None:
    assert BenchPlan("m.py:f", settings(["eager"]), rounds=20).most_rounds == 20
    with pytest.raises(UsageError, match="expected max_rounds of 3 or more, found 2"):
        BenchPlan("m.py:f", settings(["eager"]), rounds=3, max_rounds=2)


@pytest.mark.parametrize("target", ["models", "models:", ":build", "", "nowhere.py:build"])
def test_a_target_has_a_module_and_a_function(target: str) -> None:
    with pytest.raises(UsageError):
        check_target(target)


def test_a_function_is_found_by_its_file() -> None:
    assert target_of(settings).endswith("plan.py:settings")
    with pytest.raises(UsageError, match="expected a function of a file"):
        target_of(lambda: None)


def held(path: Path, plan: BenchPlan) -> Checkpoint:
    """Return a folder in which something has been measured."""
    folder = Checkpoint(path, plan)
    folder.write("check.json", {"device": "cpu"})
    return folder


@pytest.mark.parametrize("text", ["{}", "[1]", "null", '{"digest": null}', '{"digest": "0123456789abcdef"}', "no json"])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_with_a_plan_of_somebody_else_is_left_alone(tmp_path: Path, text: str, fresh: bool) -> None:
    (tmp_path / "plan.json").write_text(text)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="expected an empty folder"):
        Checkpoint(tmp_path, BenchPlan("m.py:f", settings(["eager"])), fresh=fresh)
    assert (tmp_path / "plan.json").read_text() == text
    assert (tmp_path / "thesis.txt").exists()


def test_measuring_anew_removes_what_a_benchmark_wrote_and_nothing_else(tmp_path: Path) -> None:
    plan = BenchPlan("m.py:f", settings(["eager"]))
    store = held(tmp_path / "b", plan)
    for name in ("cold/x.json", "rounds/1.0.json", "cold.txt"):
        store.write(name, 1)
    store.cache("x").joinpath("code.py").write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "log.txt").write_text("kept")
    (tmp_path / "b" / "logs").symlink_to(elsewhere)
    Checkpoint(tmp_path / "b", plan, fresh=True)
    assert sorted(one.name for one in (tmp_path / "b").iterdir()) == ["cold.txt", "plan.json"]
    assert (elsewhere / "log.txt").exists()


def test_measurements_of_a_program_that_has_changed_since_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its files are now decides, not where they were: checkouts are moved and copied."""
    monkeypatch.setattr("torchtriage.measure.bench.run.SessionClient", TargetClient)
    of = BenchPlan("models:f", settings(["eager"]))
    found = measured(of, dict.fromkeys(of.settings, 5.0), np.random.default_rng(0))
    found.opened = OPENED | {"sources": {"models": "1", "zoo.net": "2"}}
    filled(tmp_path / "b", found)
    monkeypatch.setattr(TargetClient, "sources", {"models": "1", "zoo.net": "2"})
    assert measure(of, tmp_path / "b").opened == found.opened
    monkeypatch.setattr(TargetClient, "sources", {"models": "1", "zoo.net": "3"})
    with pytest.raises(UsageError, match=r"of another program: zoo\.net changed since"):
        measure(of, tmp_path / "b")


def test_another_torch_or_machine_or_variable_is_another_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = BenchPlan("m.py:f", settings(["eager"]))
    monkeypatch.delenv("TORCHINDUCTOR_FREEZING", raising=False)
    held(tmp_path / "b", plan)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")  # each session has its own
    Checkpoint(tmp_path / "b", plan)
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    with pytest.raises(UsageError, match="TORCHINDUCTOR_FREEZING not set, now 1"):
        Checkpoint(tmp_path / "b", plan)
    monkeypatch.delenv("TORCHINDUCTOR_FREEZING")
    Checkpoint(tmp_path / "b", plan)
    monkeypatch.setattr("torchtriage.measure.bench.checkpoint.torch_version", lambda: "9.9.9")
    with pytest.raises(UsageError, match=r"torch .*, now 9\.9\.9"):
        Checkpoint(tmp_path / "b", plan)
    Checkpoint(tmp_path / "b", plan, fresh=True)


def test_more_rounds_go_on_in_the_same_folder_and_other_settings_do_not(tmp_path: Path) -> None:
    two = settings(["eager", "default"])
    held(tmp_path / "b", BenchPlan("m.py:f", two, rounds=3)).write("rounds/1.0.json", {"a": 1})
    again = Checkpoint(tmp_path / "b", BenchPlan("m.py:f", two, rounds=9, deadline_ms=3.0))
    assert again.read("rounds/1.0.json") == {"a": 1}
    with pytest.raises(UsageError, match="holds measurements of another target"):
        Checkpoint(tmp_path / "b", BenchPlan("m.py:f", two, threads=1))
    fresh = Checkpoint(tmp_path / "b", BenchPlan("m.py:f", two, threads=1), fresh=True)
    assert fresh.read("rounds/1.0.json") is None


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(UsageError, match="expected an empty folder"):
            Checkpoint(tmp_path, BenchPlan("m.py:f", settings(["eager"])), fresh=fresh)
    assert (tmp_path / "thesis.txt").exists()


def test_half_a_file_counts_as_none(tmp_path: Path) -> None:
    store = Checkpoint(tmp_path / "b", BenchPlan("m.py:f", settings(["eager"])))
    store.write("cold/x.json", {"whole": True})
    (tmp_path / "b" / "cold" / "x.json").write_text('{"whole": tr')
    assert store.read("cold/x.json") is None


def test_from_python_it_is_the_same_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function's file is the target; everything is in the folder, so nothing is measured."""
    monkeypatch.setattr("torchtriage.measure.bench.run.SessionClient", TargetClient)
    chosen = settings(["eager", "default"], batch_sizes=[4])
    of = BenchPlan(target_of(settings), chosen, steps=30)
    filled(tmp_path, measured(of, dict.fromkeys(chosen, 5.0), np.random.default_rng(0)))
    report = tt.benchmark(settings, modes=["eager", "default"], batch_sizes=[4], steps=30, out=tmp_path)
    assert str(report).startswith("Stay with eager: 5.")
    assert report.to_markdown().startswith("### Stay with eager")
    assert b"torchtriage-bench/1" in report.to_json()
    with pytest.raises(UsageError, match="a benchmark has no stepz"):
        tt.benchmark(settings, stepz=3)
