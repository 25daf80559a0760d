"""Sessions as child processes would answer, without torch: step times, warm-up, disturbances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.measure.bench.checkpoint import Checkpoint
from torchtriage.measure.bench.measurements import Measurements
from torchtriage.measure.bench.plan import BenchPlan, settings
from torchtriage.measure.bench.result import Setting

MS = 1_000_000
OPENED = {
    "import_s": 1.0,
    "build_s": 0.1,
    "dtype": "float32",
    "device": "cpu",
    "takes": [],
    "device_total_bytes": None,
    "facts": {"torch": "2.13.0", "threads": "2"},
}
NUMBERS = {"error": 3e-7, "eager_error": 3e-7, "low_error": 4e-3, "worst": 1e-6, "eager_worst": 1e-6, "cosine": 1.0}
COMPILING = {
    "graphs": 1,
    "graph_breaks": 0,
    "recompiles": 0,
    "reasons": [],
    "phases": {"capture": 1.0, "autograd and graph passes": 0.5, "lowering": 2.0, "code and kernels": 6.0},
}


class TargetClient:
    """A session that says what the target is, and measures nothing; ``sources`` : known after its first step."""

    sources: Mapping[str, str] = {}

    def __init__(self, *_given: object) -> None:
        self.asked: list[str] = []

    def __enter__(self) -> TargetClient:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def ask(self, what: str, _timeout_s: float, **_how: object) -> Any:
        self.asked.append(what)
        if what == "sources":
            assert "first" in self.asked
            return self.sources
        return OPENED


def plan(modes: Sequence[str] = ("eager", "default"), **more: Any) -> BenchPlan:
    chosen = {name: more.pop(name) for name in ("backends", "batch_sizes", "dynamic", "dtypes") if name in more}
    return BenchPlan("models.py:linear", settings(modes, **chosen), **more)


def cold(first_ms: float, step_ms: float, verdict: str = "rounding", **more: Any) -> dict[str, Any]:
    out = {
        "open": OPENED,
        "first": {"ns": int(first_ms * MS), "compiling": COMPILING},
        "warm_up": [int(step_ms * MS)] * 20,
        "finish": {"compiling": COMPILING, "memory": {"host_now_peak_bytes": 200 << 20}},
        "peak": 400 << 20,
        "numerics": {
            "verdict": verdict,
            "of": "outputs",
            "reference": "eager in float64",
            "worst_at": "output[0]",
            "reason": "",
            **NUMBERS,
        },
    }
    return out | more


def session(times_ms: Sequence[Sequence[float]], first_ms: float = 50.0) -> dict[str, Any]:
    """Return one warm session whose blocks took these times."""
    blocks = [[int(one * MS) for one in block] for block in times_ms]
    level = blocks[0][0]
    return {
        "open": OPENED,
        "first": {"ns": int(first_ms * MS), "compiling": COMPILING},
        "warm_up": [level] * 20,
        "peak": 300 << 20,
        "finish": {"compiling": COMPILING, "memory": {"host_now_peak_bytes": 200 << 20}},
        "blocks": [{"ns": one, "wall_ns": sum(one), "cpu_ns": sum(one)} for one in blocks],
    }


def measured(
    of: BenchPlan,
    step_ms: Mapping[Setting, float],
    rng: np.random.Generator,
    *,
    rounds: int = 5,
    n_blocks: int = 10,
    n: int = 10,
    noise: float = 0.02,
    between: float = 0.004,
) -> Measurements:
    """Return a benchmark: what disturbs a turn disturbs all settings; sessions differ a little."""
    out = Measurements(of, OPENED)
    for setting in of.settings:
        first = 3.0 if setting.mode == "eager" else 20_000.0
        out.cold[setting.key] = cold(first, step_ms[setting])
    for number in range(1, rounds + 1):
        together = np.exp(np.abs(rng.normal(0, 0.1, n_blocks)) * (rng.random(n_blocks) < 0.4))
        out.rounds[number] = {}
        for setting in of.settings:
            level = step_ms[setting] * np.exp(rng.normal(0, between))
            times = level * together[:, None] * (1 + noise * rng.gamma(1.0, 1.0, (n_blocks, n)))
            first = 3.0 if setting.mode == "eager" else 2_000.0
            out.rounds[number][setting.key] = session(times.tolist(), first)
    return out


def filled(folder: Path, found: Measurements) -> None:
    """Write everything into a folder, as the sessions would have."""
    store = Checkpoint(folder, found.plan)
    store.write("check.json", found.opened)
    for key, one in found.cold.items():
        store.write(f"cold/{key}.json", one)
    for number, sessions in found.rounds.items():
        store.write(f"rounds/{number}.0.json", {"together": True, "sessions": sessions})
