"""How often a measured saving lies inside the printed interval, and how wide intervals must be for that.

    python benchmarks/coverage.py                      # the table, from the pairs in coverage_pairs.json
    python benchmarks/coverage.py --write              # and src/torchtriage/diagnose/calibration.json anew
    python benchmarks/coverage.py --collect programs FOLDER --reports DIR   # what run_programs.py --out left
    python benchmarks/coverage.py --collect pairs --recordings DIR          # what replay_accuracy.py --real left
    python benchmarks/coverage.py --collect recordings                      # the shared recordings of GPUs

Split conformal prediction: half of the pairs sets how far the ends are moved, the other half tells the coverage. The
halves are drawn by name: of emulated programs the seeds from 0 and those from 1,000, of the others by the checksum of
the program's name. Programs that are held out (``benchmarks/programs_held_out``) are in neither.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import cpu_pairs
import run_programs
from replay_accuracy import Case, Sample, asked, emulated, in_virtual_time, more_workers

import torchtriage
from torchtriage.core.finding import Cost
from torchtriage.diagnose import calibration
from torchtriage.diagnose.calibration import UNKNOWN_NOISE, Family, Margins, step_noise, widened

DATA = Path(os.environ.get("TORCHTRIAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))
STORED = Path(__file__).parent / "coverage_pairs.json"
SHIPPED = Path(calibration.__file__).parent / "calibration.json"
CLAIM = 0.8
"""The share of measured savings that intervals promise to hold."""
PRINTED = 0.01
"""Of the step: smaller promises are not printed."""
LARGE = 0.05
"""Savings over this share of the step say whether an interval is of use."""


@dataclass(frozen=True)
class Pair:
    """A promise and what the fix saved, as shares of the step; ``low`` and ``high`` are not calibrated.

    ``noise`` : as from :func:`step_noise`.
    """

    name: str
    source: str
    family: Family
    low: float
    high: float
    saved: float
    noise: float = UNKNOWN_NOISE

    @property
    def sets(self) -> bool:
        """Whether the pair is of the half that sets the margins."""
        if self.source.startswith("emulated"):
            return int(self.name.split()[1]) < 1_000
        return zlib.crc32(self.name.encode()) % 2 == 0

    def interval(self, by: Margins) -> tuple[float, float]:
        """Return the interval as printed."""
        low, high = widened(self.low, self.high, by, self.noise)
        return max(low, 0.0), high

    def is_inside(self, by: Margins) -> bool:
        """Whether the saving lies in the interval as printed."""
        low, high = self.interval(by)
        return low <= self.saved <= high

    def width(self, by: Margins) -> float:
        """Return the interval's width over its middle."""
        low, high = self.interval(by)
        return 2 * (high - low) / (high + low)


# -- margins -------------------------------------------------------------------------------------


def conformal_quantile(scores: Iterable[float], level: float) -> float:
    """Return what ``level`` of scores to come stay below: the ``level (n + 1)``-th smallest of n."""
    ranked = sorted(scores)
    at = math.ceil(round(level * (len(ranked) + 1), 9))
    return ranked[at - 1] if at <= len(ranked) else math.inf


def noise_score(pair: Pair) -> float:
    """Return by how many noises the saving lies outside the interval; negative inside."""
    return max(pair.low - pair.saved, pair.saved - pair.high) / max(pair.noise, 1e-6)


def odds_score(pair: Pair, noises: float) -> float:
    """Return the factor on the odds of both ends, beyond the noise, that holds the saving; infinite where none does."""
    low, high = pair.low, pair.high
    above, below = pair.saved - noises * pair.noise, pair.saved + noises * pair.noise
    return max(_over(low, below), _over(above, high), 1.0)


def high_score(pair: Pair) -> float:
    """Return the factor on the odds of the high end that holds the saving; infinite for one below the low end."""
    return math.inf if pair.saved < pair.low else max(_over(pair.saved, pair.high), 1.0)


def _over(share: float, other: float) -> float:
    """Return the odds of a share over those of another."""
    if share <= 0:
        return 0.0
    if other <= 0 or share >= 1:
        return math.inf
    return share / (1 - share) / (other / (1 - other)) if other < 1 else 0.0


