"""How often leak verdicts are right, how soon, and what the watch costs.

``python benchmarks/leaks.py series [--n 200]``: simulated series, no torch; ``recorded DIR``: those
of ``benchmarks/leak_series.py`` (``.npz``) or with a ``.json`` of truth beside each ``.csv``;
``programs [--seeds 6]``: the planted programs of ``tests/memory/leaky``, 200 steps each (torch);
``reported [--steps 3000]``: leaks that people reported, and what was none (torch);
``limits``: bytes per step against steps until it is told, of a list and of C, in a loop that logs (torch);
``cost [--steps 4000]``: a 5 ms step with and without the watch, in turns (torch).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from torchtriage.memory.leaks.growth_test import first_alarm  # noqa: E402

MIB = 1 << 20


def simulated(n: int, scale: float) -> Iterator[tuple[str, bool, int, np.ndarray, np.ndarray]]:
    """Yield kind, whether it leaks, onset, steps and bytes; ``scale`` multiplies the steps."""
    for seed in range(n):
        for kind in (*LEAKS, *HEALTHY):
            rng = np.random.default_rng([seed, len(kind), ord(kind[0]), ord(kind[-1])])
            step = np.arange(0, 6000, 4.0)
            base = rng.uniform(50, 4000) * MIB
            creep = 4096 * np.cumsum(rng.random(len(step)) < rng.uniform(0, 0.02))
            spiky = rng.random(len(step)) < rng.uniform(0, 0.05)
            spikes = np.where(spiky, rng.exponential(MIB, len(step)), 0)
            start = rng.uniform(0, 8) * MIB * (1 - np.exp(-step / rng.uniform(3, 200)))
            more, onset = (LEAKS.get(kind) or HEALTHY[kind])(step, rng)
            values = base + creep + spikes + start + more
            yield kind, kind in LEAKS, int(onset * scale), step * scale, values // 4096 * 4096


def _rate(rng: np.random.Generator) -> float:
    return float(2 ** rng.uniform(8, 15))


def _late(step: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    onset = rng.uniform(500, 2900)
    return _rate(rng) * np.maximum(step - onset, 0), onset


def _jumps(step: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    at = np.sort(rng.uniform(0, 6000, rng.integers(1, 4)))
    return sum(np.where(step > one, rng.uniform(1, 20) * MIB, 0) for one in at), 0


def _ramp(step: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    return _rate(rng) * np.minimum(step, rng.uniform(100, 2100)), 0


def _fill(step: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    return rng.uniform(1, 30) * MIB * (1 - np.exp(-step / rng.uniform(50, 700))), 0


def _late_fill(step: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    from_, length = rng.uniform(0, 4500), rng.uniform(50, 1500)
    return _rate(rng) * np.clip(step - from_, 0, length), 0


def _saw(step: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(500, 8000) * (step % rng.uniform(40, 900))


def _slow_noise(step: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    more, now, size = np.empty(len(step)), 0.0, rng.uniform(1e4, 3e5)
    for index, shock in enumerate(rng.normal(0, size, len(step))):
        now = 0.98 * now + shock
        more[index] = now
    return more, 0


def _slow_swing(step: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    period, phase = 2 ** rng.uniform(np.log2(1500), np.log2(12000)), rng.uniform(0, 2 * np.pi)
    return rng.uniform(1, 30) * MIB * (1 + np.sin(2 * np.pi * step / period + phase)), 0


def _emptied(step: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return what climbs until it is emptied, with no memory of when it was emptied last."""
    gaps = rng.exponential(rng.uniform(500, 1000), 1000)
    at = np.concatenate([[0.0], np.cumsum(gaps)])
    return rng.uniform(500, 8000) * (step - at[np.searchsorted(at, step, side="right") - 1]), 0


