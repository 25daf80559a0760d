"""What a pattern is: a pure function from a trace to claims, and the catalogue of all of them.

A pattern never promises a saving. It points at wall time (``spans``) and says which part of it a fix
saves (``gain_low`` to ``gain_high``), and it describes the fix as ``edits`` to the recorded run. Each
millisecond then gets one owner (``verdict.time_ownership``), and the cost of a finding comes from
replaying the run with its edits, bounded by those intervals (``verdict.pricing``).

Pattern modules import what they need from here: the types, and those of the trace they work on.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, Mask
from torchtriage.core.errors import PatternError, UsageError
from torchtriage.core.finding import Certainty, Fix
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import HOST_KINDS, Kind, Trace
from torchtriage.core.trace.collectives import host_collectives
from torchtriage.core.trace.inference_phase import inference_phase
from torchtriage.core.trace.recorders import XLA
from torchtriage.diagnose.patterns._host_gaps import is_explained
from torchtriage.diagnose.replay.edits import Edit

__all__ = [
    "HOST_KINDS",
    "NEEDS",
    "Certainty",
    "Claim",
    "Claims",
    "Edit",
    "Fix",
    "Floats",
    "Ints",
    "Kind",
    "Mask",
    "Pattern",
    "PatternEntry",
    "Spans",
    "Trace",
    "aten",
    "catalogue",
    "given",
    "longest_names",
    "lookup",
    "missing_needs",
    "most_frequent",
]


_ON_DEVICE = "add ProfilerActivity.CUDA to activities= (and record on the GPU machine)"

NEEDS: dict[str, tuple[Callable[[Trace], bool], str, str]] = {
    # need: (test, what is missing, how to record it)
    "device": (lambda trace: bool(trace.devices), "GPU rows", _ON_DEVICE),
    # not named by patterns: every one that looks at a device has it
    "gpu": (
        lambda trace: not trace.origin.accelerator,
        "NVIDIA or AMD GPU",
        "not possible: these patterns only know NVIDIA and AMD GPUs",
    ),
    "collectives": (
        lambda trace: bool(trace.devices) or (trace.is_host_only and bool(host_collectives(trace).any())),
        "GPU rows or collectives of the host",
        _ON_DEVICE,
    ),
    "peers": (
        lambda trace: (
            not trace.matching(r"^(gloo|mpi|nccl|rccl): ?i?(send|recv)\b|^c10d::(send|recv_)$", *HOST_KINDS).any()
        ),
        "recordings of all ranks that it sends to",
        "record all ranks at the same steps: torchtriage analyze FOLDER",
    ),
    "job": (
        lambda trace: (trace.origin.world_size or 1) < 2,
        "recordings of all ranks",
        "record all ranks at the same steps: torchtriage analyze FOLDER",
    ),
    "runtime": (
        lambda trace: bool((trace.kind == Kind.RUNTIME).any()),
        "runtime calls",
        "record host and device together: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    ),
    "ops": (lambda trace: trace.has_operators, "operators", "add ProfilerActivity.CPU to activities="),
    "dispatch": (
        # an XPlane is no recording of PyTorch: what its host does between launches is not dispatch
        lambda trace: trace.has_operators or trace.report.recorder not in XLA,
        "operators (in an XPlane)",
        "add ProfilerActivity.CPU to activities=",
    ),
    "shapes": (lambda trace: trace.has_shapes, "input shapes", "profile(record_shapes=True, ...)"),
    "statistics": (
        lambda trace: trace.has_shapes or (bool(trace.devices) and inference_phase(trace) is not None),
        "input shapes (on a GPU only for training)",
        "profile(record_shapes=True, ...)",
    ),
    "stacks": (lambda trace: trace.has_stacks, "Python stacks", "profile(with_stack=True, ...)"),
    "memory": (lambda trace: len(trace.memory.at_ns) > 0, "allocator records", "profile(profile_memory=True, ...)"),
    "work": (lambda trace: bool(trace.devices) or trace.is_host_only, "GPU rows", _ON_DEVICE),
    "size": (
        lambda trace: not trace.devices or trace.origin.n_multiprocessors is not None,
        "number of multiprocessors",
        "pass a recording that names the GPU, of XLA's profiler the .xplane.pb file",
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
    "steps": (lambda trace: len(trace.steps) > 0, "steps", "call prof.step() once per iteration"),
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

    @classmethod
    def of(
        cls, module: str, code: str, title: str, *, order: int, needs: str = "", suppresses: tuple[str, ...] = ()
    ) -> "Pattern":
        """Return the pattern of a module, whose path holds its family and name; ``needs`` separated by spaces."""
        family, stem = module.split(".")[-2:]
        return cls(code, stem.replace("_", "-"), family, title, order, frozenset(needs.split()), suppresses)


@dataclass(frozen=True, eq=False)
class Claim:
    """All occurrences of a pattern in a trace that share one cause.

    ``rows`` : the events that are the evidence, over the whole recording.
    ``examples`` : rows to show first, the clearest first (none: the longest of ``rows``).
    ``spans`` : int64[k, 2], wall time at stake: device time, or host time where there is no device.
    May overlap and may lie outside the judged steps; it is clipped later.
    ``gain_low``/``gain_high`` : the fraction of that time a fix saves, one number or one per span, 0-1.
    ``gain_most`` : the fraction that what must be done leaves to any fix: no interval is widened beyond it.
    ``anchor`` : the row whose op chain, frame and module stand for the finding (-1: the first row).
    ``time_class`` : which class of time the spans are taken from; ``none`` claims no time.
    ``always`` : report whatever the cost (a configuration that is wrong by itself).
    ``voids`` : what was recorded is not the program at work; other findings' shares are of something else.
    ``title`` : where the pattern's own says something else.
    """

    message: str
    certainty: Certainty
    rows: Ints
    spans: Spans = field(default_factory=lambda: intervals.EMPTY)
    gain_low: float | Floats = 1.0
    gain_high: float | Floats = 1.0
    time_class: Literal["idle", "copy", "comm", "compute", "host", "none"] = "none"
    basis: Literal["measured", "modelled", "bounded"] = "bounded"
    method: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    anchor: int = -1
    fix: Fix | None = None
    always: bool = False
    voids: bool = False
    edits: tuple[Edit, ...] = ()
    examples: tuple[int, ...] = ()
    title: str = ""
    gain_most: float | Floats = 1.0


Claims = Iterator[Claim]


@dataclass(frozen=True)
class PatternEntry:
    """A catalogue entry: the pattern, its function, its fix and its page."""

    pattern: Pattern
    find: Callable[[Trace], Claims]
    fix: Fix
    page: str


GROUP = "torchtriage.patterns"
"""Entry points of packages with patterns of their own."""
SECTIONS = ("Looks like", "Slow because", "Cost", "Fix", "Leave it when", "Source")


def aten(names: str) -> tuple[str, ...]:
    """Return the full names of PyTorch's own operators, from short ones separated by spaces."""
    return tuple(f"aten::{name}" for name in names.split())


