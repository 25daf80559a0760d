"""Agreement of readers is Cohen's kappa of what they say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtriage_benchmark.devices.agreement import agreements, kappa, pairs


def label(state: str, *faults: dict[str, Any]) -> dict[str, Any]:
    return {"state": state, "faults": list(faults)}


def fault(code: str, *accepted: str, intervals: Any = ()) -> dict[str, Any]:
    return {"code": code, "or": list(accepted), "intervals": list(intervals)}


def test_kappa_is_cohens() -> None:
    # the textbook's table: 20 and 15 alike, 5 and 10 not
    answers = [(("a",), ("a",))] * 20 + [(("b",), ("b",))] * 15 + [(("a",), ("b",))] * 5 + [(("b",), ("a",))] * 10
    assert kappa(answers) == pytest.approx((0.7, 0.4))
    assert np.isnan(kappa([(("a",), ("a",))] * 3)[1])
    assert np.isnan(kappa([])[0])


def test_a_recording_that_one_reader_alone_labelled_is_left_out() -> None:
    first, second, third = {"d0000": label("healthy"), "d0001": label("faulty")}, {"d0000": label("faulty")}, {}
    assert [*pairs([first, second, third])] == ["d0000"]


def test_a_code_that_either_accepts_counts_as_agreement_beside_the_exact_one() -> None:
    both = {
        "d0000": (label("faulty", fault("LCH014", "HST020")), label("faulty", fault("HST020"))),
        "d0001": (label("faulty", fault("CPY007")), label("faulty", fault("CPY008", "CPY007"))),
        "d0002": (label("faulty", fault("KRN022")), label("faulty", fault("KRN025"))),
        "d0003": (label("healthy"), label("faulty", fault("KRN025"))),
    }
    state, exact, accepted = agreements(both, None)
    assert (state.n, state.share) == (4, 0.75)
    assert (exact.n, exact.share) == (3, 0)
    assert (accepted.n, accepted.share) == (3, pytest.approx(2 / 3))
    assert accepted.kappa > exact.kappa


def test_windows_are_those_of_the_recording(tmp_path: Path) -> None:
    rows = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at, "dur": 10.0, "args": {"stream": 7}}
        for at in (0.0, 150.0)
    ]
    (tmp_path / "d0000.recording").write_bytes(gzip.compress(json.dumps({"traceEvents": rows}).encode()))
    one = label("faulty", fault("LCH014", intervals=[[10_000, 90_000]]))
    two = label("faulty", fault("LCH014", intervals=[[10_000, 50_000]]))
    *_, windows, ill = agreements({"d0000": (one, two), "d0001": (one, two)}, tmp_path)
    assert windows.asked == "windows"
    assert (windows.n, windows.share) == (ill.n, ill.share) == (1, 0.75)
