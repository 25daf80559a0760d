"""The store survives kills, strangers and two owners at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.operate.experiment import Rate
from torchtriage.operate.rollout import RolloutPlan, open_rollouts
from torchtriage.operate.rollout.state import RolloutState, roll_back
from torchtriage.operate.rollout.summary import summary

PLAN = RolloutPlan("int8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "rollouts.db"


def test_it_is_there_after_it_was_closed(path: Path) -> None:
    with open_rollouts(path) as store:
        store.start(PLAN, actor="a", at_s=1.0)
        store.promote("int8", "looks fine", actor="person", at_s=2.0)
    with open_rollouts(path, create=False) as store:
        assert store.names() == ("int8",)
        assert store.read("int8").state.share == 0.05
        kinds = [(one.kind, one.actor, one.reason) for one in store.history("int8")]
        assert kinds == [("started", "a", ""), ("promoted", "person", "looks fine")]
        assert store.start(PLAN, actor="b", at_s=3.0).share == 0.05


def test_a_plan_with_lists_is_the_one_that_was_stored(path: Path) -> None:
    plan = RolloutPlan("int8", steps=[0.1, 1.0], guardrails=[Rate("error")])  # type: ignore[arg-type]
    with open_rollouts(path) as store:
        store.start(plan, actor="a", at_s=1.0)
        assert store.read("int8").state.plan == plan
        assert store.start(plan, actor="b", at_s=2.0).share == 0.1


def test_another_plan_needs_the_first_to_end(path: Path) -> None:
    other = RolloutPlan("int8", least_requests=7)
    with open_rollouts(path) as store:
        store.start(PLAN, actor="a", at_s=1)
        with pytest.raises(UsageError, match="expected the plan this rollout was started with"):
            store.start(other, actor="a", at_s=2)
        store.roll_back("int8", "by hand", actor="person", at_s=3)
        assert store.start(other, actor="a", at_s=4) == RolloutState(other, epoch=3)


def test_one_owner_at_a_time_and_the_old_token_is_refused(path: Path) -> None:
    with open_rollouts(path) as store:
        before = store.start(PLAN, actor="a", at_s=1)

        def lease(owner: str, now_s: float, boot: str = "boot"):
            return store.lease("int8", owner, boot=boot, now_s=now_s, ttl_s=10, at_s=0)

        first = lease("a", 100)
        assert lease("b", 105) is None
        assert lease("a", 102) == first
        assert store.read("int8").renewed_s == 100
        assert lease("a", 108) == first
        assert store.read("int8").renewed_s == 108
        assert lease("b", 117) is None
        second = lease("b", 118.1)
        assert second.token > first.token
        assert lease("a", 119) is None
        # it asked before the other one looked, and had to wait for the file
        assert lease("a", 118) is None
        # the first one wakes up and still believes it owns it
        assert not store.move("int8", first, before, roll_back(before, "late"), (), at_s=0)
        assert store.read("int8").state == before
        assert store.move("int8", second, before, roll_back(before, "p99"), (), at_s=0)
        # of another start of the machine, or of a clock that ran ahead: free
        assert lease("a", 118.2, boot="other").token > second.token
        assert lease("b", 1.0, boot="other").owner == "b"
        store.release("int8", "b")
        assert lease("a", 1.1, boot="other").owner == "a"
        assert [one.kind for one in store.history("int8")].count("taken over") == 4


def test_two_threads_roll_back_once(path: Path) -> None:
    with open_rollouts(path) as store:
        store.start(PLAN, actor="a", at_s=1)

        def work(number: int) -> None:
            with open_rollouts(path) as own:
                own.roll_back("int8", f"seen by {number}", actor=f"{number}", at_s=2)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.kind for one in store.history("int8")] == ["started", "rolled back"]


KILLED = """
import sys
from torchtriage.operate.rollout import open_rollouts, RolloutPlan
with open_rollouts(sys.argv[1]) as store:
    plan = RolloutPlan("int8")
    print("go", flush=True)
    while True:
        store.start(plan, actor="a", at_s=1)
        for _ in range(4):
            store.promote("int8", "", actor="a", at_s=1)
        store.roll_back("int8", "again", actor="a", at_s=1)
        store.restart("int8", actor="a", at_s=1)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_kill_at_any_moment_leaves_state_and_history_in_step(path: Path) -> None:
    for round_ in range(4):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "go\n"
        threading.Event().wait(0.05 + 0.03 * round_)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with open_rollouts(path) as store:
            if not store.names():
                continue
            state, events = store.read("int8").state, store.history("int8")
            assert events[-1].epoch == state.epoch == len(events)
            assert events[-1].share_after == state.share
    assert len(events) > 3


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("no database, but long enough to be taken for one" * 10)
    with pytest.raises(StoreError, match="not a database"):
        open_rollouts(text)
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE mine (a)").connection.close()
    with pytest.raises(StoreError, match="with a table 'mine'"):
        open_rollouts(other)
    newer = tmp_path / "newer.db"
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="newer torchtriage"):
        open_rollouts(newer)
    with pytest.raises(StoreError, match="found a folder"):
        open_rollouts(tmp_path)
    with pytest.raises(StoreError, match="no rollouts are stored here yet"):
        open_rollouts(tmp_path / "none.db", create=False)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE torchtriage_rollout SET state = '{}'",
        "UPDATE torchtriage_rollout SET state = replace(state, '\"stage\":0', '\"stage\":99')",
        "UPDATE torchtriage_rollout SET token = 'x'",
        "UPDATE torchtriage_rollout_event SET kind = '<script>'",
        "UPDATE torchtriage_rollout_event SET at_s = 'soon'",
        "UPDATE torchtriage_rollout_event SET rows = '{'",
    ],
)
def test_damage_is_told(path: Path, damage: str) -> None:
    with open_rollouts(path) as store:
        store.start(PLAN, actor="a", at_s=1)
    connection = sqlite3.connect(path)
    assert connection.execute(damage).rowcount == 1
    connection.commit()
    connection.close()
    with open_rollouts(path) as store, pytest.raises(StoreError, match="damaged"):
        summary(store, "int8")


