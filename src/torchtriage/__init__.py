"""Reads PyTorch profiler traces and says what costs time, where, and what to change.

>>> import torchtriage as tt
>>> result = tt.analyze("trace.json.gz")
>>> print(result)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.version import __version__

if TYPE_CHECKING:
    from torchtriage import memory
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
    from torchtriage.errors import TraceFormatError, TriageError, UsageError
    from torchtriage.finding import Comparison, Finding, JobResult, Result
    from torchtriage.profiling import Profile, profile
    from torchtriage.record.sample import Sampler, sample
    from torchtriage.trace import Trace

__all__ = [
    "Comparison",
    "ComparisonReport",
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
    "compare",
    "explain",
    "load",
    "memory",
    "overlay",
    "profile",
    "sample",
]

_HOMES = {
    "Comparison": "finding",
    "ComparisonReport": "api",
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
    "compare": "api",
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
