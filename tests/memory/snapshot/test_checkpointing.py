import io
import pickle

from builder import TraceBuilder
from memory.naive_allocator import MIB, NaiveAllocator

from torchtriage.memory.snapshot.checkpointing import notes, units
from torchtriage.memory.snapshot.read import read_snapshot
from torchtriage.memory.snapshot.verdict import judge

TORCH = "/env/lib/python3.11/site-packages/torch"
TRAIN = ("/home/user/train.py", 30, "main")
CALL = (f"{TORCH}/nn/modules/module.py", 1751, "_call_impl")


def frames(*rows):
    """Innermost first, as a snapshot has them."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in rows]


def in_block(line):
    return frames(
        (f"{TORCH}/nn/modules/linear.py", 125, "forward"),
        CALL,
        ("/home/user/model.py", line, "forward"),
        CALL,
        ("/home/user/model.py", 90, "forward"),
        CALL,
        TRAIN,
    )


BACKWARD = frames(
    (f"{TORCH}/autograd/graph.py", 823, "_engine_run_backward"),
    (f"{TORCH}/_tensor.py", 581, "backward"),
    ("/home/user/train.py", 32, "main"),
)
EMBEDDING = frames(("/home/user/model.py", 86, "forward"), CALL, TRAIN)


def a_step(n_blocks=4, sizes=(12, 24, 16), lines=(41, 43, 44)):
    naive = NaiveAllocator()
    kept = []

    def malloc(size, stack):
        naive.caller = stack
        kept.append(naive.malloc(size * MIB))

    malloc(14, EMBEDDING)
    for _ in range(n_blocks):
        for size, line in zip(sizes, lines, strict=True):
            malloc(size, in_block(line))
    naive.caller = BACKWARD
    for piece in reversed(kept):
        naive.free(piece)
    return read_snapshot(io.BytesIO(pickle.dumps(naive.snapshot())))


def test_quiet_without_stacks_and_without_a_history():
    naive = NaiveAllocator()
    naive.free(naive.malloc(30 * MIB))
    document = naive.snapshot()
    assert units(read_snapshot(io.BytesIO(pickle.dumps(document)))) == ()
    document["device_traces"] = []
    assert units(read_snapshot(io.BytesIO(pickle.dumps(document)))) == ()


def test_quiet_where_one_call_holds_everything():
    # computed again as a whole it would need just as much
    assert units(a_step(n_blocks=1)) == ()


def test_a_repeated_block_saves_all_but_one_call_and_its_inputs():
    (unit,) = units(a_step())
    assert (unit.caller.file, unit.caller.line) == ("/home/user/model.py", 90)
    assert (unit.forward.line, unit.n_calls) == (41, 4)
    assert unit.activation_bytes == 4 * 52 * MIB
    assert unit.high_bytes == 3 * 52 * MIB
    assert unit.low_bytes == 3 * (52 - 24) * MIB
    assert unit.share == 4 * 52 / (4 * 52 + 14)
    assert unit.added_ms is None


def test_a_loop_inside_forward_is_not_taken_for_calls():
    # lines 41, 43, 44, 43, 44: back, but not to where it began
    assert units(a_step(n_blocks=1, sizes=(12,) * 5, lines=(41, 43, 44, 43, 44))) == ()


def test_the_time_of_one_more_forward_comes_from_the_trace():
    builder = TraceBuilder()
    for index in range(4):
        start = 1000 * index
        builder.step(index, start, 1000)
        builder.frame("model.py(35): forward", start + 100, 200)
        builder.launch(start + 110, 5, start + 150, 90)
        builder.launch(start + 120, 5, start + 250, 30)
        builder.frame("model.py(80): forward", start + 400, 100)  # of another class
        builder.launch(start + 410, 5, start + 450, 500)
    trace = builder.build()
    (unit,) = units(a_step(), trace=trace)
    assert unit.time_of == "device"
    assert unit.added_ms == 0.12
    note = judge(a_step(), trace=trace).notes[-1]
    assert note.message.endswith("of it per step, which takes 120 µs of device time")
    assert (note.evidence["added_ms"], note.evidence["time_of"]) == (0.12, "device")


def test_a_trace_without_this_function_gives_no_time():
    builder = TraceBuilder()
    for index in range(4):
        builder.step(index, 1000 * index, 1000)
        builder.frame("other.py(35): forward", 1000 * index + 100, 200)
        builder.launch(1000 * index + 110, 5, 1000 * index + 150, 90)
    trace = builder.build()
    (unit,) = units(a_step(), trace=trace)
    assert unit.added_ms is None
    assert "which the trace does not show" in judge(a_step(), trace=trace).notes[-1].message


def test_the_note_says_where_what_it_saves_and_what_it_takes():
    (note,) = notes(units(a_step()))
    assert note.level == "info"
    assert note.message == (
        "model.py:41 forward, called 4 times from model.py:90, holds 208 MiB of activations at"
        " the peak (94 %); checkpointing it saves 84.0 MiB to 156 MiB there at the cost of one"
        " more forward pass of it per step"
    )
    assert judge(a_step()).notes[-1:] == (note,)
    assert notes(()) == ()


def test_wrappers_between_modules_are_no_callers():
    hook = ("/env/lib/python3.11/site-packages/accelerate/hooks.py", 166, "new_forward")
    file = "/env/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py"
    naive = NaiveAllocator()
    kept = []
    for _ in range(4):
        for line in (715, 727):
            naive.caller = frames((file, line, "forward"), hook, CALL, (file, 968, "forward"), hook, CALL, TRAIN)
            kept.append(naive.malloc(24 * MIB))
    naive.caller = BACKWARD
    for piece in reversed(kept):
        naive.free(piece)
    (best, *_) = units(read_snapshot(io.BytesIO(pickle.dumps(naive.snapshot()))))
    assert (best.caller.line, best.n_calls) == (968, 4)
    assert notes((best,))[0].fix == "model.gradient_checkpointing_enable()"