LEAKS = {
    "steady": lambda step, rng: (_rate(rng) * step, 0),
    "late": _late,
    "intermittent": lambda step, rng: (np.cumsum(np.where(rng.random(len(step)) < 0.08, 50 * _rate(rng), 0)), 0),
    "under a sawtooth": lambda step, rng: (max(2000.0, _rate(rng)) * step + _saw(step, rng), 0),
    "under a swing": lambda step, rng: (
        max(4000.0, _rate(rng)) * step + rng.uniform(1, 6) * MIB * np.sin(step / rng.uniform(20, 150)),
        0,
    ),
}
HEALTHY = {
    "nothing": lambda step, rng: (0 * step, 0),
    "ramp at the start": _ramp,
    "cache that fills": _fill,
    "late cache": _late_fill,
    "sawtooth": lambda step, rng: (_saw(step, rng), 0),
    "load swing": lambda step, rng: (
        rng.uniform(1, 30) * MIB * (1 + np.sin(step / rng.uniform(20, 500) + rng.uniform(0, 6))),
        0,
    ),
    "load steps": lambda step, rng: (np.repeat(rng.uniform(0, 30, 30) * MIB, len(step) // 30), 0),
    "a few jumps": _jumps,
    "slow noise": _slow_noise,
    # what the verdict is weakest on; no program is known to walk at random
    "slow swing": _slow_swing,
    "emptied at random": _emptied,
    "random walk": lambda step, rng: (np.cumsum(rng.normal(0, rng.uniform(1e3, 1e5), len(step))), 0),
}


def series(n: int) -> None:
    """Print both error rates and the delay on simulated series, at three scales of steps."""
    for scale in (0.1, 1.0, 3.0):
        right: dict[str, list[bool]] = defaultdict(list)
        delay: dict[str, list[float]] = defaultdict(list)
        for kind, leak, onset, step, values in simulated(n, scale):
            verdict = first_alarm(step, values, every_steps=max(int(200 * scale), 1), patience_steps=int(2800 * scale))
            right[kind].append(verdict.leak == leak)
            if leak and verdict.leak:
                delay[kind].append((verdict.at_step - onset) / scale)
        print(f"steps x {scale:g}: {n} series of each kind")
        for kind, one in right.items():
            what = "found" if kind in LEAKS else "quiet"
            late = f", delay {np.median(delay[kind]):.0f} steps" if delay[kind] else ""
            print(f"  {kind:20} {what} {sum(one)}/{len(one)}{late}")


def recorded(folder: Path) -> None:
    """Print the verdict on each recorded series, and both error rates."""
    right: dict[str, list[bool]] = defaultdict(list)
    for file in sorted([*folder.glob("*.csv"), *folder.glob("*.npz")]):
        if file.suffix == ".csv":
            truth: dict[str, Any] = json.loads(file.with_suffix(".json").read_text())
            rows = np.genfromtxt(file, delimiter=",", names=True)
            columns = rows["step"], rows["rss_bytes"], rows["py_objects"]
            kind, leak, onset = truth["kind"], truth["leak"], truth["onset_step"] or 0
        else:
            loaded = np.load(file)
            columns = loaded["step"], loaded["bytes"], loaded["objects"]
            kind, leak, onset = str(loaded["kind"]), bool(loaded["leak"]), int(loaded["onset"])
        verdict = first_alarm(*columns)
        right[f"{'leak' if leak else 'healthy'} {kind}"].append(verdict.leak == leak)
        delay = f"after {verdict.at_step - onset} steps" if verdict.leak else ""
        mark = " " if verdict.leak == leak else "!"
        print(f"{mark} {file.name:24} {kind:16} {verdict.answer:9} {verdict.by:8} {delay}")
    for kind, one in sorted(right.items()):
        print(f"{kind:28} right {sum(one)}/{len(one)}")


def programs(n_seeds: int) -> None:
    """Print how many planted leaks are found, with their line, and how many runs stay quiet."""
    import torch
    from memory.leaky import healthy, leaks

    from torchtriage.memory.leaks.leak_watch import watch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = Path(str(leaks.__file__)).read_text().splitlines()
    total = {"found": 0, "named": 0, "leaks": 0, "quiet": 0, "healthy": 0}
    found_at = []
    for program in (*leaks.LEAKS, *healthy.HEALTHY):
        planted = program in leaks.LEAKS
        slow = program.__name__ in ("compiled_anew", "worker_cache", "traced_by_shape")
        for seed in range(min(n_seeds, 2) if slow else n_seeds):
            torch.manual_seed(seed)
            began = time.perf_counter()
            with watch() as one:
                program(one, random.Random(seed), 200)
            report = one.report()
            named = any(
                leak.file == leaks.__file__ and leak.line and lines[leak.line - 1].endswith("# HOLDS")
                for leak in report.leaks
            )
            if planted:
                total["leaks"] += 1
                total["found"] += report.answer == "leak"
                total["named"] += named
                found_at += [leak.found_step for leak in report.leaks[:1]]
            else:
                total["healthy"] += 1
                total["quiet"] += report.answer == "no leak"
            wrong = (report.answer == "leak") != planted or (planted and not named)
            print(
                f"{'!' if wrong else ' '} {program.__name__:26} seed {seed} {report.answer:9}"
                f" {time.perf_counter() - began:5.1f} s, own {report.own_s * 1e3:.0f} ms"
                f" {[leak.sentence for leak in report.leaks] if wrong else ''}",
                flush=True,
            )
    print(
        f"leaks: found {total['found']}/{total['leaks']}, line named {total['named']}"
        f"/{total['leaks']}, after {np.median(found_at):.0f} steps (median; most"
        f" {max(found_at)}); healthy: quiet {total['quiet']}/{total['healthy']}"
    )


def reported(n_steps: int) -> None:
    """Print for both halves of the reported cases what is found, and whether its holder and its line are right."""
    from memory.leaky import reported, reported_healthy  # noqa: F401, each adds its own
    from memory.leaky.cases import CASES

    total: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for case in CASES:
        name, count = case.run.__name__, total[case.held_out]
        leaks = _in_a_process("reported", name, n_steps)
        held = [leak for leak in leaks if leak["holder"]]
        named = any(_is_named(leak["holder"], case.holder) for leak in held)
        line = any(leak["holds"] for leak in leaks)
        count["leaks" if case.leaks else "healthy"] += 1
        count["found" if case.leaks else "false alarms"] += bool(leaks)
        if case.holder:
            count.update({"with a holder": 1, "holder found": bool(leaks), "named": named, "line": line})
        right = bool(leaks) == case.leaks and (not case.holder or (named and line))
        if not (right or case.held_out):  # nobody looks at the other half
            print(f"! {name}: {leaks}", flush=True)
    for held_out, count in total.items():
        print("held out" if held_out else "open", dict(count))


def _is_named(holder: str, names: tuple[str, ...]) -> bool:
    # what is indexed is the same holder
    return any(re.fullmatch(rf"(.*\.)?{re.escape(name)}(\[[^\]]*\])?", holder) for name in names)


def limits(n_steps: int) -> None:
    """Print after how many steps a leak of so many bytes per step is told."""
    for kind in ("list", "native"):
        for size in (64, 128, 256, 512, 4096, 65536):
            told = _in_a_process("limits", f"{kind} {size}", n_steps)
            print(f"{kind:7} {size:6} {[(leak['kind'], leak['found_step']) for leak in told]}", flush=True)


def leak_of(kind: str, size: int, watch: Any, n_steps: int) -> None:
    """Run a loop that logs its loss and leaks so many bytes in each step."""
    import torch
    from memory.leaky import cases
    from memory.leaky import reported as programs

    model, kept, losses = cases.mlp(), [], []
    optimizer = cases.sgd(model)
    for _ in range(n_steps):
        losses.append(cases.fit(model, optimizer, torch.randn(16, 32)).item())
        if kind == "list":
            kept.append(bytes(size - sys.getsizeof(b"")))
        else:
            programs.ctypes.memset(programs.libc.malloc(size), 1, size)
        watch.step()


def _in_a_process(what: str, name: str, n_steps: int) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "one", "--what", what, "--name", name, "--steps", str(n_steps)]
    told = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return json.loads(told.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def one(what: str, name: str, n_steps: int) -> None:
    """Run one program in this process and print the leaks that were told, as JSON."""
    import torch
    from memory.leaky import cases, reported_healthy  # noqa: F401, it adds its own
    from memory.leaky import reported as programs

    from torchtriage.memory.leaks.leak_watch import watch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with watch(on_alarm=lambda _: None) as watched:
        if what == "limits":
            kind, size = name.split()
            leak_of(kind, int(size), watched, n_steps)
        else:
            (case,) = [case for case in cases.CASES if case.run.__name__ == name]
            case.run(watched, random.Random(0), n_steps)
    lines = Path(str(programs.__file__)).read_text().splitlines()
    rows = [vars(leak) for leak in watched.report().leaks]
    for row in rows:
        ours = row["file"] == programs.__file__ and row["line"]
        row["holds"] = bool(ours and "# HOLDS" in lines[row["line"] - 1])
    print(json.dumps(rows))


def cost(n_steps: int) -> None:
    """Print what a watched step of about 5 ms costs more, in blocks of 50 steps taken in turns."""
    import torch

    from torchtriage.memory.leaks.leak_watch import Watch

    torch.set_num_threads(1)
    layers = [torch.nn.Linear(256, 256) for _ in range(8)]
    model = torch.nn.Sequential(*[one for layer in layers for one in (layer, torch.nn.ReLU())])
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 256)

    def step() -> None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(50):
        step()
    watch = Watch()
    cpu: dict[bool, list[float]] = {False: [], True: []}
    for block in range(n_steps // 25):
        watched = bool(block % 2)
        began = time.thread_time()
        for _ in range(50):
            step()
            if watched:
                watch.step()
        cpu[watched].append((time.thread_time() - began) / 50)
    plain, more = (np.array(cpu[one]) for one in (False, True))
    report = watch.report()
    own = report.own_s / report.n_steps
    print(
        f"step {np.median(plain) * 1e3:.2f} ms of CPU; watched {np.median(more) * 1e3:.2f} ms"
        f" (mean {plain.mean() * 1e3:.2f} and {more.mean() * 1e3:.2f}); own time in"
        f" {report.n_steps} steps {report.own_s * 1e3:.0f} ms = {own * 1e6:.1f} us per step ="
        f" {own / plain.mean():.2%}, {report.n_looks} looks"
    )
    began = time.perf_counter()
    watch._due = sys.maxsize
    for _ in range(1_000_000):
        watch.step()
    print(f"a step that is not looked at: {(time.perf_counter() - began) * 1e3:.0f} ns")


def main() -> None:
    """Run what the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("series", "recorded", "programs", "reported", "limits", "cost", "one"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--what", dest="of", default="")
    parser.add_argument("--name", default="")
    args = parser.parse_args()
    if args.what == "series":
        series(args.n)
    elif args.what == "recorded":
        recorded(args.folder)
    elif args.what == "programs":
        programs(args.seeds)
    elif args.what == "one":
        one(args.of, args.name, args.steps)
    elif args.what == "reported":
        reported(args.steps or 3000)
    elif args.what == "limits":
        limits(args.steps or 4000)
    else:
        cost(args.steps or 4000)


if __name__ == "__main__":
    main()
