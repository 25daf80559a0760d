"""Python that autograd's own thread runs on a device: it is the loop's time, at the lines that the pass came to."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import OTHER, SamplesBuilder

from torchtriage.diagnose.runs.account import step_account
from torchtriage.diagnose.runs.backward_passes import CODES, backward_passes
from torchtriage.diagnose.runs.hot_lines import hot_lines
from torchtriage.diagnose.runs.run_folder import Recording
from torchtriage.diagnose.runs.threads import rival_threads

SOURCE = """\
class Product(torch.autograd.Function):
    def backward(ctx, grad):
        index = ctx.index.tolist()
        return grad[index]

def clip(grad):
    return grad.clamp(-1, 1)

def block(x):
    return layer(x)

def spin():
    while True:
        count = count + 1

for batch in loader:
    loss = model(batch)
    loss.backward()
    optimizer.step()
"""
ENGINE = ("torch/_tensor.py:Tensor.backward", "torch/autograd/graph.py:_engine_run_backward")
FORWARD = ("torch/nn/modules/module.py:Module._call_impl",)
IN_FUNCTION, IN_HOOK = ("torch/autograd/function.py:BackwardCFunction.apply",), ()
AGAIN = (
    "torch/utils/checkpoint.py:_checkpoint_hook.<locals>.unpack_hook",
    "torch/utils/checkpoint.py:_checkpoint_without_reentrant_generator.<locals>.recompute_fn",
)


def steps(folder: Path, below: tuple[str, ...], inner: str, n: int = 40) -> SamplesBuilder:
    """Return steps of 10 ms of which 6 are spent in a backward pass, 4 of them in Python of its thread."""
    built = SamplesBuilder(folder, SOURCE)
    built.step()
    for _ in range(n):
        built.look("loss = model(batch)", below=FORWARD, ms=4)
        built.look("loss.backward()", below=ENGINE, ms=2)
        built.look("loss.backward()", below=ENGINE, ms=4)
        built.between(below=below, inner=inner, thread=OTHER)
        built.step()
    return built


@pytest.mark.parametrize(
    ("below", "inner", "line"),
    [(IN_FUNCTION, "index = ctx", 3), (IN_HOOK, "return grad.clamp", 7), (AGAIN, "return layer", 10)],
)
def test_the_python_of_a_backward_pass_is_the_loops_own(
    tmp_path: Path, below: tuple[str, ...], inner: str, line: int
) -> None:
    built = steps(tmp_path, below, inner)
    loop = built.loop(boundary="optimizer.step()", operators=0.9)
    assert loop is not None
    assert list(rival_threads(loop, built.samples(), built.view, 10.0)) == []
    lines = {row.line: row.share for row in step_account(loop, built.samples(), 10.0).lines}
    assert lines == pytest.approx({17: 0.4, 18: 0.2, line: 0.4})
    assert any(
        finding.place.frame and finding.place.frame.line == line for finding in hot_lines(loop, built.view, 10.0)
    )


def test_a_thread_of_the_programs_own_stays_a_rival_in_a_backward_pass(tmp_path: Path) -> None:
    built = steps(tmp_path, ("threading.py:Thread._bootstrap",), "count = count + 1")
    loop = built.loop(boundary="optimizer.step()", operators=0.9)
    assert loop is not None
    assert {row.line for row in step_account(loop, built.samples(), 10.0).lines} == {17, 18}


def test_a_thread_that_is_seen_now_and_then_was_away_in_between(tmp_path: Path) -> None:
    built = steps(tmp_path, ("threading.py:Thread._bootstrap",), "count = count + 1")
    looks = built.samples().others[OTHER]
    assert sum(look.ns for look in looks[1:]) == 39 * 4_000_000
    loop = built.loop(boundary="optimizer.step()", operators=0.9)
    assert loop is not None
    assert list(rival_threads(loop, built.samples(), built.view, 10.0)) == []


def test_what_is_computed_again_in_autograds_thread_is_a_part_of_the_pass(tmp_path: Path) -> None:
    built = steps(tmp_path, AGAIN, "return layer")
    samples = built.samples()
    samples.torch["memory"] = 64 << 30
    built.resident(100)
    loop = built.loop(boundary="optimizer.step()", operators=0.9)
    assert loop is not None
    recording = Recording({}, {}, None, None)
    (finding,) = backward_passes(recording, samples, loop, built.view, 10.0)
    assert finding.code == CODES[1].code
    assert finding.evidence["share_of_step"] == pytest.approx(0.4)
