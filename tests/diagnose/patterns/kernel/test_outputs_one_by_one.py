"""KRN073 outputs-one-by-one: norms, variances and argmax over a few elements each; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.kernel.outputs_one_by_one import find

PAIR = [2, 100, 1000]


def steps(
    operator: str, us: float, *, dims: Any = PAIR, dtype: str = "float", vendor: str = "cpu", power: str = "2"
) -> list[Claim]:
    """Four steps of 10 ms, each with one reduction."""
    builder = TraceBuilder(vendor=vendor)
    for step in range(4):
        at = 10_000 * step
        builder.step(step, at, 10_000)
        given = (
            {"dims": [dims, [], []], "types": [dtype, "Scalar", "ScalarList"], "concrete": ["", power, "[0]"]}
            if dims
            else {}
        )
        builder.op(operator, at + 10, us, **given)
        builder.op(operator, at + 11, us - 2, **given)  # the overload that it calls
        if vendor != "cpu":
            builder.launch(at + 20, 5, at + 30, 100)
    return builder.claims(find)


@pytest.mark.parametrize(
    ("operator", "advice"),
    [("aten::linalg_vector_norm", "hypot"), ("aten::std", "square"), ("aten::argmax", "indices")],
)
def test_forty_ns_for_each_number(operator: str, advice: str) -> None:
    (claim,) = steps(operator, 8_000)
    assert claim.evidence["ns_per_element"] == 40
    assert claim.evidence["reduction_ms_per_step"] == pytest.approx(8)
    (edit,) = claim.edits
    assert edit.best == pytest.approx(0.5 / 40)
    assert claim.fix is not None
    assert advice in claim.fix.code


def test_numbers_of_eight_bytes_may_take_twice_as_long() -> None:
    (claim,) = steps("aten::linalg_vector_norm", 8_000, dtype="double")
    assert claim.evidence["ns_per_element"] == 20


@pytest.mark.parametrize(("power", "advice"), [("2", "hypot"), ("1", "abs().sum"), ("inf", "amax")])
def test_norms_are_mended_by_their_power(power: str, advice: str) -> None:
    (claim,) = steps("aten::linalg_vector_norm", 8_000, power=power)
    assert claim.fix is not None
    assert advice in claim.fix.code


@pytest.mark.parametrize(
    "given",
    [
        {"us": 8_000, "power": "3"},
        {"us": 8_000, "power": ""},
        {"us": 900},  # 4.5 ns each
        {"us": 8_000, "dims": [200, 100, 1000]},
        {"us": 8_000, "dims": [2, 10, 100]},  # 4 us each: a call's own time
        {"us": 8_000, "dims": None},
        {"us": 8_000, "dims": [2, -100, -1000]},
        {"us": 8_000, "dims": [1 << 62, 1 << 62]},
        {"us": 8_000, "dtype": "long int"},
        {"us": 8_000, "vendor": "nvidia"},
    ],
)
def test_what_is_usual_or_unknown(given: dict[str, Any]) -> None:
    assert steps("aten::linalg_vector_norm", **given) == []
