"""What ``torchtriage review`` found; these dataclasses are its JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtriage.core.docpages import section
from torchtriage.core.version import __version__
from torchtriage.diagnose.patterns import lookup
from torchtriage.learn.review.reviewer import NONE, Outcome
from torchtriage.learn.review.window_selection import Suspect

REVIEW_SCHEMA = "torchtriage-review/1"


@dataclass(frozen=True)
class Quoted:
    """A line of evidence, as the reviewer saw it."""

    id: str
    text: str


@dataclass(frozen=True)
class WindowReview:
    """What the reviewer says of one window.

    Times are ns since the recording's first event. ``suspicion`` : why it was looked at, 0 to 1.
    ``code`` : the anti-pattern, or ``none``; ``title``, ``meaning``, ``fix`` : what the catalogue says of it, the fix
    that of the finding where one lies here; empty for ``none``. ``why``, ``against`` : ids of lines of ``evidence``,
    which is all that was shown. ``remark`` : a person's own words. ``findings`` : codes of the rules' findings that
    lie here.
    """

    start_ns: int
    end_ns: int
    suspicion: float
    code: str
    title: str
    confidence: float
    meaning: str
    fix: str
    why: tuple[str, ...]
    against: tuple[str, ...]
    remark: str
    evidence: tuple[Quoted, ...]
    cached: bool
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotReviewed:
    """A window without a review that is suspicious or has a finding, and why.

    ``failed`` : it was meant to be reviewed.
    """

    start_ns: int
    end_ns: int
    suspicion: float
    reason: str
    failed: bool


@dataclass(frozen=True)
class Usage:
    """What the reviews took. ``cost`` : None where no prices were given."""

    attempts: int
    cached: int
    prompt_tokens: int
    reply_tokens: int
    cost: float | None


@dataclass(frozen=True)
class ReviewResult:
    """One run of ``torchtriage review``.

    ``chosen_by`` : what called windows suspicious. ``n_windows`` : the recording's; those that are
    in neither list are calm. ``redacted`` : the reviewer saw public names alone. ``notes`` : what
    else there is to know.
    """

    schema: str
    version: str
    path: str
    reviewer: str
    chosen_by: str
    redacted: bool
    n_windows: int
    windows: tuple[WindowReview, ...]
    not_reviewed: tuple[NotReviewed, ...]
    usage: Usage
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every window has a review that was meant to have one."""
        return not any(item.failed for item in self.not_reviewed)


def collect(
    reviewed: Sequence[tuple[Suspect, Outcome]],
    left: Sequence[tuple[Suspect, str]],
    *,
    path: str,
    reviewer: str,
    chosen_by: str,
    redacted: bool,
    n_windows: int,
    begin_ns: int,
    cost: float | None = None,
    notes: Sequence[str] = (),
) -> ReviewResult:
    """Return the outcomes as a result; see :class:`ReviewResult`.

    ``begin_ns`` : the recording's first event.
    """
    windows = [_window(*item, begin_ns) for item in reviewed if item[1].review is not None]
    failed = [_left(item, two.reason, begin_ns, failed=True) for item, two in reviewed if two.review is None]
    others = [_left(item, reason, begin_ns, failed=False) for item, reason in left]
    outcomes = [outcome for _, outcome in reviewed]
    usage = Usage(
        sum(outcome.attempts for outcome in outcomes),
        sum(outcome.cached for outcome in outcomes),
        sum(outcome.prompt_tokens for outcome in outcomes),
        sum(outcome.reply_tokens for outcome in outcomes),
        cost,
    )
    return ReviewResult(
        REVIEW_SCHEMA,
        __version__,
        path,
        reviewer,
        chosen_by,
        redacted,
        n_windows,
        tuple(windows),
        (*failed, *others),
        usage,
        tuple(notes),
    )


def _window(suspect: Suspect, outcome: Outcome, begin_ns: int) -> WindowReview:
    review = outcome.review
    assert review is not None
    start_ns, end_ns = suspect.window_ns
    evidence, code = outcome.evidence, review.code
    title = meaning = fix = ""
    if code != NONE:
        entry = lookup(code)
        title, meaning, fix = entry.pattern.title, section(entry.page, "Slow because"), entry.fix.text
        # the finding's own fix fits the device at hand; the catalogue's is for all
        fix = next((line.facts["fix"] for line in evidence.of_kind("finding") if line.facts["code"] == code), fix)
    return WindowReview(
        start_ns - begin_ns,
        end_ns - begin_ns,
        round(suspect.suspicion, 4),
        code,
        title,
        review.confidence,
        meaning,
        fix,
        review.why,
        review.against,
        review.remark,
        tuple(Quoted(line.id, line.text) for line in evidence.lines),
        outcome.cached,
        tuple(dict.fromkeys(line.facts["code"] for line in evidence.of_kind("finding"))),
    )


def _left(suspect: Suspect, reason: str, begin_ns: int, *, failed: bool) -> NotReviewed:
    start_ns, end_ns = suspect.window_ns
    return NotReviewed(start_ns - begin_ns, end_ns - begin_ns, round(suspect.suspicion, 4), reason, failed)
