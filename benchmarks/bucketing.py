"""Sizes that vary: buckets beside recompiling, dynamic shapes and powers of two.

    python benchmarks/bucketing.py              # all of it, some ten minutes; writes the page
    python benchmarks/bucketing.py padding      # one table, without torch

Every row of ``serving`` and ``second`` is a process of its own with empty caches. Needs torch and a
C++ compiler, except ``padding``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.compile.bucketing import plan, powers_of_two

HERE = Path(__file__)
PAGE = HERE.parents[1] / "docs" / "bucketing-measured.md"
N_CALLS = 1000
STALL_S = 0.1
LOW, HIGH = 100, 200

# -- padding: no torch -------------------------------------------------------------------------


def histories() -> dict[str, Any]:
    """Return sizes of 4,000 requests, of several kinds."""
    draw = np.random.default_rng(0)
    return {
        "uniform, 100 to 200": draw.integers(LOW, HIGH + 1, 4000),
        "uniform, 1 to 512": draw.integers(1, 513, 4000),
        "log-normal, median 90": np.maximum(1, np.exp(draw.normal(4.5, 0.8, 4000)).astype(int)),
        "two kinds of request": np.concatenate([draw.normal(60, 10, 3000), draw.normal(380, 40, 1000)])
        .astype(int)
        .clip(1),
    }


def waste(buckets: Sequence[int], sizes: Any) -> float:
    """Return padding over real size."""
    known = np.array(buckets)
    return float(known[np.searchsorted(known, sizes)].sum() / sizes.sum() - 1)


def padding() -> str:
    """Return the table of padding at equal numbers of buckets, and of planning's own time."""
    lines = [
        "| sizes | buckets | powers of two | equally spaced | planned | planned from 256 |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    for name, sizes in histories().items():
        usual = powers_of_two(sizes)
        for n in sorted({len(usual), 8}):
            even = np.ceil(np.linspace(sizes.min(), sizes.max(), n + 1)[1:]).astype(int)
            best = plan(sizes, max_buckets=n)
            early = plan(sizes[np.random.default_rng(1).permutation(len(sizes))[:256]], max_buckets=n).buckets["size"]
            inside = sizes[sizes <= early[-1]]
            beside = f"{waste(usual, sizes):.1%}" if n == len(usual) else ""
            lines.append(
                f"| {name} | {n} | {beside} | {waste(even, sizes):.1%} |"
                f" {best.padding:.1%} | {waste(early, inside):.1%} |"
            )
    many = np.random.default_rng(0).integers(1, 5000, 50_000)
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        plan(many, max_buckets=8)
        took.append(time.perf_counter() - begun)
    lines += ["", f"Planning 8 buckets for {len(np.unique(many)):,} distinct sizes takes {min(took) * 1e3:.0f} ms."]
    return "\n".join(lines).replace("%", " %")


# -- serving -----------------------------------------------------------------------------------


def sizes_of(seed: int, n: int = N_CALLS, low: int = LOW, high: int = HIGH) -> list[int]:
    """Return sizes at random."""
    return np.random.default_rng(seed).integers(low, high + 1, n).tolist()


def encoder() -> Any:
    """Return a small transformer encoder with a key mask, and a call of it by length."""
    import torch
    from torch.nn import functional

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.other = torch.nn.LayerNorm(128), torch.nn.LayerNorm(128)
            self.qkv, self.out = torch.nn.Linear(128, 384), torch.nn.Linear(128, 128)
            self.up, self.down = torch.nn.Linear(128, 512), torch.nn.Linear(512, 128)

        def forward(self, x: Any, mask: Any) -> Any:
            q, k, v = (one.unflatten(-1, (4, 32)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + self.out(seen.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.other(x))))

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(1000, 128)
            self.blocks = torch.nn.ModuleList([Block() for _ in range(2)])

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.embed(ids)
            for one in self.blocks:
                x = one(x, mask[:, None, None, :])
            return x

    torch.manual_seed(0)
    return Encoder().eval()


def call(length: int) -> tuple[Any, Any]:
    """Return the arguments of a request."""
    import torch

    return torch.randint(0, 1000, (1, length)), torch.ones(1, length, dtype=torch.bool)


def bucketed(**more: Any) -> Any:
    """Return the encoder with buckets for its length."""
    import torchtriage as tt

    return tt.BucketedModule(encoder(), pad=1, mask={"mask": (True, False)}, **more)


WAYS: dict[str, tuple[str, Callable[[], Any]]] = {
    "eager": ("eager", encoder),
    "static": ("`dynamic=False`", lambda: _compile(dynamic=False)),
    "automatic": ("`torch.compile`", lambda: _compile()),
    "dynamic": ("`dynamic=True`", lambda: _compile(dynamic=True)),
    "powers": ("powers of two, precompiled", lambda: bucketed(buckets=powers_of_two(sizes_of(1)))),
    "buckets": ("planned, precompiled", bucketed),
    "background": ("planned, in the background", bucketed),
}


def _compile(**how: Any) -> Any:
    import torch

    return torch.compile(encoder(), **how)


def serve(way: str) -> dict[str, Any]:
    """Run 1,000 calls one way and return what they took."""
    import torch

    torch.manual_seed(0)
    model = WAYS[way][1]()
    ready_s = 0.0
    with torch.no_grad():
        begun = time.perf_counter()
        if way in ("powers", "buckets"):
            # the sizes of yesterday: of the same kind, not the same
            model.precompile(sizes_of(7, 10 * N_CALLS), example=call(LOW))
        ready_s = time.perf_counter() - begun
        took = []
        for length in sizes_of(1):
            request = call(length)
            begun = time.perf_counter()
            model(*request)
            took.append(time.perf_counter() - begun)
            if way == "background":
                time.sleep(0.03)
    from torch._dynamo import utils

    found: dict[str, Any] = {"ready_s": ready_s, "took_s": took, "graphs": utils.counters["stats"]["unique_graphs"]}
    if hasattr(model, "stats"):
        model.wait()
        stats = model.stats()
        found |= {
            "hits": stats.hits,
            "padding": stats.padding,
            "reasons": dict(stats.reasons),
            "buckets": model.plan.buckets["size"],
            "checked": stats.checked,
        }
    return found


def serving(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table of all ways."""
    lines = [
        "| way | graphs | ready before | stalls > 100 ms | they sum to | p50 | p99 | longest | hits | padding |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for way, (name, _) in WAYS.items():
        row = rows[way]
        took = sorted(row["took_s"])
        stalls = [one for one in took if one > STALL_S]
        hits = f"{row['hits'] / len(took):.1%}" if "hits" in row else ""
        padded = f"{row['padding']:.1%}" if "hits" in row else ""
        lines.append(
            f"| {name} | {row['graphs']} | {row['ready_s']:.1f} s | {len(stalls)} |"
            f" {sum(stalls):.1f} s | {statistics.median(took) * 1e3:.1f} ms |"
            f" {took[int(len(took) * 0.99)] * 1e3:.1f} ms | {took[-1] * 1e3:.0f} ms | {hits} |"
            f" {padded} |"
        )
    sizes = np.array(sizes_of(1))
    row = rows["buckets"]
    best = plan(sizes, max_buckets=len(row["buckets"]))
    usual = powers_of_two(sizes)
    after = rows["background"]["reasons"]
    lines += [
        "",
        f"Planned: {', '.join(map(str, row['buckets']))}, from 10,000 other sizes of the same kind."
        f" Their padding is {row['padding'] / best.padding:.3f} times the least that"
        f" {len(row['buckets'])} buckets can have for the sizes that came; powers of two"
        f" ({', '.join(map(str, usual))}) pad {waste(usual, sizes):.0%} against"
        f" {plan(sizes, max_buckets=len(usual)).padding:.0%} for as many planned ones.",
        f"In the background, misses were: {', '.join(f'{why} {n}' for why, n in after.items())}.",
    ]
    return "\n".join(lines).replace("%", " %")


# -- a second process; drift -------------------------------------------------------------------


def second(path: str) -> dict[str, Any]:
    """Make all buckets ready, from the saved file if there is one; return the seconds."""
    import torch

    model = bucketed()
    saved = Path(path)
    begun = time.perf_counter()
    with torch.no_grad():
        if saved.exists():
            model.load(saved).precompile(example=call(LOW))
        else:
            model.precompile(sizes_of(7, 10 * N_CALLS), example=call(LOW))
        ready_s = time.perf_counter() - begun
        for length in sizes_of(2, 50):
            model(*call(length))
    if not saved.exists():
        model.save(saved)
    return {"ready_s": ready_s, "hits": model.stats().hits, "size": saved.stat().st_size}


def drift() -> dict[str, Any]:
    """Serve sizes of 100 to 200, then of 300 to 400, some thirty a second."""
    import torch

    model = bucketed()
    changes, took, busy, missed = [], [], [], []
    with torch.no_grad():
        model.precompile(sizes_of(7, 10 * N_CALLS), example=call(LOW))
        model.reset_stats()
        before = model.plan
        shifted = sizes_of(4, 2 * N_CALLS, 300, 400)
        for at, length in enumerate([*sizes_of(3), *shifted]):
            request = call(length)
            hits = model.stats().hits
            begun, computed = time.perf_counter(), time.process_time()
            model(*request)
            took.append(time.perf_counter() - begun)
            # all threads of this process: what a request waits beyond that, others take
            busy.append(min(took[-1], time.process_time() - computed))
            missed.append(model.stats().hits == hits)
            if model.plan is not before:
                new = sorted(set(model.plan.buckets["size"]) - set(before.buckets["size"]))
                changes.append((at, new, list(model.plan.buckets["size"])))
                before = model.plan
            time.sleep(max(0.0, 0.03 - took[-1]))
        model.wait()
    end = np.array(shifted[-500:])
    buckets = list(model.plan.buckets["size"])
    return {
        "changes": changes,
        "longest_s": max(took),
        "busiest_s": max(busy),
        "slow": sum(one > STALL_S for one in took),
        "buckets": buckets,
        "slow_busy": sum(one > STALL_S for one in busy),
        "late_misses": sum(missed[-500:]),
        "first_misses": sum(missed[:N_CALLS]),
        "padding": waste(buckets, end),
    }


def drifted(found: dict[str, Any]) -> str:
    """Return the table of the plan's changes."""
    lines = ["| request | new buckets | buckets then |", "|--:|:--|:--|"]
    lines += [
        f"| {at - N_CALLS:+,} | {', '.join(map(str, new))} | {', '.join(map(str, all_))} |"
        for at, new, all_ in found["changes"]
    ]
    lines += [
        "",
        f"Requests count from the shift. Padding of the last 500: {found['padding']:.1%};"
        f" misses among them {found['late_misses']}, before the shift"
        f" {found['first_misses']}. The longest request took"
        f" {found['longest_s'] * 1e3:.0f} ms, {found['slow']} took more than 100 ms. Of what"
        " the processor did for this process while a request waited, the compiler's thread"
        f" included, the most was {found['busiest_s'] * 1e3:.0f} ms, and"
        f" {found['slow_busy']} had more than 100 ms of it.",
    ]
    return "\n".join(lines).replace("%", " %")


def started(cold: dict[str, Any], warm: dict[str, Any]) -> str:
    """Return the table of the first and the second process."""
    share = warm["ready_s"] / cold["ready_s"]
    return "\n".join(
        [
            "| process | all buckets ready after | hits of 50 |",
            "|:--|--:|--:|",
            f"| first, empty caches | {cold['ready_s']:.1f} s | {cold['hits']} |",
            f"| second, after `load()` | {warm['ready_s']:.1f} s ({share:.0%}) | {warm['hits']} |",
            "",
            f"The saved file has {cold['size'] / 2**20:.1f} MiB. Both processes have imported torch;"
            " what torch imports to compile counts.",
        ]
    ).replace("%", " %")


# -- all ---------------------------------------------------------------------------------------


def child(*what: str) -> dict[str, Any]:
    """Run one part in a process of its own, with empty caches."""
    with tempfile.TemporaryDirectory() as caches:
        print(" ".join(what[:2]), "...", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, str(HERE), "child", *what],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": caches},
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout)


def write(name: str, text: str) -> None:
    """Put a table into the page."""
    print(f"\n{text}\n", flush=True)
    begin, end = f"<!-- table: benchmarks/bucketing.py {name} -->", "<!-- /table -->"
    page = PAGE.read_text(encoding="utf-8")
    new = re.sub(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n\n{text}\n\n{end}", page, flags=re.DOTALL
    )
    PAGE.write_text(new, encoding="utf-8")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ("all", "padding", "serving", "second", "drift")
    parser.add_argument("what", nargs="?", default="all", choices=(*parts, "child"))
    parser.add_argument("rest", nargs="*")
    given = parser.parse_args()
    if given.what == "child":
        import torch

        torch.set_num_threads(1)  # the other core is for the compiler
        part, *more = given.rest
        print(json.dumps({"serve": serve, "second": second, "drift": drift}[part](*more)))
        return 0
    wanted = parts[1:] if given.what == "all" else (given.what,)
    if "padding" in wanted:
        write("padding", padding())
    if "serving" in wanted:
        write("serving", serving({way: child("serve", way) for way in WAYS}))
    if "second" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            saved = f"{folder}/buckets"
            write("second", started(child("second", saved), child("second", saved)))
    if "drift" in wanted:
        write("drift", drifted(child("drift")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
