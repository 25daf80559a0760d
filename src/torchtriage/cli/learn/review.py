"""``torchtriage review``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.learn.reviewing import llm_options, make_reviewer, review_with_progress
from torchtriage.cli.options import json_option, output_option, quiet_option, value_option
from torchtriage.cli.output import check_outputs, emit, present
from torchtriage.cli.progress import read
from torchtriage.core.errors import TraceFormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.core.finding import Finding
    from torchtriage.core.trace import Trace
    from torchtriage.learn.review.window_selection import Suspect


@click.command("review")
@click.argument("path", metavar="TRACE", type=click.Path())
@value_option(
    "--reviewer",
    click.Choice(["offline", "llm"]),
    None,
    "offline",
    "Who reviews; with llm evidence leaves this machine.",
)
@click.option(
    "--window",
    "spans",
    multiple=True,
    metavar="BEGIN-END",
    help="Review this window instead, in ms from the first event (repeatable).",
)
@value_option("--top", click.IntRange(1), "N", 8, "Review at most N windows; similar windows are reviewed once.")
@value_option(
    "--detector", click.Path(path_type=Path), "FILE", None, "Weights of the learned detector instead of the package's."
)
@click.option(
    "--evidence", "show_evidence", is_flag=True, help="Print the evidence that a reviewer would get, without a review."
)
@llm_options
@json_option
@output_option
@quiet_option
@click.pass_context
def command(ctx: click.Context, /, path: str, **given: Any) -> None:
    """Review the most suspicious windows of a trace: what is wrong there, and why.

    A window is a sixteenth of a step. A reviewer gets each window's evidence, within a token budget,
    and says which fault it shows and which lines speak for and against it; these are printed. The
    offline reviewer computes its verdict from the rules and the learned detector. --reviewer llm asks
    a language model through any endpoint that speaks OpenAI's protocol, with the key in
    OPENAI_API_KEY. Names that are not public are redacted, and the command first states what it sends
    where.

    Exit codes: 0 all reviewed, 1 some windows could not be, 2 unusable input or usage.
    """
    from torchtriage.diagnose.verdict.verdict import diagnose
    from torchtriage.learn.review.evidence import applicable, gather
    from torchtriage.learn.review.result import collect
    from torchtriage.learn.review.reviewer import INTERRUPTED
    from torchtriage.learn.review.window_selection import Suspect, worth_a_look

    check_outputs([given["output"]], [path])
    if given["show_evidence"] and given["form"]:
        raise UsageError("--evidence prints text", hint="leave --json out")
    if given["spans"] and given["detector"] is not None:
        raise UsageError(
            "--detector scores sixteenths of a step, not the windows of --window", hint="leave one of them out"
        )
    reviewer = make_reviewer(given["reviewer"], given)
    trace = read(path, quiet=given["quiet"])
    if not len(trace):
        raise UsageError("expected events to review, found none", where=path)
    judged = diagnose(trace)
    for note in judged.notes:
        if note.level == "refuse":
            raise TraceFormatError(f"no window can be judged: {note.message}", where=path, hint=note.fix)
    findings = judged.findings
    begin_ns = int(trace.start_ns.min())
    spans = _asked_for(given["spans"], trace)
    left: list[tuple[Suspect, str]] = []
    if spans:
        chosen, chosen_by = [Suspect(span, 1.0, "") for span in spans], "your --window"
        n_windows = len(spans)
    else:
        found, chosen_by = _suspects(trace, findings, given["detector"])
        chosen, left = worth_a_look(found, given["top"])
        n_windows = len(found)
    codes = applicable(trace)
    evidence = [
        gather(
            trace,
            findings,
            item.window_ns,
            probability=item.probability,
            types=item.types,
            unusual=item.unusual,
            confident=item.confident,
            redact=not given["no_redact"],
            codes=codes,
        )
        for item in chosen
    ]
    if given["show_evidence"]:
        emit(("\n\n".join(item.text for item in evidence) + "\n").encode(), given["output"])
        return
    outcomes = review_with_progress(reviewer, evidence, quiet=given["quiet"])
    problem = getattr(reviewer, "problem", "")
    result = collect(
        list(zip(chosen, outcomes, strict=True)),
        left,
        path=path,
        reviewer=reviewer.name,
        chosen_by=chosen_by,
        redacted=not given["no_redact"],
        n_windows=n_windows,
        begin_ns=begin_ns,
        cost=getattr(reviewer, "spent", None),
        notes=[problem] * bool(problem),
    )
    present(result, given)
    if any(outcome.reason == INTERRUPTED for outcome in outcomes):
        raise KeyboardInterrupt  # what was done is printed; the rest as for any command
    if not result.complete:
        ctx.exit(1)


def _suspects(trace: Trace, findings: Sequence[Finding], detector: Path | None) -> tuple[tuple[Suspect, ...], str]:
    from torchtriage.diagnose.detector.detector import Detector
    from torchtriage.diagnose.detector.features import PER_STEP, windows
    from torchtriage.learn.review.window_selection import suspects

    windows_ns = windows(trace)
    try:
        judged = Detector.load(detector).predict(trace, windows_ns)
    except UsageError:
        if detector is not None:
            raise
        return suspects(windows_ns, PER_STEP, findings), "the rules alone, without a detector"
    return suspects(windows_ns, PER_STEP, findings, judged), "the learned detector and the rules"


def _asked_for(spans: tuple[str, ...], trace: Trace) -> list[tuple[int, int]]:
    begin_ns, end_ns = int(trace.start_ns.min()), int(trace.end_ns.max())
    whole_ms = (end_ns - begin_ns) / 1e6
    found = []
    for text in spans:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text.strip())
        first, last = (float(group) for group in match.groups()) if match else (0.0, 0.0)
        # as printed, the recording's own end is rounded
        if not first < last <= whole_ms + 0.01:
            raise UsageError(
                f"expected a window such as 12.5-14, in ms of the recording's {whole_ms:.2f}, found {text!r}"
            )
        window_ns = begin_ns + round(first * 1e6), min(begin_ns + round(last * 1e6), end_ns)
        if not ((trace.start_ns < window_ns[1]) & (trace.end_ns > window_ns[0])).any():
            raise UsageError(f"expected a window with events, found none in {text!r}", hint="a longer one")
        found.append(window_ns)
    return found
