"""The report of a trace or a job on one screen: what to do first, how far to trust it, and what was not judged.

Each number stands here once; ``documents/trace.py`` has them all, with what they rest on.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from torchtriage.core.finding import Finding, NotChecked, Quote
from torchtriage.core.names import visible
from torchtriage.core.units import format_count, format_ms, format_ns, format_share
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import DeviceSummary, Result, Summary
from torchtriage.diagnose.verdict.verdict_text import sure_growth
from torchtriage.report import blocks as b
from torchtriage.report import recorded, words
from torchtriage.report.documents import device_time, findings, pictures, serving

N_FULL = 3
"""Findings with place, reason and fix."""
N_SHORT = 3
"""Lines for the others."""
N_OPS, N_NAMES, N_DEVICES, N_RANKS, N_LINES, N_NEEDS = 3, 3, 3, 4, 3, 3
LINE, ONE_LINE, TWO_LINES, CODE, PATH = 100, 88, 170, 66, 50
"""Characters of a line; that one and two hold beside a label; of code, which is not wrapped, one of 80 columns."""
_DANGLING = frozenset(
    ["a", "and", "at", "by", "for", "in", "of", "on", "over", "per", "than", "that", "the", "to", "which", "with"]
)


def trace(result: Result, top: int | None, quote: Quote | None, several: bool) -> Iterator[b.Block]:
    """Yield the report of one trace; ``several`` : one of several that follow each other."""
    yield from _head(result, result.trace.path, several)
    if result.refused:
        yield b.Lines([result.verdict[1]], indent=0)
    else:
        yield from _run(result)
        yield from _account(result)
        yield from _findings(result, top, quote)
    lost = words.losses(result.trace)
    yield from _foot(result, "; ".join(dict.fromkeys([*lost[:1], *lost[-1:]])))  # how much, and where the file ends


def job(
    result: JobResult, first: Result | None, top: int | None, quote: Quote | None, several: bool
) -> Iterator[b.Block]:
    """Yield the report of a job; ``first`` : the result of its first rank."""
    yield from _head(result, f"{len(result.ranks)} ranks of one job", several)
    if first is not None:
        chosen = first.trace.selection
        yield b.Rows([b.Row("selected", chosen)] if chosen else [], indent=0)
        yield from _run(first)
    if not result.refused:
        yield pictures.ranks(result, N_RANKS, shares=False)
        yield from device_time.of_first_rank(result, first)
    yield from _findings(result, top, quote)
    yield from _foot(result, "")


def _head(subject: Result | JobResult, path: str, several: bool) -> Iterator[b.Block]:
    where, saving, _ = subject.verdict
    first = next(iter(subject.findings), None)
    # the first finding says it itself
    said = first is not None and (first.saves or first.grave) and not saving.startswith("Nothing found")
    said = said and sure_growth(subject.findings) in (None, first)
    lines = (where, "" if said or subject.refused else saving.partition("; the largest saving:")[0])
    yield b.Head(
        "",
        [f"{line.rstrip('.')}." for line in lines if line],
        (verdict_style(subject), ""),
        hang=0,
        path=path * several,
    )
    named = isinstance(subject, JobResult) or several
    yield b.Lines([] if named else [b.dim(path)], indent=0, fit=True, tight=True)


def verdict_style(subject: Result | JobResult) -> str:
    """Return the style of the first line."""
    if subject.refused:
        return "bold red"
    # green is for what was checked whole
    return "bold green" if subject.healthy and not subject.not_checked and not subject.crashes else "bold"


def _run(result: Result) -> Iterator[b.Block]:
    run = result.recorded
    if run is None:
        return
    rows = [] if run.account is None else pictures.account_in_brief(run.account, run.run_account, N_LINES)
    yield b.Rows([*rows, *(b.Row(*row) for row in recorded.brief(run))])


def _account(result: Result) -> Iterator[b.Block]:
    summary = result.summary
    if summary is not None and summary.devices:
        first, *others = summary.devices
        yield replace(pictures.device(first, result.trace.vendor), tight=result.recorded is not None)
        shares = [(pictures.label(device, result.trace.vendor), _busy(device)) for device in others[:N_DEVICES]]
        rows = [b.Row(label, f"busy {share}") for label, share in shares if share]
        if len(others) > N_DEVICES:
            rows.append(b.Row("", b.dim(format_count(len(others) - N_DEVICES, "more device"))))
        yield b.Rows(rows, tight=True)
    elif summary is not None and (result.recorded is None or result.recorded.account is None):
        yield from _host(summary)
    if result.serving is not None:
        yield from list(serving.account(result.serving))[: 1 if result.serving.phases else None]
    asked = [time for time in result.device_time if time.by != "category"]
    yield from device_time.tables(asked, result.trace.vendor, words.judged_step(result.trace.selection))


def _busy(device: DeviceSummary) -> str:
    if device.classes is None or device.classes.wall_ns <= 0:
        return ""
    of = device.classes
    return format_share((of.compute_ns + of.comm_only_ns + of.copy_only_ns) / of.wall_ns)


def _host(summary: Summary) -> Iterator[b.Block]:
    walls = [step.end_ns - step.start_ns for step in summary.steps]
    if len(walls) > 1:
        yield pictures.steps(walls)
    ops = [f"{words.event_name(op.name)} {format_ns(op.self_ns)}" for op in summary.top_ops[:N_OPS]]
    whole = f" (self time in {format_ns(summary.window_end_ns - summary.window_start_ns)})"
    yield b.Rows([b.Row("top ops", (", ".join(ops), b.dim(whole)))] if ops else [], tight=len(walls) > 1)


# -- findings --------------------------------------------------------------------------------------


def _findings(subject: Result | JobResult, top: int | None, quote: Quote | None) -> Iterator[b.Block]:
    shown = subject.findings if top is None else subject.findings[:top]
    cost = subject.joint_cost
    n_saving, n_all = (sum(finding.saves for finding in group) for group in (shown, subject.findings))
    whose = "" if n_saving == n_all else f"all {n_all} "
    together = f"; {whose}together {words.amount(cost)}" if cost is not None and n_all > 1 else ""
    heading = (b.bold(f"Largest saving{'s' * (n_saving > 1)}"), b.dim(together))
    yield b.Lines([heading] * (n_saving > 0), indent=0)
    for rank, finding in enumerate(shown[:N_FULL], start=1):
        yield _entry(finding, rank, quote)
    others = shown[N_FULL:]
    fit = others if len(others) <= N_SHORT else others[: N_SHORT - 1]
    lines = [_line(finding, rank) for rank, finding in enumerate(fit, start=N_FULL + 1)]
    rest = len(subject.findings) - N_FULL - len(fit)
    if rest > 0 and top is None:
        lines.append((b.dim(f"{format_count(rest, 'more finding')} with -v"),))
    yield b.Lines(lines, indent=0, hang=3)
    if hidden := len(subject.findings) - len(shown):
        yield b.Lines([b.dim(f"{format_count(hidden, 'more finding')} not shown.")], indent=0, tight=True)
    yield b.Lines([(b.bold(f"{answer.question}  "), words.answer(answer)) for answer in subject.what_ifs], bullets=True)


def _entry(finding: Finding, rank: int, quote: Quote | None) -> b.Entry:
    saves = b.bold(f"saves {words.amount(finding.cost)}" if finding.cost and finding.saves else _no_saving(finding))
    fix, code, why = finding.fix.text, finding.fix.code, finding.message
    if finding.cost is not None:  # the first line says of how much
        why = why.replace(f" of {format_ms(finding.cost.of_ms)} per step", " per step")
    rows = [
        b.Row(finding.severity.upper(), (saves, f", {finding.certainty}"), findings.SEVERITY[finding.severity]),
        _where(finding, quote),
        b.Row("why", _clause(why, TWO_LINES if rank == 1 else ONE_LINE)),
        b.Row("fix", _clause(fix, TWO_LINES)),
    ]
    if len(fix) <= ONE_LINE and "\n" not in code and len(code) <= CODE:
        rows.append(b.Row("", b.Span(code, "green"), cut=True))
    title = (b.dim(f"{rank}. "), b.Span(finding.title, "bold", finding.fix.link), b.bold(f" ({finding.code})"))
    return b.Entry(title, [b.Rows([row for row in rows if b.unfold(row.text)], indent=3)])


def _line(finding: Finding, rank: int) -> b.Text:
    saves = words.amount(finding.cost).rpartition(" (")[0] if finding.cost and finding.saves else _no_saving(finding)
    severity = b.Span(finding.severity.upper(), findings.SEVERITY[finding.severity])
    return (b.dim(f"{rank}. "), f"{finding.title} ({finding.code}): ", severity, f", {saves}, {finding.certainty}")


def _no_saving(finding: Finding) -> str:
    return "time saving not estimated" if finding.cost is None else "no saving in time"


def _where(finding: Finding, quote: Quote | None) -> b.Row:
    place, spread = finding.place, words.which_ranks(finding)
    on = f"{spread}: " if spread else ""
    if place.frame is None:
        names = [place.module] if place.module else [name for name, _ in groupby(place.ops)]
        if len(names) > N_NAMES:
            names = [names[0], "…", *names[1 - N_NAMES :]]
        chain = " > ".join(map(words.event_name, names))
        return b.Row("where", f"{on}{chain}" if chain else spread, fit=True)
    frame = replace(place.frame, file=_end_of(place.frame.file))
    source = [line.partition("| ")[2] for line in words.quoted(place.frame, quote)]
    if len(source) == 1:
        return b.Row("where", (on, words.source_line(frame), "  ", b.Span(source[0], "cyan")), cut=True)
    if frame.exact or frame.lines or frame.line <= 0:
        return b.Row("where", f"{on}{words.frame(frame)}")
    function = words.event_name(frame.function) or "a function"
    return b.Row("where", f"{on}{visible(frame.file)} in {function} (from line {frame.line})")


def _end_of(path: str) -> str:
    """Return the end of a long path: its last folders and the file tell it from others."""
    name, *folders = reversed(path.split("/"))
    for folder in folders:
        if len(name) + len(folder) > PATH:
            return f"…/{name}"
        name = f"{folder}/{name}"
    return name


def _clause(text: str, room: int) -> str:
    """Return what fits of a text, up to the end of a clause."""
    if len(text) <= room:
        return text
    for mark in (". ", "; ", ": ", ", ", " "):
        at = text.rfind(mark, 0, room)
        while at > 0 and any(text.count(opens, 0, at) > text.count(shuts, 0, at) for opens, shuts in ("()", "[]")):
            at = text.rfind(mark, 0, at)
        if at > room // 2:
            return f"{text[:at]}." if mark == ". " else f"{_without_dangling(text[:at])} …"
    return f"{text[: room - 1]}…"


def _without_dangling(text: str) -> str:
    while (cut := text.rpartition(" "))[2] in _DANGLING and cut[0]:
        text = cut[0]
    return text


# -- how far to trust it ---------------------------------------------------------------------------


def _foot(subject: Result | JobResult, lost: str) -> Iterator[b.Block]:
    lines: list[b.Text] = []
    if subject.refused:
        lines += [subject.verdict[2]] * (lost == "")
    else:
        lines += _trust(subject)
    lines += [b.Span(f"{lost[:1].upper()}{lost[1:]}.", "yellow")] if lost else []
    lines += [_checked(subject)]
    lines += [
        (b.Span("Failed", "bold red"), f", a bug in torchtriage: {crash.code} {crash.error}")
        for crash in subject.crashes[:2]
    ]
    run = subject.recorded if isinstance(subject, Result) else None
    if run is not None and run.command and not run.exit_code and any(finding.saves for finding in subject.findings):
        lines.append(_next(run.command))
    explain = [f"torchtriage explain {finding.code}" for finding in subject.findings[:1]]
    lines.append(b.dim(f"More: {', '.join(['-v (all details)', '--html FILE (a page)', *explain])}"))
    yield b.Lines(lines, indent=0)


def _next(command: str) -> str:
    """Return how to try the fixes of what a command ran, and how to prove one of one's own, in one line."""
    script = shlex.split(command)[0]
    fix = f"Next: torchtriage fix {visible(command)}"
    if len(fix) > LINE:
        fix = f"Next: torchtriage fix {visible(shlex.quote(script))} …"
    changed = shlex.join([script, f"{script.removesuffix('.py')}_changed.py"])
    both = f"{fix}, or torchtriage verify {visible(changed)}"
    return both if script.endswith(".py") and len(both) <= LINE else fix


