"""A comment for a pull request: the verdict, one table, and the details folded away.

GitHub's dialect. Names stand in code spans, prose is escaped, so no event name can open a tag,
break out of a table, mention a person or reference an issue.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from torchtriage.core.finding import Finding, Note
from torchtriage.core.names import visible
from torchtriage.core.units import format_count, format_ns
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import Result, Summary
from torchtriage.report import recorded, words
from torchtriage.report.markdown import code, code_block, details, escaped, prose

__all__ = ["render"]

MAX_RANKS = 32


def render(results: Sequence[Result], *, jobs: Sequence[JobResult] = (), top: int | None = None) -> str:
    """Return GitHub Markdown; ``top`` limits the findings per trace, and says how many it left."""
    blocks: list[str] = []
    single = words.outside(results, jobs)
    for job in jobs:
        blocks += _job(job, top)
    for result in single:
        blocks += _result(result, top, many=len(single) + len(jobs) > 1)
    return "\n\n".join(blocks) + "\n"


def _result(result: Result, top: int | None, many: bool) -> Iterable[str]:
    first, *others = result.verdict
    if many:
        yield f"## {code(result.trace.path)}"
    yield f"### {prose(first)}"
    yield "  \n".join(prose(line) for line in others)
    if result.recorded is not None:
        rows = recorded.run(result.recorded)
        yield "\n".join(f"- {label}: {prose(text)}" for label, text in rows)
    serious = [note for note in result.notes if note.level != "info"]
    if serious or words.losses(result.trace):
        yield "\n".join(_cautions(result))
    shown = result.findings if top is None else result.findings[: max(top, 0)]
    if shown:
        yield "\n".join(_table(shown))
    for rank, finding in enumerate(shown, start=1):
        yield details(
            f"{rank}. <b>{escaped(finding.code)}</b> {escaped(finding.title)}", _finding(finding, result.summary)
        )
    if hidden := len(result.findings) - len(shown):
        yield f"{format_count(hidden, 'more finding')} not shown."
    if together := words.joint(result):
        yield f"**All together** {prose(together)}."
    if result.suspicions:
        seen = "\n".join(f"- {prose(words.suspicion(one))}" for one in result.suspicions)
        yield f"**{words.SUSPICIOUS}** ({words.OPINION}):\n\n{seen}"
    if logged := recorded.compiled(result.recorded):
        listed = "\n".join(f"- {label}: {prose(text)}" for label, text in logged)
        yield details("<b>torch.compile</b>", [listed])
    if result.what_ifs:
        told = [f"| {code(one.question)} | {prose(words.answer(one))} |" for one in result.what_ifs]
        yield "\n".join(["| what if | step time |", "|:--|:--|", *told])
    if not result.refused:
        found = "" if result.findings else "**No finding.** "
        yield f"{found}{words.checked(result)}."
    if result.not_checked or result.crashes:
        total = len(result.not_checked) + len(result.crashes)
        yield details(f"{format_count(total, 'pattern')} without an answer", _unanswered(result))
    facts = [*words.recording(result), f"torchtriage {visible(result.version)}"]
    yield f"<sub>{escaped(', '.join(facts))}</sub>"


def _job(job: JobResult, top: int | None) -> Iterable[str]:
    first, *others = job.verdict
    yield f"### {prose(first)}"
    yield "  \n".join(prose(line) for line in others)
    if cautions := "\n".join(_warned(job.notes)):
        yield cautions
    yield "\n".join(_rank_table(job))
    shown = job.findings if top is None else job.findings[: max(top, 0)]
    if shown:
        yield "\n".join(_table(shown))
    for rank, finding in enumerate(shown, start=1):
        yield details(f"{rank}. <b>{escaped(finding.code)}</b> {escaped(finding.title)}", _finding(finding, None))
    if hidden := len(job.findings) - len(shown):
        yield f"{format_count(hidden, 'more finding')} not shown."
    if together := words.joint(job):
        yield f"**All together** {prose(together)}."
    if job.what_ifs:
        rows = [f"| {code(one.question)} | {prose(words.answer(one))} |" for one in job.what_ifs]
        yield "\n".join(["| what if | step time |", "|:--|:--|", *rows])
    if not job.refused:
        found = "" if job.findings else "**No finding.** "
        yield f"{found}{words.checked(job)} on every rank."
    if job.not_checked or job.crashes:
        total = len(job.not_checked) + len(job.crashes)
        yield details(f"{format_count(total, 'pattern')} without an answer", _unanswered(job))
    facts = [f"{len(job.ranks)} ranks", job.basis, f"torchtriage {visible(job.version)}"]
    yield f"<sub>{escaped(', '.join(facts))}</sub>"


def _rank_table(job: JobResult) -> Iterable[str]:
    """List the ranks that make others wait, and how each spends its step."""
    parts = words.rank_parts(job)
    yield f"| rank | step | {' | '.join(word for _, word, _, _ in parts)} | makes others wait |"
    yield f"|--:|--:|{'--:|' * len(parts)}--:|"
    ranks = sorted(job.ranks, key=lambda one: (-one.caused_wait_ns, one.rank))[:MAX_RANKS]
    for one in sorted(ranks, key=lambda one: one.rank):
        cells = [format_ns(getattr(one, field)) for field, *_ in parts]
        yield (f"| {one.rank} | {format_ns(one.wall_ns)} | {' | '.join(cells)} | {format_ns(one.caused_wait_ns)} |")
    if hidden := len(job.ranks) - len(ranks):
        yield f"\n{format_count(hidden, 'more rank')} not shown."


def _warned(notes: Iterable[Note]) -> Iterable[str]:
    for note in notes:
        if note.level == "info":
            continue
        word = "Refused" if note.level == "refuse" else "Warning"
        fix = f" Try: {prose(note.fix)}" if note.fix else ""
        yield f"> **{word}** {code(note.code)} {prose(note.message)}{fix}  "


def _cautions(result: Result) -> Iterable[str]:
    yield from _warned(result.notes)
    for line in words.losses(result.trace):
        yield f"> {prose(line)}  "


def _table(findings: Iterable[Finding]) -> Iterable[str]:
    yield "| severity | finding | where | saves | certainty |"
    yield "|:--|:--|:--|:--|:--|"
    for finding in findings:
        frame = finding.place.frame
        where = words.source_line(frame) if frame else (finding.place.ops or ("",))[-1]
        cells = (
            finding.severity,
            f"{code(finding.code, in_table=True)} {prose(finding.title)}",
            code(words.event_name(where), in_table=True) if where else "",
            prose(words.saving(finding.cost)) if finding.cost else "not costed",
            finding.certainty,
        )
        yield f"| {' | '.join(cells)} |"


def _finding(finding: Finding, summary: Summary | None) -> Iterable[str]:
    place = finding.place
    yield prose(finding.message)
    lines = []
    if finding.cost:
        lines.append(f"saves {prose(words.saving(finding.cost))}, {prose(words.basis(finding.cost))}")
    if place.frame:
        lines.append(f"in {code(words.frame(place.frame))}")
    if place.module:
        lines.append(f"module {code(words.event_name(place.module))}")
    if place.ops:
        lines.append("ops " + " > ".join(code(words.event_name(op)) for op in place.ops))
    if when := words.steps(place, finding.n_events, summary):
        lines.append(prose(when))
    if ranks := words.rank_spread(finding):
        lines.append(f"on {prose(ranks)}")
    if facts := words.evidence(finding):
        lines.append(f"evidence: {prose(facts)}")
    if finding.also_explains:
        lines.append(f"also explains {', '.join(code(item) for item in finding.also_explains)}")
    if lines:
        yield "\n".join(f"- {line}" for line in lines)
    link = finding.fix.link
    more = f" [Read more](<{html.escape(visible(link))}>)" if _is_link(link) else ""
    yield f"**Fix** {prose(finding.fix.text)}{more}"
    if finding.fix.code:
        yield code_block(finding.fix.code)


def _unanswered(result: Result | JobResult) -> Iterable[str]:
    lines = [
        f"- not checked, no {prose(group.what)}: {', '.join(code(name) for name in group.patterns)}"
        + (f"; to check: {code(group.how_to_record)}" if group.how_to_record else "")
        for group in words.missing(result.not_checked)
    ]
    lines += [f"- failed: {code(crash.code)} {code(crash.error)}" for crash in result.crashes]
    yield "\n".join(lines)


def _is_link(link: str) -> bool:
    return re.fullmatch(r"https?://[^\s<>\\]+", link) is not None
