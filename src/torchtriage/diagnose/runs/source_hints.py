"""What ``lint`` sees in the files that a run went through, beside what the run showed: reported once, at its line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace
from functools import lru_cache

from torchtriage.core.errors import TriageError
from torchtriage.core.finding import Finding, Frame
from torchtriage.core.names import file_name
from torchtriage.core.source.files import Sources
from torchtriage.diagnose.lint import check
from torchtriage.diagnose.lint.base import catalogue
from torchtriage.diagnose.runs.account import SampledLoop
from torchtriage.diagnose.runs.costs import WORTH, counting_error, share_cost
from torchtriage.diagnose.runs.samples import Samples
from torchtriage.diagnose.runs.source_view import SourceView

NEAR = 3
"""Lines apart that are one place: a statement, or a call and what it is given."""
MAX_FILES = 20
TIMED = ("host", "launch", "copy", "data", "optim")
"""Families whose findings are time at their own line."""
NEEDLESS = frozenset({"KRN101", "KRN102", "KRN103", "KRN104"})
"""Operators that the source alone knows to do more than is used; of other kernels a recording tells."""
MUCH, SURELY, MOST = 0.2, 0.5, 0.5
"""Of a step at a line that the source alone points at: what is much, and what of it is surely saved (in 15 programs
the measured fix saved at least 0.57 of it); and what part of another finding's time must be at its lines for it to
explain that."""
MOST_LINES = 5
GROWING = "HST106"
"""What is everything so far is worked on by all that reads it."""
PYTHON_LOOP = "HST020"
UNNAMED = (PYTHON_LOOP, "HST114")
"""Codes that say where the time is, and not why."""
GARBAGE = "HST021"
"""Explains no loop: its objects are what is collected."""
RECORDED = frozenset({"SYN003", "DAT018"})
"""What a program may need, and costs nothing while other work hides it: a recording that was checked for it tells."""
ONE_BY_ONE = frozenset({"LCH102", "LCH107", "LCH109"})
"""What is done at once saves the calls, and nothing of long operators that do as much for each item."""
CLOCK = "MSR034"
"""With its rule's own fix it is about a device's clock; compiling has another."""
LOADED = ("DAT018", "DAT019", "MEM029")
"""What is seen where batches are fetched or memory grows, and mended where the source says: one place each."""

MADE_ELSEWHERE = "DAT102"
"""What is seen at the call that gets it, and mended where the source makes it: without that, what is seen may have
another reason."""


def with_source(
    findings: Sequence[Finding],
    samples: Samples,
    folders: Sequence[str],
    *,
    on_device: bool,
    judged: Collection[str],
    timed: Sequence[tuple[SampledLoop, float]],
    view: SourceView,
    held: float = 0.0,
) -> tuple[Finding, ...]:
    """Return the findings with the source's own: one that both see is certain, and has the line of the source.

    Only files that the looks at the stack went through are read; what did not run is not reported. ``on_device`` : the
    run used an accelerator; else nothing is said about the way to one. ``judged`` : codes that a recording was checked
    for. ``timed`` : loops with the ms of a step, whose looks show how much is spent at a line of the source.
    ``held`` : the share of a step in operators that take as long for each item of a batch.
    """
    out = list(findings)
    needless = RECORDED & frozenset(judged) - {finding.code for finding in out}
    if not on_device:
        rules = [entry.rule for entry in catalogue()]
        needless |= {rule.code for rule in rules if rule.device or rule.family in ("sync", "comm")}
    clocks = [entry.fix for entry in catalogue() if entry.rule.code == CLOCK]
    alone: dict[tuple[str, str, str], list[Finding]] = {}
    hints = _hints(samples.files[:MAX_FILES], folders)
    made = [hint for hint in hints if hint.code == MADE_ELSEWHERE]
    out = [finding for finding in out if made or finding.code != MADE_ELSEWHERE]
    for hint in hints:
        frame = hint.place.frame
        of_clock = hint.code == CLOCK and hint.fix in clocks
        if frame is None or hint.code in needless or (of_clock and not on_device):
            continue
        same = [finding for finding in out if finding.code == hint.code]
        at = next((finding for finding in same if _one_place(finding, hint)), None)
        if at is None and same and hint.code in LOADED and same[0].place.frame is None:
            at = same[0]
        elsewhere = made == [hint]
        called = next((finding for finding in same if at is None and (elsewhere or _calls(hint, finding))), None)
        if called is not None:
            # the source says where it is mended: at the call, not in the function that is called
            place = replace(called.place, frame=frame, stack=(frame, *called.place.stack))
            out[out.index(called)] = replace(called, place=place, certainty="certain")
        elif at is not None:
            known = at.place.frame
            if known is not None and known.exact:
                frame = replace(known, lines=frame.lines) if known.line in frame.lines else known
            place = replace(at.place, frame=frame)
            out[out.index(at)] = replace(at, place=place, certainty="certain")
        elif not same or hint.severity != "note":
            alone.setdefault((hint.code, frame.file, frame.function), []).append(hint)
    for those in alone.values():
        out = _with_hints(out, those, timed, held, view)
    steps = {(file_name(loop.place.file), loop.place.line) for loop, _ in timed if loop.place is not None}
    return tuple(_without_repeats(out, steps, view))


def _with_hints(
    findings: list[Finding],
    hints: Sequence[Finding],
    timed: Sequence[tuple[SampledLoop, float]],
    held: float,
    view: SourceView,
) -> list[Finding]:
    """Return the findings with what the source alone says of one function, as one where time is spent at its lines.

    It takes the place of those that say of a line only that time is spent there.
    """
    at = {id(hint): [finding for finding in findings if _at(finding, hint)] for hint in hints}
    hints = [hint for hint in hints if all(_unexplained(finding, hint) for finding in at[id(hint)])]
    here = [finding for hint in hints for finding in at[id(hint)]]
    costed = _costed(hints, here, timed, held, view)
    if costed is None or costed.cost is None:
        quiet = [hint for hint in hints if not at[id(hint)]]
        return [*findings, *(hint if hint.severity == "note" else replace(hint, severity="low") for hint in quiet)]
    here += [finding for finding in findings if finding.code == PYTHON_LOOP and _around(finding, costed, view)]
    most = costed.cost.share_high
    explained = [finding for finding in here if finding.cost and most >= MOST * finding.cost.share_high]
    for finding in explained:
        if finding.code == PYTHON_LOOP and finding.cost and finding.cost.low_ms > costed.cost.low_ms:
            costed = replace(costed, cost=finding.cost, severity=finding.severity)  # all of the loop is for this
    return [*(finding for finding in findings if finding not in explained), costed]


def _around(finding: Finding, inner: Finding, view: SourceView) -> bool:
    """Whether the loop of Python that a finding is about is the one around another's lines."""
    frames = finding.place.frame, inner.place.frame
    outermost = [
        (file_name(frame.file), loop.lineno)
        for frame in frames
        if frame is not None and frame.file.endswith(".py")
        for loop in view.loops(frame.file, frame.line)[:1]
    ]
    return len(outermost) == len(frames) and outermost[0] == outermost[1]


