"""From claims to a result: what is said, what is withheld, and what may be called healthy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.errors import UsageError
from torchtriage.core.finding import Fix
from torchtriage.core.trace import Trace
from torchtriage.diagnose.patterns import Claim, Pattern, PatternEntry, base
from torchtriage.diagnose.verdict import verdict
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import diagnose

US = 1000
NO_ROWS = np.empty(0, np.int64)

Install = Callable[..., None]


def entry(code: str, *claims: Claim | Exception, **more: Any) -> PatternEntry:
    """Return a catalogue entry whose pattern yields these claims, or raises."""

    def find(_trace: Trace) -> Iterator[Claim]:
        for claim in claims:
            if isinstance(claim, Exception):
                raise claim
            yield claim

    options = {"family": "test", "title": f"Title of {code}", "order": 100, "needs": frozenset()}
    pattern = Pattern(code=code, name=code.lower(), **{**options, **more})
    return PatternEntry(pattern, find, Fix("change it"), "A page.")


def claim(*spans_us: tuple[int, int], **more: Any) -> Claim:
    spans = np.array(spans_us, np.int64).reshape(-1, 2) * US
    defaults = {"message": "it happens", "certainty": "likely", "rows": NO_ROWS, "time_class": "host"}
    return Claim(spans=spans, **{**defaults, **more})


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replace the catalogue by these entries."""

    def replace(*entries: PatternEntry) -> None:
        monkeypatch.setattr(verdict, "catalogue", lambda: entries)
        monkeypatch.setattr(base, "catalogue", lambda: entries)

    return replace


def steps(n: int = 4, *, vendor: str = "cuda") -> TraceBuilder:
    """Return ``n`` steps of 1000 us: the GPU is busy from 100 to 500 us of each."""
    builder = TraceBuilder(vendor=vendor)
    for index in range(n):
        at = index * 1000
        builder.step(index, at, 1000).op("aten::mm", at + 10, 980)
        if vendor != "cpu":
            builder.launch(at + 20, 5, at + 100, 400, "gemm")
    return builder


def busy_steps() -> TraceBuilder:
    """Return four steps of 1000 us that leave the GPU idle for 20 us each."""
    builder = TraceBuilder()
    for index in range(4):
        at = index * 1000
        builder.step(index, at, 1000).op("aten::mm", at + 1.5, 990)
        builder.launch(at + 10, 5, at + 20, 980, "gemm")
    return builder


def codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings]


# -- healthy -----------------------------------------------------------------------------------


def test_a_steady_loop_is_healthy_for_the_real_catalogue() -> None:
    builder = TraceBuilder()
    for index in range(5):
        at = index * 1000
        # one deep queue: the device never runs dry
        builder.step(index + 3, at, 1000).op("aten::mm", at + 10, 20)
        builder.launch(at + 12, 5, at + 50, 998, "sm90_gemm_bf16_tn")
    result = diagnose(builder.build())
    assert result.crashes == ()
    assert codes(result) == []
    assert result.healthy
    assert result.verdict[0].startswith("NVIDIA H100 is busy 99.8 % of 4 steady steps of")
    assert result.verdict[1] == "Nothing found that saves 1.0 % of a step or more."


def test_healthy_when_checked_and_nothing_is_found(install: Install) -> None:
    install(entry("TST001"))
    result = diagnose(busy_steps().build())
    assert result.healthy
    assert result.checked == ("TST001",)


@pytest.mark.parametrize("options", [{"only": "TST001"}, {"skip": "TST002"}])
def test_not_healthy_when_patterns_were_left_out(install: Install, options: dict[str, str]) -> None:
    install(entry("TST001"), entry("TST002"))
    result = diagnose(busy_steps().build(), Options(**options))
    assert not result.healthy
    assert [item.code for item in result.not_checked if item.left_out] == ["TST002"]
    assert result.verdict[1] == "Nothing found by 1 of 2 patterns that saves 1.0 % of a step or more."
    assert result.verdict[2] == "1 pattern checked, 1 not checked."  # the doctor would say that it is


def test_not_healthy_when_small_findings_were_left_out(install: Install) -> None:
    install(entry("TST001"))
    assert not diagnose(busy_steps().build(), Options(min_share=0.5)).healthy


def test_idle_time_that_no_pattern_explains_is_said_and_never_healthy(install: Install) -> None:
    install(entry("TST001"))
    result = diagnose(steps().build())
    assert not result.healthy
    assert result.findings == ()
    assert result.verdict[1] == (
        "Nothing found that saves 1.0 % of a step or more, yet the device stands idle for 60 % of it."
    )


