"""The distinct values of an array are what numpy.unique finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core.arrays import distinct


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
