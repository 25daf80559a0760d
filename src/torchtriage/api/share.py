"""Recordings fit to be handed on: smaller ones, and ones without their owner's names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from torchtriage.api.traces import find_traces
from torchtriage.core.errors import UsageError
from torchtriage.core.folders import is_inside
from torchtriage.core.selection import Selection
from torchtriage.core.trace import read_trace
from torchtriage.core.trace.anonymise import Anonymiser
from torchtriage.core.trace.memory_limit import within
from torchtriage.core.trace.pseudonyms import Pseudonyms
from torchtriage.core.trace.select import step_numbers, steps_there
from torchtriage.core.trace.slim import Less, Part, Written, find_part, write_slim
from torchtriage.core.units import DEFAULT_MAX_BYTES, format_bytes, format_count
from torchtriage.diagnose.ranks.job_detection import rank_in_name

_FEWEST_STEPS = 4
"""The first of a recording is not judged; with three more there is a mean."""
_ATTEMPTS = 4
_KEY = "torchtriage-key.json"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Slimmed:
    """What was written: the files, their sizes, what was dropped, in words, and whether they are as small as asked."""

    files: tuple[Path, ...]
    from_bytes: int
    size_bytes: int
    dropped: tuple[str, ...]
    small_enough: bool


@dataclass(frozen=True)
class _Cut:
    """How much to leave out: the numbers of the first and last step that stay, None for all."""

    steps: tuple[int, int] | None = None
    less: Less = field(default_factory=Less)


def slim(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    selection: Selection | None = None,
    max_mb: float | None = None,
    factor: float | None = None,
    names: Anonymiser | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_memory: int | None = None,
    starting: Callable[[str, int], Progress | None] | None = None,
) -> Slimmed:
    """Write a smaller trace that is judged alike, or a folder of them.

    Parameters
    ----------
    path, out : path
        A trace and the file to write (``.json.gz``), or a folder of ranks and the folder to write.
    selection : Selection, optional
        ``steps`` or ``window`` to keep. The step before is kept as well: the first of a recording is not judged.
    max_mb, factor : float, optional
        How small it should be: megabytes of all files together, or a share of the original (4: a fourth). Steps go
        first, then Python frames, then operators' shapes.
    names : Anonymiser, optional
        Replaces private names.
    max_bytes, max_memory
        As in :func:`torchtriage.load`.
    starting : callable, optional
        Called with a path and how many are done before it is read; may return a ``progress``.

    Raises TraceFormatError: a file cannot be read; UsageError: the selection is not in the recording, or ``out`` cannot
    be written. What was written before is taken away then.
    """
    with _all_or_nothing() as made:
        pairs = list(_pairs(Path(path), Path(out), names, made))
        asked = selection or Selection()
        total = sum(source.stat().st_size for source, _ in pairs)
        wanted = max_mb * 1e6 if max_mb is not None else total / factor if factor is not None else float("inf")
        ladder = _Ladder(pairs[0][0], asked, wanted, max_bytes, max_memory)
        while True:
            written: list[Written] = []
            for source, target in pairs:
                progress = starting(str(source), len(written)) if starting else None
                with within(max_memory):
                    part = _part(source, asked, ladder.cut, max_bytes)
                less = ladder.cut.less
                written.append(
                    write_slim(
                        source, target, part=part, less=less, names=names, max_bytes=max_bytes, progress=progress
                    )
                )
                made.append(target)
            size = sum(item.size_bytes for item in written)
            if size <= wanted or not ladder.descend(size):
                break
    return Slimmed(
        tuple(target for _, target in pairs),
        sum(item.from_bytes for item in written),
        size,
        tuple(_dropped(written, ladder)),
        size <= wanted,
    )


@contextmanager
def _all_or_nothing() -> Iterator[list[Path]]:
    """Yield a list for the folders and files that are made; take them away when what makes them fails."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for path in reversed(made):
            with suppress(OSError):
                if path.is_dir():
                    path.rmdir()  # fails where others have files in it
                elif path.is_file():
                    path.unlink()
        raise


