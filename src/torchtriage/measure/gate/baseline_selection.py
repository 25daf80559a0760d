"""Which stored runs a check is about: the candidate's, and those of its baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torchtriage.core.finding import Note
from torchtriage.core.samples import Run
from torchtriage.core.units import format_count
from torchtriage.measure.gate.revision import UNCOMMITTED, commit_of
from torchtriage.measure.gate.row_verdict import LEAST_REPEATS
from torchtriage.measure.gate.run import INTERLEAVING, SIDE
from torchtriage.measure.gate.store import Store, StoredRun

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

    ``candidate``, ``base`` : a branch, a tag, a commit, or its first digits. Without a ``base``, what the candidate
    was measured in turns with, else the branch main (or master). ``benchmark`` : only this one. ``n_runs`` : the
    newest runs of the baseline that are taken, per benchmark. ``folder`` : in the repository.

    Raises StoreError: the store cannot be read; UsageError: a commit is given with fewer than four characters.
    """
    entries, label, notes = _candidate(store, candidate, benchmark, folder)
    before: list[StoredRun] = []
    n_edited = 0
    wanted = base or "main"
    names = [base] if base is not None else ["main", "master"]
    for entry in entries:
        # what ran in turns is compared in pairs, whatever else is stored
        partner = _partner(store, entry)
        if partner is not None and (base is None or _is(partner, base, folder)):
            before.append(partner)
            continue
        for name in names:
            found, edited = _baseline(store, name, entry.run, n_runs, folder, without=entry.id)
            if found:
                before += found
                n_edited += len(edited)
                wanted = name
                break
    if base is None and before and all(_mark(entry) for entry in before):
        wanted = before[0].run.branch or before[0].run.commit[:10] or "the earlier program"
    elif benchmark is None:
        before += _missing(store, entries, before)
    if not before:
        notes = (*notes, *_own(store, [entry.run for entry in entries], names))
    notes = (*notes, *_edited(n_edited, wanted))
    return Sides(tuple(store.load(before)), tuple(store.load(entries)), (wanted, label), notes)


def find_baseline(
    store: Store, after: Sequence[Run], base: str, *, n_runs: int = N_RUNS, folder: Path, own: bool = False
) -> tuple[tuple[Run, ...], tuple[Note, ...]]:
    """Return the stored runs of a branch or a commit for candidates that are in no store, and what to know of them.

    ``own`` : what was recorded at the candidate's commit, and with uncommitted changes, is a baseline, too.

    Raises StoreError: the store cannot be read.
    """
    # several runs of one benchmark have one baseline
    found: dict[str, StoredRun] = {}
    left_out: set[str] = set()
    for run in after:
        taken, edited = _baseline(store, base, run, n_runs, folder, own=own)
        found.update((entry.id, entry) for entry in taken)
        left_out |= {entry.id for entry in edited}
    notes = _edited(len(left_out), base) if found else _own(store, after, [base])
    return tuple(store.load(list(found.values()))), tuple(notes)


