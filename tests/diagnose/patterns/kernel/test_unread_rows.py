"""KRN075 unread-rows: logits that are thrown away, told from those that are read; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.kernel.unread_rows import find

N_STEPS = 4
LOGITS = [4, 100, 5_000]
SOFTMAX = ("aten::log_softmax", [LOGITS, [], []], ["", "-1", ""])
LAST = ("aten::select", [LOGITS, [], []], ["", "1", "-1"])
ARGMAX = ("aten::argmax", [[4, 5_000], [], []], ["", "-1", "False"])
Op = tuple[str, list[Any], list[str]]


def rows_of(row: int, start: str, stop: str) -> list[Op]:
    """As ``logits[row, start:stop]``."""
    return [
        ("aten::select", [LOGITS, [], []], ["", "0", str(row)]),
        ("aten::slice", [[100, 5_000], [], [], [], []], ["", "0", start, stop, "1"]),
    ]


def claims(
    *after: Op, layer: Op = ("aten::linear", [[4, 100, 64], [5_000, 64], []], [""] * 3), us: float = 20
) -> list[Claim]:
    """Four steps of 1 ms on a CPU: a layer of 300 µs, then other operators."""
    builder = TraceBuilder(vendor="cpu")
    for step in range(N_STEPS):
        at = 1_000.0 * step
        builder.step(step, at, 1_000)
        name, dims, concrete = layer
        builder.op(name, at + 10, 300, dims=dims, concrete=concrete)
        builder.op("aten::addmm", at + 20, 200, dims=[[5_000], [400, 64], [64, 5_000]])
        for place, (name, dims, concrete) in enumerate(after):
            builder.op(name, at + 320 + 1.25 * us * place, us, dims=dims, concrete=concrete)
    return builder.claims(find)


def test_the_last_position_alone() -> None:
    (claim,) = claims(SOFTMAX, LAST, ARGMAX)
    assert claim.evidence["layer_ms_per_step"] == pytest.approx(0.32)
    assert claim.evidence["share_unread"] == 0.99
    assert "99 % of the rows are never read" in claim.message
    assert [edit.best for edit in claim.edits] == pytest.approx([0.01])


def test_some_positions_of_each_sequence() -> None:
    (claim,) = claims(SOFTMAX, *(op for row in range(4) for op in rows_of(row, "-10", "9223372036854775807")))
    assert claim.evidence["share_unread"] == 0.9


def test_quiet_where_half_is_read() -> None:
    assert claims(*(op for row in range(4) for op in rows_of(row, "0", "50")))
    assert not claims(*(op for row in range(4) for op in rows_of(row, "0", "51")))


@pytest.mark.parametrize(
    "reader",
    [
        ("aten::argmax", [LOGITS, [], []], ["", "-1", "False"]),
        ("aten::cross_entropy_loss", [LOGITS, [4, 100], [], [], []], [""] * 5),
        ("aten::cat", [[LOGITS, LOGITS], []], ["", "0"]),
        ("aten::sub", [LOGITS, LOGITS, []], ["", "", "1"]),
        ("aten::linear", [LOGITS, [64, 5_000], []], [""] * 3),
        ("aten::index", [LOGITS, []], ["", ""]),
        ("aten::slice", [LOGITS, [], [], [], []], ["", "2", "0", "64", "1"]),
    ],
)
def test_quiet_where_something_reads_all(reader: Op) -> None:
    assert not claims(SOFTMAX, LAST, reader)
    assert not claims(SOFTMAX, reader, LAST)


def test_quiet_where_all_goes_on_after_a_part_was_taken() -> None:
    assert not claims(LAST, SOFTMAX)


def test_quiet_where_nothing_is_known_to_be_read() -> None:
    assert not claims(SOFTMAX)
    assert not claims(SOFTMAX, ("aten::select", [LOGITS, [], []], ["", "", ""]))
    assert not claims(SOFTMAX, ("aten::slice", [LOGITS, [], [], [], []], ["", "1", "0", "5", "0"]))
    assert not claims(SOFTMAX, ("aten::slice", [LOGITS, [], [], [], []], ["", "1", "0", "9" * 400, "1"]))


def test_quiet_where_what_was_kept_is_read_after_the_next_call() -> None:
    again: Op = ("aten::linear", [[4, 100, 64], [5_000, 64], []], [""] * 3)
    assert claims(LAST, again, LAST)
    assert not claims(LAST, again, LAST, ("aten::cat", [[LOGITS, LOGITS], []], ["", "0"]))


def test_quiet_where_all_parts_are_read_however_late() -> None:
    small: Op = ("aten::linear", [[4, 64], [5_000, 64], []], [""] * 3)
    rounds = [("aten::select", [LOGITS, [], []], ["", "1", str(step)]) for step in range(100)]
    assert not claims(*(op for part in rounds for op in (part, *[small] * 15)), us=0.1)
    assert claims(*(op for part in rounds[:50] for op in (part, *[small] * 15)), us=0.1)


def test_quiet_on_inputs_that_no_profiler_writes() -> None:
    assert not claims(("aten::cat", [5, "x", [LOGITS, 7], LOGITS], ["", "0"]), LAST)


def test_quiet_on_a_layer_that_is_no_wider_than_its_input() -> None:
    assert not claims(LAST, layer=("aten::linear", [[4, 100, 5_000], [5_000, 5_000], []], [""] * 3))