def _pairs(path: Path, out: Path, names: Anonymiser | None, made: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield each trace and the file to write; names of files are private, too. New folders come to ``made``."""
    if not path.is_dir():
        if not out.name.endswith(".gz"):
            hint = f"-o {str(out).removesuffix('.json')}.json.gz"
            raise UsageError("expected a file to write that ends in .json.gz", where=str(out), hint=hint)
        yield path, out
        return
    if out.exists() and (not out.is_dir() or out.resolve() == path.resolve()):
        raise UsageError("expected another folder to write to", where=str(out))
    for number, source in enumerate(map(Path, find_traces([path]))):
        inside = source.relative_to(path)
        name = re.sub(r"(?:\.json)?(?:\.gz|\.zip)?$", ".json.gz", inside.name, count=1)
        folder = inside.parent
        if names is not None:
            rank = rank_in_name(inside.name)
            folder = Path(names.path(str(folder)))
            name = f"trace{number:03d}{'' if rank is None else f'_rank{rank}'}.json.gz"
        target = out / folder / name
        made += reversed([folder for folder in target.parents if not folder.exists()])
        target.parent.mkdir(parents=True, exist_ok=True)
        yield source, target


class _Ladder:
    """Finds how much to leave out: step by step, the least harmful first."""

    def __init__(self, source: Path, asked: Selection, wanted: float, max_bytes: int, max_memory: int | None) -> None:
        self.cut = _Cut()
        self.n_steps = self.n_kept = 0
        self._source, self._wanted = source, wanted
        self._limits = max_bytes, max_memory
        self._may_cut_steps = not asked.narrows
        self._walls: list[tuple[int, int]] = []
        self._attempts = 0

    def descend(self, size: int) -> bool:
        """Leave out more, after a try that came out at ``size``; False where nothing is left to leave out."""
        if self._may_cut_steps and self._fewer_steps(size):
            return True
        less = self.cut.less
        if less.shapes:
            return False
        self.cut = _Cut(self.cut.steps, Less(frames=True, shapes=less.frames))
        return True

    def _fewer_steps(self, size: int) -> bool:
        if not self._walls:
            max_bytes, max_memory = self._limits
            with within(max_memory):
                trace = read_trace(self._source, max_bytes=max_bytes)
                steps = trace.steps
                numbers = step_numbers(trace.steps.names).tolist()
                walls = (steps.end_ns - steps.start_ns).tolist()
                steady = steps.steady.tolist()
            self._walls = [(number, wall) for number, wall, good in zip(numbers, walls, steady, strict=True) if good]
            self.n_steps = self.n_kept = len(numbers)
        self._attempts += 1
        n_kept = max(min(int(self.n_kept * self._wanted / size), self.n_kept - 1), _FEWEST_STEPS)
        if self._attempts > _ATTEMPTS or n_kept >= self.n_kept or len(self._walls) < n_kept:
            return False
        # the run of steady steps that is most like all of them; the one in front is not judged
        walls = np.array([wall for _, wall in self._walls])
        means = np.convolve(walls, np.ones(n_kept - 1), "valid") / (n_kept - 1)
        at = int(np.abs(means - walls.mean()).argmin())
        self.cut = _Cut((self._walls[at][0], self._walls[at + n_kept - 2][0]), self.cut.less)
        self.n_kept = n_kept
        return True


def _part(source: Path, asked: Selection, cut: _Cut, max_bytes: int) -> Part | None:
    if asked.window is None and asked.steps is None and cut.steps is None:
        return None
    trace = read_trace(source, max_bytes=max_bytes)
    if asked.window is not None:
        zero = int(trace.start_ns.min())
        begin, end = asked.offsets_ns()
        if zero + begin >= int(trace.end_ns.max()):
            raise UsageError(f"expected a window within the recording, found {asked.window}", where=str(source))
        return find_part(trace, zero + begin, zero + end)
    first, last = cut.steps or asked.first_and_last()
    numbers = step_numbers(trace.steps.names)
    chosen = np.flatnonzero((numbers >= first) & (numbers <= last))
    if not len(chosen):
        found = steps_there(numbers)
        raise UsageError(f"expected steps {first}-{last}, found {found}", where=str(source), hint="keep a --window")
    lead = max(int(chosen[0]) - 1, 0)
    return find_part(trace, int(trace.steps.host_start_ns[lead]), int(trace.steps.host_end_ns[chosen[-1]]))


def _dropped(written: list[Written], ladder: _Ladder) -> Iterator[str]:
    counts: Counter[str] = sum((item.dropped for item in written), Counter())
    yield "arguments that no rule reads"
    for what, n in counts.most_common():
        yield f"{format_count(n, 'event')}: {what}"
    if ladder.cut.steps is not None:
        first, last = ladder.cut.steps
        yield f"all but steps {first}-{last} of {ladder.n_steps} and the one before them"
    if ladder.cut.less.shapes:
        yield "operators' shapes: rules that need them will say so"


def size_line(done: Slimmed) -> str:
    """Return how much smaller it got, as a line."""
    factor = done.from_bytes / max(done.size_bytes, 1)
    return f"{format_bytes(done.size_bytes)} of {format_bytes(done.from_bytes)}, {factor:.1f} times smaller"


@contextmanager
def open_key(key: str | None, output: str | None = None) -> Iterator[tuple[Pseudonyms, str]]:
    """Yield the pseudonyms of a key file, and its path; by default a new one in the current folder.

    New pseudonyms are written to it at the end. A file that is made here goes again when what is done with it fails.

    Raises UsageError: the default one is there already, the file is no key file, or lies in the folder that is written.
    """
    path = key or _KEY
    if key is None and os.path.lexists(path):
        raise UsageError(
            "expected no key file here yet, found one: another recording's pseudonyms, perhaps",
            where=path,
            hint=f"--key {path} to use the same pseudonyms, or another name",
        )
    if output is not None and is_inside(Path(path), Path(output)):
        raise UsageError("expected a key file outside of what is handed on", where=path, hint="name another with --key")
    is_new = not os.path.lexists(path)
    names = Pseudonyms.of_file(path)
    try:
        yield names, path
    except BaseException:
        if is_new:
            names.take_away(path)
        raise
    names.save(path)