def test_idle_time_beside_a_finding_without_time_is_said(install: Install) -> None:
    install(entry("TST001", claim(always=True, time_class="none", certainty="certain")))
    assert diagnose(steps().build()).verdict[1] == (
        "No finding explains why the device stands idle for 60 % of a step."
    )


def test_a_note_leaves_a_trace_healthy(install: Install) -> None:
    noted = claim(always=True, time_class="none", certainty="certain")
    install(entry("TST001", noted, family="measure"))
    result = diagnose(busy_steps().build())
    assert [finding.severity for finding in result.findings] == ["note"]
    assert result.healthy


def test_not_healthy_when_nothing_was_checked(install: Install) -> None:
    install(entry("TST001", needs=frozenset({"stacks"})))
    result = diagnose(steps().build())
    assert (result.healthy, result.checked, codes(result)) == (False, (), [])
    assert result.verdict[1] == "Nothing was checked."


def test_not_healthy_when_a_pattern_failed(install: Install) -> None:
    install(entry("TST001"), entry("TST002", ValueError("odd")))
    assert not diagnose(steps().build()).healthy


def test_not_healthy_when_the_recording_warns(install: Install) -> None:
    # a GPU is listed and none of its rows are here
    install(entry("TST001"))
    result = diagnose(TraceBuilder().step(0, 0, 100).op("a", 1, 90).op("b", 92, 5).build())
    assert [note.code for note in result.notes if note.level == "warn"] == ["no-gpu-rows"]
    assert not result.healthy
    assert result.verdict[2].startswith("Limited trust: no GPU row although")


# -- refusals ----------------------------------------------------------------------------------


def test_a_refused_trace_is_not_judged(install: Install) -> None:
    install(entry("TST001", claim((0, 900), always=True)))
    launches = TraceBuilder().step(0, 0, 100)
    for at in range(10):
        launches.call("cudaLaunchKernel", at * 10, 5)
    result = diagnose(launches.build())
    assert result.refused
    assert not result.healthy
    assert (result.findings, result.checked, result.summary) == ((), (), None)
    assert [(one.code, one.missing) for one in result.not_checked] == [("TST001", ("recording that can be analysed",))]
    assert result.verdict[0].startswith("No verdict: 10 launches and copies, but no GPU row")
    assert result.verdict[1].startswith("Check that no other profiler was attached")


# -- crashes -----------------------------------------------------------------------------------


def test_a_crash_is_reported_by_code_and_the_others_still_run(install: Install) -> None:
    install(entry("TST001", claim((1000, 2000)), RuntimeError("half way")), entry("TST002", claim((1000, 2000))))
    result = diagnose(steps().build())
    assert [(crash.code, crash.error) for crash in result.crashes] == [("TST001", "RuntimeError: half way")]
    assert codes(result) == ["TST002"]
    assert result.checked == ("TST002",)
    assert result.verdict[2] == "1 pattern checked, 1 failed."


