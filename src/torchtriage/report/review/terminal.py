"""A review as text: each window's verdict with its evidence, then what was not reviewed and why."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.text import Text

from torchtriage.names import elide, visible
from torchtriage.report.terminal import Page
from torchtriage.review.result import NotReviewed, ReviewResult, WindowReview
from torchtriage.review.reviewer import NONE, Sentence
from torchtriage.units import format_count, format_share

__all__ = ["render"]


def render(result: ReviewResult, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    found = sum(one.code != NONE for one in result.windows)
    n_failed = sum(one.failed for one in result.not_reviewed)
    head = f"{format_count(len(result.windows), 'window')} reviewed by {visible(result.reviewer)}"
    page.line((f"{head}: {found} with an anti-pattern", "bold"))
    if n_failed:
        page.line((f"{format_count(n_failed, 'window')} could not be reviewed", "bold red"))
    page.blank()
    page.line((elide(visible(result.path), page.width - 2), "dim"), indent=2)
    calm = result.n_windows - len(result.windows) - len(result.not_reviewed)
    page.line(
        (f"{result.n_windows:,} windows, chosen by {result.chosen_by}; {calm:,} are calm", "dim"),
        indent=2, hang=2,
    )  # fmt: skip
    if usage := _usage(result):
        page.line((usage, "dim"), indent=2, hang=2)
    for one in result.windows:
        page.blank()
        _window(page, one)
    if result.not_reviewed:
        page.blank()
        page.line(("Not reviewed", "bold"))
    for reason, group in groupby(
        sorted(result.not_reviewed, key=_by_reason), key=lambda one: one.reason
    ):
        windows = sorted(group, key=lambda one: one.start_ns)
        page.line((f"{visible(reason)}: ", ""), (_spans(windows), "dim"), indent=2, hang=2)
    for note in result.notes:
        page.blank()
        page.labelled("note", (visible(note), ""))
    return page.text


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


def _window(page: Page, one: WindowReview) -> None:
    calm = one.code == NONE
    page.line(
        (f"{_span(one)}  ", "dim"),
        ("no anti-pattern" if calm else f"{visible(one.code)} {visible(one.title)}",
         "green" if calm else "bold"),
        (f"  confidence {format_share(one.confidence)}", "italic"),
        hang=3,
    )  # fmt: skip
    lines = {line.id: line.text for line in one.evidence}
    for label, sentences in (("why", one.why), ("advice", one.advice)):
        for number, sentence in enumerate(sentences):
            page.labelled("" if number else label, *_cited(sentence), indent=3)
    cited = dict.fromkeys(one_id for it in (*one.why, *one.advice) for one_id in it.evidence)
    for number, one_id in enumerate(cited):
        page.labelled("" if number else "evidence", (f"{one_id} ", "bold"),
                      (visible(lines.get(one_id, "")), "dim"), indent=3)  # fmt: skip


def _cited(sentence: Sentence) -> tuple[tuple[str, str], tuple[str, str]]:
    return (visible(sentence.text), ""), (f" [{', '.join(sentence.evidence)}]", "dim")


def _by_reason(one: NotReviewed) -> tuple[bool, str]:
    return not one.failed, one.reason


def _span(one: WindowReview | NotReviewed) -> str:
    return f"{one.start_ns / 1e6:.2f}-{one.end_ns / 1e6:.2f} ms"


def _spans(windows: Iterable[NotReviewed], limit: int = 12) -> str:
    told = [_span(one) for one in windows]
    more = f", and {len(told) - limit} more in the JSON" if len(told) > limit else ""
    return ", ".join(told[:limit]) + more
