"""What says why stands before what says only that time is lost, and tells what it explains of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import TraceBuilder
from tests.diagnose.runs.samples_builder import SamplesBuilder
from tests.diagnose.runs.test_sampled import checked, finding

from torchtriage.diagnose.runs.source_hints import with_source

OPTIMIZER = """\
import torch

class Plain:
    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr

    @torch.no_grad()
    def step(self):
        for p in self.params:
            p.sub_(self.lr * p.grad)

def main(model, loader, device):
    opt = Plain(model.parameters(), 1e-3)
    for batch in loader:
        loss = model(batch).mean()
        loss.backward()
        opt.step()
        end()

main(model, loader, device)
"""
TRACE = TraceBuilder()
TRACE.launch(0, 1, 2, 3)
OP = "torch/nn/modules/module.py:Module._call_impl"


@pytest.mark.parametrize(("looks", "order"), [(6, ["LCH016", "LCH014"]), (1, ["LCH014", "LCH016"])])
def test_the_loop_that_launches_so_much_stands_before_the_slow_launches(
    tmp_path: Path, looks: int, order: list[str]
) -> None:
    built = SamplesBuilder(tmp_path, OPTIMIZER)
    for _ in range(40):
        for at in range(10):
            if at < looks:
                built.look("main(model", "opt.step()", "p.sub_(", ms=1)
            else:
                built.look("main(model", "loss = model", below=(OP,), ms=1)
        built.step()
    by_code = checked(built, finding("LCH014", 0.9, 10.0), of_ms=10.0, traces=[TRACE.build()])
    assert [code for code in by_code if code in order] == order
    assert f"of this LCH016 at train.py:9 explains {looks:.2f} ms" in by_code["LCH014"].message


FENCE = """\
import torch

def main(slots, model):
    for batch in slots:
        batch.done.synchronize()
        model(batch.rows)
        end()

main(slots, model)
"""


@pytest.mark.parametrize(("judged", "told"), [(("SYN003",), False), ((), True)])
def test_a_wait_that_the_recording_has_judged_is_not_told_again(
    tmp_path: Path, judged: tuple[str, ...], told: bool
) -> None:
    built = SamplesBuilder(tmp_path, FENCE)
    for _ in range(20):
        built.look("main(slots", "batch.done.sync", ms=4)
        built.step()
    found = with_source([], built.samples(), [str(tmp_path)], on_device=True, judged=judged, timed=(), view=built.view)
    assert ("SYN003" in {finding.code for finding in found}) == told
