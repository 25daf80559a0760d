"""A share of busy time is the file's own, whatever part of it is left: cut copies, and a slow reading of the rows."""

from __future__ import annotations

import gzip
import json
import random
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtriage.core import intervals
from torchtriage.core.trace import Trace, read_trace
from torchtriage.diagnose.verdict.doctor import examine, missing_rows
from torchtriage.diagnose.verdict.verdict import diagnose

pytestmark = pytest.mark.data

WORK = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
CUT = (
    "cv/vit_nsfw_h100_infer.json.gz",
    "llm/qwen1.5-0.5b_h100.json.gz",
    "llm/vllm_decode_full_graph.json.gz",
    "llm/sglang_qwen3-8b_decode.json.gz",
    "batch_sweep/particle_transformer_a100_bs32.json.gz",
    "cv/resnet18_mi300x_ddp_train.json.gz",
)
N_CUTS = 3
POINT = 0.01


def document(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        read: dict[str, Any] = json.load(file)
    return read


def busy_share(trace: Trace, start_ns: int, end_ns: int) -> float:
    return intervals.length(intervals.clip(trace.devices[0].busy, start_ns, end_ns)) / max(end_ns - start_ns, 1)


@pytest.mark.parametrize("side", ["begins later", "ends earlier", "breaks off"])
@pytest.mark.parametrize("name", CUT)
def test_a_cut_copy_agrees_with_the_whole_or_says_that_it_does_not_know(recordings: Path, name: str, side: str) -> None:
    whole = document(recordings / name)
    trace = read_trace(recordings / name)
    events = [event for event in whole["traceEvents"] if event.get("ph") == "X"]
    others = [event for event in whole["traceEvents"] if event.get("ph") != "X"]
    times = sorted(float(event["ts"]) for event in events if event.get("cat") in WORK)
    text = json.dumps(whole).encode()
    chance = random.Random(f"{name} {side}")
    n_judged = 0
    for _ in range(N_CUTS):
        at = times[int(chance.uniform(0.1, 0.9) * len(times))]
        if side == "breaks off":
            cut = text[: int(chance.uniform(0.1, 0.9) * len(text))]
        else:
            # a recorder writes what began and ended while it ran
            begins, ends = (at, times[-1] + 1e12) if side == "begins later" else (0.0, at)
            left = [event for event in events if event["ts"] >= begins and event["ts"] + event.get("dur", 0) <= ends]
            cut = json.dumps({**whole, "traceEvents": others + left}).encode()
        part = read_trace(BytesIO(cut))
        notes = examine(part)
        if any(note.level == "refuse" for note in notes) or missing_rows(notes) or not part.devices:
            continue
        n_judged += 1
        shared = part.window.start_ns, part.window.end_ns
        assert busy_share(part, *shared) == pytest.approx(busy_share(trace, *shared), abs=POINT), at
    assert n_judged or side != "begins later", "all of them were refused: this tests nothing"


def raw_busy_share(whole: dict[str, Any], begin: float | None) -> float:
    """Return the share, row by row: from the first work after ``begin`` (the first event) to the last event."""
    rows = [event for event in whole["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    work = sorted((event["ts"], event["ts"] + event["dur"]) for event in rows if event.get("cat") in WORK)
    host = [event for event in rows if event.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver", "user_annotation")]
    first = min(event["ts"] for event in host)
    start = first if begin is None else min(a for a, _ in work if a >= first + begin)
    end = max([b for _, b in work] + [event["ts"] + event["dur"] for event in host])
    busy, reached = 0.0, start
    for a, b in work:
        busy += max(b - max(a, reached), 0)
        reached = max(reached, b)
    return busy / (end - start)


@pytest.mark.parametrize(
    ("name", "begin_us", "expected"),
    [
        # the file's first work waited for what is not in it; or all but a kernel of 4 us on another stream
        ("traces/llm/vllm_decode_full_graph.json.gz", 0, 0.998),
        ("traces/llm/vllm_prefilldecode_piecewise_graph.json.gz", 0, 0.998),
        ("traces/llm/sglang_qwen3-8b_decode.json.gz", 1_000, 0.935),
        ("gpu2/traces/deepseek-ai__profile-data__train.json.gz", None, 0.99),
    ],
)
def test_the_headline_is_what_the_rows_say(
    recordings: Path, name: str, begin_us: float | None, expected: float
) -> None:
    path = recordings.parent / name
    if not path.exists():
        pytest.skip("not among the recordings here")
    share = raw_busy_share(document(path), begin_us)
    assert share == pytest.approx(expected, abs=POINT)
    trace = read_trace(path)
    classes = trace.devices[0].classes(np.array([trace.window[:2]]))[0]
    busy = (classes.compute_ns + classes.comm_only_ns + classes.copy_only_ns) / classes.wall_ns
    assert busy == pytest.approx(share, abs=POINT)
    result = diagnose(trace)
    assert result.critical_path is not None
    on_device = sum(result.critical_path.shares.get(kind, 0.0) for kind in ("compute", "comm", "copy"))
    assert on_device == pytest.approx(busy, abs=0.04)
