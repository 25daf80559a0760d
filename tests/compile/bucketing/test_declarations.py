"""What is padded and cropped, as users write it, and what they get wrong."""

from __future__ import annotations

from typing import Any

import pytest

from torchtriage.compile.bucketing import Mask
from torchtriage.compile.bucketing.declarations import read_crop, read_fill, read_masks, read_pad, rule_of
from torchtriage.core.errors import UsageError


def test_short_forms_mean_the_long_ones() -> None:
    assert read_pad(1) == {"": {1: "size"}}
    assert read_pad({1: "seq"}) == {"": {1: "seq"}}
    assert read_pad({"x": -1, "y": {0: "batch"}}) == {"x": {-1: "size"}, "y": {0: "batch"}}
    assert read_crop(None, ["seq"]) is None
    assert read_crop(1, ["seq"]) == {"": {1: "seq"}}
    assert read_crop({"pooled": None, "h": {1: "seq"}}, ["seq"]) == {"pooled": {}, "h": {1: "seq"}}
    assert read_fill(7, ["x"]) == {"": 7}
    assert read_masks("m", {"x": {1: "seq"}}) == {"m": Mask(1, 0, "x")}
    assert read_masks({"m": (False, True)}, {"": {1: "seq"}}) == {"m": Mask(False, True, "")}


def test_the_longest_name_counts() -> None:
    rules = {"": 0, "batch": 1, "batch.ids": 2}
    assert [rule_of(path, rules) for path in ("x", "batch.mask", "batch.ids", "batch.ids.0")] == [0, 1, 2, 2]
    assert rule_of("batchwise", {"batch": 1}, None) is None


@pytest.mark.parametrize(
    "wrong",
    ["x", None, {}, {"x": "seq"}, {"x": {}}, {"x": {1: ""}}, True, {"x": {True: "seq"}}, {1: 2}, {("a",): 1}, 1.5],
)
def test_what_pad_cannot_be(wrong: Any) -> None:
    with pytest.raises(UsageError, match="pad"):
        read_pad(wrong)


@pytest.mark.parametrize(
    "wrong", ["seq", {"h": {1: "time"}}, {"h": {"a": "seq"}}, {"h": {1: 5}}, {"h": {1: lambda time: time}}]
)
def test_what_crop_cannot_be(wrong: Any) -> None:
    with pytest.raises(UsageError, match="crop"):
        read_crop(wrong, ["seq"])


def test_crop_of_one_number_needs_one_axis() -> None:
    with pytest.raises(UsageError, match="batch, seq"):
        read_crop(1, ["batch", "seq"])


@pytest.mark.parametrize("wrong", [3, {"m": 1}, {"m": Mask(1, False)}, {"m": Mask(1, 0, "y")}])
def test_what_a_mask_cannot_be(wrong: Any) -> None:
    with pytest.raises(UsageError, match="mask"):
        read_masks(wrong, {"x": {1: "seq"}})


def test_fill_is_of_what_is_padded() -> None:
    with pytest.raises(UsageError, match="not padded"):
        read_fill({"y": 1}, ["x"])
    with pytest.raises(UsageError, match="number"):
        read_fill({"x": "zero"}, ["x"])
