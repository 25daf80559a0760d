"""The three sentences, and what holds on real pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.diagnose.compare.runs import Script

import torchtriage as tt
from torchtriage.core.errors import UsageError
from torchtriage.diagnose.compare.result import Comparison
from torchtriage.diagnose.compare.verdict import ChangeEvidence, compare, gather
from torchtriage.diagnose.compare.workload import unlike, workload

BASE = Script()
LOADER = replace(BASE, loader=3000)


@cache
def built(script: Script) -> ChangeEvidence:
    return gather(script.build())


def test_a_faster_run_says_by_how_much_why_and_whether_it_was_promised():
    result = compare(built(LOADER), built(replace(BASE, loader=20, workers=4)))
    first, second, third = result.verdict
    assert first.startswith("Faster by 2.98 ms")
    assert "95 % interval" in first
    assert second.startswith("Why: DataLoader wait -2.98 ms; the rest")
    assert "DAT018 fixed" in third
    assert result.promise is not None
    assert result.promise.holds_within_noise


def test_a_slower_run_says_so():
    result = compare(built(BASE), built(LOADER))
    assert result.verdict[0].startswith("Slower by ")
    assert {"came"} == {finding.status for finding in result.findings if finding.code == "DAT018"}
    assert result.promise is None


def test_a_run_against_itself_says_that_nothing_can_be_told():
    result = compare(built(BASE), built(BASE))
    assert result.verdict[0].startswith("No significant change: ")
    assert result.verdict[1] == "No cause exceeds the noise."
    assert {finding.status for finding in result.findings} <= {"stayed"}


def test_a_slower_machine_is_named_as_such():
    result = compare(built(BASE), built(replace(BASE, slower=1.4)))
    assert result.verdict[0].startswith("No significant change: ")
    note = next(limit for limit in result.limits if limit.code == "machine-state")
    assert "did the same work took 1." in note.message


def test_unlike_runs_have_reasons_and_no_figures():
    result = compare(built(BASE), built(replace(BASE, batch=64)))
    assert not result.comparable
    assert result.verdict[0].startswith("Not comparable: different sizes: ")
    assert (result.total, result.classes, result.causes, result.findings) == (None, {}, (), ())


def test_a_report_on_another_run_is_no_promise():
    with pytest.raises(UsageError, match="expected a report on"):
        compare(built(LOADER), built(BASE), promised=built(replace(BASE, n_steps=3)).result)


def test_an_earlier_report_is_taken_at_its_word():
    before = built(LOADER)
    loader = next(finding for finding in before.result.findings if finding.code == "DAT018")
    assert loader.cost is not None
    bold = replace(loader, cost=replace(loader.cost, low_ms=3.5, high_ms=4.0))
    report = replace(before.result, findings=(bold,))
    result = compare(before, built(replace(BASE, loader=20, workers=4)), promised=report)
    assert result.promise is not None
    assert (result.promise.low_ms, result.promise.high_ms) == (3.5, 4.0)
    assert not result.promise.holds
    assert "less than promised" in result.verdict[2]


def test_a_promise_is_held_against_its_own_time_where_something_else_changed_as_well():
    # the loader is fixed, and the layers got slower by as much: the step says nothing, the wait does
    after = replace(BASE, loader=20, workers=4, linear=BASE.linear + 745)
    result = compare(built(LOADER), built(after))
    assert result.total is not None
    assert abs(result.total.delta_ns) < 20_000
    assert result.promise is not None
    assert result.promise.measured_ms == pytest.approx(2.98, rel=0.01)
    assert result.promise.step_ms == pytest.approx(0, abs=0.02)
    assert "of its own time saved (kept" in result.verdict[2]


def test_a_change_that_is_not_believed_says_why_beside_its_interval():
    result = compare(built(BASE), built(replace(BASE, slower=1.4)))
    total = result.total
    assert total is not None
    assert not total.told
    assert total.low_ns is not None
    assert total.low_ns > 0
    # of times, not of a time that may be longer than the step
    assert "between steps, but the same work may take 1.46 times as long in one" in result.verdict[0]


def test_two_kinds_of_device_are_compared_when_asked_and_the_difference_is_split():
    other = replace(BASE, device="AMD Instinct MI300X", kernel="Cijk", linear=200, foreach=True)
    refused = compare(built(BASE), built(other))
    assert [reason.code for reason in refused.reasons] == ["device"]
    assert "--across" in refused.reasons[0].fix
    result = compare(built(BASE), built(other), across=True)
    assert result.total is not None
    assert set(result.split) == {"host", "kernels", "idle"}
    assert sum(part.delta_ns for part in result.split.values()) == result.total.delta_ns
    # four layers, 100 us less each, and one call of the optimizer's for eight
    assert result.split["kernels"].delta_ns == pytest.approx(-400_000 - 70_000, rel=0.01)
    assert result.verdict[1].startswith("Split: ")
    # another device fixes nothing
    assert result.promise is None


def test_a_device_and_none_are_not_compared_across():
    cpu = replace(built(BASE).workload, n_devices=0, device="", vendor="cpu")
    assert "device" in {reason.code for reason in unlike(built(BASE).workload, cpu, across=True)}


# -- real pairs --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evidence(recordings: Path):
    return cache(lambda name: gather(tt.load(recordings / f"{name}.json.gz")))


def adds_up(result: Comparison) -> None:
    assert result.total is not None
    assert sum(cause.change.delta_ns for cause in result.causes) == result.total.delta_ns
    assert sum(class_.delta_ns for class_ in result.classes.values()) == result.total.delta_ns
    assert result.total.delta_ns == result.after.mean_ns - result.before.mean_ns


@pytest.mark.data
@pytest.mark.parametrize("age", ["", "_2021-01"])
def test_resnet50_got_its_batches_from_workers_and_that_was_promised(evidence, age):
    before = evidence(f"cv/resnet50_v100_train_workers0{age}")
    after = evidence(f"cv/resnet50_v100_train_workers4{age}")
    result = compare(before, after)
    adds_up(result)
    assert result.total is not None
    assert result.total.told
    assert result.total.delta_ns < 0
    first = result.causes[0]
    assert first.label == "DataLoader wait"
    assert first.change.told
    # the wait is gone almost whole, and is more than all of the change: workers cost CPU time
    assert first.change.after_ns < 0.02 * first.change.before_ns
    assert first.change.delta_ns < result.total.delta_ns
    assert ("went", "DAT018") in {(finding.status, finding.code) for finding in result.findings}
    assert result.promise is not None
    assert result.promise.codes[0] == "DAT018"
    assert result.promise.holds_within_noise


@pytest.mark.data
def test_segment_anything_got_compiled_and_lost_its_fp32_products(evidence):
    result = compare(evidence("cv/sam_amg_a100_eager_fp32_2023-11-28"), evidence("cv/sam_amg_a100_compiled_2023-11-28"))
    adds_up(result)
    assert result.total is not None
    assert result.total.told
    told = {cause.label: cause for cause in result.causes if cause.change.told}
    linear = told["kernels of aten::linear"]
    assert linear is result.causes[0]
    assert linear.parts[0].name == "ampere_sgemm_128x64_tn"
    assert linear.parts[0].after_ns == 0
    assert told["kernels of Torch-Compiled Region"].kind == "came"
    assert {"other-code", "no-noise"} <= {limit.code for limit in result.limits}
    assert ("went", "KRN022") in {(finding.status, finding.code) for finding in result.findings}


UNLIKE = [
    ("cv/timesformer_h100_infer", "cv/timesformer_mi300x_infer", "device"),
    ("llm/qwen1.5-0.5b_h100", "llm/qwen1.5-0.5b_mi300x", "device"),
    ("batch_sweep/particle_transformer_a100_bs2", "batch_sweep/particle_transformer_a100_bs32", "shapes"),
    ("batch_sweep/particle_transformer_a100_bs32", "batch_sweep/particle_transformer_a100_bs128", "shapes"),
    ("cv/vit_nsfw_h100_infer", "llm/bert_small_h100", "model"),
    ("cv/vit_nsfw_h100_infer", "cv/timesformer_h100_infer", "shapes"),
    ("cv/resnet18_mi300x_ddp_train", "cv/vit_nsfw_mi300x_infer", "mode"),
    ("cpu/cpu_only_rank34", "cpu/resnet18_cpu_infer", "ranks"),
    ("cv/alexnet_a100_small", "cv/alexnet_a100_small", "cold-start"),
]


@pytest.mark.data
@pytest.mark.parametrize(("before", "after", "code"), UNLIKE)
def test_unlike_recordings_are_refused_with_the_true_reason(evidence, before, after, code):
    for one, other in ((before, after), (after, before)):
        result = compare(evidence(one), evidence(other))
        assert not result.comparable
        assert code in {reason.code for reason in result.reasons}


@pytest.mark.data
@pytest.mark.parametrize(
    "names", [("cv/vit_nsfw", "_infer"), ("cv/timesformer", "_infer"), ("llm/qwen1.5-0.5b", ""), ("llm/bert_small", "")]
)
def test_one_model_on_two_devices_is_split_and_adds_up(evidence, names):
    result = compare(*(evidence(f"{names[0]}_{device}{names[1]}") for device in ("h100", "mi300x")), across=True)
    adds_up(result)
    assert result.total is not None
    assert sum(part.delta_ns for part in result.split.values()) == result.total.delta_ns
    assert "alone" not in result.split  # every operator has its partner


@pytest.mark.data
def test_segment_anything_on_another_board_is_not_compared(recordings):
    """One recording names its board PG509-210, the other A100-SXM4-40GB; the work is the same."""
    names = ("sam_amg_pg509_eager_fp32_2023-10-19", "sam_amg_a100_eager_fp32_2023-11-28")
    before, after = (workload(tt.load(recordings / f"cv/{name}.json.gz"), ()) for name in names)
    assert [reason.code for reason in unlike(before, after)] == ["device"]
    assert unlike(replace(before, device="the same"), replace(after, device="the same")) == ()


@pytest.mark.data
def test_a_recording_against_itself_adds_up_to_nothing(evidence):
    for name in (
        "cv/convnet_v100_ddp_world1_ns",
        "cv/convnet_a100_ddp_rank0_of_2",
        "distributed/torchrec_a100_rank0_of_16",
        "cpu/cpu_only_rank34",
        "llm/b200_eager",
    ):
        result = compare(evidence(name), evidence(name))
        assert result.comparable, (name, result.reasons)
        adds_up(result)
        assert result.total is not None
        assert result.total.delta_ns == 0
        assert not any(cause.change.told or cause.change.delta_ns for cause in result.causes)
