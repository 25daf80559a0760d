"""What a pattern is: a pure function from a trace to claims, and the catalogue of all of them.

A pattern never promises a saving. It points at wall time (``spans``) and says which part of it a
fix frees (``gain_low`` to ``gain_high``); ``diagnose`` gives every millisecond one owner and turns
what is left into a cost, today by interval arithmetic, with a replay engine from the same claims.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.errors import PatternError, UsageError
from torchtriage.finding import Certainty, Fix
from torchtriage.intervals import Spans
from torchtriage.patterns._between import is_explained
from torchtriage.replay.edits import Edit
from torchtriage.sections import section
from torchtriage.trace import Kind, Trace
from torchtriage.trace.comm import host_collectives

__all__ = [
    "NEEDS",
    "Claim",
    "Edit",
    "Entry",
    "Pattern",
    "catalogue",
    "lookup",
    "missing_needs",
]

Ints = NDArray[np.int64]

NEEDS: dict[str, tuple[Callable[[Trace], bool], str, str]] = {
    # need: (test, what is missing, how to record it)
    "device": (
        lambda trace: bool(trace.devices),
        "GPU rows",
        "add ProfilerActivity.CUDA to activities= (and record on the GPU machine)",
    ),
    "collectives": (
        lambda trace: (
            bool(trace.devices) or (trace.is_host_only and bool(host_collectives(trace).any()))
        ),
        "GPU rows or collectives of the host",
        "add ProfilerActivity.CUDA to activities= (and record on the GPU machine)",
    ),
    "runtime": (
        lambda trace: bool((trace.kind == Kind.RUNTIME).any()),
        "runtime calls",
        "record host and device together: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    ),
    "ops": (
        lambda trace: bool((trace.kind == Kind.OP).any()),
        "operators",
        "add ProfilerActivity.CPU to activities=",
    ),
    "shapes": (
        lambda trace: trace.has_shapes,
        "input shapes",
        "profile(record_shapes=True, ...)",
    ),
    "stacks": (
        lambda trace: trace.has_stacks,
        "Python stacks",
        "profile(with_stack=True, ...)",
    ),
    "memory": (
        lambda trace: len(trace.memory.at_ns) > 0,
        "allocator records",
        "profile(profile_memory=True, ...)",
    ),
    "work": (
        lambda trace: bool(trace.devices) or trace.is_host_only,
        "GPU rows",
        "add ProfilerActivity.CUDA to activities= (and record on the GPU machine)",
    ),
    "sizes": (
        lambda trace: bool(trace.devices) or (trace.is_host_only and trace.has_shapes),
        "GPU rows, or on a CPU input shapes",
        "profile(record_shapes=True, ...), and on a GPU machine ProfilerActivity.CUDA",
    ),
    "gaps": (
        is_explained,
        "Python stacks, and the time between operators is considerable",
        "profile(with_stack=True, ...)",
    ),
    "steps": (
        lambda trace: len(trace.steps) > 0,
        "steps",
        "call prof.step() once per iteration",
    ),
}


@dataclass(frozen=True)
class Pattern:
    """A pattern's identity and place in the order of precedence.

    ``order`` : claims are given their time in ascending order, the specific before the generic
    (catalogue 3.1). ``needs`` : keys of :data:`NEEDS` without which nothing can be said.
    ``suppresses`` : codes that mean nothing while this one is certain.
    """

    code: str
    name: str
    family: str
    title: str
    order: int
    needs: frozenset[str]
    suppresses: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Claim:
    """One occurrence-set of a pattern in a trace.

    ``rows`` : the events that are the evidence, over the whole recording.
    ``examples`` : rows to show first, the most telling first (none: the longest of ``rows``).
    ``spans`` : int64[k, 2], wall time at stake: device time, or host time where there is no device.
    May overlap and may lie outside the judged steps; it is clipped later.
    ``gain_low``/``gain_high`` : the fraction of that time a fix gives back, one number or one per
    span, 0-1.
    ``anchor`` : the row whose op chain, frame and module stand for the finding (-1: the first row).
    ``time_class`` : which class of time the spans are taken from; ``none`` claims no time.
    ``always`` : report whatever the cost (a configuration that is wrong by itself).
    """

    message: str
    certainty: Certainty
    rows: Ints
    spans: Spans = field(default_factory=lambda: intervals.EMPTY)
    gain_low: float | NDArray[np.float64] = 1.0
    gain_high: float | NDArray[np.float64] = 1.0
    time_class: Literal["idle", "copy", "comm", "compute", "host", "none"] = "none"
    basis: Literal["measured", "modelled", "bounded"] = "bounded"
    method: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    anchor: int = -1
    fix: Fix | None = None
    always: bool = False
    edits: tuple[Edit, ...] = ()
    examples: tuple[int, ...] = ()


Find = Callable[[Trace], Iterator[Claim]]


@dataclass(frozen=True)
class Entry:
    """A catalogue entry: the pattern, its function, its fix and its page."""

    pattern: Pattern
    find: Find
    fix: Fix
    page: str


SECTIONS = ("Looks like", "Slow because", "Cost", "Fix", "Leave it when", "Source")


@lru_cache(maxsize=1)
def catalogue() -> tuple[Entry, ...]:
    """Return every pattern found in the subfolders of this package, in order of code.

    Raises
    ------
    PatternError
        A module is not of the shape every pattern has; the message names the file and what is off.
    """
    import torchtriage.patterns as package

    entries = []
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        parts = info.name.split(".")
        if info.ispkg or len(parts) != 4 or parts[-1].startswith("_"):
            continue
        entries.append(_entry(importlib.import_module(info.name)))
    entries.sort(key=lambda entry: entry.pattern.code)
    codes = [entry.pattern.code for entry in entries]
    for code in codes:
        if codes.count(code) > 1:
            raise PatternError(f"two patterns share the code {code}")
    return tuple(entries)


def lookup(code_or_name: str) -> Entry:
    """Return the entry with this code or name.

    Raises
    ------
    UsageError
        There is none; the message suggests near ones.
    """
    wanted = code_or_name.strip()
    known: dict[str, Entry] = {}
    for entry in catalogue():
        known[entry.pattern.code.lower()] = known[entry.pattern.name] = entry
    found = known.get(wanted.lower())
    if found is None:
        raise UsageError.unknown("pattern", wanted, known)
    return found


def missing_needs(pattern: Pattern, trace: Trace) -> list[str]:
    """Return the needs of a pattern that a trace does not meet."""
    return sorted(need for need in pattern.needs if not NEEDS[need][0](trace))


def _entry(module: ModuleType) -> Entry:
    where = module.__name__

    def demand(condition: object, message: str) -> None:
        if not condition:
            raise PatternError(message, where=where, hint="see CONTRIBUTING.md, adding a pattern")

    pattern = getattr(module, "PATTERN", None)
    fix = getattr(module, "FIX", None)
    demand(isinstance(pattern, Pattern), "expected PATTERN = Pattern(...)")
    demand(isinstance(fix, Fix), "expected FIX = Fix(...)")
    demand(callable(getattr(module, "find", None)), "expected def find(trace)")
    assert isinstance(pattern, Pattern)
    assert isinstance(fix, Fix)
    family, stem = where.split(".")[-2:]
    demand(pattern.family == family, f"expected family {family!r}, found {pattern.family!r}")
    demand(
        pattern.name.replace("-", "_") == stem,
        f"expected the name of the file, {stem!r}, found {pattern.name!r}",
    )
    demand(re.fullmatch(r"[A-Z]{3}\d{3}", pattern.code), f"odd code {pattern.code!r}")
    unknown = set(pattern.needs) - set(NEEDS)
    demand(not unknown, f"unknown needs {sorted(unknown)}")
    page = module.__doc__ or ""
    entry = Entry(pattern, module.find, fix, page)
    for title in SECTIONS:
        demand(section(entry.page, title), f"the docstring has no section {title!r}")
    return entry
