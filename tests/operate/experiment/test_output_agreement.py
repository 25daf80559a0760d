"""Answers agree or not, whatever they are made of."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from torchtriage.operate.experiment.output_agreement import agreement


@dataclass
class Boxes:
    scores: np.ndarray
    label: str


class Output:
    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits


class Slotted:
    __slots__ = ("__hidden", "logits", "unset")

    def __init__(self, logits: object) -> None:
        self.logits = logits
        self.__hidden = "cat"


class SlottedAndOpen(Slotted):
    def __init__(self, logits: object, note: str) -> None:
        super().__init__(logits)
        self.note = note


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "answer",
    [
        1.0,
        3,
        "text",
        b"raw",
        None,
        True,
        1 + 2j,
        ONES,
        [ONES, {"a": ONES}],
        (1, "x", None),
        Boxes(ONES, "cat"),
        Output(ONES),
        np.float16(0.5),
        np.array(["a", "b"]),
        [],
        {},
        math.nan,
        np.array([1.0, np.nan, np.inf]),
        {1: {2: [3.0]}},
    ],
    ids=lambda one: type(one).__name__,
)
def test_equal_answers_agree(answer: object) -> None:
    found = agreement(answer, answer)
    assert found.agrees
    assert found.largest in (None, 0.0)


@pytest.mark.parametrize(
    ("control", "candidate", "reason"),
    [
        (1.0, 1.01, "values differ by 1 %"),
        (3, 4, "1 of 1 values differ"),
        ("cat", "dog", "'cat' became 'dog'"),
        (ONES, ONES[0], "shape (2, 3) became (3,)"),
        ({"a": ONES}, {"a": 2 * ONES}, "values differ by 100 % at a"),
        ([1, {"b": "x"}], [1, {"b": "y"}], "'x' became 'y' at [1].b"),
        ({"a": 1}, {"b": 1}, "without a and with b added"),
        ([1, 2], [1], "2 elements became 1"),
        (ONES, None, "ndarray became NoneType"),
        (None, {"a": 1}, "NoneType became dict"),
        (Boxes(ONES, "cat"), Boxes(ONES, "dog"), "'cat' became 'dog' at label"),
        (Output(ONES), Output(2 * ONES), "values differ by 100 % at logits"),
        (np.array([1.0, 2.0]), np.array([1.0, np.nan]), "1 of 2 values became NaN or infinite"),
        (np.array([np.nan]), np.array([1.0]), "infinities or NaN differ"),
        (np.array([np.inf]), np.array([-np.inf]), "infinities or NaN differ"),
        (0.0, 0.1, "values differ by 0.1"),
        (1e200, 2e200, "values differ by 100 %"),
        (1e308, -1e308, "values differ by 200 %"),
        ([1e308] * 3, [-1e308] * 3, "values differ by 200 % at [0]"),
        (1e308 + 1e308j, -1e308 - 1e308j, "values differ by 200 %"),
        (Slotted(ONES), Slotted(2 * ONES), "values differ by 100 % at logits"),
        (SlottedAndOpen(ONES, "a"), SlottedAndOpen(2 * ONES, "a"), "values differ by 100 % at logits"),
        (SlottedAndOpen(ONES, "a"), SlottedAndOpen(ONES, "b"), "'a' became 'b' at note"),
    ],
)
def test_answers_that_differ_say_where_and_by_how_much(control, candidate, reason: str) -> None:
    found = agreement(control, candidate)
    assert not found.agrees
    assert found.reason == reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array(["cat", "dog"]), np.array(["cat", "cow"])),
        (np.array(["2024-01-01", "2024-01-02"], "M8[D]"), np.array(["2024-01-01", "2024-01-03"], "M8[D]")),
        (np.array([ONES, "cat", None], object), np.array([ONES, "cow", None], object)),
        (np.array([(1, 2.0)], "i4,f4"), np.array([(1, 3.0)], "i4,f4")),
        (np.array(["2024-01-01", "NaT"], "M8[D]"), np.array(["2024-01-01", "2024-01-02"], "M8[D]")),
        (np.timedelta64("NaT"), np.timedelta64(1, "s")),
        (np.array([(1, np.nan)], "i4,f4"), np.array([(1, 3.0)], "i4,f4")),
        (np.array([("NaT", 1)], "M8[D],i4"), np.array([("NaT", 2)], "M8[D],i4")),
    ],
)
def test_arrays_of_anything_are_compared(one: np.ndarray, other: np.ndarray) -> None:
    assert agreement({"labels": one}, {"labels": one.copy()}).agrees
    assert not agreement({"labels": one}, {"labels": other}).agrees


def test_equal_answers_of_a_class_with_slots_agree() -> None:
    assert agreement(Slotted(ONES), Slotted(ONES.copy())).agrees
    assert agreement(SlottedAndOpen(ONES, "a"), SlottedAndOpen(ONES.copy(), "a")).agrees


def test_numbers_at_the_end_of_the_range_give_numbers() -> None:
    found = agreement([1.0, 1e308], [1.0, -1e308])
    assert found.relative == pytest.approx(2)
    assert found.largest == sys.float_info.max
    assert agreement(np.full(9, 1.7e308), np.full(9, 1.7e308)).agrees


def test_lower_precision_agrees_where_it_is_allowed() -> None:
    rng = np.random.default_rng(1)
    answer = rng.normal(0, 1, 10_000).astype(np.float32)
    half = answer.astype(np.float16)
    assert agreement(answer, half).agrees
    assert not agreement(answer, half, relative=1e-5).agrees
    assert agreement(answer, half).relative == pytest.approx(2e-4, rel=0.5)


def test_what_is_lost_to_nan_is_counted() -> None:
    answer = {"a": np.ones(4), "b": np.ones(4)}
    broken = {"a": np.full(4, np.nan), "b": np.array([1.0, np.inf, 1, 1])}
    assert agreement(answer, broken).n_nan == 5


def test_a_structure_that_holds_itself_ends() -> None:
    one: list[object] = []
    one.append(one)
    other: list[object] = []
    other.append(other)
    assert "nested deeper" in agreement(one, other).reason


def test_an_answer_whose_comparison_fails_is_unlike() -> None:
    class Odd:
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            raise RuntimeError

    assert agreement(Odd(), Odd()).reason == "Odd became Odd"


def test_it_imports_no_torch() -> None:
    program = "import sys; from torchtriage.operate.experiment import agreement; agreement(1.0, [1]);"
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.torch
def test_tensors_are_compared_in_any_dtype() -> None:
    import torch

    answer = torch.linspace(-1, 1, 100)
    assert agreement(answer, answer.to(torch.bfloat16), relative=1e-2).agrees
    assert not agreement(answer, answer.to(torch.bfloat16)).agrees
    assert agreement({"x": [answer.requires_grad_()]}, {"x": [answer]}).agrees
    assert agreement(answer.detach(), answer.detach().numpy()).agrees
    assert agreement(torch.eye(3).to_sparse(), torch.eye(3)).agrees
    assert agreement(torch.tensor([1, 2]), torch.tensor([1, 3])).reason == "1 of 2 values differ"