def _trust(subject: Result | JobResult) -> Iterator[b.Text]:
    says = subject.verdict[2]
    replay = subject.replay if isinstance(subject, Result) else None
    if says.startswith("Limited trust"):
        yield b.Span(_clause(says, TWO_LINES), "yellow")
    elif replay is not None and subject.findings:
        yield words.trust(replay, subject.findings)
    # the step of a run stands above
    of_ms = replay.unprofiled_step_ms if replay is not None and replay.accepted else None
    if of_ms is not None and isinstance(subject, Result) and subject.recorded is None:
        whole = "step" if subject.summary is None or subject.summary.n_steady_steps else "window"
        yield f"Savings are scaled to a {whole} of {format_ms(of_ms)}."


def _checked(subject: Result | JobResult) -> str:
    missing: Sequence[NotChecked] = subject.not_checked
    whole = format_count(len(subject.checked) + len(missing) + len(subject.crashes), "pattern")
    if not (missing or subject.checked or subject.crashes):
        return "Checked: no pattern, as nothing was recorded."
    if not missing:
        return f"Checked: all {whole}." if not subject.crashes else f"Checked: {len(subject.checked)} of {whole}."
    needs: list[str] = []
    for need in dict.fromkeys(visible(need) for entry in missing for need in entry.missing):
        # of "GPU rows" and "GPU rows or input shapes" the first says enough
        needs += [need] * (not any(known in need for known in needs))
    more = f"; {len(needs) - N_NEEDS} more" * (len(needs) > N_NEEDS)
    n_left_out = sum(entry.left_out for entry in missing)
    why = [f"{n_left_out} {words.LEFT_OUT}"] * (n_left_out > 0)
    why += [f"missing: {'; '.join(needs[:N_NEEDS])}{more}"] * (bool(needs) and not subject.refused)
    because = f" ({'; '.join(why)})" * bool(why)
    return f"Not checked: {len(missing)} of {whole}{because}."
