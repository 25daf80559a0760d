"""Distinct values, membership and quantiles are what numpy finds."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.api.traces import sample_path
from torchtriage.core.arrays import among, distinct, quantile


@given(st.lists(st.integers(-3, 3)), st.sampled_from([np.int8, np.int32, np.int64]))
def test_what_numpy_finds(values: list[int], kind: type) -> None:
    array = np.array(values, kind)
    found = distinct(array)
    assert found.dtype == array.dtype
    assert found.tolist() == sorted(set(values))


@pytest.mark.parametrize("values", [np.array(["b", "a", "b"]), np.array([True, False, True])])
def test_text_and_truth(values: np.ndarray) -> None:
    assert distinct(values).tolist() == np.unique(values).tolist()


def test_what_is_given_stays() -> None:
    values = np.array([2, 1, 2])
    distinct(values)
    assert values.tolist() == [2, 1, 2]


@given(st.lists(st.integers(-3, 9)), st.lists(st.integers(-3, 9)))
def test_membership(values: list[int], chosen: list[int]) -> None:
    assert among(np.array(values, np.int64), np.array(chosen)).tolist() == [value in chosen for value in values]


@given(st.lists(st.integers(-(1 << 60), 1 << 60), min_size=1), st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.95, 1.0]))
def test_quantiles(values: list[int], share: float) -> None:
    assert quantile(np.array(values), share) == np.quantile(np.array(values), share)


def test_a_trace_is_judged_without_masked_arrays(tmp_path: Path) -> None:
    program = f"""
import sys, torchtriage
torchtriage.analyze({str(sample_path())!r})
assert "numpy.ma" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
