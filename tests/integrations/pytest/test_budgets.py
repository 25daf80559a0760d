from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchtriage.core.errors import UsageError
from torchtriage.integrations.pytest.budgets import LIMITS, read_budgets


def test_numbers_of_any_kind_are_budgets() -> None:
    found = read_budgets({"step_ms": 2, "kernels_per_step": np.int64(0)}, where="mark")
    assert found == {"step_ms": 2.0, "kernels_per_step": 0.0}


def test_limits_of_the_compiler_are_budgets_under_another_name() -> None:
    assert read_budgets({"max_graphs": 1}, where="mark", names=LIMITS) == {"graphs": 1.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"step_m": 1}, "mark: no budget is called 'step_m'\n  try: did you mean step_ms?"),
        ({"xyz": 1}, "mark: no budget is called 'xyz'\n  try: names: step_ms, kernels_per_step"),
        ({"step_ms": 0}, "mark: step_ms: expected a number above 0, found 0"),
        ({"step_ms": -1.5}, "mark: step_ms: expected a number above 0, found -1.5"),
        ({"step_ms": float("nan")}, "mark: step_ms: expected a number above 0, found nan"),
        ({"step_ms": float("inf")}, "mark: step_ms: expected a number above 0, found inf"),
        ({"step_ms": "5"}, "mark: step_ms: expected a number, found '5'"),
        ({"step_ms": True}, "mark: step_ms: expected a number, found True"),
        ({"step_ms": None}, "mark: step_ms: expected a number, found None"),
        ({"graph_breaks": -1}, "mark: graph_breaks: expected a count from 0, found -1"),
        ({"graph_breaks": 0.5}, "mark: graph_breaks: expected a count from 0, found 0.5"),
    ],
)
def test_what_cannot_be_meant_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_budgets(given, where="mark")
    assert str(error.value).startswith(said)


def test_a_number_alone_has_no_meaning() -> None:
    with pytest.raises(UsageError, match="step_ms=5"):
        read_budgets({}, where="mark", positional=[5])