def given(**evidence: Any) -> Mapping[str, Any]:
    """Return the evidence that is there: what is empty, zero or None was not recorded."""
    return {name: value for name, value in evidence.items() if value}


def most_frequent(trace: Trace, rows: NDArray[np.integer], limit: int = 5) -> list[str]:
    """Return the names that most of these rows have, the most frequent first."""
    names, counts = np.unique(trace.name[rows], return_counts=True)
    return [trace.names[code] for code in names[np.argsort(-counts, kind="stable")][:limit].tolist()]


def longest_names(trace: Trace, rows: Ints) -> list[str]:
    """Return the names that take most of these rows' time, the longest first."""
    names, where = np.unique(trace.name[rows], return_inverse=True)
    total = np.bincount(where, weights=trace.dur_ns[rows])
    return [trace.names[names[at]] for at in np.argsort(-total)[:3].tolist()]


@lru_cache(maxsize=1)
def catalogue() -> tuple[PatternEntry, ...]:
    """Return every pattern, in order of code.

    They are the modules in the subfolders of this package, and those that installed packages name as entry points of
    ``torchtriage.patterns``.

    Raises PatternError: a module is not of the shape every pattern has; the message names the file and what is off.
    """
    import torchtriage.diagnose.patterns as package

    entries = []
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        parts = info.name.split(".")
        if not info.ispkg and len(parts) == 5 and not parts[-1].startswith("_"):
            entries.append(_entry(importlib.import_module(info.name)))
    entries += [_entry(module) for module in _plugged_in()]
    entries.sort(key=lambda entry: entry.pattern.code)
    codes = [entry.pattern.code for entry in entries]
    for code in codes:
        if codes.count(code) > 1:
            raise PatternError(f"two patterns share the code {code}")
    return tuple(entries)


