"""A rollout reads the same everywhere, and the command line does what it says."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result
from tests.report import forms
from tests.report.sample_result import HOSTILE

from torchtriage.cli.main import cli
from torchtriage.core.errors import TraceFormatError
from torchtriage.operate.experiment import Experiment, ExperimentResult, Rate, Tail, Typical
from torchtriage.operate.rollout import Rollout, RolloutPlan, RolloutResult, open_rollouts
from torchtriage.operate.rollout.summary import summary

SCHEMAS = Path(__file__).parents[3] / "docs" / "schema"


def experiment(name: str = HOSTILE, factor: float = 1.3, n: int = 1200) -> ExperimentResult:
    """Return an experiment with everything in it: worse, undecided, no data, notes."""
    one = Experiment(
        name,
        arms={f"old {HOSTILE}": 0.5, f"new {HOSTILE}": 0.5},
        metric=Typical(f"latency {HOSTILE}"),
        guardrails=[Tail(f"latency {HOSTILE}"), Rate("error"), Rate("nobody")],
        salt="any",
    )
    rng = random.Random(1)
    for request in range(n):
        arm = one.assign(request)
        slow = factor if arm == one.candidate else 1.0
        values = {f"latency {HOSTILE}": rng.lognormvariate(-4, 0.2) * slow, "error": request % 9 < 1}
        one.record(arm, replica=HOSTILE, **values)
    return one.result()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[RolloutResult | ExperimentResult]:
    place = tmp_path_factory.mktemp("store") / "rollouts.db"
    found = experiment()
    with open_rollouts(place) as store:
        for name in ("running", "back", "done"):
            store.start(RolloutPlan(name, candidate=HOSTILE), actor=HOSTILE, at_s=1.7e9)
            store.promote(name, HOSTILE, actor="me", at_s=1.7e9 + 60)
        store.roll_back("back", HOSTILE, actor="me", at_s=1e300, rows=found.rows)
        for _ in range(4):
            store.promote("done", "", actor="me", at_s=1.7e9)
        rollouts = [summary(store, name) for name in store.names()]
    running = replace(rollouts[-1], rows=found.rows)
    return [found, experiment("equal", 1.0, 0), *rollouts[:-1], running]


def test_documents_come_back_as_they_were_and_follow_their_schema(results) -> None:
    for result in results:
        data = forms.encode(result)
        assert forms.decode(data, "rollout", "experiment") == result
        rollout = isinstance(result, RolloutResult)
        schema = forms.schema("rollout") if rollout else forms.schema("experiment")
        jsonschema.Draft202012Validator(schema).validate(json.loads(data))


def test_published_schemas_are_up_to_date() -> None:
    for name, schema in (
        ("torchtriage-rollout-1.json", forms.schema("rollout")),
        ("torchtriage-experiment-1.json", forms.schema("experiment")),
    ):
        published = json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
        assert published == schema, "run: python -m tests.report.write_schema"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema": "torchtriage-rollout/2"}', b"\xff"])
def test_what_is_no_rollout_is_refused(data: bytes) -> None:
    with pytest.raises(TraceFormatError):
        forms.decode(data, "rollout", "experiment")


def test_names_reach_no_reader_raw(results) -> None:
    for result in results:
        text = forms.terminal(result).plain
        assert "\x1b" not in text
        assert all(len(line) <= 80 or " " not in line.strip() for line in text.splitlines())
        page = forms.page(result)
        assert "<script" not in page.lower().replace("&lt;script", "")
        assert "http" not in re.sub(r"http://www.w3.org\S+", "", page).replace("http-equiv", "")
        assert "\x1b" not in forms.markdown(result)


def test_the_first_line_decides(results) -> None:
    first = [result.verdict[0] for result in results]
    assert first[0].startswith("Stop: ")
    assert first[1] == "Undecided: continue"
    assert first[2].startswith("Rolled back at 5 %")
    assert first[3].startswith("Done: ")
    assert first[4].startswith("Running: 5 % of requests go to")
    for one in results:
        for shown in (forms.terminal(one, width=120).plain, forms.markdown(one)):
            assert one.verdict[0].split(":")[0] in shown


@pytest.fixture
def place(tmp_path: Path) -> str:
    path = tmp_path / "rollouts.db"
    with open_rollouts(path) as store:
        store.start(RolloutPlan("int8"), actor="a", at_s=1)
    return str(path)


def call(*words: str, code: int = 0) -> Result:
    found = CliRunner().invoke(cli, ["rollout", *words])
    assert found.exit_code == code, found.output
    return found


def test_a_person_promotes_rolls_back_and_starts_again(place: str) -> None:
    told = call("promote", "int8", "--reason", "fine", "--store", place).stdout
    assert told == "Running: 5 % of requests go to candidate, step 2 of 5\n"
    told = call("rollback", "--reason", "boxes look wrong", "--store", place).stdout
    assert told == "Rolled back at 5 %: candidate gets no requests\n"
    assert "int8  Rolled back" in call("status", "--store", place, code=1).stdout
    call("promote", "int8", "--reason", "x", "--store", place, code=2)
    told = call("restart", "int8", "--reason", "mended", "--store", place).stdout
    assert told == "Running: 1 % of requests go to candidate, step 1 of 5\n"
    text = " ".join(call("report", "--store", place).stdout.split())
    for line in ("started", "rolled back 5 % → 0 %", "boxes look wrong", "restarted"):
        assert line in text
    assert "int8  Running" in call("status", "--store", place).stdout


def test_a_damaged_rollout_hides_no_other(place: str) -> None:
    with open_rollouts(place) as store:
        store.start(RolloutPlan("bf16"), actor="a", at_s=1)
    with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as database:
        database.execute("UPDATE torchtriage_rollout SET state = '{}' WHERE name = 'bf16'")
    told = call("status", "--store", place, code=2).stdout.splitlines()
    assert told[0].startswith("bf16  what is stored is damaged")
    assert told[1].startswith("int8  Running")


def test_reports_are_written_and_shown_again(place: str, tmp_path: Path) -> None:
    page, document = tmp_path / "page.html", tmp_path / "rollout.json"
    call("report", "int8", "--store", place, "--json", "-o", str(document), "--html", str(page))
    assert page.read_text().startswith("<!doctype html>")
    shown = CliRunner().invoke(cli, ["show", str(document)])
    assert "Running: 1 %" in shown.stdout
    assert "### Running" in call("report", "--store", place, "--markdown").stdout


def test_what_is_not_there_is_told(place: str, tmp_path: Path) -> None:
    none = str(tmp_path / "none.db")
    assert "no rollouts are stored here yet" in call("status", "--store", none, code=2).stderr
    assert "no rollout is called 'int9'" in call("report", "int9", "--store", place, code=2).stderr
    assert "Missing option '--reason'" in call("rollback", "--store", place, code=2).stderr
    with open_rollouts(place) as store:
        store.start(RolloutPlan("other"), actor="a", at_s=1)
    said = call("report", "--store", place, code=2).stderr
    assert "expected the name of a rollout" in said
    assert "there are int8, other" in said


def test_who_watches_is_known_and_that_nobody_does(place: str) -> None:
    said = " ".join(call("report", "--store", place).stdout.split())
    assert "no process has polled for 10 s" in said
    with open_rollouts(place) as store:
        Rollout(RolloutPlan("int8"), store, owner="worker 3").tick()
        told = summary(store, "int8")
    assert told.owner == "worker 3"
    assert told.notes == ()
