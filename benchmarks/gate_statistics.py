"""Error rates of the gate's statistics and of the rules people use, on real and simulated sessions.

300 real sessions (fresh processes, run in turns on a busy two-core host: a program, itself again,
and the program with 2, 4 and 10 % more work), recorded memory peaks and compile times, benchmark
histories, and seeded simulations. Writes the tables of docs/statistics.md.

    python benchmarks/gate_statistics.py            # all tables, some minutes
    python benchmarks/gate_statistics.py --print    # to the terminal only

With apache-otava importable (``pip install apache-otava``) its change points stand beside ours.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import history_rules
import numpy as np
from history_rules import SAME, ours, perfherder, reports
from numpy.typing import NDArray
from stopping import compare_sessions, stop

from torchtriage.core.stats import change_points
from torchtriage.core.stats.classical_tests import cohen_d, mann_whitney, welch
from torchtriage.core.stats.multiple_testing import adjust
from torchtriage.core.stats.quantiles import quantile_interval
from torchtriage.core.stats.sequential import StoppingPlan
from torchtriage.core.stats.session_comparison import recording_noise, session_value, verdict
from torchtriage.measure.gate.history import LEAST_T, LEAST_VALUES, MIN_CHANGE

Floats = NDArray[np.float64]
Rule = Callable[[Floats, Floats], bool]
Table = list[list[str]]

DATA = Path(os.environ.get("TORCHTRIAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))
RECORDED = Path(__file__).with_name("statistics_sessions.json")
PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
ARMS = {"+2 %": "+2%", "+4 %": "+4%", "+10 %": "+10%"}
MIN_EFFECT = 0.01


# --- the rules people use, from their published form: iterations of one process on each side ---


def naive(before: Floats, after: Floats) -> bool:
    """Say worse at p < 0.05 of a t-test and a Cohen's d above 0.2, the usual advice."""
    return welch(before, after).p_value < 0.05 and abs(cohen_d(before, after)) > 0.2


def rank_test(before: Floats, after: Floats) -> bool:
    """Say worse at p < 0.05 of Mann and Whitney's test."""
    return mann_whitney(before, after).p_value < 0.05


def asv(before: Floats, after: Floats) -> bool:
    """Say worse as ``asv compare`` does: medians 10 % apart and p < 0.002 of Mann and Whitney's."""
    ratio = float(np.median(after) / np.median(before))
    apart = max(ratio, 1 / ratio) > 1.1
    return apart and mann_whitney(before, after).p_value < 0.002


def torchbench(before: Floats, after: Floats) -> bool:
    """Say worse where the medians are 7 % apart, as pytorch/benchmark's regression detector."""
    return abs(float(np.median(after) / np.median(before)) - 1) > 0.07


RULES: dict[str, Rule] = {
    "t-test p < 0.05 and \\|d\\| > 0.2": naive,
    "Mann-Whitney p < 0.05": rank_test,
    "asv: 1.1 and p < 0.002": asv,
    "TorchBench: 7 %": torchbench,
}


# --- real sessions ---


def real_sessions() -> dict[str, Floats]:
    """Return the measured iterations of each arm: float64[60 rounds, 250], warm-up left out."""
    arms: dict[str, list[Floats]] = {}
    with (DATA / "anomaly" / "aa" / "sessions.jsonl").open() as lines:
        rows = sorted(map(json.loads, lines), key=lambda row: int(row["round"]))
    for row in rows:
        arms.setdefault(row["arm"], []).append(np.array(row["latency_us"][row["warmup"] :]))
    return {arm: np.array(sessions) for arm, sessions in arms.items()}


def in_one_number(sessions: dict[str, Floats]) -> dict[str, Floats]:
    """Return each session's ``low``, as a session of one value: the same statistic, taken once."""
    return {arm: np.array([[session_value(row, "low")] for row in rows]) for arm, rows in sessions.items()}


def is_regression(before: Floats, after: Floats) -> bool:
    """Say what the gate would say of these pairs."""
    change = compare_sessions(before, after, paired=True)
    return verdict(change, min_effect=MIN_EFFECT) == "regression"


