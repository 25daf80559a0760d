"""What is judged of a device's recording: its steps without the first, or all that its device did."""

from __future__ import annotations

from builder import TraceBuilder

from torchtriage.learn.dataset.recordings import judged_windows


def steps(count: int) -> TraceBuilder:
    made = TraceBuilder()
    for number in range(count):
        made.step(number, number * 160, 160)
        made.launch(number * 160 + 10, 5, number * 160 + 20, 100)
    return made


def test_the_first_step_and_those_after_the_eleventh_are_not_judged() -> None:
    assert len(judged_windows(steps(3).build())) == 2 * 16
    found = judged_windows(steps(20).build())
    assert len(found) == 10 * 16
    assert found[[0, -1]].tolist() == [[160_000, 170_000], [11 * 160_000 - 10_000, 11 * 160_000]]


def test_without_three_steps_it_is_from_the_first_to_the_last_device_row() -> None:
    found = judged_windows(steps(2).build())
    assert len(found) == 16
    assert (found[0, 0], found[-1, 1]) == (20_000, 280_000)


def test_without_a_device_row_it_is_the_recording() -> None:
    assert len(judged_windows(TraceBuilder().op("aten::add", 0, 32).build())) == 16


def test_a_step_lasts_until_its_device_work_is_done() -> None:
    made = TraceBuilder()
    for number in range(3):
        made.step(number, number * 10, 10)
        made.launch(number * 10 + 1, 2, number * 320 + 5, 320)
    found = judged_windows(made.build())
    assert found[[0, 15, 16, 31]].tolist() == [
        [325_000, 345_000],
        [625_000, 645_000],
        [645_000, 665_000],
        [945_000, 965_000],
    ]
