"""Which stored runs a check is about: the candidate's, and those of its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchtriage.finding import Note
from torchtriage.gate.revision import commit_of
from torchtriage.gate.run import INTERLEAVING, SIDE
from torchtriage.gate.store import Entry, Store
from torchtriage.samples import Run

__all__ = ["N_RUNS", "Sides", "find_baseline", "find_sides", "sides_of"]

N_RUNS = 10
"""Runs of the baseline that are looked at, per benchmark: the newest ones."""


class Sides(NamedTuple):
    """Runs before and after, how people call them, and what to know about them."""

    before: tuple[Run, ...]
    after: tuple[Run, ...]
    labels: tuple[str, str]
    notes: tuple[Note, ...] = ()


def find_sides(
    store: Store,
    *,
    candidate: str = "HEAD",
    base: str | None = None,
    benchmark: str | None = None,
    n_runs: int = N_RUNS,
    folder: Path,
) -> Sides:
    """Return the stored runs of a candidate and of its baseline.

    Parameters
    ----------
    store : Store
    candidate, base : str
        A branch, a tag, a commit, or its first digits. Without a ``base``, what the candidate was
        measured in turns with, else the branch main (or master).
    benchmark : str, optional
        Only this one.
    n_runs : int
        The newest runs of the baseline that are taken, per benchmark.
    folder : Path
        In the repository.

    Raises
    ------
    StoreError
        The store cannot be read.
    UsageError
        A commit is given with fewer than four characters.
    """
    entries, label, notes = _candidate(store, candidate, benchmark, folder)
    before: list[Entry] = []
    wanted = base or "main"
    for one in entries:
        # what ran in turns is compared in pairs, whatever else is stored
        partner = _partner(store, one)
        if partner is not None and (base is None or _is(partner, base, folder)):
            before.append(partner)
            continue
        names = [base] if base is not None else ["main", "master"]
        for name in names:
            found = _baseline(store, name, one.run, n_runs, folder, without=one.id)
            if found:
                before += found
                wanted = name
                break
    if base is None and before and all(_mark(one) for one in before):
        wanted = before[0].run.branch or before[0].run.commit[:10] or "what ran before"
    elif benchmark is None:
        before += _missing(store, entries, before)
    return Sides(tuple(store.load(before)), tuple(store.load(entries)), (wanted, label), notes)


def find_baseline(
    store: Store, after: Sequence[Run], base: str, *, n_runs: int = N_RUNS, folder: Path
) -> tuple[Run, ...]:
    """Return the stored runs of a branch or a commit for candidates that are in no store.

    Raises
    ------
    StoreError
        The store cannot be read.
    """
    # several runs of one benchmark have one baseline
    found = {one.id: one for run in after for one in _baseline(store, base, run, n_runs, folder)}
    return tuple(store.load(list(found.values())))


def sides_of(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Return the runs of a file apart: those that others were measured in turns with, and the rest.

    The first are empty unless both sides of one measurement are there.
    """
    told = [dict(run.environment) for run in runs]
    marks = {one.get(INTERLEAVING) for one in told if one.get(SIDE) == "after"} - {None}
    sides: tuple[list[Run], list[Run]] = ([], [])
    for run, one in zip(runs, told, strict=True):
        before = one.get(SIDE) == "before" and one.get(INTERLEAVING) in marks
        sides[0 if before else 1].append(run)
    return sides


def _missing(store: Store, after: Sequence[Entry], before: Sequence[Entry]) -> list[Entry]:
    """Return what the baseline's newest commit has on these machines and the candidate lacks."""
    newest = max(before, key=lambda one: one.run.recorded_at_s, default=None)
    if newest is None or not newest.run.commit:
        return []
    known = {one.run.benchmark for one in after}
    machines = {one.run.machine.fingerprint for one in after}
    found: dict[str, Entry] = {}
    for one in store.find(commits=[newest.run.commit]):
        if one.run.benchmark not in known and one.run.machine.fingerprint in machines:
            found.setdefault(one.run.benchmark, one)
    return list(found.values())


def _candidate(
    store: Store, name: str, benchmark: str | None, folder: Path
) -> tuple[list[Entry], str, tuple[Note, ...]]:
    """Return the newest run of each benchmark of a commit, or of a branch's newest one.

    Also how it is called, and whether it is the one that was asked for.
    """
    commit = commit_of(folder, name)
    found: Sequence[Entry] = ()
    if commit is not None:
        found = store.find(benchmark=benchmark, commits=[commit])
    tip = bool(found)
    found = found or store.find(benchmark=benchmark, branch=name)
    if not found and len(name) >= 4:
        found = store.find(benchmark=benchmark, commits=[name])
    if not found and commit is None and name == "HEAD":
        # no repository: the newest of all
        found = store.find(benchmark=benchmark)
    newest: dict[str, Entry] = {}
    judged = ""
    for one in found:
        if dict(one.run.environment).get(SIDE) == "before":
            continue
        judged = judged or one.run.commit
        if one.run.commit == judged:
            newest.setdefault(one.run.benchmark, one)
    label = name if name != "HEAD" or commit is None else f"HEAD ({commit[:10]})"
    notes = []
    if commit is not None and judged and not tip:
        notes.append(
            Note(
                "tip",
                "warn",
                f"the newest commit of {name}, {commit[:10]}, is not recorded: judged is"
                f" {judged[:10]}",
                "torchtriage gate record -- CMD, on that commit",
            )
        )
    return list(newest.values()), label, tuple(notes)


def _partner(store: Store, one: Entry) -> Entry | None:
    """Return the run that was measured in turns with this one."""
    mark = _mark(one)
    if not mark:
        return None
    near = store.find(benchmark=one.run.benchmark)
    return next((other for other in near if other.id != one.id and _mark(other) == mark), None)


def _mark(one: Entry) -> str:
    return dict(one.run.environment).get(INTERLEAVING, "")


def _is(one: Entry, name: str, folder: Path) -> bool:
    commit = commit_of(folder, name) or name
    return name == one.run.branch or one.run.commit.startswith(commit)


def _baseline(
    store: Store, name: str, candidate: Run, n_runs: int, folder: Path, *, without: str = ""
) -> Sequence[Entry]:
    """Return runs of a branch or a commit, of the candidate's machine where there are such."""
    found = store.find(benchmark=candidate.benchmark, branch=name)
    on_branch = bool(found)
    if not found:
        commit = commit_of(folder, name) or (name if len(name) >= 4 else "")
        found = store.find(benchmark=candidate.benchmark, commits=[commit]) if commit else ()
    others = [
        one
        for one in found
        if one.id != without
        # who names a commit means it; of a branch, the candidate's own commit is no baseline
        and not (on_branch and one.run.commit and one.run.commit == candidate.commit)
    ]
    fingerprint = candidate.machine.fingerprint
    alike = [one for one in others if one.run.machine.fingerprint == fingerprint] or others
    at_s = candidate.recorded_at_s
    earlier = [one for one in alike if not at_s or one.run.recorded_at_s <= at_s]
    # the branch's own CI may end later than the candidate's
    return (earlier or alike)[:n_runs]
