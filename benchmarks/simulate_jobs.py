"""Jobs of many ranks with a known culprit, simulated from the rows of recorded ranks.

    python benchmarks/simulate_jobs.py make OUT --data FOLDER [--jobs 72] [--large 1000]
    python benchmarks/simulate_jobs.py score OUT [dev|held] [--all]

``make`` cuts one step of a recorded rank (Megatron on A100, DLRM on V100) into stretches between its collectives and
runs them again on N ranks: a host that launches, a stream that computes, streams that communicate. A collective begins
on each rank when that rank has come and ends on all at once, after the last has; nothing here knows torchtriage. Each
rank and step has jitter of its own, each host a clock. One fault is put in, the same job is simulated without it (of a
long stage: with the same layers shared out evenly), and the difference of the steps is the true saving. Labels are
written beside the jobs before anything is analysed; half of the jobs are ``held``, by the hash of their name.

The Megatron recording holds a forward pass only: its backward pass is the same rows on the thread of autograd, with
kernels twice as long. Sizes of messages are made up, durations of transfers follow from them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from job_program import Block, Spec, read_blocks
from job_simulation import Simulation

KINDS = ("healthy", "stall", "device", "loader", "link", "stage", "expert")
RECORDINGS = {
    "megatron": "gpu2/jobs/astra-sim__astra-sim__megatron-tp8/rank{}.json.gz",
    "dlrm": "traces/distributed/dlrm_v100_8ranks/worker{}_*.json.gz",
}
MIN_TRUE_SHARE = 0.05
"""A fault that costs less of a step is made stronger: nobody could say what it is."""

# -- the cases -----------------------------------------------------------------------------------

LAYOUTS = {
    # ranks: (tp, pp), the rest is data parallel
    8: ((1, 1), (2, 2), (8, 1), (4, 1)),
    16: ((1, 1), (2, 4), (8, 1), (4, 2)),
    32: ((1, 1), (4, 4), (8, 1), (8, 2)),
    64: ((1, 1), (8, 4), (8, 1), (4, 2)),
    128: ((1, 1), (8, 4), (8, 1)),
    256: ((8, 4), (1, 1)),
    1000: ((8, 1), (1, 1)),
}
SIZES = (8, 8, 8, 8, 16, 16, 16, 32, 32, 64)


def cases(n_jobs: int, large: int, seed: int) -> list[Spec]:
    """Return the jobs; their strengths are found by simulation."""
    out = []
    for number in range(n_jobs):
        rng = np.random.default_rng([seed, number])
        kind = ("stall", "device", "loader", "link", "stage", "expert", "healthy")[number % 7]
        world = SIZES[int(rng.integers(len(SIZES)))]
        if large and number >= n_jobs - 2:
            world, kind = large, ("stall", "healthy")[n_jobs - 1 - number]
        tp, pp = LAYOUTS[world][int(rng.integers(len(LAYOUTS[world])))] if world in LAYOUTS else (1, 1)
        if kind == "stage" and pp == 1:
            tp, pp = (2, 2) if world == 8 else (world // 8 if world <= 64 else 8, 4)
        ep = 1
        if kind == "expert" or (kind in ("healthy", "stall") and rng.random() < 0.2):
            tp, pp = (1 if world <= 8 else 2, 1)
            ep = min(8, world // tp)
        dp = world // tp // pp
        base = "dlrm" if tp == pp == ep == 1 else "megatron"
        device_bound = kind in ("device", "expert", "stage") or rng.random() < 0.4
        scale = (20.0 if base == "dlrm" else 2.0) if device_bound else 1.0
        spec = Spec(
            f"job{number:03d}_{world}",
            base,
            tp,
            dp,
            pp,
            ep,
            n_steps=int(rng.integers(6, 9)) if world < 256 else 6,
            kernel_scale=scale * float(rng.uniform(0.9, 1.2)),
            seq=bool(rng.random() < 0.7),
            named=bool(rng.random() < 0.6),
            seed=int(rng.integers(1 << 30)),
            kind=kind,
            micro=pp * int(rng.integers(1, 3)) if pp > 1 else 1,
            layers=int(rng.integers(2, 5)) if world < 256 else 2,
            place=int(rng.integers(1000)),
        )
        if kind in ("stall", "device", "loader", "expert"):
            spec.culprit = int(rng.integers(world))
        elif kind == "stage":
            spec.culprit = int(rng.integers(pp))
        elif kind == "link":
            roles = [role for role, groups in spec.groups().items() if role in ("dp", "tp") and len(groups) > 1]
            if not roles:  # one group has no peers
                spec.tp, spec.dp = 2, world // 2
                spec.base, roles = "megatron", ["tp", "dp"]
            spec.link_role = roles[int(rng.integers(len(roles)))]
            spec.culprit = int(rng.integers(len(spec.groups()[spec.link_role])))
        out.append(spec)
    return out


def _first_strength(spec: Spec, step_us: float) -> float:
    share = np.random.default_rng([spec.seed, 1]).uniform(0.08, 0.4)
    if spec.kind in ("stall", "loader"):
        return float(step_us * share)
    if spec.kind == "stage":
        return 1.0
    return float({"link": 2.5, "device": 1.0, "expert": 1.5}.get(spec.kind, 1.0) + share)


def make_one(spec: Spec, data: Path, out: Path) -> dict[str, Any]:
    """Simulate a job with and without its fault; write its label, then its recordings."""
    pattern = RECORDINGS[spec.base].format(spec.seed % 8)
    blocks = read_blocks(next(data.glob(pattern)))
    if spec.base == "megatron":
        # ten layers from the middle: attention and perceptron in turns
        blocks = blocks[3:23]
        blocks.append(Block("optimizer", blocks[0].rows, blocks[0].length))
    healthy = Simulation(spec, blocks, fault=False)
    healthy.run()
    without = healthy.step_us()
    spec.strength = _first_strength(spec, without)
    step = without
    for _ in range(8):
        if spec.kind == "healthy":
            break
        faulty = Simulation(spec, blocks, fault=True)
        faulty.run()
        step = faulty.step_us()
        if spec.kind == "stage":
            healthy = Simulation(spec, blocks, fault=False)
            healthy.run()
            without = healthy.step_us()
        if step - without >= MIN_TRUE_SHARE * step:
            break
        spec.strength = spec.strength + 1 if spec.kind == "stage" else spec.strength * 1.4
    # work of an expert moves to the others
    kept = 1 / spec.ep if spec.kind == "expert" else 0.0
    groups = spec.groups()
    ranks = []
    if spec.kind in ("stall", "device", "loader", "expert"):
        ranks = [spec.culprit]
    elif spec.kind == "stage":
        ranks = [rank for rank in range(spec.world) if spec.coords(rank)[0] == spec.culprit]
    elif spec.kind == "link":
        ranks = groups[spec.link_role][spec.culprit]
    half = "held" if int(hashlib.sha256(spec.name.encode()).hexdigest(), 16) % 2 else "dev"
    label = {
        **spec.__dict__,
        "half": half,
        "world": spec.world,
        "ranks": ranks,
        "step_ms": step / 1e3,
        "true_saving_ms": (step - without) / 1e3 * (1 - kept),
        "group": healthy.names.get((spec.link_role, spec.culprit), ""),
    }
    (out / "labels").mkdir(parents=True, exist_ok=True)
    (out / "labels" / f"{spec.name}.json").write_text(json.dumps(label, indent=1))
    folder = out / half / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    Simulation(spec, blocks, fault=True, write=folder).run()
    return label


# -- the score -----------------------------------------------------------------------------------

JOB_CODES = ("COM036", "COM062", "COM063", "COM064", "COM065", "COM066", "COM067", "COM068", "COM069", "COM101")
EXPECTED = {
    "stall": ("COM036",),
    "device": ("COM036",),
    "loader": ("COM036",),
    "link": ("COM068",),
    "stage": ("COM063",),
    "expert": ("COM064", "COM036"),
    "healthy": (),
}


MIN_BUBBLE = 0.10
"""By the formula of 1F1B: from so much on a pipeline's schedule is rightly named."""


