"""Two recordings of one loop, one result: what is believed of which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import torchtriage as tt
from torchtriage.api.traces import sample_path
from torchtriage.core.finding import Cost, Finding, Frame, Place, RankSpread
from torchtriage.diagnose.runs.merge import HEAVY_ONLY, join, scaled, with_leaks
from torchtriage.diagnose.verdict.result import Result


@pytest.fixture(scope="module")
def result() -> Result:
    """Return a result whose findings the tests replace."""
    return tt.analyze(sample_path())


def cost(low: float, high: float, of: float = 10.0) -> Cost:
    return Cost(low, high, "step", of, low / of, high / of, high, "measured", "arithmetic", "A")


def finding(code: str, given: Cost | None, line: int = 0, **more: Any) -> Finding:
    frame = Frame("train.py", line, "step") if line else None
    known: dict[str, Any] = {"ops": ("aten::item",), "certainty": "likely", **more}
    place = Place(ops=known.pop("ops"), frame=frame)
    return Finding(
        code=code,
        name="a-name",
        family="sync",
        title="A title",
        severity="medium",
        message="what was seen",
        place=place,
        cost=given,
        evidence={},
        fix=tt.explain("SYN001").fix,  # type: ignore[union-attr]
        **known,
    )


def both(
    result: Result,
    light: list[Finding],
    heavy: list[Finding],
    light_checked: tuple[str, ...] = (),
    heavy_checked: tuple[str, ...] = (),
) -> Result:
    return join(
        replace(result, findings=tuple(light), checked=light_checked, not_checked=()),
        replace(result, findings=tuple(heavy), checked=heavy_checked, not_checked=()),
    )


def test_a_finding_of_both_has_the_heavy_place_and_the_light_cost(result: Result) -> None:
    out = both(result, [finding("SYN001", cost(1, 2))], [finding("SYN001", cost(3, 6, 20), 12)])
    (one,) = out.findings
    assert one.place.frame == Frame("train.py", 12, "step")
    assert one.cost is not None
    assert (one.cost.low_ms, one.cost.high_ms, one.cost.of_ms) == (1, 2, 10)


def test_times_are_the_light_recordings_whose_timeline_is_shown(result: Result) -> None:
    light, heavy = finding("SYN001", cost(1, 2)), finding("SYN001", cost(3, 6, 20), 12)
    light = replace(light, place=replace(light.place, intervals_ns=((10, 20),)))
    heavy = replace(heavy, place=replace(heavy.place, intervals_ns=((700, 900),)))
    assert both(result, [light], [heavy]).findings[0].place.intervals_ns == ((10, 20),)
    alone = replace(heavy, certainty="certain")
    assert both(result, [], [alone]).findings[0].place.intervals_ns == ()


def test_places_of_one_light_finding_share_its_cost_as_their_own(result: Result) -> None:
    heavy = [finding("SYN001", cost(3, 6, 20), 12), finding("SYN001", cost(1, 2, 20), 30)]
    out = both(result, [finding("SYN001", cost(1, 2))], heavy)
    assert [one.cost and (one.cost.low_ms, one.cost.high_ms) for one in out.findings] == [(0.75, 1.5), (0.25, 0.5)]


def test_operators_decide_which_belong_together(result: Result) -> None:
    light = [finding("SYN001", cost(1, 2)), finding("SYN001", cost(4, 5), ops=("aten::nonzero",))]
    heavy = [finding("SYN001", cost(9, 9), 3, ops=("aten::nonzero",))]
    heavy += [finding("SYN001", cost(8, 8), 4)]
    out = both(result, light, heavy)
    found = {one.place.frame.line: one.cost for one in out.findings if one.place.frame}
    assert found[3] is not None
    assert found[4] is not None
    assert (found[3].high_ms, found[4].high_ms) == (5, 2)


def test_what_only_the_heavy_recording_can_see_is_kept_and_said(result: Result) -> None:
    out = both(result, [], [finding("CPY012", cost(1, 2), 5)], heavy_checked=("CPY012",))
    (one,) = out.findings
    assert one.cost is not None
    assert one.cost.method.endswith(HEAVY_ONLY)


def test_time_that_only_the_disturbed_loop_loses_is_the_profilers(result: Result) -> None:
    heavy = [finding("HST020", cost(1, 2), 5), finding("CFG043", None, 6, certainty="certain")]
    out = both(result, [], heavy, light_checked=("HST020", "CFG043"))
    assert [one.code for one in out.findings] == ["CFG043"]


def test_what_shapes_and_stacks_explain_otherwise_is_gone(result: Result) -> None:
    light = [finding("OPT041", cost(1, 2)), finding("MEM029", cost(1, 1))]
    out = both(result, light, [], ("OPT041", "MEM029"), heavy_checked=("OPT041",))
    assert [one.code for one in out.findings] == ["MEM029"]


def test_a_refused_recording_leaves_the_word_to_the_other(result: Result) -> None:
    refused = replace(result, refused=True, findings=())
    assert join(result, refused) == result
    assert join(refused, result).findings == result.findings


def test_together_is_no_more_than_the_sum(result: Result) -> None:
    light = replace(result, findings=(finding("SYN001", cost(1, 2)),), joint_cost=cost(1, 2))
    heavy = replace(result, findings=(finding("SYN001", cost(1, 9)),), joint_cost=cost(1, 9))
    joint = join(light, heavy).joint_cost
    assert joint is not None
    assert joint.high_ms == 2


def test_every_cost_is_out_of_the_unprofiled_step(result: Result) -> None:
    one = replace(result, findings=(finding("SYN001", cost(1, 2)),), joint_cost=cost(1, 2))
    out = scaled(one, 5.0)
    (found,) = out.findings
    assert found.cost is not None
    assert (found.cost.low_ms, found.cost.high_ms, found.cost.of_ms) == (0.5, 1, 5)
    assert found.cost.share_high == 0.2
    assert "in proportion to the unprofiled step" in found.cost.method
    assert scaled(one, None) is one
    assert scaled(one, 10.0).findings == one.findings


def test_a_share_of_another_step_than_the_unprofiled_one_says_so(result: Result) -> None:
    message = "takes 2 ms of 10.0 ms per step, of that 1 ms of 5.00 ms per step"
    one = replace(result, findings=(replace(finding("SYN001", cost(1, 2)), message=message),))
    (found,) = scaled(one, 5.0).findings
    assert found.message == "takes 2 ms of 10.0 ms per recorded step, of that 1 ms of 5.00 ms per step"


def test_what_only_some_light_steps_show_may_be_missing_from_a_short_heavy_one(result: Result) -> None:
    assert result.summary is not None
    seen = finding("DAT019", cost(1, 2))
    n_steps = result.summary.n_steady_steps
    for steps, kept in ((1, True), (n_steps, False)):
        light = replace(seen, place=replace(seen.place, steps=tuple(range(steps))))
        out = both(result, [light], [], heavy_checked=("DAT019",))
        assert [one.code for one in out.findings] == ["DAT019"] * kept


def on(found: Finding, *ranks: int) -> Finding:
    return replace(found, ranks=RankSpread(len(ranks), 4, 0.0, 0.0, ranks))


def test_a_graph_that_keeps_memory_on_one_rank_is_still_that_of_all(result: Result) -> None:
    graph, other = (on(finding("CFG043", cost(1, 2), line), 0, 1, 2, 3) for line in (10, 99))
    keeps = on(replace(finding("CFG043", None, 10), message="line 20 keeps it", also_explains=("MEM029",)), 1)
    job = replace(result, findings=(other, graph), checked=("CFG043", "MEM029"))
    findings = with_leaks(job, None, [keeps]).findings
    assert len(findings) == 2
    assert other in findings
    said = "line 20 keeps it; memory grows on rank 1"
    assert replace(keeps, message=said, cost=graph.cost, ranks=graph.ranks) in findings


def test_each_of_two_leaks_by_a_cause_without_a_place_is_told(result: Result) -> None:
    cause = on(finding("CFG043", cost(1, 2)), 0, 1, 2, 3)
    keeps = finding("CFG043", None, also_explains=("MEM029",))
    leaks = [on(replace(keeps, message=str(rank)), rank) for rank in (1, 2)]
    findings = with_leaks(replace(result, findings=(cause,), checked=("CFG043", "MEM029")), None, leaks).findings
    assert sorted(item.message for item in findings) == ["1; memory grows on rank 1", "2"]


@pytest.mark.parametrize(("ranks", "stay"), [((0, 2, 3), (0, 2, 3)), ((0, 1, 2, 3), (0, 2, 3)), ((1,), ())])
def test_sure_growth_on_one_rank_leaves_what_others_showed(
    result: Result, ranks: tuple[int, ...], stay: tuple[int, ...]
) -> None:
    seen, sure = on(finding("MEM029", None), *ranks), on(finding("MEM029", None, certainty="certain"), 1)
    findings = with_leaks(replace(result, findings=(seen,), checked=("MEM029",)), None, [sure]).findings
    assert sorted(findings, key=lambda item: item.certainty) == [sure, *[on(seen, *stay)] * bool(stay)]
