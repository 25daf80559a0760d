import io
import pickle

import pytest
from memory.naive_allocator import MIB, NaiveAllocator, NaiveOomError

from torchtriage.memory.snapshot.advice import advise, finding, sentence
from torchtriage.memory.snapshot.read import read_snapshot


def read(document):
    return read_snapshot(io.BytesIO(pickle.dumps(document)))


def growing(naive, n_steps=12):
    """A batch a little larger each step: no cached segment ever fits the next one."""
    for step in range(n_steps):
        layers = [naive.malloc((40 + 4 * step) * MIB) for _ in range(4)]
        for piece in reversed(layers):
            naive.free(piece)
    return naive


def steady(naive, n_steps=12):
    for _ in range(n_steps):
        layers = [naive.malloc(size * MIB) for size in (40, 60, 20, 80)]
        for piece in reversed(layers):
            naive.free(piece)
    return naive


def test_quiet_where_the_cache_fits_what_is_asked_for():
    advice = advise(read(steady(NaiveAllocator()).snapshot()))
    assert advice.error == 0
    assert advice.best is None
    assert advice.outcomes == ()  # nothing is reserved that was not asked for at one time
    assert finding(advice) is None
    assert sentence(advice).startswith("No allocator setting can save 3.0 % of the peak reserved")


def test_quiet_where_the_best_setting_is_the_recorded_one():
    advice = advise(read(growing(NaiveAllocator(expandable=True)).snapshot()))
    assert advice.recorded_conf == "expandable_segments:True"
    assert advice.best is None


def test_growing_batches_are_told_to_grow_in_place():
    naive = growing(NaiveAllocator())
    advice = advise(read(naive.snapshot()))
    assert (advice.error, advice.start_error, advice.same_address) == (0, 0, 1)
    assert advice.peak_bytes == naive.peak
    assert advice.floor_bytes == 4 * 84 * MIB
    assert advice.best is not None
    assert advice.best.conf == "expandable_segments:True"
    after = growing(NaiveAllocator(expandable=True))
    assert advice.best.peak_bytes == after.peak
    assert advice.best.saving_bytes == naive.peak - after.peak
    assert advice.best.extra_calls == sum(after.calls) - sum(naive.calls)
    found = finding(advice)
    assert found is not None
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in found.fix.code
    assert "PYTORCH_CUDA_ALLOC_CONF" in found.fix.code
    assert found.certainty == "likely"
    assert sentence(advice) == f"Replayed {found.message.removeprefix('replayed ')}."
    assert found.evidence["saving_bytes"] == advice.best.saving_bytes


def test_settings_that_change_no_peak_are_kept():
    snapshot = growing(NaiveAllocator()).snapshot()
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "pinned_num_register_threads:8"
    advice = advise(read(snapshot))
    assert advice.recorded_conf == "pinned_num_register_threads:8"
    assert advice.best is not None
    assert advice.best.conf == "expandable_segments:True,pinned_num_register_threads:8"


def test_the_default_with_settings_that_change_no_peak_is_called_the_default():
    naive = NaiveAllocator(divisions=2)
    for _ in range(8):
        for block in reversed([naive.malloc(size * MIB) for size in (65, 130, 33, 66, 261)]):
            naive.free(block)
    snapshot = naive.snapshot()
    conf = "roundup_power2_divisions:2,pinned_num_register_threads:8"
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = conf
    found = finding(advise(read(snapshot)))
    assert found is not None
    assert found.fix.text.endswith("with PyTorch's default, keeping pinned_num_register_threads:8.")


def test_every_predicted_peak_is_the_naive_allocator_s_own():
    advice = advise(read(growing(NaiveAllocator()).snapshot()))
    real = {
        "expandable_segments:True": NaiveAllocator(expandable=True),
        "max_split_size_mb:64": NaiveAllocator(max_split=64 * MIB),
        "max_split_size_mb:256": NaiveAllocator(max_split=256 * MIB),
        "roundup_power2_divisions:4": NaiveAllocator(divisions=4),
        "expandable_segments:True,roundup_power2_divisions:8": NaiveAllocator(expandable=True, divisions=8),
    }
    told = {outcome.conf: outcome for outcome in advice.outcomes}
    for conf, naive in real.items():
        growing(naive)
        assert told[conf].peak_bytes == naive.peak, conf
        assert told[conf].n_calls == sum(naive.calls), conf


def test_windows_is_not_told_what_it_cannot_do():
    document = growing(NaiveAllocator()).snapshot()
    document["device_traces"][0][0]["frames"] = [{"filename": "C:\\work\\train.py", "line": 3, "name": "forward"}]
    advice = advise(read(document))
    assert not any("expandable" in outcome.conf for outcome in advice.outcomes)
    assert any("Windows" in reason for reason in advice.not_tried)