def _numbers(evidence: dict[str, Any], *names: str) -> set[int]:
    out: set[int] = set()
    for name, value in evidence.items():
        if any(part in name for part in names):
            for one in value if isinstance(value, list | tuple) else [value]:
                out |= {one} if isinstance(one, int) and not isinstance(one, bool) else set()
    return out


def judge_one(label: dict[str, Any], job: Any) -> dict[str, Any]:
    """Return what was said of a job against its label."""
    said = [one for one in job.findings if one.code in JOB_CODES and one.severity != "note"]
    kind = label["kind"]
    if kind == "healthy" and (label["pp"] - 1) / (label["micro"] + label["pp"] - 1) >= MIN_BUBBLE:
        # few micro-batches are no fault that was planted, but their bubble is there
        said = [one for one in said if one.code != "COM062"]
    right = [one for one in said if one.code in EXPECTED[kind]]
    rank = cause = inside = False
    if kind == "healthy":
        rank = cause = not said
    for one in right[:1]:
        evidence = one.evidence
        found = _numbers(evidence, "rank")
        if kind == "stage":
            rank = bool(found & set(label["ranks"])) or label["culprit"] in _numbers(evidence, "stage")
            cause = rank
        elif kind == "link":
            rank = bool(found) and found <= set(label["ranks"])
            cause = rank
        else:
            rank = label["culprit"] in _numbers(evidence, "late_rank", "rank")
            words = str(evidence.get("cause", ""))
            cause = {
                "stall": "device" not in words and "loader" not in words and bool(words),
                "device": "device" in words,
                "loader": "loader" in words,
                "expert": one.code == "COM064",
            }[kind]
        if one.cost is not None:
            inside = one.cost.low_ms <= label["true_saving_ms"] <= one.cost.high_ms
    cost = right[0].cost if right else None
    return {
        "said": " ".join(f"{one.code}({one.severity})" for one in said) or "nothing",
        "detail": right[0].evidence.get("cause", "") if right else "",
        "late": right[0].evidence.get("late_rank", "") if right else "",
        "rank": rank,
        "cause": cause,
        "inside": inside,
        "promised": f"{cost.low_ms:.2f}-{cost.high_ms:.2f}" if cost else "",
    }