@pytest.mark.parametrize(
    "broken",
    [
        {"spans": np.zeros((2, 3), np.int64)},
        {"spans": np.zeros((2, 2), np.float64)},
        {"rows": np.array([10**9])},
        {"rows": np.array([-1])},
        {"gain_low": np.zeros(5)},
        {"gain_high": float("nan")},
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_claim_that_makes_no_sense_is_a_crash_of_its_pattern(install: Install, broken: dict[str, Any]) -> None:
    parts = {"spans": np.array([[1000 * US, 2000 * US]]), "rows": NO_ROWS, **broken}
    install(
        entry("TST001", Claim(message="", certainty="likely", time_class="host", **parts)),
        entry("TST002", claim((2000, 3000))),
    )
    result = diagnose(steps().build())
    assert [crash.code for crash in result.crashes] == ["TST001"]
    assert codes(result) == ["TST002"]


# -- not checked -------------------------------------------------------------------------------


def test_unmet_needs_are_named_with_how_to_record_them(install: Install) -> None:
    install(entry("TST001", claim((0, 900)), needs=frozenset({"device", "shapes"})))
    (one,) = diagnose(steps(vendor="cpu").build()).not_checked
    assert (one.code, one.missing) == ("TST001", ("GPU rows", "input shapes"))
    assert "ProfilerActivity.CUDA" in one.how_to_record
    assert "record_shapes=True" in one.how_to_record


def _blind_wait() -> Trace:
    """Steps in which the host waits 40 ms for a GPU that shows 0.4 ms of work."""
    builder = TraceBuilder()
    for index in range(4):
        at = index * 50_000
        builder.step(index, at, 50_000)
        builder.launch(at + 20, 5, at + 100, 400, "gemm")
        builder.sync(at + 200, 40_000)
    return builder.build()


def test_idle_time_proves_nothing_where_kernels_are_missing(install: Install) -> None:
    install(
        entry("TST001", claim((60_000, 90_000), time_class="idle", always=True)),
        entry("TST002", claim((50_000, 51_000), time_class="compute", always=True)),
    )
    result = diagnose(_blind_wait())
    assert "missing-kernels" in {note.code for note in result.notes}
    assert codes(result) == ["TST002"]
    assert result.checked == ("TST002",)
    assert [(one.code, one.missing) for one in result.not_checked] == [("TST001", ("complete GPU rows",))]
    assert not result.healthy


def test_nor_that_nothing_ran_beside_communication(install: Install) -> None:
    install(entry("TST001", claim((60_000, 90_000), time_class="comm", certainty="likely", always=True)))
    (finding,) = diagnose(_blind_wait()).findings
    assert finding.certainty == "hint"
    assert finding.message.endswith("; GPU rows may be missing, including those of overlapping work")


def test_how_busy_a_device_is_is_not_said_where_rows_are_missing(install: Install) -> None:
    install(entry("TST001"))
    result = diagnose(_blind_wait())
    assert "busy" not in result.verdict[0]
    assert result.verdict[0].startswith(
        "Utilisation of NVIDIA H100 is unknown in 3 steady steps of 50.0 ms: the host waits"
    )
    assert result.verdict[2].startswith("Limited trust: device time is not judged")
    assert result.summary is not None
    (device,) = result.summary.devices
    assert device.classes is None
    assert "rows are missing" in device.unknown
    assert {step.classes for step in result.summary.steps} == {None}
    assert result.summary.judged_idle_ns is None
    assert result.critical_path is None


def test_only_a_judged_device_is_healthy(install: Install) -> None:
    install(entry("TST001"))
    assert diagnose(steps(vendor="cpu").build()).healthy
    builder = steps(vendor="cpu")
    builder.event("Conv2D", "hpu_op", 100, 50, pid=0, tid=7)
    assert not diagnose(builder.build()).healthy


@pytest.mark.parametrize(("span", "certainty"), [((1500, 1900), "hint"), ((1950, 2000), "certain")])
def test_only_idle_time_before_work_without_a_launch_is_a_hint(install: Install, span, certainty: str) -> None:
    install(entry("TST001", claim(span, time_class="idle", certainty="certain")))
    builder = steps()
    for index in range(4):
        builder.kernel("gemm", index * 1000 + 900, 50, correlation=9000 + index)
    doubtful = diagnose(builder.build())
    assert [note.level for note in doubtful.notes if note.code == "orphans"] == ["warn"]
    (finding,) = doubtful.findings
    assert finding.certainty == certainty
    assert finding.cost is not None
    assert (finding.cost.low_ms > 0) == (certainty == "certain")


# -- suppression -------------------------------------------------------------------------------


def _suppressing(certainty: str) -> tuple[PatternEntry, PatternEntry]:
    return (
        entry("TST001", claim(certainty=certainty, always=True), suppresses=("TST002",)),
        entry("TST002", claim((1000, 2000))),
    )


def test_a_certain_claim_suppresses_what_means_nothing_beside_it(install: Install) -> None:
    install(*_suppressing("certain"))
    assert codes(diagnose(steps().build())) == ["TST001"]


@pytest.mark.parametrize("certainty", ["likely", "hint"])
def test_a_guess_suppresses_nothing(install: Install, certainty: str) -> None:
    install(*_suppressing(certainty))
    assert codes(diagnose(steps().build())) == ["TST002", "TST001"]


# -- cost --------------------------------------------------------------------------------------


def test_cost_is_per_steady_step_and_names_its_denominator(install: Install) -> None:
    # 300 us in each of three steady steps, of which the fix surely gives back half
    spans = [(at, at + 300) for at in (1000, 2000, 3000)]
    install(entry("TST001", claim(*spans, gain_low=0.5, basis="measured", method="by hand")))
    (finding,) = diagnose(steps().build()).findings
    cost = finding.cost
    assert cost is not None
    assert (cost.low_ms, cost.high_ms, cost.per, cost.of_ms) == (0.15, 0.3, "step", 1.0)
    assert (cost.share_low, cost.share_high, cost.naive_ms) == (0.15, 0.3, 0.3)
    assert (cost.basis, cost.grade, cost.method) == ("measured", "A", "by hand")


def test_without_steps_cost_is_per_window(install: Install) -> None:
    install(entry("TST001", claim((10, 60))))
    builder = TraceBuilder(vendor="cpu").op("a", 0, 100).op("b", 100, 50).op("c", 150, 50)
    (finding,) = diagnose(builder.build()).findings
    assert finding.cost is not None
    assert (finding.cost.per, finding.cost.of_ms, finding.cost.high_ms) == ("window", 0.2, 0.05)


def test_evidence_names_the_denominator_there_is(install: Install) -> None:
    evidence = {
        "n_reads_per_step": 1,
        "share_of_step": 0.1,
        "fetch_share_of_step": 0.2,
        "share_of_steady_steps": 1.0,
        "median_step_ms": 1.0,
    }
    install(entry("TST001", claim((10, 60), always=True, evidence=evidence)))
    (finding,) = diagnose(steps().build()).findings
    assert finding.evidence == evidence
    builder = TraceBuilder(vendor="cpu").op("a", 0, 100).op("b", 100, 50).op("c", 150, 50)
    (finding,) = diagnose(builder.build()).findings
    assert finding.evidence == {
        "n_reads_per_window": 1,
        "share_of_window": 0.1,
        "fetch_share_of_window": 0.2,
        "share_of_steady_steps": 1.0,
        "median_step_ms": 1.0,
    }


def test_small_findings_are_left_out_unless_they_are_configuration(install: Install) -> None:
    install(
        entry("TST001", claim((1000, 1020))),  # 20 of 3000 us
        entry("TST002", claim((1100, 1120), always=True)),
    )
    assert codes(diagnose(steps().build())) == ["TST002"]
    assert codes(diagnose(steps().build(), Options(min_share=0.001))) == ["TST001", "TST002"]


def test_a_saving_too_small_to_look_for_is_no_headline(install: Install) -> None:
    install(entry("TST001", claim((1100, 1105), always=True)))
    result = diagnose(steps().build())
    assert result.verdict[1] == (
        "Nothing found that saves 1.0 % of a step or more, yet the device stands idle for 60 % of it;"
        " the largest saving: Title of TST001 (TST001), 1.67 µs of 1.00 ms per step."
    )


def test_joint_cost_counts_each_millisecond_once(install: Install) -> None:
    install(entry("TST001", claim((1000, 1600)), order=100), entry("TST002", claim((1300, 1900)), order=200))
    result = diagnose(steps().build())
    assert result.joint_cost is not None
    assert result.joint_cost.high_ms == pytest.approx(0.3)
    assert sum(finding.cost.high_ms for finding in result.findings if finding.cost) == pytest.approx(0.3)


def test_joint_cost_is_none_without_lost_time(install: Install) -> None:
    install(entry("TST001", claim(always=True, time_class="none", certainty="certain")))
    result = diagnose(busy_steps().build())
    assert result.joint_cost is None
    assert result.findings[0].cost is None
    assert result.verdict[1] == "No lost time found; 1 note: Title of TST001 (TST001)."


# -- rank --------------------------------------------------------------------------------------


def test_findings_are_ranked_by_what_they_surely_give_back(install: Install) -> None:
    install(
        entry("TST001", claim((1000, 1900), gain_low=0.0)),
        entry("TST002", claim((2000, 2300))),
        entry("TST003", claim((3000, 3400))),
        entry("TST004", claim(always=True, time_class="none")),
        entry("TST005", claim(always=True, time_class="none"), family="measure"),
    )
    result = diagnose(steps().build())
    assert codes(result) == ["TST003", "TST002", "TST001", "TST004", "TST005"]
    assert result.findings[-1].severity == "note"
    assert result.verdict[1].startswith("Largest saving: Title of TST003 (TST003), 133 µs of 1.00 ms")


def test_what_voids_the_rest_goes_first_and_is_the_headline(install: Install) -> None:
    install(
        entry("TST001", claim((1000, 1900))),
        entry("TST002", claim(always=True, time_class="none", voids=True), family="measure"),
    )
    result = diagnose(steps().build())
    assert codes(result) == ["TST002", "TST001"]
    assert result.findings[0].severity == "high"
    assert result.verdict[1] == "Title of TST002 (TST002): it happens."


@pytest.mark.parametrize(
    ("share_us", "certainty", "severity"),
    [(300, "likely", "high"), (300, "hint", "medium"), (60, "likely", "medium"), (15, "certain", "low")],
)
def test_severity_follows_the_share_of_a_step(install: Install, share_us: int, certainty: str, severity: str) -> None:
    spans = [(at, at + share_us) for at in (1000, 2000, 3000)]
    install(entry("TST001", claim(*spans, certainty=certainty)))
    assert diagnose(steps().build()).findings[0].severity == severity


# -- place -------------------------------------------------------------------------------------


def test_the_place_is_where_the_anchor_was_launched(install: Install) -> None:
    trace = steps().build()
    kernels = np.flatnonzero(trace.works)
    install(entry("TST001", claim((1000, 2000), rows=kernels[1:], anchor=int(kernels[2]))))
    (finding,) = diagnose(trace).findings
    place = finding.place
    assert place.steps == (1, 2, 3)
    assert place.ops == ("aten::mm", "cudaLaunchKernel")
    assert place.intervals_ns == ((1000 * US, 2000 * US),)
    assert {example.name for example in place.examples} == {"gemm"}
    assert [example.event for example in place.examples] == kernels[1:].tolist()
    assert finding.n_events == 3


def test_examples_are_the_longest_rows_unless_the_claim_picks_them(install: Install) -> None:
    builder = steps()
    builder.launch(3020, 5, 3510, 450, "longer")
    trace = builder.build()
    kernels = np.flatnonzero(trace.works)
    install(entry("TST001", claim((1000, 2000), rows=kernels[1:])))
    (finding,) = diagnose(trace).findings
    assert [example.name for example in finding.place.examples] == ["longer", "gemm", "gemm"]
    install(entry("TST001", claim((1000, 2000), rows=kernels, examples=(int(kernels[2]),))))
    (finding,) = diagnose(trace).findings
    assert [example.event for example in finding.place.examples] == [kernels[2]]


def test_no_text_holds_a_memory_address(install: Install) -> None:
    name = "<built-in method decode of ImagingDecoder object at 0x7f49e81f5cf0>"
    trace = TraceBuilder(vendor="cpu").step(0, 0, 100).frame(name, 10, 50).op("a", 1, 90).build()
    rows = np.array([trace.names[code] == name for code in trace.name]).nonzero()[0]
    install(entry("TST001", claim((10, 60), rows=rows)))
    (finding,) = diagnose(trace).findings
    assert [example.name for example in finding.place.examples] == ["decode of ImagingDecoder"]
    assert "0x" not in str(finding)


# -- arguments ---------------------------------------------------------------------------------


def test_only_and_skip_take_codes_and_names(install: Install) -> None:
    install(*(entry(code) for code in ("TST001", "TST002", "TST003")))
    trace = steps().build()
    assert diagnose(trace, Options(only=["tst001", "TST003"])).checked == ("TST001", "TST003")
    assert diagnose(trace, Options(only="TST001")).checked == ("TST001",)
    assert diagnose(trace, Options(skip=["TST001"])).checked == ("TST002", "TST003")
    assert diagnose(trace, Options(only=["TST001"], skip=["TST001"])).checked == ()


def test_an_unknown_code_is_an_error_with_its_neighbours(install: Install) -> None:
    install(entry("TST001"))
    with pytest.raises(UsageError, match="no pattern is called 'TST00'") as caught:
        diagnose(steps().build(), Options(only=["TST00"]))
    assert "tst001" in caught.value.hint


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_min_share_is_a_share(share: float) -> None:
    with pytest.raises(UsageError, match="min_share"):
        diagnose(steps().build(), Options(min_share=share))


def test_the_same_trace_gives_the_same_result(install: Install) -> None:
    install(entry("TST001", claim((1000, 1900))), entry("TST002", claim((1000, 1900))))
    assert diagnose(steps().build()) == diagnose(steps().build())


def test_severity_follows_the_low_end_as_the_order_does(install: Install) -> None:
    install(
        entry("TST001", claim((1_000, 1_300), gain_low=0.0, gain_high=1.0)),
        entry("TST002", claim((1_400, 1_520), gain_low=1.0, gain_high=1.0)),
    )
    first, second = diagnose(steps().build()).findings
    assert first.cost
    assert second.cost
    assert first.cost.share_low >= second.cost.share_low
    order = ("high", "medium", "low")
    assert order.index(first.severity) <= order.index(second.severity)
