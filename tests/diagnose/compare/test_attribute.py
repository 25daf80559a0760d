"""Causes add up, are named truly, mirror when swapped, and stay silent where nothing changed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builder import TraceBuilder
from tests.diagnose.compare.runs import Script

from torchtriage.diagnose.compare.attribute import ChangeAttribution, attribute
from torchtriage.diagnose.compare.result import ChangeCause, TimeChange
from torchtriage.diagnose.compare.time_account import Account, Key, account


@cache
def run(script: Script) -> Account:
    return account(script.build())


BASE = Script()


def between(before: Script, after: Script) -> ChangeAttribution:
    found = attribute(run(before), run(after))
    add_up(found)
    return found


def add_up(found: ChangeAttribution) -> None:
    for field in ("before_ns", "after_ns", "delta_ns"):
        whole = getattr(found.total, field)
        assert sum(getattr(cause.change, field) for cause in found.causes) == whole
        assert sum(getattr(class_, field) for class_ in found.classes.values()) == whole


def told(found: ChangeAttribution) -> dict[str, float]:
    """Return the believed causes and their change in us."""
    return {cause.label: cause.change.delta_ns / 1000 for cause in found.causes if cause.change.told}


# -- what must stay silent ---------------------------------------------------------------------


def test_a_run_against_itself_has_no_change_and_no_cause():
    found = between(BASE, BASE)
    assert found.total.delta_ns == 0
    assert not found.total.told
    assert told(found) == {}
    assert all(cause.change.delta_ns == 0 for cause in found.causes)


def test_a_busy_machine_is_no_change_of_the_program():
    """Everything takes 1.4 times as long: no cause, and nothing to report."""
    found = between(BASE, replace(BASE, slower=1.4))
    assert found.total.delta_ns > 300_000
    assert not found.total.told
    assert found.drift["device"] == pytest.approx(1.4, abs=0.02)


def test_a_change_smaller_than_runs_differ_by_is_not_believed():
    assert not between(BASE, replace(BASE, linear=BASE.linear * 1.01)).total.told


def test_one_slow_step_is_noise():
    slow = TraceBuilder()
    at = 0.0
    for i in range(6):
        dur = 2000.0 if i == 3 else 1000.0
        slow.step(i, at, dur)
        slow.op("aten::mm", at, 20)
        slow.launch(at + 5, 5, at + 20, dur - 100)
        at += dur
    quick = TraceBuilder()
    for i in range(6):
        quick.step(i, i * 1000.0, 1000)
        quick.op("aten::mm", i * 1000.0, 20)
        quick.launch(i * 1000.0 + 5, 5, i * 1000.0 + 20, 900)
    found = attribute(account(quick.build()), account(slow.build()))
    add_up(found)
    assert found.total.delta_ns == 200_000
    assert not found.total.told


# -- what must be said -------------------------------------------------------------------------


def test_a_loader_that_no_longer_waits_is_the_cause():
    found = between(replace(BASE, loader=600), replace(BASE, loader=20, workers=4))
    assert found.total.told
    assert told(found) == {"DataLoader wait": pytest.approx(-580, abs=5)}
    first = found.causes[0]
    assert first.kind == "changed"
    assert first.sentence.startswith("DataLoader wait went from 60")
    assert first.sentence.endswith("µs per step (-580 µs of -580 µs)")


def test_a_kernel_that_took_anothers_place_is_seen_inside_its_operator():
    found = between(BASE, replace(BASE, linear=150, kernel="tensorop_gemm"))
    assert told(found) == {"kernels of aten::linear": pytest.approx(-600, abs=5)}
    cause = found.causes[0]
    assert cause.kind == "changed"
    by_name = {part.name: (part.before_ns > 0, part.after_ns > 0) for part in cause.parts}
    assert by_name == {"sgemm": (True, False), "tensorop_gemm": (False, True)}


def test_a_fused_optimizer_is_one_cause_whatever_its_operators():
    found = between(BASE, replace(BASE, foreach=True))
    labels = told(found)
    assert set(labels) == {"kernels of SGD.step", "GPU idle while the host is in SGD.step"}
    kernels = next(cause for cause in found.causes if cause.time_class == "compute" and cause.region)
    assert (kernels.n_before, kernels.n_after) == (8, 1) or kernels.region == "backward"


def test_a_readback_that_came_is_the_cause_of_the_idle_time():
    found = between(BASE, replace(BASE, reads_loss=True))
    assert "GPU idle because the host waited in aten::item" in told(found)
    cause = next(one for one in found.causes if one.region == "wait")
    assert cause.kind == "came"
    assert cause.change.before_ns == 0


def test_operators_in_anothers_place_have_replaced_it():
    def script(middle: str, dur: float) -> Account:
        trace = TraceBuilder(vendor="cpu")
        for i in range(6):
            at = i * 1000.0
            trace.step(i, at, 320 + dur + i % 3)
            trace.op("aten::linear", at, 100)
            trace.op(middle, at + 110, dur)
            trace.op("aten::softmax", at + 120 + dur, 100)
        return account(trace.build())

    found = attribute(script("aten::gelu", 400), script("mylib::fast_gelu", 100))
    add_up(found)
    cause = found.causes[0]
    assert cause.kind == "replaced"
    assert (cause.what, cause.what_after) == (("aten::gelu",), ("mylib::fast_gelu",))
    assert cause.change.delta_ns == -300_000
    assert "aten::gelu (now mylib::fast_gelu) went from" in cause.sentence


def test_what_stands_in_no_ones_place_came():
    def script(extra: bool) -> Account:
        trace = TraceBuilder(vendor="cpu")
        for i in range(6):
            at = i * 1000.0
            trace.step(i, at, 600 + i % 3)
            trace.op("aten::linear", at, 100)
            if extra:
                trace.op("aten::nonzero", at + 200, 300)
        return account(trace.build())

    found = attribute(script(False), script(True))
    add_up(found)
    kinds = {cause.what: cause.kind for cause in found.causes if cause.what}
    assert kinds == {("aten::linear",): "changed", ("aten::nonzero",): "came"}


def test_what_is_gone_for_good_is_told_however_much_it_varied():
    def script(extra: tuple[float, ...]) -> Account:
        trace = TraceBuilder(vendor="cpu")
        for i in range(7):
            at = i * 2000.0
            trace.step(i, at, 1500 + i % 3)
            trace.op("aten::linear", at, 100)
            if extra[i]:
                trace.op("aten::nonzero", at + 200, extra[i])
        return account(trace.build())

    never = script((0,) * 7)
    found = attribute(script((300, 20, 1200, 30, 25, 40, 900)), never)
    add_up(found)
    gone = next(cause for cause in found.causes if cause.what == ("aten::nonzero",))
    assert gone.change.low_ns is not None
    assert gone.change.low_ns < 0 < (gone.change.high_ns or 0)
    assert (gone.kind, gone.change.told) == ("went", True)
    # what happened in one step only may not happen in another recording of the same program
    once = attribute(script((0, 0, 0, 900, 0, 0, 0)), never)
    assert not any(cause.change.told for cause in once.causes if cause.what == ("aten::nonzero",))


def test_annotations_count_only_where_both_runs_have_them():
    marked = replace(BASE, mark="train")
    same = between(marked, marked)
    assert {cause.mark for cause in same.causes} >= {"train"}
    one_side = between(BASE, marked)
    assert {cause.mark for cause in one_side.causes} == {""}
    assert all(cause.change.delta_ns == 0 for cause in one_side.causes)


def test_windows_have_no_noise_to_go_by_and_need_a_larger_change():
    def window(kernel: float) -> Account:
        trace = TraceBuilder()
        trace.op("aten::mm", 0, 20)
        trace.launch(1, 5, 20, kernel)
        return account(trace.build())

    near = attribute(window(1000), window(1080))
    far = attribute(window(1000), window(1500))
    assert (near.total.low_ns, near.total.high_ns) == (None, None)
    assert (near.total.told, far.total.told) == (False, True)


# -- laws --------------------------------------------------------------------------------------


def mirrored(change: TimeChange) -> TimeChange:
    return TimeChange(
        change.after_ns,
        change.before_ns,
        -change.delta_ns,
        None if change.high_ns is None else -change.high_ns,
        None if change.low_ns is None else -change.low_ns,
        change.told,
        change.bar_ns,
    )


def names(cause: ChangeCause) -> tuple[object, ...]:
    both = frozenset(cause.what) | frozenset(cause.what_after)
    return cause.time_class, cause.region, cause.mark, both


@pytest.mark.parametrize(
    "after",
    [
        replace(BASE, loader=20, workers=2),
        replace(BASE, foreach=True, reads_loss=True),
        replace(BASE, kernel="other", linear=100, n_steps=5),
    ],
)
def test_swapped_runs_give_the_mirrored_comparison_exactly(after):
    forth, back = between(BASE, after), between(after, BASE)
    assert back.total == mirrored(forth.total)
    assert {name: mirrored(one) for name, one in forth.classes.items()} == back.classes
    assert {names(cause): mirrored(cause.change) for cause in forth.causes} == {
        names(cause): cause.change for cause in back.causes
    }
    swapped = {"went": "came", "came": "went"}
    assert {names(cause): swapped.get(cause.kind, cause.kind) for cause in forth.causes} == {
        names(cause): cause.kind for cause in back.causes
    }


OPS = st.sampled_from(["aten::mm", "aten::add", "aten::gelu", "lib::a", "lib::b", "lib::c"])


def table(rows: list[tuple[str, list[int]]], n_steps: int) -> Account:
    """Return an account of made-up times, whole with its remainder."""
    unique = dict(rows)
    time_ns = np.array([(values * n_steps)[:n_steps] for values in unique.values()], np.int64)
    time_ns = time_ns.reshape(len(unique), n_steps)
    return Account(
        keys=tuple(Key("host", "", "", name) for name in unique),
        step_ns=time_ns.sum(axis=0),
        time_ns=time_ns,
        count=np.ones(len(unique), np.int64),
        first_ns=np.arange(len(unique)),
        parts=tuple({} for _ in unique),
        pace={"host": {}, "device": {}},
        per="step",
        has_frames=False,
        has_shapes=True,
    )


ROWS = st.lists(st.tuples(OPS, st.lists(st.integers(0, 10**9), min_size=1, max_size=4)), min_size=1, max_size=6)


@given(ROWS, ROWS, st.integers(1, 7), st.integers(1, 7))
def test_any_two_accounts_add_up_and_mirror(one, other, n_before, n_after):
    before, after = table(one, n_before), table(other, n_after)
    forth, back = attribute(before, after), attribute(after, before)
    add_up(forth)
    assert forth.total.before_ns == int(before.step_ns.sum()) // n_before
    assert back.total == mirrored(forth.total)
    assert {names(cause): mirrored(cause.change) for cause in forth.causes} == {
        names(cause): cause.change for cause in back.causes
    }


def test_a_thousand_operators_are_summed_by_class_and_still_add_up():
    rows = [(f"lib::op{i}", [i + 1, i + 2]) for i in range(1000)]
    more = [(f"lib::op{i}", [2 * i + 1]) for i in range(1000)]
    found = attribute(table(rows, 3), table(more, 4))
    add_up(found)
    assert len(found.causes) <= 201
    assert any(cause.what == ("small causes",) for cause in found.causes)