def fitted(pairs: Sequence[Pair]) -> dict[Family, Margins]:
    """Return the margins that the setting half of the pairs asks for."""
    sets = [pair for pair in pairs if pair.sets and pair.high > PRINTED]
    emulated_pairs = [pair for pair in sets if pair.source == "emulated fix"]
    real = [pair for pair in sets if not pair.source.startswith("emulated")]
    noises = round(conformal_quantile(map(noise_score, emulated_pairs), CLAIM), 2)
    odds = conformal_quantile(worst(real, "replay", lambda pair: odds_score(pair, noises)), CLAIM)
    high = conformal_quantile(worst(real, "looks", high_score), CLAIM)
    return {
        "replay": Margins(round(odds, 2), round(odds, 2), noises, CLAIM),
        "looks": Margins(1.0, round(high, 2), 0.0, CLAIM),
    }


def worst(pairs: Sequence[Pair], family: Family, score: Callable[[Pair], float]) -> list[float]:
    """Return the scores of a family's fixes, of each the worst of its rounds: rounds of one program are alike."""
    scores: dict[tuple[str, float], float] = {}
    for pair in pairs:
        if pair.family == family:
            key = pair.name, pair.saved
            scores[key] = max(scores.get(key, 0.0), score(pair))
    return list(scores.values())


# -- pairs ---------------------------------------------------------------------------------------


def of_cases(cases: Iterable[Case], source: str) -> Iterator[Pair]:
    """Yield emulated cases as pairs."""
    for case in cases:
        if not case.refused:
            step = case.before_ns
            shares = case.low_ns / step, case.high_ns / step, case.true_ns / step
            yield Pair(case.program, source, "replay", *shares, case.step_noise)


def of_programs(folder: Path, reports: Path) -> Iterator[Pair]:
    """Yield what reports of ``torchtriage run`` promise for faults with a measured fix, each finding once."""
    for program in run_programs.programs(folder):
        path = reports / f"{program.name}.json"
        if not program.faults or not path.exists():
            continue
        report = json.loads(path.read_text())
        result = (report.get("jobs") or report.get("results") or [{}])[0]
        script = f"{program.name.rpartition('_')[0]}.py"
        places = [set(finding["lines"]) for finding in run_programs.findings(report, script)]
        judged: set[int] = set()
        for fault in sorted(program.faults, key=lambda fault: not fault.main):
            at = next((index for index, lines in enumerate(places) if lines & fault.lines), None)
            if at is None or at in judged or fault.ratio is None:
                continue
            judged.add(at)
            cost = result["findings"][at].get("cost")
            ends = cost and cost["calibration"]
            # a share of the run is none of a step
            if ends and (cost["per"] == "run") == (fault.per == "run"):
                saved = 1 - 1 / fault.ratio[0]
                yield Pair(program.name, "program", ends["family"], ends["share_low"], ends["share_high"], saved)


def of_cpu_pairs(recordings: Path) -> Iterator[Pair]:
    """Yield the pairs of scripts really run: what the finding promises, or replay for the workers really added."""
    for pair in cpu_pairs.PAIRS:
        for folder in sorted(recordings.glob(f"{pair.name}-*")):
            before, after = (torchtriage.load(folder / state / "rank0.json.gz") for state in ("before", "after"))
            step_ns = before.steps.wall_ns
            saved = 1 - after.steps.wall_ns / step_ns
            if pair.workers and (ends := more_workers(before, pair.workers)) is not None:
                shares = ends[0] * 1e6 / step_ns, ends[1] * 1e6 / step_ns
            elif pair.ranks == 1:
                costs = [item.cost for item in torchtriage.analyze(before).findings if item.code == pair.code]
                shares = _together(cost for cost in costs if cost is not None)
            else:
                continue  # the wait for a rank is measured, not replayed
            yield Pair(pair.name, "CPU pair", "replay", *shares, saved, step_noise(before))


