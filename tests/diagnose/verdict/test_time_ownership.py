"""No millisecond is owned twice, and whoever is served first keeps what it took."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core import intervals
from torchtriage.core.trace import Trace
from torchtriage.diagnose.patterns import Claim, Pattern
from torchtriage.diagnose.verdict.time_ownership import Share, share_out

US = 1000
CLASSES = ("idle", "copy", "comm", "compute", "host", "none")


@cache
def gpu_trace() -> Trace:
    """Four steps of 1000 us; in each: compute 100-400, copy 400-500, communication 600-700."""
    builder = TraceBuilder()
    for index in range(4):
        at = index * 1000
        builder.step(index, at, 1000)
        builder.op("aten::mm", at + 10, 980)
        builder.launch(at + 20, 5, at + 100, 300, "gemm")
        builder.copy(at + 30, 5, at + 400, 100)
        builder.launch(at + 40, 5, at + 600, 100, "ncclDevKernel_AllReduce")
    return builder.build()


@cache
def cpu_trace() -> Trace:
    builder = TraceBuilder(vendor="cpu")
    for index in range(4):
        builder.step(index, index * 1000, 1000).op("aten::mm", index * 1000 + 10, 980)
    return builder.build()


def pattern(code: str = "TST001", order: int = 100) -> Pattern:
    return Pattern(code, code.lower(), "test", "A test", order, frozenset())


def claim(*spans_us: tuple[int, int], time_class: Any = "host", **more: Any) -> Claim:
    spans = np.array(spans_us, np.int64).reshape(-1, 2) * US
    more = {"message": "", "certainty": "likely", "rows": np.empty(0, np.int64), **more}
    return Claim(spans=spans, time_class=time_class, **more)


def owned_us(share: Share) -> float:
    return float(share.owned_ns.sum()) / US


def test_judged_time_is_the_steady_steps() -> None:
    # what the figures below rest on
    assert gpu_trace().steps.judged.tolist() == [[1000 * US, 4000 * US]]
    assert cpu_trace().steps.judged.tolist() == [[1000 * US, 4000 * US]]


# -- laws --------------------------------------------------------------------------------------

_span = st.tuples(st.integers(0, 4500), st.integers(0, 900)).map(lambda one: (one[0], sum(one)))


@st.composite
def _claims(draw: st.DrawFn) -> list[tuple[Pattern, Claim]]:
    found = []
    for index in range(draw(st.integers(0, 5))):
        low, high = sorted(draw(st.tuples(st.floats(0, 1), st.floats(0, 1))))
        found.append(
            (
                pattern(f"TST00{draw(st.integers(1, 3))}", draw(st.sampled_from([100, 200, 300]))),
                claim(
                    *draw(st.lists(_span, max_size=5)),
                    time_class=draw(st.sampled_from(CLASSES)),
                    gain_low=low,
                    gain_high=high,
                    message=str(index),
                ),
            )
        )
    return found


@pytest.mark.parametrize("trace", [gpu_trace(), cpu_trace()], ids=["gpu", "cpu"])
@given(claims=_claims(), seed=st.randoms())
def test_no_time_is_owned_twice(trace: Trace, claims: list[tuple[Pattern, Claim]], seed: Any) -> None:
    judged = trace.steps.judged
    shares = share_out(trace, claims)
    assert len(shares) == len(claims)

    taken = [share.taken for share in shares]
    total = sum(map(intervals.length, taken))
    assert total == intervals.length(intervals.union(np.concatenate([judged[:0], *taken])))
    assert total <= intervals.length(judged)
    for share in shares:
        asked = intervals.intersect(intervals.union(share.claim.spans), judged)
        assert not len(intervals.subtract(share.taken, asked))
        assert share.owned_ns.sum() == intervals.length(share.taken)
        assert 0 <= share.low_ns <= share.high_ns + 1e-6
        assert share.high_ns <= share.owned_ns.sum() + 1e-6
        assert share.owned_ns.sum() <= share.naive_ns
        if share.claim.time_class == "none":
            assert not share.owned_ns.any()
        if trace.devices and share.claim.time_class == "idle":
            assert not intervals.covered(share.taken, trace.devices[0].busy).any()

    # the order in which patterns ran changes nothing
    shuffled = list(claims)
    seed.shuffle(shuffled)
    again = share_out(trace, shuffled)
    assert sorted((one.pattern.order, one.claim.message, owned_us(one)) for one in again) == sorted(
        (one.pattern.order, one.claim.message, owned_us(one)) for one in shares
    )


# -- precedence --------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", [gpu_trace(), cpu_trace()], ids=["gpu", "cpu"])
def test_the_lower_order_is_served_first_wherever_it_stands(trace: Trace) -> None:
    special = pattern("TST001", 100), claim((1000, 1300))
    general = pattern("TST002", 200), claim((1200, 1500))
    for claims in ([special, general], [general, special]):
        first, second = share_out(trace, claims)
        assert (first.pattern.code, owned_us(first)) == ("TST001", 300)
        assert (second.pattern.code, owned_us(second)) == ("TST002", 200)
        assert second.naive_ns == 300 * US


def test_of_one_order_the_larger_claim_is_served_first() -> None:
    small = pattern("TST001"), claim((1000, 1100))
    large = pattern("TST002"), claim((1000, 1900))
    first, second = share_out(gpu_trace(), [small, large])
    assert (first.pattern.code, owned_us(first)) == ("TST002", 900)
    assert owned_us(second) == 0


def test_time_outside_the_judged_steps_is_not_owned() -> None:
    (share,) = share_out(gpu_trace(), [(pattern(), claim((0, 1200), (3900, 9000)))])
    assert owned_us(share) == 300
    assert share.naive_ns == 300 * US


def test_overlapping_spans_of_one_claim_count_once() -> None:
    (share,) = share_out(gpu_trace(), [(pattern(), claim((1000, 1400), (1200, 1600)))])
    assert owned_us(share) == 600
    assert share.naive_ns == 800 * US


def test_each_span_brings_its_own_gain() -> None:
    one = claim((1000, 1100), (2000, 2200), gain_low=np.array([0.5, 0.0]), gain_high=np.array([1.0, 0.25]))
    (share,) = share_out(gpu_trace(), [(pattern(), one)])
    assert (share.low_ns, share.high_ns) == (50 * US, 150 * US)


def test_gains_beyond_all_and_nothing_are_cut() -> None:
    (share,) = share_out(gpu_trace(), [(pattern(), claim((1000, 1100), gain_low=-1.0, gain_high=7.0))])
    assert (share.low_ns, share.high_ns) == (0, 100 * US)


# -- classes of time ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_class", "owned"),
    # a step of 1000 us: compute 300, copy 100, communication 100, idle 500
    [("idle", 500), ("copy", 600), ("comm", 100), ("compute", 500), ("host", 1000), ("none", 0)],
)
def test_a_claim_owns_only_time_of_its_class(time_class: str, owned: int) -> None:
    (share,) = share_out(gpu_trace(), [(pattern(), claim((2000, 3000), time_class=time_class))])
    assert owned_us(share) == owned


def test_without_a_device_every_class_is_host_time() -> None:
    (share,) = share_out(cpu_trace(), [(pattern(), claim((2000, 3000), time_class="idle"))])
    assert owned_us(share) == 1000


# -- what an owner explains --------------------------------------------------------------------


def test_an_owner_explains_whoever_lost_half_of_its_time_to_it() -> None:
    first, _ = share_out(
        gpu_trace(), [(pattern("TST001", 100), claim((1000, 1200))), (pattern("TST002", 200), claim((1000, 1400)))]
    )
    assert first.also_explains == ["TST002"]


def test_an_owner_does_not_explain_who_keeps_most() -> None:
    first, _ = share_out(
        gpu_trace(), [(pattern("TST001", 100), claim((1000, 1199))), (pattern("TST002", 200), claim((1000, 1400)))]
    )
    assert first.also_explains == []


def test_two_claims_of_one_pattern_do_not_explain_each_other() -> None:
    shares = share_out(gpu_trace(), [(pattern(), claim((1000, 1400))), (pattern(), claim((1000, 1300)))])
    assert [share.also_explains for share in shares] == [[], []]
    assert [owned_us(share) for share in shares] == [400, 0]


def test_a_claim_without_time_explains_and_is_explained_by_nothing() -> None:
    shares = share_out(
        gpu_trace(),
        [
            (pattern("TST001", 100), claim((1000, 2000), time_class="none")),
            (pattern("TST002", 200), claim((1000, 2000))),
            (pattern("TST003", 300), claim()),
        ],
    )
    assert [share.also_explains for share in shares] == [[], [], []]
    assert [owned_us(share) for share in shares] == [0, 1000, 0]