def windows(n_rounds: int, n_pairs: int) -> Iterator[slice]:
    """Yield every stretch of consecutive rounds; they overlap."""
    for first in range(n_rounds - n_pairs + 1):
        yield slice(first, first + n_pairs)


def share(hits: Sequence[bool], n_free: float | None = None) -> str:
    """Return a share in %, with the 95 % upper end (or lower, above a half) for ``n_free`` trials.

    Clopper and Pearson (1934). ``n_free`` : how many of the trials are independent.
    """
    rate = float(np.mean(hits))
    text = f"{100 * rate:.1f}" if 0 < rate < 0.1 else f"{100 * rate:.0f}"
    if n_free is None:
        return text
    n = max(int(n_free), 1)
    k = round(rate * n)
    if rate > 0.5:
        return f"{text} (≥ {100 * (1 - upper_bound(n - k, n)):.0f})"
    return f"{text} (≤ {100 * upper_bound(k, n):.1f})"


def upper_bound(k: int, n: int, risk: float = 0.05) -> float:
    """Return the largest chance under which ``k`` or fewer hits of ``n`` are not unlikely."""
    low, high = k / n, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        below = sum(math.comb(n, i) * middle**i * (1 - middle) ** (n - i) for i in range(k + 1))
        low, high = (middle, high) if below > risk else (low, middle)
    return high


def sessions_table(sessions: dict[str, Floats], lows: dict[str, Floats]) -> Table:
    """Return how often each rule speaks, in % of comparisons."""
    rng = np.random.default_rng(1)
    table = [["rule", "A/A next to each other", "A/A any two", *ARMS]]
    n = len(lows["A"])
    anywhere = [tuple(rng.choice(n, 2, replace=False)) for _ in range(300)]
    for name, rule in RULES.items():
        row = [name, share([rule(*both) for both in zip(sessions["A"], sessions["A2"], strict=True)])]
        row.append(share([rule(sessions["A"][i], sessions["A"][j]) for i, j in anywhere]))
        for arm in ARMS.values():
            pairs = zip(sessions["A"], sessions[arm], strict=True)
            row.append(share([rule(*both) for both in pairs]))
        table.append(row)
    for n_pairs in (10, 20, 40):
        free = n // n_pairs
        both_ways = [("A", "A2"), ("A2", "A")]
        row = [f"**gate**, {n_pairs} pairs"]
        row.append(
            share([is_regression(lows[b][w], lows[a][w]) for b, a in both_ways for w in windows(n, n_pairs)], free)
        )
        row.append("-")
        for arm in ARMS.values():
            row.append(
                share([is_regression(lows[b][w], lows[arm][w]) for b in ("A", "A2") for w in windows(n, n_pairs)], free)
            )
        table.append(row)
    return table


# --- stopping early ---


def sequential_table(lows: dict[str, Floats], n_trials: int) -> Table:
    """Return error, power and mean pairs of plans beside the fixed numbers they replace.

    Real rounds in random order, either baseline, and for A/A either label: what the host did to a
    round is real, which of the two equal programs it hit is a coin.
    """
    rng = np.random.default_rng(2)
    table = [["", "A/A called slower, %", "pairs", *(text for arm in ARMS for text in (f"{arm} found, %", "pairs"))]]
    for max_pairs, effect in ((20, 0.02), (20, 0.05), (40, 0.02)):
        plan = StoppingPlan(max_pairs=max_pairs)
        fixed = [f"{max_pairs} pairs, smallest effect {effect:.0%}"]
        early = ["… stopping early"]
        for arm in ("A2", *ARMS.values()):
            said, stopped, found = [], [], []
            n_drawn = 4 * n_trials if arm == "A2" else n_trials
            for before, after in draws(lows, arm, max_pairs, n_drawn, rng):
                change = compare_sessions(before, after, paired=True)
                found.append(verdict(change, min_effect=effect) == "regression")
                outcome, n = stop(before, after, plan, effect)
                said.append(outcome == "regression")
                stopped.append(n)
            fixed += [share(found), str(max_pairs)]
            early += [share(said), f"{np.mean(stopped):.1f}"]
        table += [fixed, early]
    return table


