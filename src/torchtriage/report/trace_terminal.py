"""The report as text: the verdict in three lines, then what costs most, worst first.

Lines are wrapped here and joined into one ``rich.text.Text``, so a pipe gets the same lines as a
screen, without padding. Links and code are never wrapped: half a link cannot be opened, and half a
line is no Python. Names go through ``names.visible`` and are appended, never parsed, so
neither escape codes nor markup of a trace reach the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from torchtriage.core.finding import Certainty, Finding, Note, Quote, Severity
from torchtriage.core.names import visible
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import Answer, DeviceSummary, Result, Summary
from torchtriage.report import recorded, words
from torchtriage.report.terminal import INDENT, LEVEL, Page, put

__all__ = ["Page", "doctor", "put", "render", "write"]

BAR = 40
N_OPS = 5

MAX_RANKS = 16
N_COLLECTIVES = 5
_RANK_MARKS = {
    "compute_ns": ("█", "green"),
    "comm_ns": ("▓", "blue"),
    "wait_ns": ("░", "red"),
    "copy_ns": ("▒", "magenta"),
    "idle_ns": ("·", "yellow"),
}

_HEIGHTS = "▁▂▃▄▅▆▇█"

_SEVERITY: dict[Severity, str] = {"high": "bold red", "medium": "yellow", "low": "cyan", "note": "dim"}
_CERTAINTY: dict[Certainty, str] = {"certain": "", "likely": "", "hint": "dim"}
_LEVEL_WORD = {"refuse": "refused", "warn": "warning", "info": "note"}

# Busy time by class: field, word, mark, colour. The marks differ without colour too.
_BUSY = (
    ("compute_ns", "compute", "█", "green"),
    ("comm_only_ns", "communication", "▓", "blue"),
    ("copy_only_ns", "copies", "▒", "magenta"),
)
_IDLE = (
    ("idle_host_late_ns", "host late", "·", "red"),
    ("idle_queued_ns", "queued", "·", "yellow"),
    ("idle_unknown_ns", "cause unknown", "·", "bright_black"),
)


def render(
    results: Sequence[Result],
    *,
    jobs: Sequence[JobResult] = (),
    top: int | None = None,
    width: int | None = None,
    quote: Quote | None = None,
) -> Text:
    """Return the report of one or more traces, and of the jobs some of them are ranks of.

    Parameters
    ----------
    results : sequence of Result
        In the order to show them; with more than one, each starts with its path.
    jobs : sequence of JobResult
        Shown first; their ranks are not shown again one by one.
    top : int, optional
        Findings shown per trace or job; the number left out is said. None shows all.
    width : int, optional
        Columns, at most 120; 80 when not given.
    quote : Quote, optional
        Gives the source lines to show below their place.
    """
    page = Page(width, quote)
    single = words.outside(results, jobs)
    named = len(single) + len(jobs) > 1
    for index, job in enumerate(jobs):
        if named:
            page.blank(index > 0)
            page.rule(f"{len(job.ranks)} ranks of one job")
        _job(page, job, results, top)
    for index, result in enumerate(single):
        if named:
            page.blank(index > 0 or bool(jobs))
            page.rule(_path(result.trace.path, page.width))
        _result(page, result, top, named=named)
    if len(single) > 1:
        _overview(page, single)
    return page.text


def doctor(result: Result, *, width: int | None = None) -> Text:
    """Return what the recording can and cannot answer, and how to record it better."""
    page = Page(width)
    level = _worst(result)
    page.line((_TRUST[level], LEVEL[level] if level != "info" else "bold green"))
    page.blank()
    _facts(page, result)
    page.blank()
    for label, line in words.contents(result):
        page.labelled(label, (line, ""))
    for note in _by_level(result.notes):
        page.blank()
        _note(page, note)
    page.blank()
    page.line((f"{words.checked(result)}.", "bold"))
    _unanswered(page, result, every=True)
    return page.text


def write(
    results: Sequence[Result],
    console: Console,
    *,
    jobs: Sequence[JobResult] = (),
    top: int | None = None,
    view: str = "report",
    quote: Quote | None = None,
) -> None:
    """Print the report, or the doctor's view of each trace, on the console."""
    if view == "doctor":
        for result in results:
            put(partial(doctor, result), console)
    else:
        put(partial(render, results, jobs=jobs, top=top, quote=quote), console)