def test_a_reader_that_stands_still_does_not_lock_the_store_for_good(monkeypatch, path: Path) -> None:
    monkeypatch.setattr("torchtriage.operate.rollout.store.WAIT_S", 0.05)
    with open_rollouts(path) as store:
        store.start(PLAN, actor="a", at_s=1)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM torchtriage_rollout").fetchall()
            with pytest.raises(StoreError, match="locked"):
                store.roll_back("int8", "p99", actor="a", at_s=2)
            assert store.read("int8").state.share == 0.01
        assert store.roll_back("int8", "p99", actor="a", at_s=3).share == 0


def test_a_place_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "rollouts.db", "a\0b"):
        with pytest.raises(StoreError):
            open_rollouts(place)


def test_an_unknown_name_is_told_with_the_known_ones(path: Path) -> None:
    with open_rollouts(path) as store:
        store.start(PLAN, actor="a", at_s=1)
        for call in (
            lambda: store.read("int9"),
            lambda: store.roll_back("int9", "", actor="a", at_s=1),
            lambda: store.promote("int9", "", actor="a", at_s=1),
            lambda: store.restart("int9", actor="a", at_s=1),
        ):
            with pytest.raises(UsageError, match=r"no rollout is called 'int9'\n  try: .* int8"):
                call()


def test_what_has_ended_is_not_promoted_and_what_runs_not_restarted(path: Path) -> None:
    with open_rollouts(path) as store:
        store.start(PLAN, actor="a", at_s=1)
        with pytest.raises(UsageError, match="found it running"):
            store.restart("int8", actor="a", at_s=1)
        for _ in PLAN.steps:
            store.promote("int8", "", actor="a", at_s=1)
        assert store.read("int8").state.status == "done"
        with pytest.raises(UsageError, match="found it done"):
            store.promote("int8", "", actor="a", at_s=1)
        assert store.roll_back("int8", "memory", actor="a", at_s=1).share == 0
        told = summary(store, "int8")
        assert told.verdict[0] == "Rolled back at 100 %: candidate gets no requests"


def test_the_place_comes_from_the_environment(monkeypatch, path: Path) -> None:
    monkeypatch.setenv("TORCHTRIAGE_ROLLOUTS", str(path))
    open_rollouts().close()
    assert path.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_a_connection_of_its_own(path: Path) -> None:
    with open_rollouts(path) as store:
        store.start(PLAN, actor="parent", at_s=1)
        child = os.fork()
        if not child:
            store.promote("int8", "", actor="child", at_s=2)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.roll_back("int8", "", actor="parent", at_s=3)
        assert [one.actor for one in store.history("int8")] == ["parent", "child", "parent"]