SAM = "pytorch-labs__segment-anything-fast__"
CHANGES = (
    ("ResNet-50, V100, 0 to 4 workers", "cv/resnet50_v100_train_workers0", "cv/resnet50_v100_train_workers4"),
    (
        "ResNet-50, V100, 0 to 4 workers (2021-01)",
        "cv/resnet50_v100_train_workers0_2021-01",
        "cv/resnet50_v100_train_workers4_2021-01",
    ),
    (
        "Segment Anything, without syncs and loops",
        "cv/sam_amg_pg509_eager_fp32_2023-10-19",
        "cv/sam_amg_a100_eager_fp32_2023-11-28",
    ),
    (
        "Segment Anything, fp32 to compiled bf16",
        "cv/sam_amg_a100_eager_fp32_2023-11-28",
        "cv/sam_amg_a100_compiled_2023-11-28",
    ),
    ("Segment Anything, fp32 to half", SAM + "amg_example_asdf_False", SAM + "143a94_amg_example_asdf_True"),
    ("Segment Anything, half to compiled", SAM + "143a94_amg_example_asdf_True", SAM + "amg_example_amg_example_trace"),
    (
        "Segment Anything, copies and float64",
        SAM + "3b766a_amg_example_asdf_True",
        SAM + "290928_amg_example_asdf_True",
    ),
    ("Segment Anything, last sync", SAM + "290928_amg_example_asdf_True", SAM + "amg_example_asdf_True"),
    (
        "Copies of 20 MiB, H100, pinned",
        "shreyansh26__MLSys-Experiments__pinned_memory_async_traces_trace_streamed0_pinned0",
        "shreyansh26__MLSys-Experiments__pinned_memory_async_traces_trace_streamed0_pinned1",
    ),
    ("Copies of 147 MiB, A100, pinned", "pytorch__benchmark__trace2", "pytorch__benchmark__trace"),
)
"""Public recordings before and after a change: what it is, and the names in ``traces`` and ``gpu2/traces``."""
MORE = {"Segment Anything, fp32 to compiled bf16", "Segment Anything, half to compiled"}
"""Changes of more than what the first recording's findings point at: the model was compiled, in another dtype."""
JOBS = (
    (
        "TorchRec, 4 V100, a sleep of 1 s to 20 ms",
        "pytorch__torchrec__sst_long_a2a_optimizer_2__run955364",
        "pytorch__torchrec__sst_long_a2a_optimizer_2__run955629",
    ),
)
"""The same of jobs, in ``gpu2/jobs``."""


def of_recordings() -> Iterator[tuple[Pair | None, str]]:
    """Yield each change of a public recording with a row of a table; the pair where it is what findings promised."""
    for what, *names in CHANGES:
        before, after = (torchtriage.load(_recording(name)) for name in names)
        first, second = torchtriage.analyze(before), torchtriage.analyze(after)
        still = {finding.code for finding in second.findings}
        gone = [item for item in first.findings if item.cost and item.cost.high_ms and item.code not in still]
        step_ms, after_ms = before.steps.wall_ns / 1e6, after.steps.wall_ns / 1e6
        saved = 1 - after_ms / step_ms
        costs = [item.cost for item in gone if item.cost]
        alone = gone and what not in MORE
        pair = Pair(what, "GPU pair", "replay", *_together(costs), saved, step_noise(before)) if alone else None
        printed = min(sum(cost.low_ms for cost in costs), step_ms), min(sum(cost.high_ms for cost in costs), step_ms)
        yield pair, _row(what, [item.code for item in gone], printed, step_ms, after_ms)
    for what, *names in JOBS:
        folders = [sorted((DATA / "gpu2/jobs" / name).glob("*.json.gz")) for name in names]
        before_job, after_job = (torchtriage.analyze_ranks(paths).jobs[0] for paths in folders)
        first, second = (
            next(item.cost for item in job.findings if item.code == "COM036") for job in (before_job, after_job)
        )
        # the sleep is shorter, not gone: what the second run still promises was not saved
        low, high = first.low_ms - second.high_ms, first.high_ms - second.low_ms
        yield None, _row(what, ["COM036"], (low, high), before_job.step_ms or 0.0, after_job.step_ms or 0.0)


def _recording(name: str) -> Path:
    places = (DATA / folder / f"{name}.json.gz" for folder in ("traces", "gpu2/traces"))
    return next(path for path in places if path.exists())


def _together(costs: Iterable[Cost]) -> tuple[float, float]:
    """Return the sum of what findings promise, without calibration, as shares."""
    ends = [cost.calibration or cost for cost in costs]
    return min(sum(end.share_low for end in ends), 1.0), min(sum(end.share_high for end in ends), 1.0)