def lookup(code_or_name: str) -> PatternEntry:
    """Return the entry with this code or name.

    Raises UsageError: there is none; the message suggests near ones.
    """
    wanted = code_or_name.strip()
    known = {key: entry for entry in catalogue() for key in (entry.pattern.code.lower(), entry.pattern.name)}
    if wanted.lower() not in known:
        raise UsageError.unknown("pattern", wanted, known)
    return known[wanted.lower()]


_OF_A_DEVICE = frozenset({"device", "collectives", "runtime", "work", "sizes"})


def missing_needs(pattern: Pattern, trace: Trace) -> list[str]:
    """Return the needs of a pattern that a trace does not meet."""
    if trace.origin.accelerator and pattern.needs & _OF_A_DEVICE:
        return ["gpu"]
    return sorted(need for need in pattern.needs if not NEEDS[need][0](trace))


def _plugged_in() -> Iterator[ModuleType]:
    """Yield the modules that installed packages name; importlib.metadata is slow to import, and seldom needed."""
    if not any(map(_names_patterns, sys.path)):
        return
    from importlib import metadata

    for point in metadata.entry_points(group=GROUP):
        where = f"entry point {point.name!r} of {point.dist.name if point.dist else point.value}"
        hint = f"uninstall the package, or fix it: {GROUP!r} names modules, as in docs/how-to-add.md"
        try:
            module = point.load()
        except Exception as error:  # whatever a foreign module does when it is imported
            found = f"{type(error).__name__}: {error}"
            raise PatternError(f"expected the module of a pattern, found {found}", where=where, hint=hint) from error
        if not isinstance(module, ModuleType):
            raise PatternError(f"expected a module, found a {type(module).__name__}", where=where, hint=hint)
        yield module


def _names_patterns(folder: str) -> bool:
    files = Path(folder or ".").glob("*-info/entry_points.txt")
    return any(GROUP.encode() in file.read_bytes() for file in files)


def _entry(module: ModuleType) -> PatternEntry:
    where = module.__name__

    def demand(condition: object, message: str) -> None:
        if not condition:
            raise PatternError(message, where=where, hint="see docs/how-to-add.md, a pattern")

    pattern, fix = getattr(module, "PATTERN", None), getattr(module, "FIX", None)
    demand(isinstance(pattern, Pattern), "expected PATTERN = Pattern.of(__name__, ...)")
    demand(isinstance(fix, Fix), "expected FIX = Fix(...)")
    assert isinstance(pattern, Pattern)
    assert isinstance(fix, Fix)
    # what only the recordings of all ranks together show has no function of its own
    find = getattr(module, "find", (lambda _trace: iter(())) if pattern.needs & {"job", "peers"} else None)
    demand(callable(find), "expected def find(trace)")
    assert find is not None
    *_, family, stem = ("", *where.split("."))
    demand(pattern.family == family, f"expected family {family!r}, found {pattern.family!r}")
    demand(pattern.name.replace("-", "_") == stem, f"expected the name of the file, {stem!r}, found {pattern.name!r}")
    demand(re.fullmatch(r"[A-Z]{3}\d{3}", pattern.code), f"odd code {pattern.code!r}")
    unknown = set(pattern.needs) - set(NEEDS)
    demand(not unknown, f"unknown needs {sorted(unknown)}")
    page = module.__doc__ or ""
    for title in SECTIONS:
        demand(f"\n{title}:" in page, f"the docstring has no section {title!r}")
    return PatternEntry(pattern, find, fix, page)