def draws(
    lows: dict[str, Floats], arm: str, n_pairs: int, n_trials: int, rng: np.random.Generator
) -> Iterator[tuple[Floats, Floats]]:
    """Yield pairs of rounds drawn at random without putting back."""
    for trial in range(n_trials):
        rounds = rng.permutation(len(lows["A"]))[:n_pairs]
        before = lows["A" if arm == "A2" or trial % 2 else "A2"][rounds]
        after = lows[arm][rounds]
        if arm == "A2":
            swap = rng.random(n_pairs)[:, None] < 0.5
            before, after = np.where(swap, after, before), np.where(swap, before, after)
        yield before, after


# --- simulated sessions ---


def simulate(
    kind: str, n_pairs: int, effect: float, rng: np.random.Generator, spread: float = 0.027
) -> tuple[Floats, Floats]:
    """Return pairs of sessions of one value each, run in turns, first before, then after, swapped.

    ``spread`` : of one process against another; 0.027 is that of the real sessions.
    """
    n = 2 * n_pairs
    if kind == "heavy tails":
        noise = spread * rng.standard_t(2, n)
    elif kind == "one in ten disturbed":
        noise = spread * rng.standard_normal(n)
        noise += (rng.random(n) < 0.1) * rng.exponential(0.2, n)
    else:
        noise = spread * rng.standard_normal(n)
    if kind == "slow swings of the host":
        state = 0.0
        for i in range(n):
            state = 0.95 * state + rng.standard_normal() * 0.012
            noise[i] += state
    if kind == "drift of 1 % per pair":
        noise += np.arange(n) * 0.005
    if kind == "jumps of the host":
        noise += np.cumsum(rng.random(n) < 0.05) * 0.1
    pairs = noise.reshape(n_pairs, 2)
    pairs[1::2] = pairs[1::2, ::-1]  # A B, B A, A B ...
    return np.exp(pairs[:, :1]), np.exp(pairs[:, 1:] + math.log1p(effect))


KINDS = (
    "independent",
    "heavy tails",
    "one in ten disturbed",
    "slow swings of the host",
    "drift of 1 % per pair",
    "jumps of the host",
)


def simulated_table(n_trials: int) -> Table:
    """Return how often equal programs are called slower, and larger ones found, at 20 pairs."""
    table = [["noise", "A/A called slower, %", "+2 % found, %", "+4 % found, %", "interval holds the truth, %"]]
    for kind in KINDS:
        rng = np.random.default_rng(3)
        row, holds = [kind], []
        for effect in (0.0, 0.02, 0.04):
            said = []
            for _ in range(n_trials if not effect else n_trials // 4):
                change = compare_sessions(*simulate(kind, 20, effect, rng), paired=True)
                said.append(verdict(change, min_effect=MIN_EFFECT) == "regression")
                holds.append(change.low <= 1 + effect <= change.high)
            row.append(share(said, None if effect else n_trials))
        table.append([*row, share(holds)])
    return table


def unpaired_table(n_trials: int) -> Table:
    """Return what a baseline recorded at another time costs, with and without its noise floor."""
    table = [["between recordings", "A/A called slower, no floor, %", "with floor, %", "+10 % found with floor, %"]]
    for between in (0.0, 0.01, 0.03):
        rng = np.random.default_rng(4)

        def run(effect: float, between: float = between, rng: np.random.Generator = rng) -> Floats:
            level = rng.standard_normal() * between + math.log1p(effect)
            return np.exp(level + 0.027 * rng.standard_normal((10, 1)))

        said: dict[str, list[bool]] = {"none": [], "floor": [], "found": []}
        for _ in range(n_trials):
            earlier = [run(0) for _ in range(6)]
            floor = recording_noise(earlier).floor(0.98)
            for key, effect, allowed in (("none", 0, 0.0), ("floor", 0, floor), ("found", 0.1, floor)):
                change = compare_sessions(earlier[-1], run(effect), paired=False, floor=allowed)
                said[key].append(verdict(change, min_effect=MIN_EFFECT) == "regression")
        table.append([f"{between:.0%}", *(share(hits) for hits in said.values())])
    return table


def many_table(lows: dict[str, Floats], n_checks: int, n_metrics: int = 200) -> Table:
    """Return false alarms per check of 200 metrics, each of real rounds in an order of its own."""
    rng = np.random.default_rng(5)
    head = ["pairs", "checks", "checks with a false alarm, uncorrected", "Holm", "Benjamini-Hochberg"]
    table = [[*head, "+5 % in one metric found, Holm, %", "in 20 metrics, BH, %"]]
    for n_pairs in (20, 30):
        alarms: dict[str, list[bool]] = {"none": [], "holm": [], "benjamini-hochberg": []}
        one, twenty = [], []
        for _ in range(n_checks):
            drawn = list(draws(lows, "A2", n_pairs, n_metrics, rng))
            p = np.array([signed_p(before, after) for before, after in drawn])
            p_more = np.array([signed_p(before, after * 1.05) for before, after in drawn[:20]])
            alarms["none"].append(bool((p <= 0.01).any()))
            alarms["holm"].append(bool((holm(p) <= 0.01).any()))
            alarms["benjamini-hochberg"].append(bool((adjust(p) <= 0.01).any()))
            # one by one: each metric in turn is the one that changed, a few per check
            for i in range(5):
                changed = np.concatenate([p[:i], p_more[i : i + 1], p[i + 1 :]])
                one.append(bool(holm(changed)[i] <= 0.01))
            changed = np.concatenate([p_more[:20], p[20:]])
            twenty += (adjust(changed)[:20] <= 0.01).tolist()
        table.append(
            [str(n_pairs), str(n_checks), *(f"{sum(hits)}" for hits in alarms.values()), share(one), share(twenty)]
        )
    return table


def holm(p: Floats) -> Floats:
    """Return p-values for the chance of even one false alarm in a check (Holm 1979)."""
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))), 1.0)
    return adjusted


