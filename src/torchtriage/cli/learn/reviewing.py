"""Who reviews: options that several commands have, and how a model is asked with progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from torchtriage.cli.options import POSITIVE, Finite, file_option, value_option
from torchtriage.cli.progress import working
from torchtriage.core.errors import UsageError

if TYPE_CHECKING:
    from torchtriage.learn.review.evidence import Evidence
    from torchtriage.learn.review.llm_reviewer import Llm
    from torchtriage.learn.review.reviewer import Outcome, Reviewer

L = TypeVar("L", bound="Llm")

KEY = "OPENAI_API_KEY"
OF_LLM = (
    *("base_url", "model", "price_prompt", "price_reply", "max_cost", "max_reply_tokens"),
    *("at_once", "timeout", "cache", "no_cache"),
)


def llm_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say who reviews, and what may be spent on it."""
    for option in reversed(
        (
            click.option("--base-url", metavar="URL", help="The endpoint. [default: OpenAI's]"),
            click.option("--model", metavar="NAME", help="The model to ask."),
            click.option("--no-redact", is_flag=True, help="Show the model names, paths and texts as they are."),
            value_option("--price-prompt", Finite(0), "PRICE", None, "Price of a million tokens sent."),
            value_option("--price-reply", Finite(0), "PRICE", None, "Price of a million tokens received."),
            value_option(
                "--max-cost", Finite(0), "COST", None, "Stop before the cost exceeds this; needs both prices."
            ),
            value_option(
                "--max-reply-tokens",
                click.IntRange(64),
                "N",
                None,
                "Longest reply to ask for; a model that thinks first needs more than the usual 1500.",
            ),
            value_option("--at-once", click.IntRange(1), "N", 4, "Parallel requests."),
            value_option("--timeout", POSITIVE, "SECONDS", 240.0, "Longest wait for a reply."),
            file_option("--cache", "Cache replies here. [default: ~/.cache/torchtriage/reviews]", metavar="DIR"),
            click.option("--no-cache", is_flag=True, help="Ignore cached replies."),
        )
    ):
        function = option(function)
    return function


def make_reviewer(name: str, given: Mapping[str, Any]) -> Reviewer:
    """Return the reviewer that a command's options ask for.

    Raises UsageError: options of one reviewer are given to another, or some are missing;
    MissingExtraError: a model is to be asked, and the openai package is not installed.
    """
    from torchtriage.learn.review.llm_reviewer import Llm
    from torchtriage.learn.review.rule_reviewer import Offline

    if name == "llm":
        return make_llm(Llm, given, "--reviewer llm")
    refuse_llm_options("--reviewer llm")
    return Offline()


def refuse_llm_options(option: str) -> None:
    """Raise UsageError: the command's line has options that only ``option`` has a use for."""
    source = click.get_current_context().get_parameter_source
    used = [f"--{item.replace('_', '-')}" for item in OF_LLM if source(item) is ParameterSource.COMMANDLINE]
    if used:
        raise UsageError(f"{', '.join(used)} {'needs' if len(used) == 1 else 'need'} {option}")


def make_llm(kind: type[L], given: Mapping[str, Any], option: str, max_reply_tokens: int = 1500) -> L:
    """Return the model that options name, to be asked what ``kind`` asks.

    Raises as :func:`make_reviewer`.
    """
    from torchtriage.learn.review.llm_reviewer import OPENAI_URL, Endpoint, Limits, Prices

    if not given["model"]:
        raise UsageError(f"{option} needs --model", hint="--model NAME, as the endpoint calls it")
    key = os.environ.get(KEY, "")
    url = given["base_url"] or OPENAI_URL
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"expected an http address for --base-url, found {url!r}")
    if not key and url == OPENAI_URL:
        raise UsageError(f"OpenAI's endpoint needs a key in {KEY}", hint="or --base-url URL")
    sent, received, most = given["price_prompt"], given["price_reply"], given["max_cost"]
    if (sent is None) != (received is None) or (most is not None and sent is None):
        raise UsageError("cost is known with --price-prompt and --price-reply together")
    prices = None
    if sent is not None:
        prices = Prices(sent, received, float("inf") if most is None else most)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(given["cache"]) if given["cache"] else caches / "torchtriage" / "reviews"
    return kind(
        Endpoint(given["model"], url, key),
        limits=Limits(
            total_s=given["timeout"],
            silence_s=min(given["timeout"], 60.0),
            at_once=given["at_once"],
            max_reply_tokens=given["max_reply_tokens"] or max_reply_tokens,
        ),
        prices=prices,
        cache=None if given["no_cache"] else folder,
    )


def review_with_progress(reviewer: Reviewer, evidence: Sequence[Evidence], *, quiet: bool) -> tuple[Outcome, ...]:
    """Return the outcomes; what will be sent, and where, is said before, whatever ``quiet``."""
    from torchtriage.learn.review.llm_reviewer import Llm

    if isinstance(reviewer, Llm) and evidence:
        click.echo(f"torchtriage: {reviewer.notice(evidence)}", err=True)
    n_done = 0
    with working(quiet=quiet) as shown:

        def on_done(_place: int, _outcome: Outcome) -> None:
            nonlocal n_done
            n_done += 1
            shown(f"{n_done} of {len(evidence)} windows reviewed", n_done / len(evidence))

        def streaming(place: int, size: int) -> None:
            shown(f"window {place + 1} of {len(evidence)}: {size:,} characters", n_done / len(evidence))

        if isinstance(reviewer, Llm):
            reviewer.progress = streaming
        return reviewer.review_all(evidence, on_done)
