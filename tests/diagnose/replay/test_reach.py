"""What edits reach: looked up once for each array of rows, however many scenarios ask."""

from __future__ import annotations

import numpy as np
import pytest
from diagnose.replay import programs

from torchtriage.core.trace import Kind
from torchtriage.diagnose.replay.edits import Edit
from torchtriage.diagnose.replay.predict import ReplayModel
from torchtriage.diagnose.replay.reach import Reach


def test_rows_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = programs.host_bound(steps=3)
    rows = np.flatnonzero(trace.is_kind(Kind.OP))
    asked: list[int] = []
    look_up = Reach.stretch
    monkeypatch.setattr(Reach, "stretch", lambda *given: asked.append(1) or look_up(*given))
    model = ReplayModel(trace)
    first = model.scenario([Edit("shrink", rows, 0.5)])
    n_lanes = len(asked)
    again = model.scenario([Edit("shrink", rows, 0.5)])
    assert len(asked) == n_lanes > 0
    assert first.node.tolist() == again.node.tolist()
    assert first.left.tolist() == again.left.tolist()


def test_what_edits_need_is_found_again_after_it_was_let_go() -> None:
    trace = programs.host_bound(steps=3)
    edits = [Edit("shrink", np.flatnonzero(trace.is_kind(Kind.OP)), 0.5)]
    model = ReplayModel(trace)
    first = model.predict(edits)
    model.release()
    assert "_ordered" not in vars(model)
    assert model.predict(edits) == first