def _run(page: Page, result: Result) -> None:
    """Say first what was run and how it was recorded, where that was ours to do."""
    if result.recorded is not None:
        for label, text in recorded.run(result.recorded):
            page.labelled(label, (text, ""), indent=0)
        page.blank()


def _result(page: Page, result: Result, top: int | None, *, named: bool) -> None:
    _run(page, result)
    for index, sentence in enumerate(result.verdict):
        page.line((visible(sentence), _verdict_style(result) if index == 0 else ""))
    page.blank()
    _facts(page, result, named=named)
    serious = [note for note in _by_level(result.notes) if note.level != "info"]
    for note in serious:
        page.blank()
        _note(page, note, said=result.verdict)

    shown = result.findings if top is None else result.findings[: max(top, 0)]
    for rank, finding in enumerate(shown, start=1):
        page.blank()
        _finding(page, finding, rank, result.summary)
    if hidden := len(result.findings) - len(shown):
        page.blank()
        page.line((f"{format_count(hidden, 'more finding')} not shown", "dim"))
    if together := words.joint(result):
        page.blank()
        page.line(("All together ", "bold"), (together, ""))
    _suspected(page, result)
    _replayed(page, result)
    _compiled(page, result)
    page.blank()
    found = "" if result.findings or result.refused else "No finding. "
    page.line((found, "bold"), (f"{words.checked(result)}.", ""))
    _unanswered(page, result)


def _suspected(page: Page, result: Result) -> None:
    """Say where the learned detector sees more than the findings."""
    if result.suspicions:
        page.blank()
        page.line((words.SUSPICIOUS, "bold"), (f"  {words.OPINION}", "dim"))
    for one in result.suspicions:
        page.line((words.suspicion(one), ""), indent=INDENT, hang=2)


def _compiled(page: Page, result: Result, whose: str = "") -> None:
    """Say what the compiler's log names, where it was kept."""
    rows = recorded.compiled(result.recorded)
    if rows:
        page.blank()
        page.line(("torch.compile", "bold"), (whose, "dim"))
    for label, text in rows:
        page.labelled(label, (text, ""))


def _answers(page: Page, answers: Sequence[Answer]) -> None:
    """Add the answers to what-if questions."""
    if answers:
        page.blank()
        page.line(("What if", "bold"))
    for one in answers:
        page.line((f"{visible(one.question)}  ", "bold"), (words.answer(one), ""), indent=INDENT, hang=2)


def _replayed(page: Page, result: Result) -> None:
    """Add the answers to what-if questions, and what bounds a step."""
    _answers(page, result.what_ifs)
    if result.critical_path is not None and result.summary and result.summary.devices:
        said = words.critical(result.critical_path, result.summary)
        page.blank()
        page.line((f"{said[:1].upper()}{said[1:]}.", ""))
    if result.replay is not None and (result.findings or result.what_ifs):
        page.line((words.replayed(result.replay), "dim"), indent=INDENT, hang=2)


def _overview(page: Page, results: Sequence[Result]) -> None:
    """Add one line for each trace: after eight reports nobody remembers the first."""
    page.blank()
    page.rule(f"{len(results):,} traces, each on its own")
    for result in results:
        page.line((f"{_path(result.trace.path, page.width - 2 * INDENT)}", ""), indent=INDENT, hang=2)
        page.line((words.outcome(result), "dim"), indent=2 * INDENT, hang=2)


def _verdict_style(result: Result | JobResult) -> str:
    if result.refused:
        return "bold red"
    # green is for what was looked at whole
    clean = result.healthy and not result.not_checked and not result.crashes
    return "bold green" if clean else "bold"