def sides_of(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Return the runs of a file apart: those that others were measured in turns with, and the rest.

    The first are empty unless both sides of one measurement are there.
    """
    environments = [dict(run.environment) for run in runs]
    marks = {facts.get(INTERLEAVING) for facts in environments if facts.get(SIDE) == "after"} - {None}
    sides: tuple[list[Run], list[Run]] = ([], [])
    for run, facts in zip(runs, environments, strict=True):
        before = facts.get(SIDE) == "before" and facts.get(INTERLEAVING) in marks
        sides[0 if before else 1].append(run)
    return sides


def _edited(n: int, name: str) -> Iterator[Note]:
    if n:
        left_out = f"{format_count(n, 'run')} of {name} with uncommitted changes left out"
        yield Note("uncommitted", "info", left_out)


def _own(store: Store, after: Sequence[Run], names: Sequence[str]) -> Iterator[Note]:
    """Say which branch has no other runs than those of the candidate's own commit."""
    for run in after:
        for name in names:
            if run.commit and store.find(benchmark=run.benchmark, branch=name, limit=1):
                own = run.commit[:10]
                yield Note(
                    "no-baseline",
                    "refuse",
                    f"all runs recorded on {name} are of the candidate's own commit, {own}, and left out",
                    f"record the commits before it; or --base {own} for its own runs; or measure both now:"
                    " torchtriage gate check --against REV -- CMD",
                )
                return


def _missing(store: Store, after: Sequence[StoredRun], before: Sequence[StoredRun]) -> list[StoredRun]:
    """Return what the baseline's newest commit has on these machines and the candidate lacks."""
    newest = max(before, key=lambda entry: entry.run.recorded_at_s, default=None)
    if newest is None or not newest.run.commit:
        return []
    known = {entry.run.benchmark for entry in after}
    machines = {entry.run.machine.fingerprint for entry in after}
    found: dict[str, StoredRun] = {}
    for entry in store.find(commit=newest.run.commit):
        if entry.run.benchmark not in known and entry.run.machine.fingerprint in machines:
            found.setdefault(entry.run.benchmark, entry)
    return list(found.values())


def _candidate(
    store: Store, name: str, benchmark: str | None, folder: Path
) -> tuple[list[StoredRun], str, tuple[Note, ...]]:
    """Return the newest run of each benchmark of a commit, or of a branch's newest one.

    Also how it is called, and whether it is the one that was asked for.
    """
    commit = commit_of(folder, name)
    found: Sequence[StoredRun] = ()
    if commit is not None:
        found = store.find(benchmark=benchmark, commit=commit)
    tip = bool(found)
    found = found or store.find(benchmark=benchmark, branch=name)
    if not found and len(name) >= 4:
        found = store.find(benchmark=benchmark, commit=name)
    if not found and commit is None and name == "HEAD":
        # no repository: the newest of all
        found = store.find(benchmark=benchmark)
    newest: dict[str, StoredRun] = {}
    judged = ""
    for entry in found:
        if dict(entry.run.environment).get(SIDE) == "before":
            continue
        judged = judged or entry.run.commit
        if entry.run.commit == judged:
            newest.setdefault(entry.run.benchmark, entry)
    label = name if name != "HEAD" or commit is None else f"HEAD ({commit[:10]})"
    notes = []
    if commit is not None and judged and not tip:
        notes.append(
            Note(
                "tip",
                "warn",
                f"the newest commit of {name}, {commit[:10]}, is not recorded; {judged[:10]} is analysed instead",
                "torchtriage gate record -- CMD, on that commit",
            )
        )
    return list(newest.values()), label, tuple(notes)


def _partner(store: Store, entry: StoredRun) -> StoredRun | None:
    mark = _mark(entry)
    if not mark:
        return None
    near = store.find(benchmark=entry.run.benchmark)
    return next((other for other in near if other.id != entry.id and _mark(other) == mark), None)


def _mark(entry: StoredRun) -> str:
    return dict(entry.run.environment).get(INTERLEAVING, "")


def _is(entry: StoredRun, name: str, folder: Path) -> bool:
    commit = commit_of(folder, name) or name
    return name == entry.run.branch or entry.run.commit.startswith(commit)


def _baseline(
    store: Store, name: str, candidate: Run, n_runs: int, folder: Path, *, without: str = "", own: bool = False
) -> tuple[Sequence[StoredRun], Sequence[StoredRun]]:
    """Return runs of a branch or a commit, of the candidate's machine if it can be, and those left out as edited."""
    found = store.find(benchmark=candidate.benchmark, branch=name)
    on_branch = bool(found)
    if not found:
        commit = commit_of(folder, name) or (name if len(name) >= 4 else "")
        found = store.find(benchmark=candidate.benchmark, commit=commit) if commit else ()
    others = [
        entry
        for entry in found
        if entry.id != without
        # who names a commit means it; of a branch, the candidate's own commit is no baseline
        and not (on_branch and not own and entry.run.commit and entry.run.commit == candidate.commit)
    ]
    fingerprint = candidate.machine.fingerprint
    alike = [entry for entry in others if entry.run.machine.fingerprint == fingerprint] or others
    at_s = candidate.recorded_at_s
    # the branch's own CI may end later than the candidate's
    earlier = [entry for entry in alike if not at_s or entry.run.recorded_at_s <= at_s] or alike
    # what was measured with uncommitted changes is no commit's program, but shows what recordings differ by
    clean, edited = (
        [entry for entry in earlier if (UNCOMMITTED in dict(entry.run.environment)) == is_edited]
        for is_edited in (False, True)
    )
    if own or len(clean) < LEAST_REPEATS:
        return earlier[:n_runs], ()
    return clean[:n_runs], edited
