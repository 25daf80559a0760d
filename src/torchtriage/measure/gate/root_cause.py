"""What changed, where traces were kept with the samples of a benchmark that regressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

from torchtriage.core.errors import TriageError
from torchtriage.core.finding import Note
from torchtriage.core.trace.read import read_trace
from torchtriage.diagnose.compare.verdict import ChangeEvidence, compare, gather
from torchtriage.measure.gate.result import Culprit

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
        side = _first(paths, read or (lambda path: gather(read_trace(path))))
        if isinstance(side, str):
            return Note(
                "culprit",
                "warn",
                f"{benchmark}: what changed is not known, because no trace could be read: {side}",
                "keep the traces of both sides: torchtriage gate record --trace FILE",
            )
        sides.append(side)
    (path_before, first), (path_after, other) = sides
    comparison = compare(first, other)
    if not comparison.comparable:
        return Note("culprit", "warn", f"{benchmark}: the stored traces cannot be compared: {comparison.verdict[0]}")
    new = [finding for finding in comparison.findings if finding.status == "came"]
    return Culprit(
        benchmark=benchmark,
        before=_name(path_before),
        after=_name(path_after),
        sentence=comparison.verdict[1],
        causes=tuple(cause.sentence for cause in comparison.causes if cause.change.told)[:N_CAUSES],
        came=tuple(
            f"{finding.code} {finding.title}" + (f" at {finding.place}" if finding.place else "") for finding in new
        ),
        place=next((finding.place for finding in new if ":" in finding.place), ""),
    )


def _first(paths: Sequence[str], read: Read) -> tuple[str, ChangeEvidence] | str:
    why = "none was stored"
    for path in paths:
        try:
            return path, read(path)
        except (TriageError, OSError) as error:  # noqa: PERF203 - the next one may be whole
            why = str(error).split("\n", 1)[0]
    return why


def _name(path: str) -> str:
    return PurePath(path.replace("\\", "/")).name or path
