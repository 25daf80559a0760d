"""A benchmark reads the same everywhere; what is measured already is not measured again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner, Result
from measure.bench.sessions import COMPILING, OPENED, TargetClient, cold, filled, measured, plan
from tests.report import forms
from tests.report.sample_result import HOSTILE

from torchtriage.cli.main import cli
from torchtriage.core.errors import TraceFormatError
from torchtriage.measure.bench.checkpoint import Checkpoint
from torchtriage.measure.bench.measurements import Measurements
from torchtriage.measure.bench.plan import BenchPlan
from torchtriage.measure.bench.result import BenchResult, Setting
from torchtriage.measure.bench.run import measure
from torchtriage.measure.bench.summary import summarise

PUBLISHED = Path(__file__).parents[3] / "docs" / "schema" / "torchtriage-bench-1.json"
FAILED = {
    "kind": "crash",
    "stage": "compile",
    "session": "cold",
    "after_s": 3.2,
    "message": f"the process ended with signal SIGSEGV: {HOSTILE}",
}


def whole(of: BenchPlan | None = None) -> Measurements:
    """Return a benchmark with everything in it: ties, a failure, wrong answers, graph breaks."""
    of = of or plan(["eager", "default", "max-autotune"], backends=[HOSTILE, "slow"], deadline_ms=6.0)
    eager, default, tuned, hostile, slow = of.settings
    steps = {eager: 10.0, default: 5.0, tuned: 5.0, hostile: 1.0, slow: 1.0}
    found = measured(of, steps, np.random.default_rng(0))
    found.cold[hostile.key] = {"open": OPENED, "failure": FAILED}
    for sessions in found.rounds.values():
        del sessions[hostile.key]
    broken = COMPILING | {"graph_breaks": 2, "reasons": [[HOSTILE, 2]]}
    found.cold[slow.key] = cold(1.0, 1.0, "wrong")
    found.cold[slow.key]["first"]["compiling"] = broken
    found.cold[slow.key]["numerics"] |= {"error": None, "worst": None, "worst_at": HOSTILE}
    return found


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return summarise(whole())


def test_a_document_comes_back_as_it_was(result: BenchResult) -> None:
    data = forms.encode(result)
    assert forms.decode(data, "bench") == result
    assert data == forms.encode(forms.decode(data, "bench"))


def test_the_document_is_what_the_published_schema_says(result: BenchResult) -> None:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert published == forms.schema("bench")
    jsonschema.validate(json.loads(forms.encode(result)), published)


def test_another_document_is_refused() -> None:
    with pytest.raises(TraceFormatError):
        forms.decode(b'{"schema": "torchtriage-memory/1"}', "bench")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_fits_and_says_what_matters(result: BenchResult, width: int) -> None:
    text = forms.terminal(result, width=width).plain
    assert text.startswith("Use default: 5.")
    told = " ".join(text.split())
    assert "wrong: relative error not finite" in told
    assert "crashed in its first call (cold, after 3.20 s)" in told
    assert "default and max-autotune: a tie" in told
    assert "as good, but less simple: max-autotune" in told
    assert "took longer than 6.00 ms" in told
    assert "\x1b" not in text


def test_every_setting_is_in_every_form(result: BenchResult) -> None:
    for text in (forms.terminal(result).plain, forms.markdown(result), forms.page(result)):
        for name in ("eager", "max-autotune", "backend slow"):
            assert name in text


def test_a_page_asks_no_server_and_runs_no_script(result: BenchResult) -> None:
    page = forms.page(result)
    assert "<script" not in page
    assert "src=" not in page
    assert not re.search(r"\sstyle=", page)
    assert "default-src 'none'" in page
    assert HOSTILE not in page
    assert page.count("<svg") >= 2 * 4


def test_one_setting_alone_has_a_report() -> None:
    of = plan(["eager"])
    result = summarise(measured(of, {of.settings[0]: 5.0}, np.random.default_rng(0)))
    assert result.verdict[0].startswith("Stay with eager: 5.")
    assert not result.comparisons
    assert forms.terminal(result).plain
    assert forms.page(result)


def test_a_few_rounds_compare_nothing() -> None:
    of = plan(["eager", "default"])
    steps = dict(zip(of.settings, (32.0, 1.0), strict=True))
    result = summarise(measured(of, steps, np.random.default_rng(0), rounds=1))
    text = " ".join(forms.terminal(result).plain.split())
    assert "default and eager: not compared (1 round is too few)" in text
    assert "nothing is compared with fewer than 3" in text
    assert "tie" not in text


def test_names_with_commas_are_told_apart() -> None:
    of = plan(["eager"], backends=["bad"], batch_sizes=[1, 8])
    found = measured(of, dict.fromkeys(of.settings, 5.0), np.random.default_rng(0))
    for setting in found.plan.settings:
        if setting.mode != "eager":
            found.cold[setting.key]["numerics"]["verdict"] = "wrong"
    assert "WRONG answers: backend bad (batch 1), backend bad (batch 8)." in (summarise(found).verdict[2])


def test_help_shows_its_examples_line_by_line() -> None:
    text = invoke("bench", "--help").output
    assert "\\b" not in text
    assert re.search(r"^ *torchtriage bench models.py:resnet$", text, re.MULTILINE)


def test_all_failed_is_an_answer() -> None:
    of = plan(["default"])
    found = Measurements(of, OPENED)
    found.cold[of.settings[0].key] = {"open": OPENED, "failure": FAILED}
    result = summarise(found)
    assert result.verdict[0] == "Nothing could be measured."
    assert "1 of 1 failed" in result.verdict[1]
    assert not result.advice
    for text in (forms.terminal(result).plain, forms.markdown(result), forms.page(result)):
        assert "SIGSEGV" in text


# -- a folder, the commands --------------------------------------------------------------------


def test_what_is_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.measure.bench.run.SessionClient", TargetClient)
    found = whole(plan(["eager", "default", "max-autotune"], backends=["gone", "slow"], rounds=5))
    hung = found.plan.settings[3].key
    found.cold[hung] |= {"failure": FAILED | {"kind": "timeout", "after_s": 900.01}}
    filled(tmp_path / "b", found)
    said: list[tuple[str, float]] = []
    result = summarise(measure(found.plan, tmp_path / "b", progress=lambda what, share: said.append((what, share))))
    assert result == replace(summarise(found), noise=result.noise)
    assert said[-1] == ("", 1.0)
    assert [share for _, share in said] == sorted(share for _, share in said)


@pytest.mark.parametrize(
    ("kind", "after_s", "timeout_s", "again"),
    [
        ("timeout", 20.01, 20.0, False),
        ("timeout", 20.01, 60.0, True),
        ("crash", 3.0, 20.0, True),
        ("error", 3.0, 20.0, True),
    ],
)
@pytest.mark.parametrize("stage", ["cold", "round"])
def test_what_failed_is_tried_again_unless_it_had_the_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    after_s: float,
    timeout_s: float,
    again: bool,
    stage: str,
) -> None:
    """It failed cold, or in the second round; rounds without it are measured anew, with it."""
    of = plan(rounds=3, max_rounds=3, timeout_s=20.0)
    eager, default = of.settings
    good = measured(of, dict.fromkeys(of.settings, 5.0), np.random.default_rng(0), rounds=3)
    kept = measured(of, dict.fromkeys(of.settings, 5.0), np.random.default_rng(1), rounds=3)
    failed = {"failure": FAILED | {"kind": kind, "after_s": after_s}}
    if stage == "cold":
        kept.cold[default.key] = failed
    else:
        kept.rounds[2][default.key] = failed
    for number in (1, 2, 3) if stage == "cold" else (3,):
        del kept.rounds[number][default.key]
    filled(tmp_path / "b", kept)
    done: list[tuple[str, list[Setting]]] = []

    def cold_again(_plan: BenchPlan, _store: Checkpoint, setting: Setting, *_kept: object) -> dict[str, Any]:
        done.append(("cold", [setting]))
        return good.cold[setting.key]

    def round_again(
        _plan: BenchPlan, _store: Checkpoint, alive: list[Setting], number: int, _together: bool
    ) -> dict[str, Any]:
        done.append((f"round {number}", alive))
        return {"together": True, "sessions": {one.key: good.rounds[number][one.key] for one in alive}}

    monkeypatch.setattr("torchtriage.measure.bench.run.SessionClient", TargetClient)
    monkeypatch.setattr("torchtriage.measure.bench.run._cold", cold_again)
    monkeypatch.setattr("torchtriage.measure.bench.run._round", round_again)
    result = summarise(measure(replace(of, timeout_s=timeout_s), tmp_path / "b"))
    both = [eager, default]
    if not again:
        assert done == []
        assert result.rows[1].failure is not None
    elif stage == "cold":
        assert done == [("cold", [default]), *((f"round {at}", both) for at in (1, 2, 3))]
    else:
        assert done == [("round 2", both), ("round 3", both)]
    if again:
        assert [row.n_sessions for row in result.rows] == [3, 3]
        assert all(row.failure is None for row in result.rows)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_show_renders_a_saved_benchmark(tmp_path: Path, result: BenchResult) -> None:
    file = tmp_path / "bench.json"
    file.write_bytes(forms.encode(result))
    assert result.verdict[0] in " ".join(invoke("show", str(file)).output.split())
    assert result.verdict[0] in invoke("show", str(file), "--markdown").output
    page = tmp_path / "page.html"
    assert invoke("show", str(file), "--html", str(page)).exit_code == 0
    assert page.read_text(encoding="utf-8") == forms.page(result)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["models"], "expected module:function or file.py:function"),
        (["nowhere.py:build"], "expected a Python file, found no such file"),
        (["json:dumps", "--modes", "fast"], "expected a mode out of"),
        (["json:dumps", "--modes", ""], "expected at least one mode or backend"),
        (["json:dumps", "--batch-sizes", "1,x"], "expected numbers between commas"),
        (["json:dumps", "--rounds", "0"], "0 is not in the range"),
        (["json:dumps", "--seconds", "nan"], "expected a number, found 'nan'"),
        (["json:dumps", "--html", "no/such/folder/page.html"], "the folder does not exist"),
    ],
)
def test_bad_usage_is_one_line_and_starts_nothing(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torchtriage.measure.bench.run.SessionClient", None)
    done = invoke("bench", *words)
    assert done.exit_code == 2
    assert said in done.output
    assert not list(tmp_path.iterdir())


class FakeClient:
    """A session that answers at once; ``started`` : the log of each that was, ``running`` : of those that run."""

    started: list[str]
    running: list[str]
    slower = 1

    def __init__(self, _cache: Path, log: Path, _threads: int | None) -> None:
        self.name = log.stem
        self.started.append(self.name)

    def __enter__(self) -> FakeClient:
        self.running.append(self.name)
        return self

    def __exit__(self, *_error: object) -> None:
        self.running.remove(self.name)

    def ask(self, what: str, _timeout_s: float, **how: Any) -> Any:
        step_ns = 10_000_000 if "eager" in self.name else 5_000_000
        if what == "block":
            times = [step_ns * self.slower] * how["n"]
            return {"ns": times, "wall_ns": sum(times), "cpu_ns": sum(times)}
        answers = {
            "open": OPENED,
            "sources": {},
            "first": {"ns": 10 * step_ns if "cold" in self.name else 3 * step_ns, "compiling": COMPILING},
            "warm_up": [step_ns] * 30,
            "finish": {"compiling": COMPILING, "memory": {"host_now_peak_bytes": 200 << 20}},
            "peak": 400 << 20,
            "numerics": cold(1, 1)["numerics"],
        }
        return answers.get(what)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    monkeypatch.setattr(FakeClient, "started", [], raising=False)
    monkeypatch.setattr(FakeClient, "running", [], raising=False)
    monkeypatch.setattr("torchtriage.measure.bench.run.SessionClient", FakeClient)
    return FakeClient


FOUR = ("eager", "default", "reduce-overhead", "max-autotune")


def test_four_ways_take_thirteen_processes_by_default(tmp_path: Path, client: type[FakeClient]) -> None:
    """One to check the target; each way once cold, which goes on as the first round, and twice warm."""
    found = measure(plan(FOUR), tmp_path / "b")
    assert len(client.started) == 1 + 4 + 2 * 4
    assert client.running == []
    assert [len(sessions) for sessions in found.rounds.values()] == [4, 4, 4]
    result = summarise(found)
    default = result.rows[1]
    # caches were kept in two of the three
    assert default.warm is not None
    assert (default.n_sessions, default.warm.n) == (3, 2)
    assert default.warm.first_call_s == pytest.approx(0.015)
    assert default.cold is not None
    assert default.cold.first_call_s == pytest.approx(0.05)
    client.started.clear()
    again = measure(plan(FOUR), tmp_path / "b")
    assert (client.started, summarise(again).rows) == (["check"], result.rows)


def test_where_memory_is_short_no_session_waits(
    tmp_path: Path, client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.measure.bench.run._free_bytes", lambda: 500 << 20)
    found = measure(plan(FOUR), tmp_path / "b")
    assert len(client.started) == 1 + 4 + 3 * 4
    assert not found.interleaved


def test_no_round_is_added_after_a_minute_unless_it_is_asked_for(
    tmp_path: Path, client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.measure.bench.run.all_settled", lambda _measured: False)
    monkeypatch.setattr("torchtriage.measure.bench.run.QUICK_S", -1.0)
    assert len(measure(plan(FOUR), tmp_path / "late").rounds) == 3
    assert len(measure(plan(FOUR, max_rounds=6), tmp_path / "asked").rounds) == 6


def test_turns_that_are_slowed_down_become_shorter(
    tmp_path: Path, client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 5 and 10 ms take 100 and 200 once all run: turns of 5 and 10 steps would take 1 s each."""
    monkeypatch.setattr(client, "slower", 20)
    found = measure(plan(FOUR, steps=30), tmp_path / "b")
    for sessions in found.rounds.values():
        lengths = [[len(block["ns"]) for block in session["blocks"]] for session in sessions.values()]
        assert all(set(each[1:]) == {1} for each in lengths)
        assert all(sum(each) >= 1.25 * 30 for each in lengths)
        assert len({len(each) for each in lengths}) == 1