def signed_p(before: Floats, after: Floats) -> float:
    """Return the one-sided p-value of "slower"."""
    change = compare_sessions(before, after, paired=True)
    return change.p_value / 2 if change.ratio > 1 else 1 - change.p_value / 2


# --- memory and compile time ---


def other_metrics_table(n_trials: int) -> Table:
    """Return error and power on recorded peaks of memory and compile times."""
    recorded = json.loads(RECORDED.read_text())
    rng = np.random.default_rng(6)
    table = [["metric", "smallest effect", "sessions a side", "A/A called worse", "planted", "found"]]
    peaks = {arm: np.array(peak, float)[:, None] for arm, peak in recorded["peak_kib"].items()}

    def worse_memory(before: Floats, after: Floats) -> bool:
        change = compare_sessions(before, after, paired=False, statistic="peak")
        return verdict(change, min_effect=0.005) == "regression"

    for n in (5, 10):
        false = found = 0
        for _ in range(n_trials):
            order = rng.permutation(len(peaks["A"]))
            before = peaks["A"][order[:n]]
            false += worse_memory(before, peaks["A"][order[n : 2 * n]])
            found += worse_memory(before, peaks["+1%"][rng.permutation(len(peaks["+1%"]))[:n]])
        table.append(["peak memory", "0.5 %", str(n), f"{false} of {n_trials}", "+1 %", f"{found} of {n_trials}"])

    def worse_time(before: Floats, after: Floats) -> bool:
        change = compare_sessions(before, after, paired=True)
        return verdict(change, min_effect=0.03) == "regression"

    for clock in ("wall", "cpu"):
        times = {arm: np.array(one, float)[:, None] for arm, one in recorded[f"compile_{clock}_s"].items()}
        n = len(times["A"])
        spread = compare_sessions(times["A"], times["A2"], paired=True).spread
        false = found = 0
        for _ in range(n_trials):
            order = rng.permutation(n)
            swap = rng.random((n, 1)) < 0.5
            one, other = times["A"][order], times["A2"][order]
            false += worse_time(np.where(swap, one, other), np.where(swap, other, one))
            found += worse_time(np.where(swap, one, other), times["+10%"][order])
        table.append(
            [
                f"compile time, {clock} (pairs differ by {spread:.0%})",
                "3 %",
                f"{n} pairs",
                f"{false} of {n_trials}",
                "+10 % layers",
                f"{found} of {n_trials}",
            ]
        )
    return table