def _unexplained(finding: Finding, hint: Finding) -> bool:
    """Whether a finding says where the time is, and neither why nor that any of it need not be; or less than a hint."""
    cost = finding.cost
    if finding.code in UNNAMED or finding.code in _says_more()[hint.code]:
        return True
    return finding.family in TIMED and cost is not None and not cost.low_ms


def _costed(
    hints: Sequence[Finding],
    here: Sequence[Finding],
    timed: Sequence[tuple[SampledLoop, float]],
    held: float,
    view: SourceView,
) -> Finding | None:
    """Return the hints on one function as a finding with the share of the step that their statements take.

    None where they are no matter of time, or next to none is spent. ``here`` : what the run says of these lines.
    """
    frames = {
        hint.place.frame: hint
        for hint in hints
        if hint.place.frame is not None and (hint.family in TIMED or hint.code in NEEDLESS)
    }
    spans = {
        frame: _statement(frame, view) | (view.readers(frame.file, frame.line) if hint.code == GROWING else set())
        for frame, hint in frames.items()
    }
    for loop, step_ms in timed:
        shares = {frame: loop.share_at(frame.file, span) for frame, span in spans.items()}
        file, at = next(((frame.file, set().union(*spans.values())) for frame in spans), ("", set()))
        share = loop.share_at(file, at)
        if share < WORTH:
            continue
        # who does not wait here for what the device has to do may wait for it elsewhere; but copies are gone
        surely = share - (loop.device_wait_at(file, at) if hints[0].family != "copy" else 0.0)
        surely -= held if hints[0].code in ONE_BY_ONE else 0.0
        # what a library does at these lines is one piece of work with what it does beside them
        costs = [other.cost for other in here if other.cost and other.code not in UNNAMED]
        share = max([share, *((cost.calibration or cost).share_high for cost in costs)])
        error = counting_error(share, len(loop.seen))
        high = min(share + error, 1.0)
        # what is surely saved of the parts that it explains goes with it
        parts = sum(other.cost.share_low for other in here if other.cost and other.code in _says_more()[hints[0].code])
        low = min(max(SURELY * max(surely - error, 0.0) if share >= MUCH else 0.0, parts), high)
        frame = max(shares, key=shares.__getitem__)
        seen = {line for frame, part in shares.items() if part for line in frame.lines or (frame.line,)}
        lines = tuple(sorted(seen))[:MOST_LINES]
        return replace(
            frames[frame],
            place=replace(frames[frame].place, frame=replace(frame, lines=lines)),
            cost=share_cost(low, high, step_ms, share, "share of stack samples in these statements", loop, "C"),
            severity="medium" if low >= WORTH else "low",
            certainty="likely",
        )
    return None