def score(out: Path, halves: list[str], *, each: bool) -> None:
    """Analyse every job, and print one table by kind."""
    import torchtriage as tt

    rows = []
    for path in sorted((out / "labels").glob("*.json")):
        label = json.loads(path.read_text())
        folder = out / label["half"] / label["name"]
        files = sorted(folder.glob("rank*.json.gz"))
        if label["half"] not in halves or len(files) < label["world"]:
            continue
        begun = time.perf_counter()
        jobs = tt.analyze_ranks(files).jobs
        verdict = (
            judge_one(label, jobs[0]) if jobs else {"said": "no job", "rank": False, "cause": False, "inside": False}
        )
        rows.append((label, verdict))
        if each:
            layout = f"tp{label['tp']} dp{label['dp']} pp{label['pp']} ep{label['ep']}"
            print(
                f"{label['name']:12} {label['kind']:8} {layout:22} of {label['step_ms']:8.2f} ms"
                f" true {label['true_saving_ms']:7.2f} promised {verdict.get('promised', ''):15}"
                f" rank {label['culprit']:4} named {verdict.get('late', '')!s:4} {verdict.get('detail', ''):20}"
                f" {verdict['said']:30} {'right' if verdict['cause'] and verdict['rank'] else 'WRONG'}"
                f" {time.perf_counter() - begun:.0f} s",
                flush=True,
            )
    print(f"{'kind':10}{'jobs':>6}{'ranks':>14}{'rank right':>12}{'and cause':>11}{'saving inside':>15}{'quiet':>8}")
    for kind in KINDS:
        some = [(label, verdict) for label, verdict in rows if label["kind"] == kind]
        if not some:
            continue
        worlds = [label["world"] for label, _ in some]
        n = len(some)
        rank, cause = sum(v["rank"] for _, v in some), sum(v["rank"] and v["cause"] for _, v in some)
        inside = sum(v["inside"] for _, v in some)
        counts = f"{rank:>12}{cause:>11}{inside:>15}{'':>8}" if kind != "healthy" else f"{'':38}{rank:>8}"
        print(f"{kind:10}{n:>6}{f'{min(worlds)}-{max(worlds)}':>14}{counts}")


def main() -> None:
    """Make the jobs, or score what is said of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("command", choices=("make", "score"))
    parser.add_argument("out", type=Path)
    parser.add_argument("halves", nargs="*", default=["dev", "held"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--jobs", type=int, default=63)
    parser.add_argument("--large", type=int, default=1000, help="ranks of the last two jobs, 0: none")
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="print every job")
    args = parser.parse_args()
    if args.command == "score":
        score(args.out, args.halves, each=args.all)
        return
    specs = cases(args.jobs, args.large, args.seed)
    with ProcessPoolExecutor(args.processes) as pool:
        for label in pool.map(make_one, specs, [args.data] * len(specs), [args.out] * len(specs)):
            print(label["name"], label["half"], f"{label['step_ms']:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
