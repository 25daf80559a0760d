"""Questions by hand: ``gpu*0.5``, ``cpu*0.5``, ``comm=0``, ``no-sync``, ``launch=0``.

A question names a target and what remains of its time. Targets are the kinds of time a step is
made of, or events by name: ``kernel:TEXT`` and ``op:TEXT``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.errors import UsageError
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.collectives import communicates
from torchtriage.diagnose.replay.edits import Edit

_SHAPE = re.compile(
    r"(?P<no>no-)?(?P<target>[a-z]+)(?::(?P<name>[^*=/]+)|\s*)"
    r"(?:(?P<sign>[*=/])\s*(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+))?",
    re.IGNORECASE,
)
_HOW = "write TARGET*FACTOR, TARGET=0 or no-TARGET, such as gpu*0.5, comm=0, no-sync"


def _shrink(rows: Callable[[Trace], NDArray[np.bool_]]) -> Callable[[Trace, float], list[Edit]]:
    return lambda trace, factor: [Edit("shrink", np.flatnonzero(rows(trace)), factor)]


def _sync(trace: Trace, factor: float) -> list[Edit]:
    waits = trace.waits
    rows = distinct(np.concatenate([waits.row, waits.sync_row])) if len(waits) else waits.row
    return [Edit("unblock", rows.astype(np.int64))] if factor == 0 else []


def _loader(trace: Trace, factor: float) -> list[Edit]:
    fetches = trace.matching(r"DataLoader\w*Iter\.__next__", Kind.OP, Kind.ANNOTATION)
    rows = np.flatnonzero(fetches)
    return [Edit("drop", rows) if factor == 0 else Edit("shrink", rows, factor)]


TARGETS: dict[str, Callable[[Trace, float], list[Edit]]] = {
    "gpu": _shrink(lambda trace: trace.is_kind(Kind.KERNEL, Kind.MEMSET) & ~communicates(trace)),
    # everything host threads do between waits, Python included
    "cpu": lambda trace, factor: [Edit("threads", factor=factor)],
    # with the waiting for other ranks inside
    "comm": _shrink(communicates),
    "copy": _shrink(lambda trace: trace.kind == Kind.MEMCPY),
    "launch": _shrink(lambda trace: trace.links.launches & (trace.kind == Kind.RUNTIME)),
    "sync": _sync,
    # fetching batches in the main thread, or waiting for them
    "loader": _loader,
}
"""What a question can be about besides names, and the edits that answer it with a factor."""


@dataclass(frozen=True)
class WhatIf:
    """A question: everything of ``target`` takes ``factor`` of its time.

    ``name`` narrows the targets ``kernel`` and ``op`` to names that contain it.
    """

    text: str
    target: str
    factor: float
    name: str = ""

    def edits(self, trace: Trace) -> list[Edit]:
        """Return the edits that stand for the question in this trace (none: nothing to change)."""
        if self.target not in TARGETS:
            rows = self._named(trace)
            return [Edit("shrink", rows, self.factor)] if len(rows) else []
        edits = TARGETS[self.target](trace, self.factor)
        return [edit for edit in edits if len(edit.rows) or edit.kind == "threads"]

    def _named(self, trace: Trace) -> Ints:
        named = trace.where_name(lambda name: self.name in name)
        if self.target == "kernel":
            return np.flatnonzero(named & trace.works)
        ops = named & trace.is_kind(Kind.OP, Kind.ANNOTATION)
        return distinct(np.concatenate([np.flatnonzero(ops), trace.links.work_under(ops)]))


def parse_what_if(text: str) -> WhatIf:
    """Read a question such as ``gpu*0.5``, ``cpu/2``, ``comm=0``, ``no-sync``, ``op:aten::mm*0.5``.

    Raises UsageError: it is none; the message names what can be asked.
    """
    cleaned = text.strip()
    match = _SHAPE.fullmatch(cleaned)
    if match is None:
        # names hold the signs of the grammar: the last one counts
        match = re.fullmatch(
            r"(?P<no>)(?P<target>kernel|op):(?P<name>.+)(?P<sign>[*=/])\s*"
            r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)",
            cleaned,
        )
    if match is None:
        raise UsageError(f"expected a question, found {text!r}", hint=_HOW)
    target, name = match["target"].lower(), (match["name"] or "").strip()
    if target in ("kernel", "op"):
        if not name:
            raise UsageError(f"expected a name after {target}, found {text!r}", hint=f"{target}:NAME*0.5")
    elif target not in TARGETS:
        raise UsageError(
            f"unknown what-if target {target!r}", hint=f"targets are {', '.join(TARGETS)}, kernel:NAME and op:NAME"
        )
    elif name:
        raise UsageError(f"{target} takes no name, found {text!r}", hint="kernel:NAME or op:NAME")
    factor = _factor(match, text)
    if target == "sync" and factor != 0:
        raise UsageError(
            f"a wait cannot be shortened by a factor, found {text!r}",
            hint="no-sync lets the host run on past every wait; gpu*0.5 shortens what it waits for",
        )
    return WhatIf(cleaned, target, factor, name)


def _factor(match: re.Match[str], text: str) -> float:
    if bool(match["no"]) == bool(match["sign"]):
        raise UsageError(f"expected one factor, found {text!r}", hint=_HOW)
    if match["no"]:
        return 0.0
    number = float(match["number"])
    if match["sign"] == "=" and number != 0:
        raise UsageError(f"only =0 can be asked, found {text!r}", hint=f"{match['target']}*{match['number']}")
    if match["sign"] == "/":
        if number == 0:
            raise UsageError(f"nothing can be divided by 0, found {text!r}", hint=_HOW)
        return 1 / number
    return number
