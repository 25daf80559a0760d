"""Who is late, from the times that ranks tell."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from torchtriage.operate.stragglers.job import HUNG_S, LOST_S, Hung, JobWatch, Lost
from torchtriage.operate.stragglers.judge import GONE, IN_A_ROW, MEANS_IN_A_ROW, Judge, Late
from torchtriage.operate.stragglers.summary import PHASE_NAMES, RankNote, WindowTimes, kept, window_times

EVERY = 20
OWN_MS = np.array([5.0, 10.0, 30.0, 60.0, 15.0])
TRANSFER_MS = 4.0


def window(
    number: int, n_ranks: int, late: dict[int, tuple[str, float]] | None = None, *, seed: int = 0, often: int = 1
) -> dict[int, WindowTimes]:
    """Return a window of ranks that train in step; ``late`` : phase and ms, in each step of ``often``."""
    rng = np.random.default_rng((seed, number))
    own = OWN_MS * rng.normal(1, 0.01, (n_ranks, EVERY, len(PHASE_NAMES)))
    for rank, (phase, ms) in (late or {}).items():
        own[rank, ::often, PHASE_NAMES.index(phase)] += ms
    total = own.sum(axis=2)
    wait = total.max(axis=0) - total + TRANSFER_MS
    rows = np.concatenate([own, wait[:, :, None]], axis=2) * 1e6
    return {rank: window_times(number, rows[rank].tolist(), []) for rank in range(n_ranks)}


def told(judge: Judge, windows: list[dict[int, WindowTimes]], first: int = 0) -> list[Late]:
    return [one for number, ranks in enumerate(windows, first) for one in judge.update(number, ranks)]


@pytest.mark.parametrize("n_ranks", [2, 3, 8, 64])
def test_a_healthy_job_is_not_told_of(n_ranks: int) -> None:
    assert not told(Judge(EVERY), [window(number, n_ranks) for number in range(40)])


@pytest.mark.parametrize("n_ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("phase", PHASE_NAMES)
def test_the_late_rank_its_phase_and_its_first_step(n_ranks: int, phase: str) -> None:
    windows = [window(number, n_ranks, {1: (phase, 12.0)} if number >= 10 else None) for number in range(20)]
    (late,) = told(Judge(EVERY), windows)
    assert (late.kind, late.rank, list(late.phases), late.since) == ("late", 1, [phase], 10 * EVERY)
    assert late.until == (10 + IN_A_ROW) * EVERY
    assert late.late_ms == pytest.approx(12, abs=1.5)
    assert late.saved_ms == pytest.approx(12, abs=3)
    assert late.every_step


def test_its_line() -> None:
    late = Late("late", 5, 12.3, 140.0, 11.0, {"loader": 12.0}, True, "host", 812, 872)
    assert str(late) == "rank 5 is late by 12.3 ms of 140 ms a step from step 812 on: loader"


def test_a_late_rank_that_is_not_compared_is_not_said_to_have_recovered() -> None:
    judge = Judge(EVERY)
    with_it = [window(number, 8, {3: ("loader", 12.0)}) for number in range(6)]
    without = [{rank: one for rank, one in window(6 + number, 8).items() if rank != 3} for number in range(GONE + 2)]
    late, absent = told(judge, with_it + without)
    assert (late.kind, absent.kind) == ("late", "absent")
    assert str(absent) == "rank 3 is no longer compared as of step 120"
    assert not judge.late


def test_what_ends_is_told() -> None:
    windows = [window(number, 4, {2: ("loader", 12.0)} if number < 10 else None) for number in range(20)]
    late, ended = told(Judge(EVERY), windows)
    assert (late.kind, ended.kind, ended.rank, ended.until) == ("late", "ended", 2, 10 * EVERY)
    assert str(ended) == "rank 2 is no longer late as of step 200"


def test_another_rank_and_another_phase_are_told() -> None:
    judge = Judge(EVERY)
    faults = [(1, "loader"), (1, "forward"), (3, "forward")]
    windows = [window(number, 4, {faults[number // 8][0]: (faults[number // 8][1], 12.0)}) for number in range(24)]
    found = [(one.kind, one.rank, next(iter(one.phases))) for one in told(judge, windows)]
    assert found == [("late", 1, "loader"), ("changed", 1, "forward"), ("ended", 1, "forward"), ("late", 3, "forward")]
    assert [one.rank for one in judge.late] == [3]


def test_one_long_window_is_chance() -> None:
    windows = [window(number, 4, {2: ("between", 400.0)} if number % 5 == 3 else None) for number in range(30)]
    assert not told(Judge(EVERY), windows)


def test_some_steps_of_each_window_are_told_as_a_mean() -> None:
    windows = [window(number, 4, {2: ("between", 60.0)}, often=5) for number in range(12)]
    (late,) = told(Judge(EVERY), windows)
    assert (late.rank, list(late.phases), late.every_step) == (2, ["between"], False)
    assert late.late_ms == pytest.approx(12, abs=2)
    assert late.since == EVERY
    assert "a step on average from step" in str(late)
    assert json.loads(json.dumps(asdict(late)))["every_step"] is False
    assert late.until == (1 + MEANS_IN_A_ROW) * EVERY


@pytest.mark.parametrize("usual", [1.0, 0.99])
def test_a_rank_that_is_late_in_another_phase_of_each_step(usual: float) -> None:
    """The median of each phase is that of a step in which the others are late."""
    rows = np.ones((MEANS_IN_A_ROW + 2, 4, EVERY, len(PHASE_NAMES))) * OWN_MS
    rows[:, 1] *= usual
    rows[:, 1, range(EVERY), [1 + step % 3 for step in range(EVERY)]] += 12
    wait = rows.sum(axis=3).max(axis=1, keepdims=True) - rows.sum(axis=3)
    times = np.concatenate([rows, wait[..., None]], axis=3) * 1e6
    windows = [
        {rank: window_times(number, ranks[rank].tolist(), []) for rank in range(4)}
        for number, ranks in enumerate(times)
    ]
    (late,) = told(Judge(EVERY), windows)
    assert set(late.phases) == {"loader", "forward", "backward"}
    assert str(late).endswith("{}, {} and {}".format(*late.phases))
    assert "a step on average from step" in str(late)
    assert sum(late.phases.values()) == pytest.approx(late.late_ms, abs=1)


def test_who_works_longer_without_being_waited_for_is_not_late() -> None:
    """Ranks that do not train in step, or whose waiting is not seen."""
    windows = [window(number, 4) for number in range(10)]
    for ranks in windows:
        ranks[1].values[:2] += 20
        ranks[1].values[6:] += 20
    assert not told(Judge(EVERY), windows)


def test_of_two_ranks_that_differ_from_the_third_none_is_late() -> None:
    """Fixing the one would save next to nothing."""
    windows = [window(number, 3, {0: ("backward", 9.0), 2: ("between", 8.0)}) for number in range(20)]
    assert not [one for one in told(Judge(EVERY), windows) if one.saved_ms < 2]


def test_two_late_ranks_are_both_told_and_neither_saves_much_alone() -> None:
    windows = [window(number, 8, {2: ("loader", 20.0), 5: ("backward", 20.0)}) for number in range(8)]
    found = told(Judge(EVERY), windows)
    assert {one.rank for one in found} == {2, 5}
    assert all(one.saved_ms < 5 for one in found)


def test_the_first_window_is_left_out() -> None:
    assert not told(Judge(EVERY), [window(number, 2, {1: ("forward", 30.0)}) for number in range(IN_A_ROW)])


def test_a_slow_device_is_told_as_such() -> None:
    windows = [window(number, 4, {1: ("backward", 20.0)}) for number in range(8)]
    for number, ranks in enumerate(windows):  # their hosts all do the same
        for rank, plain in window(number, 4).items():
            ranks[rank].values[16:] = plain.values[16:]
    (late,) = told(Judge(EVERY), windows)
    assert late.side == "device"
    assert str(late).endswith("backward (device)")


def test_a_note_survives_its_bytes_and_is_small() -> None:
    windows = {number: window(number, 2)[0] for number in range(2000)}
    note = RankNote(7, 812, 3, 0.5, True, list(kept(windows).values()))
    data = note.pack()
    again = RankNote.unpack(data)
    assert len(data) < 1000  # a rank tells as much each second at most
    assert (again.beat, again.step, again.phase, again.ended) == (7, 812, 3, True)
    assert [one.number for one in again.windows] == [1024, 1536, 1920, 1984, 1992, 1996, 1997, 1998, 1999]
    np.testing.assert_allclose(again.windows[0].values, windows[1024].values, rtol=1e-6)


def notes(number: int, n_ranks: int, late: dict[int, tuple[str, float]] | None = None) -> dict[int, RankNote]:
    times = window(number, n_ranks, late)
    return {rank: RankNote(number + 1, number * EVERY, 0, 0.0, False, [times[rank]]) for rank in times}


def test_a_rank_that_died_is_told_once_and_the_others_are_judged() -> None:
    job = JobWatch(4, EVERY)
    found: list[object] = []
    for number in range(60):
        now = notes(number, 4, {2: ("loader", 12.0)})
        if number > 5:
            now[3] = notes(5, 4)[3]
        found += job.update(now, float(number))
    lost = [one for one in found if isinstance(one, Lost)]
    assert [(one.rank, one.step) for one in lost] == [(3, 100)]
    assert [one.rank for one in found if isinstance(one, Late)] == [2]


def test_a_hung_job_names_the_rank_that_does_not_wait() -> None:
    job = JobWatch(3, EVERY)
    found: list[object] = []
    wait = len(PHASE_NAMES)
    for at_s in range(int(HUNG_S) + 30):
        now = {rank: RankNote(at_s, 100, wait if rank != 1 else 1, float(at_s)) for rank in range(3)}
        found += job.update(now, float(at_s))
    (hung,) = found
    assert isinstance(hung, Hung)
    assert {rank: phase for rank, (phase, _) in hung.at.items()} == {1: "loader"}
    assert str(hung) == "no step for 60.0 s since step 100: rank 1 has been in loader for 60.0 s"


@pytest.mark.parametrize("n_heard", [0, 10])
def test_a_hung_job_names_the_rank_that_is_not_heard_of(n_heard: int) -> None:
    job = JobWatch(3, EVERY)
    found: list[object] = []
    for at_s in range(int(HUNG_S) + 30):
        now = {rank: RankNote(at_s, 100, len(PHASE_NAMES)) for rank in range(2)}
        if n_heard:
            now[2] = RankNote(min(at_s, n_heard), 100, 1)
        found += job.update(now, float(at_s))
    rank_2 = f"rank 2 has not been heard from since step {100 if n_heard else 0}"
    assert [str(event) for event in found] == [rank_2, f"no step for 60.0 s since step 100: {rank_2}"]


def test_ranks_that_end_early_are_no_loss() -> None:
    job = JobWatch(3, EVERY)
    found: list[object] = []
    for number in range(int(LOST_S) * 2):
        now = notes(number, 3)
        if number > 4:
            now[0] = RankNote(6, 80, 0, 0.0, True)
        found += job.update(now, float(number))
    assert not found
    assert job.judge.n_windows > 50


def test_ranks_are_judged_where_they_tell_of_the_same_steps_only_now_and_then() -> None:
    """Steps so short that a rank tells of few windows in a second, and each of others."""
    job = JobWatch(2, EVERY)
    times = [window(number, 2, {1: ("loader", 12.0)}) for number in range(400)]
    found: list[object] = []
    for at in range(10, 400, 37):
        now = {}
        for rank in range(2):
            own = {number: times[number][rank] for number in range(at - 5 * rank)}
            now[rank] = RankNote(at, at * EVERY, 0, 0.0, False, list(kept(own).values()))
        found += job.update(now, float(at))
    assert [(one.rank, next(iter(one.phases))) for one in found if isinstance(one, Late)] == [(1, "loader")]


def test_a_thousand_ranks() -> None:
    job = JobWatch(1000, EVERY)
    found: list[object] = []
    for number in range(10):
        now = {rank: note.pack() for rank, note in notes(number, 1000, {617: ("loader", 9.0)}).items()}
        found += job.update({rank: RankNote.unpack(data) for rank, data in now.items()}, float(number))
    assert [(one.rank, list(one.phases)) for one in found if isinstance(one, Late)] == [(617, ["loader"])]
