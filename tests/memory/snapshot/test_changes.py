"""What to change first, on recordings small enough to be judged by hand."""

from memory.recorder import BACKWARD, FORWARD, MIB, TO_DEVICE, TRAIN, A, Recorder, frame, read

from torchtriage.memory.snapshot.verdict import judge

OPERATOR = frame("??", 0, "at::_ops::_softmax::call(at::Tensor const&)")
ATTENTION = [OPERATOR, frame("/home/me/attention.py", 12, "forward"), *TRAIN]
FUSED = [frame("??", 0, "at::_ops::_scaled_dot_product_flash_attention::call()"), *ATTENTION[1:]]
LOSS = [frame("/opt/lib/python3.11/site-packages/torch/nn/functional.py", 3504, "cross_entropy"), *TRAIN]
CAST = [frame("??", 0, "at::autocast::cached_cast(c10::ScalarType)"), *FORWARD]
STEP = [frame("/opt/lib/python3.11/site-packages/torch/optim/adamw.py", 400, "_multi_tensor_adamw"), *TRAIN]


class Tape(Recorder):
    """A recorder that places blocks itself."""

    def __init__(self, mib=8192):
        super().__init__()
        self.reserve(A, mib * MIB)
        self.at = A

    def put(self, mib, frames, *, recorded=True):
        self.alloc(self.at, mib * MIB, frames, recorded=recorded)
        self.at += mib * MIB
        return self.at - mib * MIB

    def codes(self):
        result = judge(read(self.dump()))
        assert not result.crashes
        return [note.code for note in result.notes]

    def categories(self):
        (device,) = judge(read(self.dump())).devices
        return {part.name: part.size_bytes // MIB for part in device.peak.categories}


def test_quiet_on_a_few_megabytes():
    one = Tape()
    one.put(40, ATTENTION)
    assert one.codes() == []


def test_quiet_on_scores_that_a_fused_kernel_never_makes():
    one = Tape()
    one.put(500, TO_DEVICE)
    one.free(one.put(400, FUSED), FORWARD)
    assert "fused-attention" not in one.codes()


def test_scores_go_first_where_they_save_a_third_of_the_best():
    one = Tape()
    one.put(1000, TO_DEVICE)
    one.free(one.put(200, ATTENTION), FORWARD)
    assert one.codes()[:2] == ["fused-attention", "smaller-parameters"]
    two = Tape()
    two.put(1000, TO_DEVICE)
    two.free(two.put(120, ATTENTION), FORWARD)
    assert two.codes()[0] == "smaller-parameters"


def test_a_loss_counts_the_copy_that_did_not_fit():
    one = Tape(1400)
    one.put(1000, TO_DEVICE)
    one.put(300, LOSS)
    one.oom(300 * MIB, 0, LOSS)
    result = judge(read(one.dump()))
    assert result.notes[0].code == "fused-cross-entropy"
    assert result.notes[0].evidence["held_bytes"] == 600 * MIB
    assert "300 MiB of it the request that failed" in result.findings[0].fix.text
    assert "Change first: cross-entropy in chunks" in result.verdict[1]


def test_a_result_kept_until_the_next_is_made():
    one = Tape()
    one.put(500, TO_DEVICE)
    first, second = one.put(400, FORWARD), one.put(400, FORWARD)
    one.free(first)
    one.free(second)
    assert one.codes()[0] == "free-outputs"


def test_results_that_a_pass_or_a_list_keeps_are_no_such_pair():
    one = Tape()
    one.put(500, TO_DEVICE)
    for address in [one.put(400, FORWARD), one.put(400, FORWARD)]:
        one.free(address, BACKWARD)
    two = Tape()
    two.put(500, TO_DEVICE)
    for address in [two.put(400, FORWARD) for _ in range(3)]:
        two.free(address)
    assert "free-outputs" not in one.codes() + two.codes()


def test_gradients_that_the_forward_pass_finds_are_set_to_none():
    one = Tape()
    one.put(500, TO_DEVICE)
    gradient = one.put(500, BACKWARD)
    one.free(one.put(100, FORWARD), BACKWARD)
    one.free(gradient)
    assert one.codes()[0] == "set-to-none"
    two = Tape()
    two.put(500, TO_DEVICE)
    two.free(two.put(500, BACKWARD))
    assert two.codes()[0] == "gradients"


def test_gradients_of_the_last_step_are_known_by_what_frees_them():
    one = Tape()
    one.put(500, TO_DEVICE)
    gradient = one.put(500, [], recorded=False)
    one.put(100, FORWARD)
    one.free(gradient, [frame("/opt/lib/python3.11/site-packages/torch/optim/optimizer.py", 975, "zero_grad"), *TRAIN])
    assert one.categories()["gradients"] == 500
    assert one.codes()[0] == "set-to-none"


def test_an_activation_whose_input_is_kept_is_not_in_place_in_training():
    def codes(function, freed):
        one = Tape()
        one.put(500, TO_DEVICE)
        one.free(one.put(400, [frame("/opt/lib/torch/nn/functional.py", 2380, function), *FORWARD]), freed)
        return one.codes()

    assert codes("relu", BACKWARD)[0] == "in-place-activation"
    assert codes("silu", FORWARD)[0] == "in-place-activation"
    one = Tape()
    one.put(500, TO_DEVICE)
    one.free(one.put(400, [frame("/opt/lib/torch/nn/functional.py", 2380, "silu"), *FORWARD]), BACKWARD)
    one.free(one.put(10, BACKWARD), BACKWARD)
    assert "in-place-activation" not in one.codes()


def test_what_an_optimizer_holds_is_state_or_temporary():
    one = Tape()
    one.put(500, TO_DEVICE)
    state = one.put(1000, STEP)
    one.free(one.put(600, STEP), STEP)
    one.free(one.put(10, FORWARD), FORWARD)
    one.free(state, STEP)  # made anew in the next step
    assert one.categories()["optimizer state"] == 1000
    assert one.codes()[:2] == ["optimizer-temporaries", "optimizer-state"]


def test_what_stays_from_before_is_parameters_and_what_gradients_do_not_match_is_state():
    one = Tape()
    for _ in range(3):
        one.put(100, [], recorded=False)
    one.put(70, [], recorded=False)  # frozen: no gradient
    one.free(one.put(10, FORWARD), BACKWARD)
    one.put(100, BACKWARD)
    assert one.categories() == {"parameters": 170, "optimizer state": 200, "gradients": 100}


def test_what_stays_is_unknown_where_no_pass_was_recorded():
    one = Tape()
    one.put(300, [], recorded=False)
    one.put(100, TRAIN)
    assert one.categories() == {"unknown": 400}


def test_weights_that_autocast_copies_are_whole_and_compressed_ones_are_moved():
    one = Tape()
    one.put(500, TO_DEVICE)
    one.free(one.put(250, CAST), FORWARD)
    assert one.codes()[:2] == ["autocast-copies", "smaller-parameters"]
    two = Tape()
    two.put(500, [frame("/home/me/compression.py", 45, "allocate"), frame("/home/me/opt.py", 2, "init_weight"), *TRAIN])
    assert two.codes()[0] == "offload"


def test_a_peak_before_the_recording_has_to_be_recorded_unless_the_device_was_full():
    one = Tape()
    one.put(1000, TO_DEVICE, recorded=False)
    one.free(one.put(500, [], recorded=False))
    assert one.codes()[0] == "record"
    full = Recorder()
    full.reserve(A, 1000 * MIB, recorded=False)
    full.alloc(A, 995 * MIB, TO_DEVICE, recorded=False)
    full.live[A] = (995 * MIB, 995 * MIB, TO_DEVICE, "active_allocated")
    result = judge(read(full.dump()))
    assert [note.code for note in result.notes] == ["smaller-parameters"]


def test_the_device_with_the_highest_peak_is_told_what_to_change():
    small, large = Tape(), Recorder(device=1)
    small.put(100, TO_DEVICE)
    base = 0x70_0000_0000
    large.reserve(base, 8192 * MIB)
    for place in range(8):  # four calls of two lines each, kept for the backward pass
        line = 7 + 2 * (place % 2)
        block = [frame("/home/me/block.py", line, "forward"), frame("/home/me/model.py", 41, "forward"), *TRAIN]
        large.alloc(base + 200 * place * MIB, 200 * MIB, block)
    for place in range(8):
        large.free(base + 200 * place * MIB, BACKWARD)
    document, more = small.dump(), large.dump()
    document["segments"] += more["segments"]
    document["device_traces"] = [small.entries, large.entries]
    result = judge(read(document))
    assert result.notes[0].code == "checkpointing"
    assert "block.py:7" in result.verdict[1]


def test_keys_and_values_are_known_by_their_file():
    one = Tape()
    one.put(500, TO_DEVICE)
    one.put(400, [frame("/home/me/models/cache_utils_V2.py", 224, "update"), *FORWARD])
    assert one.categories()["cache"] == 400
    assert "kv-cache" in one.codes()
