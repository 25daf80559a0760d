"""What looking at the stacks costs a program: whole runs with and without it, in turns.

    python benchmarks/run_cost.py [--rounds 10]

Three loops of about two seconds each: many small operators, plain Python, and few large operators. Nothing is recorded
and nothing is timed by the recorder; both runs have the same hooks. Prints the median of the paired ratios of the
loop's CPU and wall time, and the quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import quantiles

from torchtriage.core.record.launch import find_command, launch

HEAD = """
import sys, time, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
small, large = torch.randn(8, 64), torch.randn(700, 700)
def step(kind):
    if kind == "python":
        table = {}
        for i in range(20_000):
            table[i % 97] = table.get(i % 97, 0) + len(str(i))
    if kind == "large":
        for _ in range(4):
            large @ large
    loss = model(small).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
kind = sys.argv[1]
for _ in range(5): step(kind)
wall, cpu = time.perf_counter(), time.thread_time()
n = {"small": 1500, "python": 300, "large": 60}[kind]
for _ in range(n): step(kind)
print((time.perf_counter() - wall) / n, (time.thread_time() - cpu) / n, file=open(sys.argv[2], "w"))
"""
NOTHING = {"early_light": 0, "early_heavy": 0, "timing_steps": 0, "light": 0, "heavy": 0}


def times(script: Path, kind: str, sample: bool) -> tuple[float, float]:
    """Return wall and CPU seconds of a step."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "times"
        command = find_command([str(script), kind, str(result)])
        out = Path(scratch) / "run"
        out.mkdir()
        launch(command, out, plan=NOTHING, sample=sample)
        wall, cpu = map(float, result.read_text().split())
    return wall, cpu


def main() -> None:
    """Run the pairs and print what they say."""
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=10)
    rounds = options.parse_args().rounds
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "loop.py"
        script.write_text(HEAD)
        for kind in ("small", "python", "large"):
            ratios: list[tuple[float, float]] = []
            step_ms = 0.0
            for number in range(rounds):
                order = (True, False) if number % 2 else (False, True)
                seen = {sample: times(script, kind, sample) for sample in order}
                ratios.append((seen[True][0] / seen[False][0], seen[True][1] / seen[False][1]))
                step_ms = seen[False][0] * 1e3
            wall, cpu = (quantiles(values, n=4) for values in zip(*ratios, strict=True))
            print(json.dumps({"kind": kind, "step_ms": round(step_ms, 3), "wall": wall, "cpu": cpu}))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
