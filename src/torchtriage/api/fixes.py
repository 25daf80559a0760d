"""Fixes that prove themselves: ``torchtriage fix`` as a function."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtriage.api.rendering import Renderable
from torchtriage.measure.fix.model import ModelProposer
from torchtriage.measure.fix.result import FixResult


@dataclass(frozen=True)
class FixReport(Renderable, FixResult):
    """A :class:`~torchtriage.measure.fix.result.FixResult` that shows itself, in notebooks too."""


def fix(
    words: Sequence[str],
    *,
    project: str | None = None,
    only: Iterable[str] = (),
    allow: bool = False,
    budget_s: float = 600.0,
    apply: bool = False,
    out: str | Path | None = None,
    model: ModelProposer | None = None,
    progress: Callable[[str], None] | None = None,
) -> FixReport:
    """Make a program faster: try what its findings propose in a copy of its project, and return what is proved.

    Parameters
    ----------
    words : sequence of str
        Words of a command, as for ``torchtriage run``: ``["train.py", "--epochs", "1"]``.
    project : str, optional
        The folder to copy; that of the script's repository or package, else its own, unless given.
    only : iterable of str
        Codes or names of findings: mend these alone.
    allow : bool
        Accept changes of the results that are what a change is for, and changes whose results cannot be compared.
    budget_s : float
        Seconds after which nothing new is tried.
    apply : bool
        Write the patch into the project. Without it nothing is written there.
    out : path, optional
        Keep recordings and measurements here.
    model : ModelProposer, optional
        Asked for a change of each finding that nothing else mends; sends source where its ``ask`` goes.
    progress : callable, optional
        Called with a line of text on what is done next.

    Raises UsageError: the program fails, a code is unknown, or a file was changed by someone else meanwhile;
    KeyboardInterrupt, with a ``result`` without a patch once changes are on trial.
    """
    from torchtriage.api.catalogue import lookup
    from torchtriage.measure.fix.fix import FixInterrupted, Wanted
    from torchtriage.measure.fix.fix import fix as find_fixes
    from torchtriage.measure.fix.project import ProjectCopy, project_of

    wanted = Wanted(frozenset(lookup(name)[0].code for name in only), allow, budget_s)
    folder = project_of(words, project)
    kept = Path(out).resolve() if out is not None else None
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="torchtriage-fix-", dir=kept) as temporary:
        measured = kept or Path(temporary) / "out"
        measured.mkdir(exist_ok=True)
        copy = ProjectCopy.make(folder, Path(temporary) / "copy", words, apart=measured)
        try:
            result = find_fixes(copy, measured, wanted, model=model, apply=apply, tell=progress or (lambda _: None))
        except FixInterrupted as interrupted:
            raise FixInterrupted(FixReport.of(interrupted.result)) from None
        return FixReport.of(result)
