"""Reads PyTorch profiler traces and says what costs time, where, and what to change.

>>> import torchtriage as tt
>>> result = tt.analyze("trace.json.gz")
>>> print(result)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.core.version import __version__

if TYPE_CHECKING:
    from torchtriage import memory
    from torchtriage.api.benchmark import BenchReport, benchmark
    from torchtriage.api.compile import CompileReport, compile_logs, compile_report
    from torchtriage.api.profile import Profile, profile
    from torchtriage.api.straggler_watch import StragglerWatch
    from torchtriage.api.traces import (
        ComparisonReport,
        RanksReport,
        Report,
        analyze,
        analyze_ranks,
        compare,
        explain,
        load,
        overlay,
    )
    from torchtriage.compile import bucketing
    from torchtriage.compile.bucketing.module import BucketedModule
    from torchtriage.core.errors import TraceFormatError, TriageError, UsageError
    from torchtriage.core.finding import Finding
    from torchtriage.core.record.sample import Sampler, sample
    from torchtriage.core.selection import Selection
    from torchtriage.core.trace import Trace
    from torchtriage.diagnose.compare.result import Comparison
    from torchtriage.diagnose.ranks.result import JobResult
    from torchtriage.diagnose.verdict.result import Result
    from torchtriage.integrations import trainers as callbacks
    from torchtriage.operate import live, monitor

__all__ = [
    "BenchReport",
    "BucketedModule",
    "Comparison",
    "ComparisonReport",
    "CompileReport",
    "Finding",
    "JobResult",
    "Profile",
    "RanksReport",
    "Report",
    "Result",
    "Sampler",
    "Selection",
    "StragglerWatch",
    "Trace",
    "TraceFormatError",
    "TriageError",
    "UsageError",
    "__version__",
    "analyze",
    "analyze_ranks",
    "benchmark",
    "bucketing",
    "callbacks",
    "compare",
    "compile_logs",
    "compile_report",
    "explain",
    "fix",
    "live",
    "load",
    "memory",
    "monitor",
    "overlay",
    "profile",
    "sample",
]

_HOMES = {
    "BenchReport": "torchtriage.api.benchmark",
    "BucketedModule": "torchtriage.compile.bucketing.module",
    "Comparison": "torchtriage.diagnose.compare.result",
    "ComparisonReport": "torchtriage.api.traces",
    "CompileReport": "torchtriage.api.compile",
    "Finding": "torchtriage.core.finding",
    "JobResult": "torchtriage.diagnose.ranks.result",
    "Profile": "torchtriage.api.profile",
    "RanksReport": "torchtriage.api.traces",
    "Report": "torchtriage.api.traces",
    "Result": "torchtriage.diagnose.verdict.result",
    "Sampler": "torchtriage.core.record.sample",
    "Selection": "torchtriage.core.selection",
    "StragglerWatch": "torchtriage.api.straggler_watch",
    "Trace": "torchtriage.core.trace",
    "TraceFormatError": "torchtriage.core.errors",
    "TriageError": "torchtriage.core.errors",
    "UsageError": "torchtriage.core.errors",
    "analyze": "torchtriage.api.traces",
    "analyze_ranks": "torchtriage.api.traces",
    "benchmark": "torchtriage.api.benchmark",
    "bucketing": "torchtriage.compile.bucketing",
    "callbacks": "torchtriage.integrations.trainers",
    "compare": "torchtriage.api.traces",
    "compile_logs": "torchtriage.api.compile",
    "compile_report": "torchtriage.api.compile",
    "explain": "torchtriage.api.traces",
    "fix": "torchtriage.api.fixes",
    "live": "torchtriage.operate.live",
    "load": "torchtriage.api.traces",
    "memory": "torchtriage.memory",
    "monitor": "torchtriage.operate.monitor",
    "overlay": "torchtriage.api.traces",
    "profile": "torchtriage.api.profile",
    "sample": "torchtriage.core.record.sample",
}
_MODULES = frozenset({"bucketing", "callbacks", "live", "memory", "monitor"})


def __getattr__(name: str) -> Any:
    """Import a promised name when it is first used, so that ``import torchtriage`` is quick."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchtriage' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(home)
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Make ``%torchtriage`` and ``%%torchtriage`` known: ``%load_ext torchtriage``."""
    from torchtriage.integrations.notebook import load_ipython_extension

    load_ipython_extension(shell)


def __dir__() -> list[str]:
    """Return the promised names."""
    return sorted(__all__)