def test_collecting_is_tried_only_where_the_limit_is_known():
    snapshot = read(growing(NaiveAllocator()).snapshot())
    assert any("garbage" in reason for reason in advise(snapshot).not_tried)
    known = advise(snapshot, limit_bytes=16 << 30)
    assert any("garbage" in outcome.conf for outcome in known.outcomes)
    assert not known.not_tried


def test_what_came_before_the_recording_is_refused_when_it_decides():
    naive = growing(NaiveAllocator())
    n_before = len(naive.log)
    piece = naive.malloc(10 * MIB)
    naive.free(piece)
    advice = advise(read(naive.snapshot(n_before)))
    assert advice.error == 0
    assert "before the recording began" in advice.refusal
    assert "empty_cache" in advice.how_to_record
    assert advice.best is None
    assert advice.outcomes == ()


def test_a_snapshot_without_history_is_refused():
    document = steady(NaiveAllocator()).snapshot()
    document["device_traces"] = []
    advice = advise(read(document))
    assert "no history" in advice.refusal
    assert finding(advice) is None
    assert sentence(advice) == ""


def test_recorded_collection_is_refused_without_its_limit():
    naive = growing(NaiveAllocator(gc=0.5, limit=2 << 30))
    snapshot = read(naive.snapshot())
    assert "garbage_collection_threshold" in advise(snapshot).refusal
    assert advise(snapshot, limit_bytes=2 << 30).refusal == ""


def two_gaps(limit):
    naive = NaiveAllocator(limit=limit)
    for piece in [naive.malloc(100 * MIB), naive.malloc(100 * MIB)]:
        naive.free(piece)
    naive.malloc(60 * MIB)
    naive.malloc(60 * MIB)  # the rest of each segment, 40 MiB, is too little for what follows
    with pytest.raises(NaiveOomError):
        naive.malloc(50 * MIB)
    return naive


def test_an_oom_with_room_for_the_request_alone_was_not_avoidable():
    advice = advise(read(two_gaps(limit=210 * MIB).snapshot()))
    assert advice.n_ooms == 1
    assert advice.best is None or not advice.best.n_fitted


def test_an_avoidable_oom_is_high_whatever_it_saves():
    advice = advise(read(two_gaps(limit=230 * MIB).snapshot()))
    assert advice.n_ooms == 1
    assert advice.best is not None
    assert (advice.best.conf, advice.best.n_fitted) == ("expandable_segments:True", 1)
    found = finding(advice)
    assert found is not None
    assert found.severity == "high"
    assert "1 of 1 out-of-memory error had room" in found.message


SHARED = {
    # file: (peak reserved, saving of the best setting, its conf)
    "cross_entropy_vanilla": (1_050_673_152, None),
    "cross_entropy_compiled": (1_050_673_152, None),
    "cross_entropy_liger": (264_241_152, None),
    "decomfl_windows": (1_897_922_560, None),
    "lm_forward_bf16_ctx128": (861_929_472, None),
    "lm_forward_fp32_ctx128": (610_271_232, ("expandable_segments:True", 41_943_040)),
    "lm_small_snapshot": (3_781_165_056, ("max_split_size_mb:512", 515_899_392)),
    "nca_segmentation_cuda_single_step": (23_068_672, None),
    "nca_segmentation_inference": (24_366_809_088, None),
    "nca_segmentation_traditional_single_step": (98_566_144, None),
}


@pytest.mark.data
@pytest.mark.parametrize("name", SHARED)
def test_every_recorded_curve_comes_out_again_to_the_byte(recordings, name):
    advice = advise(read_snapshot(recordings.parent / "memory" / f"{name}.pickle"))
    assert advice.refusal == ""
    assert (advice.error, advice.start_error, advice.same_address) == (0, 0, 1)
    peak, best = SHARED[name]
    assert advice.peak_bytes == peak
    assert (advice.best and (advice.best.conf, advice.best.saving_bytes)) == best


@pytest.mark.data
def test_a_setting_that_saves_too_little_is_named_with_what_it_saves(recordings):
    snapshot = read_snapshot(recordings.parent / "memory" / "lm_forward_bf16_ctx128.pickle")
    told = sentence(advise(snapshot))
    assert "none saves 3.0 % of the peak reserved and 40.0 MiB" in told
    assert told.endswith("expandable_segments:True comes nearest with 36.0 MiB, 4.4 %.")