# --- tails ---


def quantile_table(n_trials: int) -> Table:
    """Return how often the interval of a tail quantile holds the truth, meant to be 95 %."""
    table = [["values", "memory", "P50", "P95", "P99"]]
    for n, n_sessions in ((100, 1), (400, 1), (2000, 1), (100, 10)):
        for memory in (0.0, 0.7):
            row = [f"{n_sessions} x {n}" if n_sessions > 1 else str(n), f"{memory}"]
            for q, z in ((0.5, 0.0), (0.95, 1.6449), (0.99, 2.3263)):
                rng = np.random.default_rng(7)
                holds = []
                for _ in range(n_trials):
                    sessions = [np.exp(0.3 * autoregression(n, memory, rng)) for _ in range(n_sessions)]
                    _, low, high = quantile_interval(sessions, q)
                    truth = math.exp(0.3 * z)
                    holds.append(not (truth < low or truth > high))
                row.append(share(holds))
            table.append(row)
    return table


def autoregression(n: int, memory: float, rng: np.random.Generator) -> Floats:
    """Return ``n`` standard normals, each remembering a share of the one before."""
    fresh = rng.standard_normal(n)
    if not memory:
        return fresh
    # the memory as a moving average: long enough that nothing is left
    weights = memory ** np.arange(60)
    long = np.concatenate([rng.standard_normal(59), fresh])
    return np.convolve(long, weights, "valid") * math.sqrt(1 - memory**2)


# --- history ---

TOLERANCE = 2
"""Commits: what counts as found in place."""


def history(
    lows: dict[str, Floats], arm: str, change: int, n: int, against: bool, per_point: int, rng: np.random.Generator
) -> Floats:
    """Return a history of ``n`` points with a change from ``change`` on, made of real rounds.

    ``per_point`` : consecutive rounds of a point, from a random place: a build at another hour.
    ``against`` : values are ratios to the reference that ran in the same rounds.
    """
    out = []
    for i in range(n):
        first = int(rng.integers(0, len(lows["A"]) - per_point + 1))
        rounds = slice(first, first + per_point)
        base, other = ("A", "A2") if rng.random() < 0.5 else ("A2", "A")
        values = lows[base if i < change else arm][rounds, 0]
        if against:
            values = values / lows[other][rounds, 0]
        out.append(float(np.median(values)))
    return np.array(out)


