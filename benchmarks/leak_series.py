"""Records memory series of loops that leak and loops that only look as if, each in a fresh process.

``python benchmarks/leak_series.py OUT_DIR --seeds 10 [--kinds py,none]`` (needs torch) writes one
``.npz`` per run: ``step, bytes, objects`` every 4th step (objects every 200th, else nan), and what
is true: ``leak, kind, onset, rate``. ``benchmarks/leaks.py`` judges them.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np

N_STEPS = 6000
LEAKS = ("py", "tensor", "graph", "intermittent", "py_late", "tensor_late", "pieces", "tuples")
HEALTHY = (
    "cache_bounded",
    "cache_lru",
    "cycles",
    "load_swing",
    "fragmentation",
    "slow_warm",
    "none",
    "two_caches",
    "logging",
    "diurnal",
    "saturating",
)
RATES = (64, 128, 256, 512, 1024, 4096, 16384)


def record(kind: str, seed: int) -> dict[str, np.ndarray]:
    """Run one loop in this process and return its series and what is true of it."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = random.Random(f"{kind}{seed}")
    rate = rng.choice(RATES)
    size = rng.choice((1, 4, 16))
    limit = rng.choice((50, 400, 1000, 2000))  # all come to rest by step 2,100
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept: list[object] = []
    cache: OrderedDict[int, object] = OrderedDict()
    other: dict[int, object] = {}
    onset = N_STEPS // 2 if kind.endswith("late") else 0
    page, rows = os.sysconf("SC_PAGE_SIZE"), np.full((N_STEPS // 4, 3), np.nan)
    total = 0.0
    for step in range(N_STEPS):
        batch = 8
        if kind == "load_swing":
            batch = int(8 + 64 * (step // 700 % 2) + rng.randrange(16))
        elif kind == "diurnal":
            batch = int(40 + 32 * np.sin(step / 500))
        loss = model(torch.randn(batch, 32)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        match kind:
            case "py" | "py_late":
                if step >= onset:
                    kept.append(bytes(rate))
            case "tuples":
                kept.append([step + 0.5] * (rate // 16))
            case "tensor" | "tensor_late":
                if step >= onset:
                    kept.append(torch.zeros(rate // 4))
            case "graph":
                if step % max(1, 32768 // rate) == 0:
                    kept.append(model(torch.randn(16, 32)).sum())
            case "intermittent":
                if rng.random() < 0.02:
                    kept.append(bytearray(50 * rate))
            case "pieces":
                kept.append({str(step + k): k for k in range(max(1, rate // 128))})
            case "cache_bounded":
                if len(cache) < limit:
                    cache[step] = bytearray(size * 700)
            case "cache_lru":
                cache[rng.randrange(limit)] = bytearray(size * 700)
                if len(cache) > limit / 2:
                    cache.popitem(last=False)
            case "two_caches":
                if len(cache) < 300:
                    cache[step] = bytearray(size * 700)
                elif step > 2000 and len(other) < 300:
                    other[step] = torch.zeros(size * 200)
            case "saturating":
                key = int(rng.expovariate(1 / 100))
                cache.setdefault(key, bytearray(size * 700))
            case "cycles":
                ring: list[object] = [bytearray(size * 2000)]
                ring.append(ring)
            case "fragmentation":
                kept.append(bytearray(rng.randrange(64, 60000)))
                if len(kept) > 60:
                    kept.pop(rng.randrange(60))
            case "slow_warm":
                if step < limit:
                    kept.append(bytearray(size * 900))
            case "logging":
                if step % 500 == 0:
                    kept.append({"step": step, "loss": total / (step + 1)})
        if step % 4 == 0:
            row = rows[step // 4]
            row[0] = step
            with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
                row[1] = int(file.read().split()[1]) * page
            if step % 200 == 0:
                row[2] = len(gc.get_objects())
    leak = kind in LEAKS
    return {
        "step": rows[:, 0],
        "bytes": rows[:, 1],
        "objects": rows[:, 2],
        "leak": np.array(leak),
        "kind": np.array(kind),
        "onset": np.array(onset),
        "rate": np.array(rate if leak else 0),
    }


def main() -> None:
    """Record every kind under every seed, one process each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(LEAKS + HEALTHY))
    parser.add_argument("--one", nargs=2, metavar=("KIND", "SEED"))
    args = parser.parse_args()
    if args.one:
        kind, seed = args.one
        np.savez_compressed(args.out / f"{kind}_{seed}.npz", **record(kind, int(seed)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in range(args.first, args.first + args.seeds):
        for kind in args.kinds.split(","):
            if not (args.out / f"{kind}_{seed}.npz").exists():
                subprocess.run([sys.executable, __file__, str(args.out), "--one", kind, str(seed)], check=True)
        print(f"seed {seed}: {len(args.kinds.split(','))} series")


if __name__ == "__main__":
    main()
