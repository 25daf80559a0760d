"""DAT112 rows-gathered-one-by-one in recordings; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.data.rows_gathered_one_by_one import find
from torchtriage.diagnose.verdict.verdict import diagnose

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def loop(
    *, rows: int = 100, python: float = 3.0, copy: float = 50.0, transform: float = 0.0, vendor: str = "cpu"
) -> TraceBuilder:
    """Steps of 4 ms, each with one fetch: a view of each row, transformed, and all of them stacked."""
    builder = TraceBuilder(vendor=vendor)
    for step in range(4):
        at = 4_000.0 * step
        builder.step(step, at, 4_000)
        begin = at + 5
        for _ in range(rows):
            builder.op("aten::select", begin, 1)
            if transform:
                builder.op("aten::mul", begin + 1, transform)
            begin += 1 + transform + python
        builder.op("aten::stack", begin, copy + 20).op("aten::cat", begin + 10, copy)
        builder.annotation(FETCH, at + 5, begin + copy + 25 - at)
        builder.op("aten::mm", begin + copy + 30, 500)
        if vendor != "cpu":
            builder.launch(begin + copy + 40, 5, begin + copy + 50, 1_000)
    return builder


def claims(**given: Any) -> list[Claim]:
    return loop(**given).claims(find)


def test_what_is_above_two_copies_is_lost() -> None:
    (claim,) = claims()
    assert claim.evidence == {"fetch_ms_per_step": 0.48, "rows_per_batch": 100, "python_us_per_row": 3.1}
    assert claim.gain_high == pytest.approx(1 - 50 / 480)
    (edit,) = claim.edits
    assert edit.factor == pytest.approx(1 - 0.8 * (1 - 100 / 480))
    assert edit.best == pytest.approx(50 / 480)
    assert "100 samples one by one" in claim.message


def test_a_device_that_waits_for_it() -> None:
    (claim,) = claims(vendor="nvidia")
    assert claim.time_class == "idle"


def test_workers_are_no_advice_for_it() -> None:
    codes = [finding.code for finding in diagnose(loop(rows=500).build()).findings]
    assert "DAT112" in codes
    assert "DAT018" not in codes


@pytest.mark.parametrize(
    "given",
    [
        {"rows": 2},
        {"python": 40.0},  # files, or a conversion by numpy
        {"transform": 3.0},
        {"copy": 700.0},  # large samples: an index takes as long
        {"rows": 20},  # 4 % of the step
    ],
)
def test_what_is_done_for_a_reason_or_costs_little(given: dict[str, Any]) -> None:
    assert claims(**given) == []


def test_quiet_on_an_accelerator_whose_rows_are_not_there() -> None:
    assert not loop().event("Enqueue", "enqueue", 0, 5).claims(find)
