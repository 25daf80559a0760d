"""What changed, where traces were kept with the samples of a benchmark that regressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

from torchtriage.core.errors import TriageError
from torchtriage.core.finding import Note
from torchtriage.core.trace.read import read_trace
from torchtriage.diagnose.compare.result import Comparison
from torchtriage.diagnose.compare.verdict import ChangeEvidence, compare, gather
from torchtriage.measure.gate.result import Culprit

__all__ = ["Read", "name_culprit"]

N_CAUSES = 5

Read = Callable[[str], ChangeEvidence]


def name_culprit(
    benchmark: str, before: Sequence[str], after: Sequence[str], *, read: Read | None = None
) -> Culprit | Note:
    """Return what changed between the first readable traces of two sides, or why it is not known.

    ``benchmark`` : whose traces they are. ``before``, ``after`` : paths of recordings of the two programs. ``read``
    : gives the evidence of one path.
    """
    sides = []
    for paths in (before, after):
        found, why = _first(paths, read or _read)
        if found is None:
            return Note(
                "culprit",
                "warn",
                f"{benchmark}: what changed is not known, because no trace could be read: {why}",
                "keep the traces of both sides: torchtriage gate record --trace FILE",
            )
        sides.append(found)
    (path_before, first), (path_after, other) = sides
    told = compare(first, other)
    if not told.comparable:
        return Note("culprit", "warn", f"{benchmark}: the kept traces are unlike: {told.verdict[0]}")
    return Culprit(
        benchmark=benchmark,
        before=_name(path_before),
        after=_name(path_after),
        sentence=told.verdict[1],
        causes=tuple(cause.sentence for cause in told.causes if cause.change.told)[:N_CAUSES],
        came=tuple(
            f"{finding.code} {finding.title}" + (f" at {finding.place}" if finding.place else "")
            for finding in told.findings
            if finding.status == "came"
        ),
        place=_place(told),
    )


def _first(paths: Sequence[str], read: Read) -> tuple[tuple[str, ChangeEvidence] | None, str]:
    why = "none was kept"
    for path in paths:
        try:
            return (path, read(path)), ""
        except (TriageError, OSError) as error:  # noqa: PERF203 - the next one may be whole
            why = str(error).split("\n", 1)[0]
    return None, why


def _read(path: str) -> ChangeEvidence:
    return gather(read_trace(path))


def _name(path: str) -> str:
    return PurePath(path.replace("\\", "/")).name or path


def _place(told: Comparison) -> str:
    for finding in told.findings:
        if finding.status == "came" and ":" in finding.place:
            return finding.place
    return ""
