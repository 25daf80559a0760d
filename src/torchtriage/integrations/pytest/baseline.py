"""What was measured as a run of the gate's store, and held against the runs stored before.

One pytest session is one process, so a time is compared as one more recording: it is distinguished
from the baseline by Student's prediction interval over the baseline's recordings. Two programs
measured in turns, as ``torchtriage gate check --against REV`` does, resolve much smaller changes.
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.core.machine import gather_machine
from torchtriage.core.samples import Machine, Run, Series, Session
from torchtriage.core.stats.difference import student_tail
from torchtriage.core.stats.session_comparison import session_value
from torchtriage.core.units import format_count
from torchtriage.core.version import __version__
from torchtriage.integrations.pytest.check import Check
from torchtriage.measure.gate.baseline_selection import find_baseline
from torchtriage.measure.gate.check import environment_changes
from torchtriage.measure.gate.formatting import amount, change, commit, short
from torchtriage.measure.gate.revision import find_revision
from torchtriage.measure.gate.row_verdict import LEAST_REPEATS, MAX_REGRESS, STATISTICS
from torchtriage.measure.gate.run import HOST, PACKAGES
from torchtriage.measure.gate.store import open_store

if TYPE_CHECKING:
    from torchtriage.core.machine import Noise
    from torchtriage.integrations.pytest.measure import Memory, Timing
    from torchtriage.measure.gate.revision import GitRevision

ALPHA = 0.01
"""How often a pytest run of unchanged code may fail for its times and memory, all tests together."""
MISS = 0.05
"""How often a change of the smallest size of interest may pass as none, test by test."""


@dataclass(frozen=True)
class Baseline:
    """Where recordings are kept, and which of them are compared with.

    ``place`` : as of ``open_store``. ``record`` : write instead of compare. ``base`` : a branch or commit, None for
    main. ``folder`` : in the repository. ``n_tests`` : how many tests of this run measure: their error rates add up.
    """

    place: str
    record: bool
    base: str | None
    folder: Path
    n_tests: int

    def run_of(self, benchmark: str, series: Sequence[Series], noise: Noise) -> Run:
        """Return what was measured, with commit, machine and versions."""
        environment = {**_versions(), HOST: str(noise), "torchtriage": __version__}
        return _revision(self.folder).run(benchmark, _machine(), environment, series=series)

    def store(self, run: Run) -> str:
        """Store a run; return what was done.

        Raises StoreError, SampleError: it cannot be stored.
        """
        with open_store(self.place) as store:
            store.add(run)
            at = f" at {commit(run.commit)}" if run.commit else ""
            return f"recorded{at} in {store.name}"

    def find(self, run: Run) -> tuple[tuple[Run, ...], str]:
        """Return the runs to compare with, and how they are called; none where there are none.

        Raises StoreError: there is no store, or it cannot be read.
        """
        names = [self.base] if self.base is not None else ["main", "master", run.branch]
        with open_store(self.place, create=False) as store:
            for name in names:
                # who asks has recorded before the last edit
                runs, _ = find_baseline(store, [run], name, folder=self.folder, own=True)
                if runs:
                    return runs, name or "the recordings before"
        return (), names[0]


@cache
def _revision(folder: Path) -> GitRevision:
    return find_revision(folder)


@cache
def _machine() -> Machine:
    return gather_machine()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        if name in sys.modules:
            with suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
    return versions


def series_of(timing: Timing, counts: Mapping[str, float], memory: Memory | None) -> tuple[Series, ...]:
    """Return what was measured as series of one session; ``counts`` by metric."""
    wall, cpu = (tuple(ns / 1e9 for ns in times) for times in (timing.wall_ns, timing.cpu_ns))
    out = [Series("step time", "s", "lower", "latency", (Session(wall, cpu),))]
    out += [Series(name, "1", "lower", "count", (Session((float(value),)),)) for name, value in counts.items()]
    if memory is not None:
        name = "peak device memory" if memory.device else "peak host memory"
        out.append(Series(name, "B", "lower", "memory", (Session((float(memory.peak_bytes),)),)))
    return tuple(out)


def compare(run: Run, before: Sequence[Run], label: str, *, n_tests: int, n_earlier: int = 0) -> list[Check]:
    """Return a check of each metric against the stored runs.

    ``n_tests`` : of this pytest run, ``n_earlier`` : times and memory this test has compared before: their error rates
    add up.
    """
    if not before:
        return [Check("baseline", "not checked", f"nothing is recorded for {label}; pytest --perf-record records it")]
    like = [other for other in before if other.machine.fingerprint == run.machine.fingerprint]
    if not like:
        unlike = f"{label} was recorded on a different machine ({_unlike(before[0], run)})"
        return [Check("baseline", "not checked", f"{unlike}; pytest --perf-record on this one")]
    changes = environment_changes(like, [run])
    lines = (f"not only the code differs: {changes[:300]}",) if changes else ()
    checks = []
    for series in run.series:
        stored = [
            old
            for other in like
            for old in other.series
            if (old.metric, old.measures) == (series.metric, series.measures)
        ]
        metric = f"{series.metric} against {label}"
        if not stored:
            checks.append(Check(metric, "not checked", "the recordings do not have it; --perf-record adds it"))
        elif series.kind == "count":
            checks.append(_counted(metric, series, stored, lines))
        else:
            # 1/2, 1/6, 1/12, ...: the parts of a whole, however many comparisons a test will come to
            n_earlier += 1
            alpha = ALPHA / n_tests / (n_earlier * (n_earlier + 1))
            checks.append(_timed(metric, series, stored, lines, alpha))
    return checks


def _unlike(before: Run, after: Run) -> str:
    old, new = dict(before.machine.fields), dict(after.machine.fields)
    names = ("cpu", "cores", "memory", "gpu", "gpus", "driver", "os", "architecture")
    differ = [
        f"{name} {old.get(name, 'none')} / {new.get(name, 'none')}" for name in names if old.get(name) != new.get(name)
    ]
    return "; ".join(differ) or "not recorded"


def _counted(metric: str, series: Series, before: Sequence[Series], lines: tuple[str, ...]) -> Check:
    now = series.sessions[0].values[0]
    known = sorted(value for series in before for value in series.sessions[0].values)
    ends = f"{known[0]:,.0f}" if known[0] == known[-1] else f"{known[0]:,.0f} to {known[-1]:,.0f}"
    sentence = f"{now:,.0f}, {ends} in {format_count(len(before), 'recording')}"
    if now <= known[-1]:
        return Check(metric, "within", sentence)
    fix = "where: perf_gate with a budget for it names the lines"
    return Check(metric, "over", f"{sentence}: {now - known[-1]:,.0f} more", (fix, *lines))


def _timed(metric: str, series: Series, before: Sequence[Series], lines: tuple[str, ...], alpha: float) -> Check:
    import numpy as np

    interest = MAX_REGRESS[series.kind]
    samples = [np.asarray(recorded.sessions[0].values, dtype=np.float64) for recorded in (series, *before)]
    if samples[0].max() == 0:
        return Check(metric, "within", f"{amount(0, series.unit)}, which is never more than what was recorded")
    if min(values.min() for values in samples) <= 0:
        return Check(metric, "not checked", "a recording of zero has no ratio")
    now, *others = (session_value(values, STATISTICS[series.kind][0]) for values in samples)  # type: ignore[arg-type]
    known = np.array(others)
    ends = " to ".join(dict.fromkeys(amount(value, series.unit) for value in (known.min(), known.max())))
    n = len(known)
    sentence = f"{amount(now, series.unit)}, {ends} in {format_count(n, 'recording')}"
    if n < LEAST_REPEATS:
        more = f"{LEAST_REPEATS} recordings or more show how much it varies by itself: pytest --perf-record again"
        return Check(metric, "inconclusive", f"{sentence}; {more}")
    logs = np.log(known)
    ratio = math.exp(math.log(now) - float(logs.mean()))
    sentence = f"{sentence}: {change(ratio)}"
    spread = float(logs.std(ddof=1)) * math.sqrt(1 + 1 / n)
    slower = math.log(ratio)
    least = math.log1p(interest)
    if slower >= least and (spread == 0 or student_tail(slower / spread, n - 1) < alpha):
        how = "where: torchtriage compare BEFORE AFTER of two recordings names the cause"
        return Check(metric, "over", sentence, (how, *lines))
    if slower < least and (spread == 0 or student_tail((least - slower) / spread, n - 1) < MISS):
        return Check(metric, "within", sentence)
    return Check(
        metric,
        "inconclusive",
        f"{sentence}; recordings vary too much to show a change of {short(interest)}; record"
        " more, or measure both in alternation: torchtriage gate check --against REV -- CMD",
    )
