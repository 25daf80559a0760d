"""Which commit is measured, and another one checked out beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchtriage.core.errors import BenchmarkError, UsageError
from torchtriage.core.machine import variables
from torchtriage.core.samples import Machine, Run, Series

UNCOMMITTED = "uncommitted changes"
"""Name in a run's environment: what was measured is not the commit alone."""

# a detached checkout has no branch; CI names it, for a pull request the source's first
BRANCHES = (
    "GITHUB_HEAD_REF",
    "GITHUB_REF_NAME",
    "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME",
    "CI_COMMIT_REF_NAME",
    "BUILDKITE_BRANCH",
    "CIRCLE_BRANCH",
)


@dataclass(frozen=True)
class GitRevision:
    """A commit. ``root`` : top of its checkout. All empty where there is no git.

    ``problem`` : what git said, where there is a repository and it named no commit.
    """

    commit: str = ""
    branch: str = ""
    parent: str | None = None
    committed_at_s: int | None = None
    uncommitted: bool = False
    root: Path | None = None
    problem: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What is stored of it beside commit, branch and parent."""
        out = {}
        if self.committed_at_s is not None:
            out["committed_at_s"] = str(self.committed_at_s)
        if self.uncommitted:
            out[UNCOMMITTED] = "yes"
        return out

    def run(
        self,
        benchmark: str,
        machine: Machine,
        environment: Mapping[str, str] | None = None,
        *,
        series: Sequence[Series] = (),
        traces: Sequence[str] = (),
    ) -> Run:
        """Return a run of this commit, recorded now; ``environment`` : what is known beside variables and commit."""
        known = {**variables(), **self.environment, **(environment or {})}
        return Run(
            benchmark=benchmark,
            commit=self.commit,
            branch=self.branch,
            parent=self.parent,
            recorded_at_s=time.time(),
            machine=machine,
            environment=tuple(sorted(known.items())),
            series=tuple(series),
            traces=tuple(traces),
        )


def find_revision(folder: Path) -> GitRevision:
    """Return the commit that is checked out in a folder; nothing where git or a commit is missing.

    A shallow clone knows no parent: it is None.
    """
    try:
        shown = _run(folder, "show", "-s", "--format=%H%n%ct", "HEAD")
    except UsageError:
        return GitRevision()
    if shown.returncode:
        # a container's checkout often belongs to another user, which git refuses to read
        problem = _last(shown.stderr)
        return GitRevision(problem="" if "not a git repository" in problem else problem)
    commit, at_s = shown.stdout.split()
    branch = _git(folder, "symbolic-ref", "--quiet", "--short", "HEAD")
    if not branch:
        branch = next((os.environ[name] for name in BRANCHES if os.environ.get(name)), "")
    top = _git(folder, "rev-parse", "--show-toplevel")
    return GitRevision(
        commit=commit,
        branch=branch,
        parent=_git(folder, "rev-parse", "--quiet", "--verify", "HEAD^"),
        committed_at_s=int(at_s),
        # files git does not know may be results of the benchmark itself
        uncommitted=bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
        root=Path(top) if top else None,
    )


@contextlib.contextmanager
def checked_out(name: str, folder: Path) -> Iterator[tuple[Path, GitRevision]]:
    """Check a revision out beside the work, and yield the folder that stands for ``folder``.

    ``name`` : a branch, tag or commit. It is gone in the end; the work itself is never touched.

    Raises UsageError: there is no git, no repository, or no such revision; BenchmarkError: it cannot be checked
    out.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        raise UsageError("expected a git repository, found none", where=str(folder))
    commit = commit_of(folder, name)
    if commit is None:
        raise UsageError(
            "expected a branch, tag or commit, found none of this name",
            where=name,
            hint=f"git fetch origin {name}; CI clones only the newest commit unless configured otherwise",
        )
    place = Path(tempfile.mkdtemp(prefix="torchtriage-"))
    tree = place / Path(top).name
    try:
        added = _run(folder, "worktree", "add", "--detach", "--quiet", str(tree), commit)
        if added.returncode:
            raise BenchmarkError(f"cannot be checked out: {_last(added.stderr)}", where=name)
        revision = find_revision(tree)
        branch = name if _git(folder, "show-ref", "--", name) else ""
        inside = tree / folder.resolve().relative_to(Path(top).resolve())
        if not inside.is_dir():
            raise UsageError(f"expected the folder {inside.relative_to(tree)} there too, found none", where=name)
        yield inside, replace(revision, branch=branch, uncommitted=False, root=tree)
    finally:
        _run(folder, "worktree", "remove", "--force", str(tree))
        shutil.rmtree(place, ignore_errors=True)
        _run(folder, "worktree", "prune")


def commit_of(folder: Path, name: str) -> str | None:
    """Return the commit that a branch, a tag or its first digits name; None where git knows none.

    Of a branch that is only the remote's, as in CI, the remote's.
    """
    for ref in (name, f"origin/{name}"):
        asked = ("rev-parse", "--quiet", "--verify", "--end-of-options", f"{ref}^{{commit}}")
        if commit := _git(folder, *asked):
            return commit
    return None


def commits_along(folder: Path, name: str) -> tuple[str, ...]:
    """Return the commits of a branch by first parents, oldest first; none where git knows none."""
    commit = commit_of(folder, name)
    listed = _git(folder, "rev-list", "--first-parent", "--reverse", commit) if commit else None
    return tuple(listed.split()) if listed else ()


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = _run(folder, *words)
    except UsageError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        raise UsageError("git is needed and not installed") from error


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith(("fatal:", "error:"))]
    return (lines or text.strip().splitlines() or ["git printed nothing"])[0]
