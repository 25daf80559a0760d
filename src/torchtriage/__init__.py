"""Reads PyTorch profiler traces and says what costs time, where, and what to change.

>>> import torchtriage as tt
>>> result = tt.analyze("trace.json.gz")
>>> print(result)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.version import __version__

if TYPE_CHECKING:
    from torchtriage import bucketing, memory
    from torchtriage.api import (
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
    from torchtriage.benchmarking import BenchReport, benchmark
    from torchtriage.bucketing.module import BucketedModule
    from torchtriage.compiling import CompileReport, compile_logs, compile_report
    from torchtriage.errors import TraceFormatError, TriageError, UsageError
    from torchtriage.finding import Comparison, Finding, JobResult, Result
    from torchtriage.profiling import Profile, profile
    from torchtriage.record.sample import Sampler, sample
    from torchtriage.trace import Trace

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
    "Trace",
    "TraceFormatError",
    "TriageError",
    "UsageError",
    "__version__",
    "analyze",
    "analyze_ranks",
    "benchmark",
    "bucketing",
    "compare",
    "compile_logs",
    "compile_report",
    "explain",
    "load",
    "memory",
    "overlay",
    "profile",
    "sample",
]

_HOMES = {
    "BenchReport": "benchmarking",
    "BucketedModule": "bucketing.module",
    "Comparison": "finding",
    "ComparisonReport": "api",
    "CompileReport": "compiling",
    "Finding": "finding",
    "JobResult": "finding",
    "Profile": "profiling",
    "RanksReport": "api",
    "Report": "api",
    "Result": "finding",
    "Sampler": "record.sample",
    "Trace": "trace",
    "TraceFormatError": "errors",
    "TriageError": "errors",
    "UsageError": "errors",
    "analyze": "api",
    "analyze_ranks": "api",
    "benchmark": "benchmarking",
    "bucketing": "bucketing",
    "compare": "api",
    "compile_logs": "compiling",
    "compile_report": "compiling",
    "explain": "api",
    "load": "api",
    "memory": "memory",
    "overlay": "api",
    "profile": "profiling",
    "sample": "record.sample",
}


def __getattr__(name: str) -> Any:
    """Import a promised name when it is first used, so that ``import torchtriage`` is quick."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchtriage' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"torchtriage.{home}")
    value = module if home == name else getattr(module, name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Make ``%torchtriage`` and ``%%torchtriage`` known: ``%load_ext torchtriage``."""
    from torchtriage.notebook import load_ipython_extension

    load_ipython_extension(shell)


def __dir__() -> list[str]:
    """Return the promised names."""
    return sorted(__all__)