def _row(what: str, codes: Sequence[str], promised: tuple[float, float], before_ms: float, after_ms: float) -> str:
    saved, (low, high) = before_ms - after_ms, promised
    inside = "-" if not codes else "yes" if low <= saved <= high else "no"
    words = f"{', '.join(codes)}: {low:,.2f} - {high:,.2f}" if codes else "-"
    return f"| {what} | {before_ms:,.2f} → {after_ms:,.2f} ms | {saved:,.2f} | {words} | {inside} |"


def stored() -> list[Pair]:
    """Return the pairs that were really run."""
    return [Pair(**row) for row in json.loads(STORED.read_text())] if STORED.exists() else []


def store(source: str, found: Iterable[Pair]) -> None:
    """Put the pairs of one source in place of those there were, other programs' kept."""
    new = [
        replace(pair, **{key: round(getattr(pair, key), 4) for key in ("low", "high", "saved", "noise")})
        for pair in found
    ]
    names = {pair.name for pair in new}
    rest = [pair for pair in stored() if pair.source != source or pair.name not in names]
    rows = sorted([*rest, *new], key=lambda pair: (pair.source, pair.name, pair.saved))
    STORED.write_text("[\n" + ",\n".join(json.dumps(asdict(pair)) for pair in rows) + "\n]\n")


# -- what is printed -----------------------------------------------------------------------------


def table(pairs: Sequence[Pair], by: dict[Family, Margins]) -> Iterator[dict[str, Any]]:
    """Yield the coverage of each source and family, on the half that did not set the margins."""
    plain: dict[Family, Margins] = {family: Margins(1.0, 1.0, 0.0, CLAIM) for family in by}
    groups = sorted({(pair.source, pair.family) for pair in pairs})
    for source, family in groups:
        own = [pair for pair in pairs if (pair.source, pair.family) == (source, family) and pair.high > PRINTED]
        judged = [pair for pair in own if not pair.sets]
        large = [pair.width(by[family]) for pair in judged if pair.saved > LARGE]
        yield {
            "source": source,
            "family": family,
            "n_set": len(own) - len(judged),
            "n_judged": len(judged),
            "raw": _share(judged, lambda pair: pair.is_inside(plain[pair.family])),
            "inside": _share(judged, lambda pair: pair.is_inside(by[pair.family])),
            "width": round(median(large), 3) if large else None,
        }


def _share(pairs: Sequence[Pair], holds: Callable[[Pair], bool]) -> float | None:
    return round(sum(map(holds, pairs)) / len(pairs), 3) if pairs else None


def main() -> None:
    """Collect, or fit and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collect", choices=("programs", "pairs", "recordings"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--reports", type=Path, nargs="+", help="one folder for each round")
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--write", action="store_true", help="write calibration.json")
    given = parser.parse_args()
    if given.collect == "programs":
        store("program", (pair for reports in given.reports for pair in of_programs(given.folder, reports)))
    elif given.collect == "pairs":
        store("CPU pair", of_cpu_pairs(given.recordings))
    elif given.collect == "recordings":
        rows = list(of_recordings())
        store("GPU pair", (pair for pair, _ in rows if pair))
        print("| pair | step | saved, ms | gone after: promised, ms | inside |\n|---|--:|--:|---|---|")
        print("\n".join(row for _, row in rows))
    if given.collect:
        return
    pairs = stored()
    for first in (0, 1_000):
        sample = Sample(first=first)
        pairs += of_cases(emulated(sample, in_virtual_time), "emulated fix")
        pairs += of_cases(asked(sample), "emulated question")
    by = fitted(pairs)
    rows = list(table(pairs, by))
    print(json.dumps({family: asdict(margin) for family, margin in by.items()}))
    print("| pairs | family | set by | judged on | inside, not calibrated | inside, as printed | width / middle |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for row in rows:
        shares = (f"{row[key]:.1%}" if row[key] is not None else "-" for key in ("raw", "inside"))
        width = "-" if row["width"] is None else f"{row['width']:.2f}"
        counts = f"{row['n_set']} | {row['n_judged']}"
        print(f"| {row['source']} | {row['family']} | {counts} | {' | '.join(shares)} | {width} |")
    if given.write:
        families = {
            family: {key: value for key, value in asdict(margin).items() if key != "coverage"}
            for family, margin in by.items()
        }
        document = {
            "made_by": "benchmarks/coverage.py --write",
            "coverage": CLAIM,
            "families": families,
            "measured": rows,
        }
        SHIPPED.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
