"""A ladder over a recording takes the modes it would have taken."""

import csv
import json
import math
import random
from itertools import pairwise

import pytest
from click.testing import CliRunner

from torchtriage.cli.main import cli
from torchtriage.core.errors import UsageError
from torchtriage.operate.ladder.policy import Policy
from torchtriage.operate.ladder.replay import AssumedMode, RecordedCall, read_modes, replay_ladder

MODES = (AssumedMode("full"), AssumedMode("lite", 0.2))
POLICY = Policy(deadline_s=0.01, dwell_s=5, recover_s=5)


def calls(*stretches, per_s=20):
    """Return calls at a fixed pace: (seconds, what each takes in seconds) one after the other."""
    took = [took_s for seconds, took_s in stretches for _ in range(seconds * per_s)]
    return [RecordedCall(100 + at / per_s, took_s) for at, took_s in enumerate(took)]


def switches(replayed):
    return [(one.row, one.before, one.after) for one in replayed.log if one.kind == "switch"]


def test_a_ladder_of_which_all_calls_are_in_time_stays():
    replayed = replay_ladder(calls((60, 0.009)), MODES, POLICY)
    assert (replayed.log, replayed.degraded_s, replayed.n_late) == ((), 0.0, 0)
    assert replayed.calls == {"full": 1200, "lite": 0}
    assert replayed.seconds == pytest.approx(59.95)


def test_it_goes_down_where_calls_are_late_and_comes_back():
    recorded = calls((30, 0.005), (30, 0.03), (120, 0.005))
    replayed = replay_ladder(recorded, MODES, POLICY, faults=[(600, 1200)])
    (down, *_), (back, *_) = switches(replayed)
    assert 600 < down < 620  # more than 5 % of the newest 200
    # trials are one in twenty calls, and twenty of them decide; the first ones may fail
    assert 1200 < back < 2400
    assert replayed.n_switches == 2
    assert replayed.degraded_s == pytest.approx((back - down) / 20, abs=0.2)
    assert replayed.outside_s == pytest.approx((back - 1200) / 20, abs=0.2)
    assert replayed.n_late_without == 600
    assert replayed.n_late < 60
    assert replayed.faults == (down,)


def test_a_clock_too_large_for_a_look_to_count_ends():
    recorded = [RecordedCall(1.7e15 + at // 2, 0.005) for at in range(4)]
    assert replay_ladder(recorded, MODES, POLICY).calls == {"full": 4, "lite": 0}


def test_a_mode_that_is_no_quicker_does_not_help():
    recorded = calls((30, 0.005), (30, 0.03))
    replayed = replay_ladder(recorded, (AssumedMode("full"), AssumedMode("same", 1.0)), POLICY)
    assert replayed.n_late == replayed.n_late_without == 600


def test_a_load_that_comes_and_goes_makes_one_switch_per_dwell_at_most():
    recorded = calls(*[(90, 0.005), (10, 0.03)] * 6)
    replayed = replay_ladder(recorded, MODES, POLICY)
    at_s = [one.at_s for one in replayed.log if one.kind == "switch"]
    assert len(at_s) >= 3
    assert all(b - a >= 5 for a, b in pairwise(at_s))


def test_without_a_deadline_only_alarms_and_failures_count():
    recorded = calls((60, 0.5))
    assert replay_ladder(recorded, MODES, Policy()).n_switches == 0
    recorded[600] = RecordedCall(recorded[600].at_s, 0.5, "shift: slower")
    replayed = replay_ladder(recorded, MODES, Policy())
    ((row, *_),) = switches(replayed)
    assert row == 601
    assert replayed.log[0].why == "shift: slower"
    failing = calls((10, 0.005), (10, None))
    replayed = replay_ladder(failing, MODES, Policy())
    assert replayed.n_switches == 1
    assert replayed.n_fallback == 200


def test_clocks_that_go_back_or_say_nothing_stand_still():
    recorded = [RecordedCall(at, 0.005) for at in (5.0, 4.0, math.nan, -1e9, 6.0)]
    assert replay_ladder(recorded, MODES, POLICY).seconds == 1.0
    assert replay_ladder([], MODES, POLICY).seconds == 0.0


def test_a_long_silence_costs_few_looks_and_counts_as_time():
    recorded = [*calls((10, 0.03)), RecordedCall(1e6, 0.005)]
    replayed = replay_ladder(recorded, MODES, POLICY)
    assert replayed.degraded_s > 9e5


@pytest.mark.parametrize("text", ["full", "full,full", "full,lite=x", "full,lite=0", ",a", "a,b=-1"])
def test_modes_that_cannot_be_meant_are_refused(text):
    with pytest.raises(UsageError, match=r"expected .*modes"):
        read_modes(text)


def test_modes_are_read_with_their_shares():
    assert read_modes("full, bf16=0.6,lite=.2") == (
        AssumedMode("full"),
        AssumedMode("bf16", 0.6),
        AssumedMode("lite", 0.2),
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Return a log whose requests take eight times as long from row 1500 to 2100."""
    path = tmp_path_factory.mktemp("log") / "requests.csv"
    draw = random.Random(5)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["t_s", "duration_ms", "label"])
        for at in range(4000):
            slow = 1500 <= at < 2100
            rows.writerow([at / 20, 5 * draw.uniform(0.9, 1.1) * (8 if slow else 1), int(slow)])
    return path


ARGUMENTS = ("--ladder", "full,lite=0.1", "--deadline-ms", "10", "--dwell-s", "5")


def test_the_command_shows_the_ladder_beside_the_alarms(log):
    told = CliRunner().invoke(cli, ["monitor", "replay", str(log), *ARGUMENTS])
    assert told.exit_code == 0
    assert "requests are" in told.stdout
    assert "ladder full, lite: 2 switches, degraded for" in told.stdout
    assert "full -> lite: shift" in told.stdout or "full -> lite: tail" in told.stdout
    assert "answered by a lower mode in 1 of 1 fault;" in told.stdout
    assert "1 of 1 fault found" in told.stdout


def test_an_alarm_that_only_says_slower_counts_as_in_a_service_while_the_deadline_is_met(log):
    told = CliRunner().invoke(cli, ["monitor", "replay", str(log), *ARGUMENTS[:2], "--deadline-ms", "100"])
    assert "requests are" in told.stdout
    assert "ladder full, lite: 0 switches" in told.stdout


def test_the_document_holds_the_ladder(log):
    told = CliRunner().invoke(cli, ["monitor", "replay", str(log), *ARGUMENTS, "--json"])
    (stream,) = json.loads(told.stdout)["streams"]
    ladder = stream["ladder"]
    assert ladder["n_switches"] == 2
    assert ladder["n_late"] < 60 < ladder["n_late_without"] == 600
    without = CliRunner().invoke(cli, ["monitor", "replay", str(log), "--json"])
    assert "ladder" not in json.loads(without.stdout)["streams"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--deadline-ms", "10"], "expected --ladder"),
        (["--ladder", "full"], "expected two modes"),
        (["--ladder", "full,lite", "--enter", "0.001"], "leave < enter"),
        (["--ladder", "full,lite", "--dwell-s", "-1"], "-1.0 is not in the range"),
    ],
)
def test_what_cannot_be_meant_is_said_and_is_no_traceback(log, arguments, says):
    told = CliRunner().invoke(cli, ["monitor", "replay", str(log), *arguments])
    assert told.exit_code == 2
    assert says in told.stderr
