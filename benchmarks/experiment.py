"""Error rates and speed of experiments on simulated requests: the tables of docs/experiment-measured.md.

    python benchmarks/experiment.py            # a quarter of an hour on one core
    python benchmarks/experiment.py --runs 50  # a rough look, to the terminal only

Latencies are log-normal with a coefficient of variation of 0.3; what they remember is a first-order
autoregression of their logarithms within each arm, as from one request to the next of a process.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.stats import sequential_ab
from torchtriage.core.stats.sequential_ab import BLOCK, Difference, SplitCheck
from torchtriage.operate.experiment import Experiment, Rate, Split, Tail, Typical

PAGE = Path(__file__).parents[1] / "docs" / "experiment-measured.md"
N = 10_000
SIGMA = math.sqrt(math.log(1.09))
Table = list[list[str]]
Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]


def logs(rho: float, heavy: bool, runs: int, rng: np.random.Generator) -> Floats:
    """Return logarithms of latencies: float64[runs, N]; of heavy ones, one in 100 is ten-fold."""
    noise = rng.standard_normal((N, runs))
    if rho:
        step = math.sqrt(1 - rho * rho)
        for at in range(1, N):
            noise[at] = rho * noise[at - 1] + step * noise[at]
    return SIGMA * noise.T + (rng.random((runs, N)) < 0.01) * math.log(10) * heavy


def pairs(rho: float, effect: float, heavy: bool, runs: int, seed: int) -> Iterator[Pair]:
    """Yield control and candidate, float64[100, N] of each, a hundred runs at a time."""
    rng = np.random.default_rng(seed)
    for _ in range(-(-runs // 100)):
        n = min(runs, 100)
        yield logs(rho, heavy, n, rng), logs(rho, heavy, n, rng) + math.log1p(effect)


def stop_of(control: list[float], candidate: list[float]) -> int:
    """Return after how many requests per arm the metric decides; N + 1 where it does not."""
    found = Difference()
    for at, (one, other) in enumerate(zip(control, candidate, strict=True), 1):
        found.add(False, one)
        if found.add(True, other):
            _, low, high, *_ = found.estimate()
            if low > 0 or high < 0:
                return at
    return N + 1


def stops(control: Floats, candidate: Floats, alpha: float = 0.05) -> list[int]:
    """Return what :func:`stop_of` does of each run, all of them at once; the first one is checked.

    Raises
    ------
    AssertionError
        The two do not agree.
    """
    runs, n_blocks = len(control), N // BLOCK
    n = np.arange(1, N + 1)
    spread: Floats = np.zeros((runs, N))
    for values in (control, candidate):
        spread += np.cumsum(values**2, 1) - np.cumsum(values, 1) ** 2 / n
    spread = (spread / np.maximum(n - 1, 1))[:, BLOCK - 1 :: BLOCK]
    blocks = (candidate - control).reshape(runs, n_blocks, BLOCK).mean(2)
    beyond = np.zeros((runs, n_blocks), bool)
    open_ = np.ones((runs, n_blocks), bool)
    for level in range(sequential_ab.N_LEVELS):
        length = 1 << level
        k = n_blocks // length
        if k < sequential_ab.LEAST_BLOCKS:
            break
        x = blocks[:, : k * length].reshape(runs, k, length).mean(2)
        count = np.arange(1, k + 1)
        total, squares = np.cumsum(x, 1), np.cumsum(x * x, 1)
        products = np.cumsum(np.concatenate([np.zeros((runs, 1)), x[:, 1:] * x[:, :-1]], 1), 1)
        mean = total / count
        with np.errstate(all="ignore"):
            centred = squares - count * mean**2
            raw = products - mean * (2 * total - x[:, :1] - x) + (count - 1) * mean**2
            raw /= centred
            alike = np.clip(raw + (1 + 3 * raw) / count, 0, 0.95)
        # what is known when a block of the shortest length closes
        at = np.arange(1, n_blocks + 1) // length - 1
        known = np.maximum(at, 0)
        last = level == sequential_ab.N_LEVELS - 1
        good = (count >= sequential_ab.LEAST_BLOCKS) & ((alike <= sequential_ab.MEMORY / np.sqrt(count)) | last)
        taken = open_ & good[:, known] & (at >= 0)
        open_ &= ~taken
        with np.errstate(all="ignore"):
            inflation = ((1 + alike) / (1 - alike))[:, known]
            variance = (centred / (count - 1))[:, known] * inflation
            done = count[known]
            free = np.maximum((done - 1) / np.sqrt(inflation), 1)
            informed = 1 + done * sequential_ab.PRIOR * spread / variance
            factor = np.exp((np.log(informed) - 2 * math.log(alpha)) / (free + 1))
            reach = np.sqrt(free * (factor - 1) / (1 - factor / informed) * variance / done)
        reach[factor >= informed] = math.inf
        beyond |= taken & (np.abs(mean[:, known]) > reach)
    found = np.where(beyond.any(1), (np.argmax(beyond, 1) + 1) * BLOCK, N + 1).tolist()
    assert found[0] == stop_of(control[0].tolist(), candidate[0].tolist())
    return [int(one) for one in found]


def naive_stops(control: Floats, candidate: Floats) -> list[int]:
    """Return when a t-test that is looked at every 100 requests says p < 0.05."""
    one, other = np.exp(control), np.exp(candidate)
    n = np.arange(1, N + 1)
    mean, mean_other = (np.cumsum(values, 1) / n for values in (one, other))
    spread = sum(np.cumsum(v**2, 1) / n - m**2 for v, m in ((one, mean), (other, mean_other)))
    beyond = (np.abs(mean_other - mean) > 1.96 * np.sqrt(spread / n))[:, 99::100]
    return np.where(beyond.any(1), 100 * (np.argmax(beyond, 1) + 1), N + 1).tolist()


def cell(at: list[int], *, found: bool) -> str:
    """Return the share of runs that stopped, and where found, the median requests per arm."""
    share = 100 * statistics.fmean(one <= N for one in at)
    if not found:
        # Clopper and Pearson's upper end, near enough by Wilson's
        n, p = len(at), share / 100
        z = 1.645
        centre = (p + z * z / 2 / n) / (1 + z * z / n)
        reach = z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n) / (1 + z * z / n)
        return f"{share:.1f} (≤ {100 * (centre + reach):.1f})"
    middle = statistics.median(at)
    return f"{share:.0f}, {middle:,.0f}" if middle <= N else f"{share:.0f}, -"


def errors_table(runs: int) -> Table:
    """Return false stops of equal arms, and those of a t-test that is peeked at."""
    table = [["10,000 requests per arm", "false stops, %", "t-test every 100, %"]]
    kinds = [(0.0, False), (0.5, False), (0.9, False), (0.0, True), (0.5, True)]
    for rho, heavy in kinds:
        name = f"autocorrelation {rho:g}" + (", 1 % of requests ten-fold" if heavy else "")
        ours, naive = [], []
        for both in pairs(rho, 0, heavy, runs, 1):
            ours += stops(*both)
            naive += naive_stops(*both)
        table.append([name, cell(ours, found=False), cell(naive, found=False).split()[0]])
        progress(name)
    return table


def power_table(runs: int) -> Table:
    """Return how often effects are found within 10,000 requests per arm, and when."""
    effects = (0.02, 0.05, 0.1, 0.2)
    table = [["found %, median requests", *(f"+{100 * one:.0f} %" for one in effects)]]
    for rho, heavy in [(0.0, False), (0.5, False), (0.9, False), (0.0, True)]:
        name = f"autocorrelation {rho:g}" + (", 1 % of requests ten-fold" if heavy else "")
        row = [name]
        for effect in effects:
            at = [one for both in pairs(rho, effect, heavy, runs, 2) for one in stops(*both)]
            row.append(cell(at, found=True))
        table.append(row)
        progress(name)
    return table


def guarded(share: float) -> Experiment:
    """Return an experiment with the usual guardrails and no difference allowed."""
    return Experiment(
        "simulated",
        arms={"control": 1 - share, "candidate": share},
        metric=Typical("latency"),
        guardrails=[Tail("latency", worse_than=1.0), Rate("error", worse_than=1.0)],
    )


def guardrails_table(runs: int) -> Table:
    """Return how often guardrails alarm falsely, and when they find what they are for."""
    table = [["what", "share", "alarms, %", "median requests of the candidate"]]
    cases: list[tuple[str, float, float, Callable[[random.Random, bool], dict[str, float]]]] = []

    def plain(rng: random.Random, candidate: bool) -> dict[str, float]:
        return {"latency": rng.lognormvariate(0, SIGMA), "error": rng.random() < 0.001}

    def tail(rng: random.Random, candidate: bool) -> dict[str, float]:
        value = rng.lognormvariate(0, SIGMA)
        # the slowest requests, those beyond the 97th percentile, take half as long again
        slow = candidate and value > math.exp(1.88 * SIGMA)
        return {"latency": value * 1.5 if slow else value, "error": False}

    def errors(rng: random.Random, candidate: bool) -> dict[str, float]:
        chance = 0.01 if candidate else 0.001
        return {"latency": rng.lognormvariate(0, SIGMA), "error": rng.random() < chance}

    def broken(rng: random.Random, candidate: bool) -> dict[str, float]:
        chance = 1.0 if candidate else 0.001
        return {"latency": rng.lognormvariate(0, SIGMA), "error": rng.random() < chance}

    for share in (0.5, 0.05):
        cases.append(("equal arms: any guardrail", share, 1.0, plain))
        cases.append(("p99 times 1.5", share, 0.25, tail))
        cases.append(("errors 0.1 to 1 %", share, 0.25, errors))
        cases.append(("every request fails", share, 0.25, broken))
    for name, share, part, draw in cases:
        seeds = range(max(int(runs * part), 20))
        needed = [alarm_at(guarded(share), share, draw, seed) for seed in seeds]
        found = [one for one in needed if one is not None]
        middle = f"{statistics.median(found):,.0f}" if found and draw is not plain else "-"
        rate = 100 * len(found) / len(needed)
        table.append([name, f"{100 * share:g} %", f"{rate:.1f}", middle])
        progress(f"{name} at {share}")
    return table


def alarm_at(
    one: Experiment, share: float, draw: Callable[[random.Random, bool], dict[str, float]], seed: int
) -> int | None:
    """Return how many requests of the candidate a guardrail needs, None where it never speaks."""
    rng = random.Random(seed)
    n_candidate = 0
    for _ in range(2 * N):
        candidate = rng.random() < share
        n_candidate += candidate
        one.record("candidate" if candidate else "control", **draw(rng, candidate))
        if any(row.verdict == "worse" for row in one._rows[1:]):
            return n_candidate
    return None


def split_table(runs: int) -> Table:
    """Return how soon a wrong split is found, and how often a right one is called wrong."""
    table = [["arrives", "planned", "called broken, %", "median requests"]]
    for truth, planned in ((0.49, 0.5), (0.045, 0.05), (0.5, 0.5), (0.01, 0.01)):
        rng = np.random.default_rng(3)
        found = []
        n_runs = runs if truth == planned else max(runs // 10, 10)
        for _ in range(n_runs):
            check = SplitCheck(planned)
            arrived = np.cumsum(rng.random(100_000) < truth)
            # a look at every 64th, as experiments do
            for at in range(63, 100_000, 64 if truth != planned else 640):
                check.n = [at + 1 - int(arrived[at]), int(arrived[at])]
                if check.log_evidence >= math.log(1e4):
                    found.append(at + 1)
                    break
        middle = f"{statistics.median(found):,.0f}" if found else "-"
        table.append([f"{100 * truth:g} %", f"{100 * planned:g} %", f"{100 * len(found) / n_runs:g}", middle])
    return table


def speed_table() -> Table:
    """Return what one call takes, the best of several."""
    split = Split("checkout", 0.05)
    ids = [f"user-{n}" for n in range(1000)]
    latencies = [random.Random(n).lognormvariate(0, 0.3) for n in range(1000)]

    def assign() -> None:
        for id in ids:
            split.treats(id)

    one = guarded(0.5)

    def record() -> None:
        for n, value in enumerate(latencies):
            one.record("candidate" if n & 1 else "control", latency=value, error=False)

    bare = hashlib.sha256(b"checkout\0")

    def hashed() -> None:
        for id in ids:
            copy = bare.copy()
            copy.update(id.encode())
            copy.digest()

    def best(call: Callable[[], None]) -> str:
        # of the process: others on the machine do not count
        took = timeit.repeat(call, number=20, repeat=25, timer=time.process_time)
        return f"{min(took) / 20_000 * 1e6:.2f}"

    return [
        ["call", "CPU time, µs"],
        ["SHA-256 alone", best(hashed)],
        ["assign an id", best(assign)],
        ["record a request: a metric, a tail and a rate", best(record)],
    ]


def markdown(table: Table) -> str:
    """Return a table in Markdown."""
    head, *rows = table
    rule = "| :-- |" + " --: |" * (len(head) - 1)
    return "\n".join(["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(r) + " |" for r in rows)])


def progress(what: str) -> None:
    """Say on stderr what is done."""
    print(f"  {what}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="simulated experiments per row")
    parser.add_argument("--only", nargs="*", help="names of tables")
    given = parser.parse_args()
    makers: dict[str, Callable[[], Table]] = {
        "speed": speed_table,
        "errors": lambda: errors_table(given.runs),
        "power": lambda: power_table(given.runs // 2),
        "guardrails": lambda: guardrails_table(given.runs),
        "split": lambda: split_table(given.runs),
    }
    for name, make in makers.items():
        if given.only and name not in given.only:
            continue
        text = markdown(make())
        print(f"\n{name}\n{text}", flush=True)
        begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        page = PAGE.read_text("utf-8")
        if given.runs >= 200 and begin in page:
            head, _, rest = page.partition(begin)
            page = head + begin + text + "\n" + end + rest.partition(end)[2]
            PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