def _statement(frame: Frame, view: SourceView) -> set[int]:
    """Return the lines of the statements that a frame is at."""
    found: set[int] = set()
    for line in frame.lines or (frame.line,):
        statement = view.statement(frame.file, line)
        found |= set(range(line, ((statement.end_lineno if statement is not None else None) or line) + 1))
    return found


def _without_repeats(findings: Sequence[Finding], steps: Set[tuple[str, int]], view: SourceView) -> Iterator[Finding]:
    """Yield the findings without those that say only "Python" or "this line" of what another one explains.

    That is a loop, but not one of the ``steps``, or one of the lines of a problem that has several.
    """
    named: dict[tuple[str, int], float] = {}
    for finding in findings:
        if finding.code not in (*UNNAMED, GARBAGE) and finding.cost is not None and finding.cost.high_ms > 0:
            for place in (_loops(finding, view) - steps) | _lines(finding):
                named[place] = max(named.get(place, 0.0), finding.cost.low_ms)
    for finding in findings:
        low_ms = finding.cost.low_ms if finding.cost is not None else 0.0
        if finding.code in UNNAMED:
            places = (_loops(finding, view) - steps) | _lines(finding)
            if any(2 * named.get(place, -1.0) >= low_ms for place in places):
                continue
        yield finding


def _lines(finding: Finding) -> set[tuple[str, int]]:
    """Return the lines of a finding that has its exact place, by file and line."""
    frame = finding.place.frame
    return {(file_name(frame.file), line) for line in frame.lines} if frame is not None and frame.exact else set()


def _loops(finding: Finding, view: SourceView) -> set[tuple[str, int]]:
    """Return the innermost loop around a finding's line, by file and line."""
    frame = finding.place.frame
    if frame is None or not frame.file.endswith(".py"):
        return set()
    return {(file_name(frame.file), loop.lineno) for loop in view.loops(frame.file, frame.line)[-1:]}


@lru_cache(maxsize=1)
def _says_more() -> dict[str, tuple[str, ...]]:
    """Return for each code of the source those that say less of the same lines."""
    return {entry.rule.code: entry.rule.over for entry in catalogue()}


def _hints(files: Sequence[str], folders: Sequence[str]) -> list[Finding]:
    sources = Sources(folders)
    found: list[Finding] = []
    for file in files:
        source = next((item for item in sources.find(file) if item.tree is not None), None)
        if source is None:
            continue
        try:
            found += check.lint_text(source.text, file).findings
        except TriageError:
            continue
    return found


def _at(finding: Finding, hint: Finding) -> bool:
    mine, theirs = finding.place.frame, hint.place.frame
    if mine is None or theirs is None:
        return False
    return file_name(mine.file) == file_name(theirs.file) and mine.line in (theirs.lines or (theirs.line,))


def _calls(hint: Finding, finding: Finding) -> bool:
    """Whether the line of the source stands on the way to a finding of the run."""
    frame = hint.place.frame
    return frame is not None and any(
        (file_name(caller.file), caller.line) == (file_name(frame.file), frame.line) for caller in finding.place.stack
    )


def _one_place(finding: Finding, hint: Finding) -> bool:
    mine, theirs = finding.place.frame, hint.place.frame
    if mine is None or theirs is None or file_name(mine.file) != file_name(theirs.file):
        return False
    near = any(abs(mine.line - line) <= NEAR for line in theirs.lines or (theirs.line,))
    return near or (mine.function == theirs.function and bool(mine.function))