def history_table(lows: dict[str, Floats], n_series: int, n: int = 100) -> Table:
    """Return false reports per 100 commits, and how often and how soon a change is found."""
    # name: the method, series of each kind, commits from look to look
    finders = {
        "torchtriage": (visible, n_series, 2),
        "all its changes": (ours, n_series, 2),
        "Perfherder's rule": (perfherder, n_series, 2),
    }
    try:
        import otava as _
    except ImportError:
        print("apache-otava is not installed: left out", file=sys.stderr)
    else:
        # 50 times slower: fewer series and fewer looks, which can only spare it false reports
        finders["apache/otava"] = (history_rules.otava, max(n_series // 5, 1), 10)
    table = [
        [
            "points",
            "",
            "false per 100 commits",
            "+4 % in place, %",
            "told after (median)",
            "+10 % in place, %",
            "told after (median)",
        ]
    ]
    for against, per_point, label in (
        (True, 10, "10 pairs, against a reference"),
        (False, 5, "5 sessions, bare"),
        (True, 1, "1 pair, against a reference"),
    ):
        for name, (find, n_runs, every) in finders.items():
            rng = np.random.default_rng(8)
            false, n_commits = 0, 0
            for _ in range(n_runs):
                false += len(reports(find, history(lows, "A", n, n, against, per_point, rng), every))
                n_commits += n
            row = []
            for arm in ("+4%", "+10%"):
                found, delay = [], []
                for _ in range(n_runs):
                    at = int(rng.integers(20, 80))
                    values = history(lows, arm, at, n, against, per_point, rng)
                    told = reports(find, values, every)
                    false += sum(abs(place - at) > SAME for place, _ in told)
                    n_commits += n
                    found.append(any(abs(place - at) <= TOLERANCE for place in find(values)))
                    delay += [seen - at for place, seen in told if abs(place - at) <= SAME][:1]
                row += [share(found), f"{np.median(delay):.0f}" if delay else "-"]
            table.append([label, name, f"{100 * false / n_commits:.2f}", *row])
    return table


CHOSEN_ON = {"quality_control_1", "quality_control_5", "talos_a11y.csv", "talos_runs2.csv"}
"""Histories on which the rule of ``gate history`` was chosen: every second by name."""


def real_history_table() -> Table:
    """Return what is found in public histories beside what people marked."""
    folder = DATA / "anomaly" / "perf_history"
    expected = json.loads((folder / "talos_expected.json").read_text())
    table = [["history", "half", "marked", "found of these", "found besides", "all changes: found", "besides"]]
    for name, stamps in sorted(expected.items()):
        with (folder / name).open() as file:
            rows = list(csv.DictReader(file))
        times = np.array([float(row["push_timestamp"]) for row in rows])
        values = np.array([float(row["value"]) for row in rows])
        marked = [int(np.abs(times - stamp).argmin()) for stamp in stamps]
        table.append([name, half(name), str(len(marked)), *against_marks(values, marked)])
    annotations = json.loads((folder / "tcpd" / "annotations.json").read_text())
    for name, people in sorted(annotations.items()):
        raw = json.loads((folder / "tcpd" / f"{name}.json").read_text())["series"][0]["raw"]
        values = np.array(raw, float)
        # of any sign: their spread is made a tenth of a logarithm
        values = np.exp(0.1 * (values - np.nanmean(values)) / np.nanstd(values))
        # marked by most people, within 5 as in the benchmark's own score
        every = sorted(at for marks in people.values() for at in marks)
        marked = [
            at
            for i, at in enumerate(every)
            if sum(abs(at - one) <= 5 for one in every) > len(people) / 2 and (not i or at - every[i - 1] > 5)
        ]
        table.append([name, half(name), str(len(marked)), *against_marks(values, marked)])
    return table


def half(name: str) -> str:
    """Return what a history was for."""
    return "chosen on" if name in CHOSEN_ON else "held back"


def visible(values: Floats) -> list[int]:
    """Return what ``gate history`` tells."""
    found = change_points.find(values, min_effect=MIN_CHANGE, min_size=LEAST_VALUES, least_t=LEAST_T)
    return [one.at for one in found]


def against_marks(values: Floats, marked: list[int]) -> list[str]:
    """Return how many marks are found within 5, and how many places besides, with the rule and without."""
    out = []
    for find in (visible, ours):
        found = find(values)
        hits = sum(any(abs(at - mark) <= 5 for at in found) for mark in marked)
        besides = sum(all(abs(at - mark) > 5 for mark in marked) for at in found)
        out += [str(hits), str(besides)]
    return out


# --- the page ---


def as_markdown(table: Table) -> str:
    """Return a table with its first row as the head."""
    head, *rows = table
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Compute every table and put each between its marks in docs/statistics.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="leave docs/statistics.md as it is")
    parser.add_argument("--only", help="one table, by its mark")
    asked = parser.parse_args()
    sessions = real_sessions()
    lows = in_one_number(sessions)
    tables: dict[str, Callable[[], Table]] = {
        "sessions": lambda: sessions_table(sessions, lows),
        "other": lambda: other_metrics_table(500),
        "sequential": lambda: sequential_table(lows, 200),
        "real-history": real_history_table,
        "unpaired": lambda: unpaired_table(400),
        "history": lambda: history_table(lows, 15),
        "many": lambda: many_table(lows, 60),
        "simulated": lambda: simulated_table(4000),
        "quantiles": lambda: quantile_table(200),
    }
    for mark, make in tables.items():
        if asked.only and mark != asked.only:
            continue
        text = as_markdown(make())
        print(f"\n{mark}\n{text}", flush=True)
        start, end = f"<!-- {mark} -->\n", f"\n<!-- end {mark} -->"
        page = PAGE.read_text() if PAGE.exists() else ""
        if start in page and not asked.print:
            before, _, rest = page.partition(start)
            page = before + start + text + end + rest.partition(end)[2]
            PAGE.write_text(page)


if __name__ == "__main__":
    main()