def _job(page: Page, job: JobResult, results: Sequence[Result], top: int | None) -> None:
    for one in results:
        if one.trace.path == job.ranks[0].path:
            _run(page, one)
    for index, sentence in enumerate(job.verdict):
        page.line((visible(sentence), _verdict_style(job) if index == 0 else ""))
    page.blank()
    page.line((visible(job.basis), "dim"), indent=INDENT)
    if not job.refused:
        _ranks(page, job)
        _collectives(page, job)
    for note in _by_level(job.notes):
        if note.level != "info":
            page.blank()
            _note(page, note, said=job.verdict)
    shown = job.findings if top is None else job.findings[: max(top, 0)]
    for rank, finding in enumerate(shown, start=1):
        page.blank()
        _finding(page, finding, rank, None)
    if hidden := len(job.findings) - len(shown):
        page.blank()
        page.line((f"{format_count(hidden, 'more finding')} not shown", "dim"))
    if together := words.joint(job):
        page.blank()
        page.line(("All together ", "bold"), (together, ""))
    _answers(page, job.what_ifs)
    first = next((one for one in results if one.trace.path == job.ranks[0].path), None)
    if first is not None:
        _compiled(page, first, f"  on rank {job.ranks[0].rank}")
    page.blank()
    found = "" if job.findings or job.refused else "No finding. "
    page.line((found, "bold"), (f"{words.checked(job)} on every rank.", ""))
    calm = words.without_device(first) if first is not None else ""
    left = [one for one in job.not_checked if not (calm and words.needs_device(one))]
    if calm:
        page.line((calm, ""), indent=INDENT, hang=2)
    for group in words.missing(left):
        page.line((f"no {group.what}: ", ""), (", ".join(group.brief), "dim"), indent=INDENT, hang=2)
    for crash in job.crashes:
        page.line((f"failed: {visible(crash.code)} ", "bold red"), (visible(crash.error), ""), indent=INDENT, hang=2)


def _ranks(page: Page, job: JobResult) -> None:
    """Draw each rank's mean step as a bar: who waits, and for whom."""
    longest = max(max(one.wall_ns for one in job.ranks), 1)
    shown = list(job.ranks)
    if len(shown) > MAX_RANKS:
        # who makes others wait, and who waits most
        worst = sorted(shown, key=lambda one: (-one.caused_wait_ns, -one.wait_ns, one.rank))
        shown = sorted(worst[:MAX_RANKS], key=lambda one: one.rank)
    page.blank()
    bar = BAR - 16  # room for what each rank has to say
    for one in shown:
        parts: list[tuple[str, str]] = []
        used, reach = 0, 0
        for field, *_ in words.RANK_PARTS:
            mark, style = _RANK_MARKS[field]
            reach += int(getattr(one, field))
            cells = max(round(reach / longest * bar) - used, 0)
            parts.append((mark * cells, style))
            used += cells
        pad = " " * (bar - used)
        page.labelled(f"rank {one.rank}", *parts, (f"{pad} {words.rank_line(one)}", ""))
    if hidden := len(job.ranks) - len(shown):
        page.labelled("", (f"{format_count(hidden, 'more rank')} not shown", "dim"))
    legend: list[tuple[str, str]] = []
    for field, word, _, share in words.rank_parts(job):
        mark, style = _RANK_MARKS[field]
        legend += [(f"{mark} ", style), (f"{word} {format_share(share)}  ", "")]
    page.labelled("", *legend)


def _collectives(page: Page, job: JobResult) -> None:
    shown = job.collectives[:N_COLLECTIVES]
    page.blank(bool(shown))
    label = "exchanged"
    for one in shown:
        size = f" of {one.nelems:,}" if one.nelems is not None else ""
        group = f" in group {visible(one.group)}" if one.group else ""
        page.labelled(
            label,
            (f"{one.n_per_step:.3g} x {words.event_name(one.name)}{size}", ""),
            (f"{group}: transfer {format_ns(one.transfer_ns)}, wait {format_ns(one.wait_ns)}", ""),
            (f", rank {one.late_rank} last in {format_share(one.late_share)}", "dim"),
        )
        label = ""
    if shown:
        rest = len(job.collectives) - len(shown)
        more = f", {rest:,} more kinds not shown" if rest > 0 else ""
        page.labelled("", (f"per step, each in the mean{more}", "dim"))


