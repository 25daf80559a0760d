"""The flame graph of a step and its folded stacks say the same, and add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder
from tests.diagnose.runs.test_account import SOURCE, steps

from torchtriage.diagnose.runs.account import step_account
from torchtriage.diagnose.runs.flame import flame_bars, folded


def test_bars_and_folded_stacks_add_up_to_the_step(tmp_path: Path) -> None:
    built = steps(SamplesBuilder(tmp_path, SOURCE))
    loop = built.loop(boundary="optimizer.step()", operators=0.4)
    assert loop is not None
    account = replace(step_account(loop, built.samples(), 20.0), flame=flame_bars(loop))
    top = [bar for bar in account.flame if bar.depth == 0]
    assert sum(bar.share for bar in top) == pytest.approx(1.0)
    assert [(bar.name, round(bar.share, 3)) for bar in top] == [
        ("<module> train.py:15", 0.4),
        ("<module> train.py:16", 0.4),
        ("<module> train.py:18", 0.2),
    ]
    lines = dict(line.rsplit(" ", 1) for line in folded(account))
    assert {stack: int(us) for stack, us in lines.items()} == {
        "<module> train.py:15;clean train.py:7": 8000,
        "<module> train.py:16;torch.nn.modules.module._call_impl": 8000,
        "<module> train.py:18;save train.py:10;torch.serialization.save": 4000,
    }
