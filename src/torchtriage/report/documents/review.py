"""A review: each window's verdict with its evidence, then what was not reviewed and why."""

from __future__ import annotations

from itertools import groupby

from torchtriage.core.units import format_count, format_share
from torchtriage.learn.review.result import NotReviewed, ReviewResult, WindowReview
from torchtriage.learn.review.reviewer import NONE
from torchtriage.report import blocks as b

N_SPANS = 12
SURE = 0.5
"""A verdict less sure than not is a perhaps."""


def document(result: ReviewResult) -> b.Document:
    """Return the report of ``torchtriage review``."""
    faulty = [window.confidence >= SURE for window in result.windows if window.code != NONE]
    n_failed = sum(window.failed for window in result.not_reviewed)
    reviewed = f"{format_count(len(result.windows), 'window')} reviewed by {result.reviewer}"
    failed = f"{format_count(n_failed, 'window')} could not be reviewed" if n_failed else ""
    n_calm = result.n_windows - len(result.windows) - len(result.not_reviewed)
    calm = f"; {n_calm:,} have no finding and are calm" if n_calm else ""
    chosen = f"{result.n_windows:,} windows, chosen by {result.chosen_by}{calm}"
    unclear = f"{format_count(faulty.count(False), 'window')} perhaps with one" if not all(faulty) else ""
    reasons = sorted(result.not_reviewed, key=lambda window: (not window.failed, window.reason))
    left = [
        (f"not reviewed: {reason}: ", b.dim(_spans(sorted(group, key=lambda window: window.start_ns))))
        for reason, group in groupby(reasons, key=lambda window: window.reason)
    ]
    blocks: list[b.Block] = [
        b.Head(
            "torchtriage review",
            (f"{reviewed}: {sum(faulty)} with an anti-pattern", failed, unclear),
            ("bold", "bold red", "yellow"),
            hang=0,
        ),
        b.Lines([b.dim(result.path)], fit=True),
        b.Lines([b.dim(chosen), b.dim(_usage(result))], tight=True),
        *map(_window, result.windows),
        b.Lines(left),
        *(b.Rows([b.Row("note", note)]) for note in result.notes),
    ]
    return b.Document("Review of a trace", result.version, result.schema, blocks)


def _usage(result: ReviewResult) -> str:
    usage = result.usage
    if not usage.attempts and not usage.cached:
        return ""
    cost = "" if usage.cost is None else f", cost {usage.cost:.4f}"
    cached = f", {usage.cached} from the cache" if usage.cached else ""
    return (
        f"{format_count(usage.attempts, 'request')}{cached}, {usage.prompt_tokens:,} tokens sent, "
        f"{usage.reply_tokens:,} received{cost}"
    )


def _window(window: WindowReview) -> b.Entry:
    perhaps = "" if window.confidence >= SURE else "perhaps "
    verdict = b.bold(f"{perhaps}{window.code} {window.title}")
    if window.code == NONE:
        found = ", ".join(window.findings)
        verdict = b.Span(f"nothing besides {found}", "yellow") if found else b.Span("no anti-pattern", "green")
    texts = {quoted.id: quoted.text for quoted in window.evidence}
    rows = [
        row
        for label, ids in (("for", window.why), ("against", window.against))
        for row in b.labelled(label, [(b.bold(f"{name} "), b.dim(texts.get(name, ""))) for name in ids])
    ]
    said = (("meaning", window.meaning[:1].upper() + window.meaning[1:]), ("fix", window.fix))
    rows += [row for label, text in said if text for row in b.labelled(label, [(text.replace("``", "`"),)])]
    confidence = b.Span(f"  confidence {format_share(window.confidence)}", "italic")
    return b.Entry((b.dim(f"{_span(window)}  "), verdict, confidence), [b.Rows(rows, indent=3)])


def _span(window: WindowReview | NotReviewed) -> str:
    return f"{window.start_ns / 1e6:.2f}-{window.end_ns / 1e6:.2f} ms"


def _spans(windows: list[NotReviewed]) -> str:
    more = f", and {len(windows) - N_SPANS} more in the JSON" if len(windows) > N_SPANS else ""
    return ", ".join(map(_span, windows[:N_SPANS])) + more