def _facts(page: Page, result: Result, *, named: bool = False) -> None:
    _, *rest = words.recording(result)
    if not named:
        page.line((_path(result.trace.path, page.width - INDENT), "dim"), indent=INDENT)
    for line in rest:
        page.line((line, "dim"), indent=INDENT)
    for index, line in enumerate(words.losses(result.trace)):
        page.line((line, "yellow" if index == 0 else "dim"), indent=INDENT + 2 * (index > 0))
    if result.summary is not None:
        for device in result.summary.devices:
            _device(page, device)
        if not result.summary.devices:
            _host(page, result.summary)


def _path(path: str, room: int) -> str:
    """Return a path that fits, its last folders and name kept: half a name is nobody's."""
    shown = visible(path)
    folders = shown.split("/")
    while cell_len(shown) > room and len(folders) > 1:
        folders = folders[1:]
        shown = "/".join(["…", *folders])
    return shown


def _host(page: Page, summary: Summary) -> None:
    """Draw what a recording without a device has to show: its steps and its operators."""
    walls = [step.end_ns - step.start_ns for step in summary.steps]
    if walls:
        page.blank()
        top = max(*walls, 1)
        marks = [_HEIGHTS[round(wall / top * (len(_HEIGHTS) - 1))] for wall in walls[:BAR]]
        page.labelled(
            "steps",
            ("".join(marks), "green"),
            (f" {format_ns(min(walls))} to {format_ns(max(walls))}", ""),
            (f", the first {BAR} of {len(walls):,}" if len(walls) > BAR else "", "dim"),
        )
    page.blank(not walls)
    label = "top ops"
    top_ops = summary.top_ops[:N_OPS]
    room = max((len(format_ns(op.self_ns)) for op in top_ops), default=0)
    for op in top_ops:
        page.labelled(
            label,
            (format_ns(op.self_ns).rjust(room), "bold"),
            (f"  {words.event_name(op.name)}", ""),
            (f", {format_count(op.count, 'call')}", "dim"),
        )
        label = ""
    if top_ops:
        page.labelled("", ("self time in the window", "dim"))


def _device(page: Page, device: DeviceSummary) -> None:
    """Draw one device's window as a bar of its classes, with their shares below."""
    wall_ns = device.classes.wall_ns
    if wall_ns <= 0:
        return

    def share(field: str) -> float:
        return int(getattr(device.classes, field)) / wall_ns

    bar: list[tuple[str, str]] = []
    used, reach = 0, 0.0
    for field, _, mark, style in _BUSY + _IDLE:
        reach += share(field)
        cells = max(round(reach * BAR) - used, 0)
        bar.append((mark * cells, style))
        used += cells
    page.blank()
    page.labelled(f"GPU {visible(device.device)}", *bar, (f" {format_ns(wall_ns)} window", "dim"))
    busy: list[tuple[str, str]] = []
    for field, word, mark, style in _BUSY:
        if share(field) or field == "compute_ns":
            busy += [(f"{mark} ", style), (f"{word} {format_share(share(field))}  ", "")]
    page.labelled("", *busy)
    causes = ", ".join(f"{word} {format_share(share(field))}" for field, word, _, _ in _IDLE if share(field))
    idle = sum(share(field) for field, *_ in _IDLE)
    page.labelled("", ("· ", "red"), (f"idle {format_share(idle)}{': ' if causes else ''}{causes}", ""))


def _note(page: Page, note: Note, *, said: Sequence[str] = ()) -> None:
    """Add a note; its sentence is left out where the verdict has ``said`` it already."""
    told = any(note.message.rstrip(".") in sentence for sentence in said)
    page.labelled(
        _LEVEL_WORD[note.level],
        (visible(note.code), "bold"),
        ("" if told else f": {visible(note.message)}", ""),
        style=LEVEL[note.level],
    )
    if note.fix:
        page.labelled("", ("try: ", "dim"), (visible(note.fix), "green"))


def _finding(page: Page, finding: Finding, rank: int, summary: Summary | None) -> None:
    page.line(
        (f"{rank}. ", "dim"),
        (finding.severity.upper(), _SEVERITY[finding.severity]),
        (f" {visible(finding.code)} ", "bold"),
        (visible(finding.title), "bold"),
        (f"  {finding.certainty}", _CERTAINTY[finding.certainty] or "italic"),
        hang=3,
    )
    indent = 3
    if finding.cost is not None:
        page.labelled(
            "saves", (words.saving(finding.cost), "bold"), (f"  {words.basis(finding.cost)}", "dim"), indent=indent
        )
    page.labelled("what", (visible(finding.message), ""), indent=indent)
    label = "where"
    for line in _where(finding, summary):
        page.labelled(label, (line, ""), indent=indent)
        if label and finding.place.frame is not None:
            for row in words.quoted(finding.place.frame, page.quote):
                page.source_line(row, indent=indent)
        label = ""
    if ranks := words.rank_spread(finding):
        page.labelled("ranks", (ranks, ""), indent=indent)
    if facts := words.evidence(finding):
        page.labelled("evidence", (facts, ""), indent=indent)
    page.labelled("fix", (visible(finding.fix.text), ""), indent=indent)
    rows = finding.fix.code.replace("\r\n", "\n").split("\n") if finding.fix.code else []
    link = [finding.fix.link] if finding.fix.link.startswith("https://") else []
    page.verbatim([*((row, "green") for row in rows), *((row, "dim underline") for row in link)], indent=indent)
    if finding.also_explains:
        also = ", ".join(visible(code) for code in finding.also_explains)
        page.labelled("also", (f"explains {also}", ""), indent=indent)


def _where(finding: Finding, summary: Summary | None) -> Iterable[str]:
    place = finding.place
    if place.frame is not None:
        yield words.frame(place.frame)
    if place.module:
        yield words.event_name(place.module)
    if place.ops:
        yield " > ".join(words.event_name(op) for op in place.ops)
    lane = words.event_name(place.lane)
    when = words.steps(place, finding.n_events, summary)
    if rest := ", ".join(part for part in (when, lane) if part):
        yield rest


def _unanswered(page: Page, result: Result, *, every: bool = False) -> None:
    """Say what was not checked, grouped by what was missing, and which patterns failed.

    ``every`` names each pattern and how to record it; else a long group shows codes only.
    """
    groups = words.missing(result.not_checked)
    calm = "" if every else words.without_device(result)
    if calm:
        page.line((calm, ""), indent=INDENT, hang=2)
        groups = words.missing([one for one in result.not_checked if not words.needs_device(one)])
    for group in groups:
        names = group.patterns if every else group.brief
        page.line((f"no {group.what}: ", ""), (", ".join(names), "dim"), indent=INDENT, hang=2)
        if group.how_to_record:
            page.line(("to check: ", "dim"), (group.how_to_record, "green"), indent=INDENT + 2, hang=2)
    if result.crashes:
        page.blank()
        page.line(("Failed", "bold red"), (", a defect of torchtriage; the others ran", ""))
    for crash in result.crashes:
        page.line((f"{visible(crash.code)} ", "bold"), (visible(crash.error), ""), indent=INDENT, hang=2)


_TRUST = {
    "refuse": "This recording cannot be judged.",
    "warn": "This recording can be judged, within limits.",
    "info": "This recording can be judged.",
}


def _worst(result: Result) -> str:
    levels = {note.level for note in result.notes}
    if result.refused or "refuse" in levels:
        return "refuse"
    return "warn" if "warn" in levels or result.trace.n_lost else "info"


def _by_level(notes: Sequence[Note]) -> list[Note]:
    order = list(LEVEL)
    return sorted(notes, key=lambda note: order.index(note.level))
