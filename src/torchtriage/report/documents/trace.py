"""A trace, or the ranks of a job: the verdict, where time goes, findings by saving, what was not checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchtriage.core.finding import Finding, Note, Quote
from torchtriage.core.names import file_name
from torchtriage.core.units import format_bytes, format_count, format_ns, format_share
from torchtriage.diagnose.ranks.result import CollectiveSummary, JobResult
from torchtriage.diagnose.runs.result import RecordedRun
from torchtriage.diagnose.verdict.result import Result, Summary
from torchtriage.report import blocks as b
from torchtriage.report import recorded, words
from torchtriage.report.documents import (
    brief,
    bus_bandwidth,
    device_time,
    findings,
    pictures,
    pipelines,
    process_groups,
    serving,
)

N_OPS = 5
N_COLLECTIVES, N_COLLECTIVES_IN_MARKDOWN = 5, 20
N_RANKS, N_RANKS_IN_MARKDOWN = 16, 32
N_ACCOUNT_LINES = 6

_LEVELS = ("refuse", "warn", "info")
_TRUST = {
    "refuse": b.Span("This recording cannot be analysed.", "bold red"),
    "warn": b.Span("This recording can be analysed, within limits.", "yellow"),
    "info": b.Span("This recording can be analysed.", "bold green"),
}


def document(
    results: Sequence[Result],
    jobs: Sequence[JobResult] = (),
    *,
    top: int | None = None,
    quote: Quote | None = None,
    short: bool = False,
) -> b.Document:
    """Return the report of one or more traces, and of the jobs some of them are ranks of.

    With more than one result, each starts with its path; jobs come first, and their ranks are not shown again one by
    one. ``top`` : findings shown per trace or job; the number left out is stated. ``quote`` : gives the source lines
    to show below their place. ``short`` : for the terminal alone, what fits a screen.
    """
    single = words.outside(results, jobs)
    several = len(single) + len(jobs) > 1
    blocks: list[b.Block] = []
    for job in jobs:
        first = next((result for result in results if result.trace.path == job.ranks[0].path), None)
        blocks += (brief.job if short else _job)(job, first, top, quote, several)
    for result in single:
        blocks += (brief.trace if short else _result)(result, top, quote, several)
    if len(single) > 1:
        blocks.append(b.Head("", [], path=f"{len(single):,} traces, each on its own", on=b.TERMINAL))
        for result in single:
            blocks.append(b.Lines([result.trace.path], fit=True, tight=True, on=b.TERMINAL))
            blocks.append(b.Lines([b.dim(words.outcome(result))], indent=4, tight=True, on=b.TERMINAL))
    version, schema = (results[0].version, results[0].schema) if results else ("", "")
    return b.Document("Trace", version, schema, blocks)


def doctor(result: Result) -> b.Document:
    """Return what the recording can and cannot answer, and how to record it better."""
    notes = _by_level(result.notes)
    lossy = result.trace.n_lost > 0
    level = "refuse" if result.refused else min([note.level for note in notes] or ["info"], key=_LEVELS.index)
    trust = _TRUST["warn" if level == "info" and lossy else level]
    refusals = [note for note in notes if note.level == "refuse"]
    if [note.code for note in refusals] == ["merged-ranks"] and refusals[0].evidence.get("shared") == []:
        n_ranks = len(refusals[0].evidence["ranks"])
        trust = b.Span(f"This recording can be analysed, as a job of {n_ranks} ranks.", "yellow")
    blocks = [
        b.Lines([trust], indent=0),
        *_recording(result),
        b.Rows([b.Row(label, line) for label, line in words.contents(result)]),
        b.Notes(notes, codes=True),
        b.Lines([b.bold(f"{words.checked(result)}.")], indent=0),
        *findings.unanswered(result.not_checked, result.crashes),
    ]
    return b.Document("Trace", result.version, result.schema, blocks)


def _result(result: Result, top: int | None, quote: Quote | None, several: bool) -> Iterator[b.Block]:
    path = result.trace.path * several
    yield b.Head(file_name(result.trace.path), result.verdict, (brief.verdict_style(result), ""), hang=0, path=path)
    yield b.Rows(_ran(result), indent=0)
    yield from _accounts(result.recorded)
    if result.summary is not None or result.trace.n_events:
        yield from _recording(result, named=several)
    judged = words.judged_step(result.trace.selection)
    if result.summary is not None:
        n_steps = result.summary.n_steady_steps
        over = f"in {format_count(n_steps, judged)}" if n_steps else "window"
        for device in result.summary.devices:
            yield pictures.device(device, result.trace.vendor, over)
        if not result.summary.devices:
            yield from _host(result.summary)
    yield from serving.account(result.serving)
    yield from device_time.tables(result.device_time, result.trace.vendor, judged)
    yield from bus_bandwidth.table(result.bus_bandwidth, result.device_time[0].per if result.device_time else "step")
    per = "step" if result.summary is not None and result.summary.n_steady_steps else "window"
    if len(result.process_groups) > 1:
        yield process_groups.lines(result.process_groups, per)
    yield process_groups.table(result.process_groups, per)
    yield from _findings(result, result.summary, top, quote)
    suspicions = b.Lines([words.suspicion(suspicion) for suspicion in result.suspicions], bullets=True)
    yield b.Entry((b.bold(words.SUSPICIOUS), b.dim(f"  {words.OPINION}")), [suspicions])
    yield _what_ifs(result)
    if result.critical_path is not None and result.summary and result.summary.devices:
        path = words.critical(result.critical_path, result.summary)
        yield b.Lines([f"{path[:1].upper()}{path[1:]}."], indent=0)
    if result.replay is not None and (result.findings or result.what_ifs):
        yield b.Lines([b.dim(words.replayed(result.replay, result.findings))], tight=True)
    yield _compiled(result)
    yield from _answered(result, words.without_device(result))
    yield b.Foot(", ".join([*words.recording(result), f"torchtriage {result.version}"]))


def _job(
    job: JobResult, first: Result | None, top: int | None, quote: Quote | None, several: bool
) -> Iterator[b.Block]:
    path = f"{len(job.ranks)} ranks of one job" * several
    per = "step" if job.n_steady_steps else "window"
    yield b.Head(f"{len(job.ranks)} ranks of one job", job.verdict, (brief.verdict_style(job), ""), hang=0, path=path)
    yield b.Rows([*_ran(first), *_selected(first)], indent=0)
    yield from _accounts(first.recorded if first is not None else None)
    yield b.Lines([b.dim(job.basis)], on=b.TERMINAL)
    if not job.refused:
        yield pictures.ranks(job, N_RANKS)
        yield _collectives(job)
        yield process_groups.lines(job.process_groups, per)
        yield from pipelines.of_job(job)
        yield from device_time.of_first_rank(job, first)
    yield _rank_table(job)
    yield _collective_table(job)
    yield process_groups.table(job.process_groups, per)
    yield from _findings(job, None, top, quote)
    yield _what_ifs(job)
    yield _compiled(first, f"  on rank {job.ranks[0].rank}")
    yield from _answered(job, words.without_device(first) if first is not None else "", " on every rank")
    yield b.Foot(", ".join([f"{len(job.ranks)} ranks", job.basis, f"torchtriage {job.version}"]))


def _ran(result: Result | None) -> list[b.Row]:
    if result is None or result.recorded is None:
        return []
    return [b.Row(*row) for row in recorded.run(result.recorded)]


def _selected(result: Result | None) -> list[b.Row]:
    return [b.Row("selected", result.trace.selection)] if result is not None and result.trace.selection else []


def _compiled(result: Result | None, whose: str = "") -> b.Entry:
    rows = [b.Row(*row) for row in recorded.compiled(result.recorded)] if result is not None else []
    return b.Entry((b.bold("torch.compile"), b.dim(whose)), [b.Rows(rows)], fold=True)


def _what_ifs(subject: Result | JobResult) -> b.Entry:
    lines = [(b.bold(f"{answer.question}  "), words.answer(answer)) for answer in subject.what_ifs]
    return b.Entry("What if", [b.Lines(lines, bullets=True)])


def _answered(subject: Result | JobResult, without_device: str, where: str = "") -> Iterator[b.Block]:
    none = "" if subject.findings or subject.refused else "No findings. "
    yield b.Lines([(b.bold(none), f"{words.checked(subject)}{where}.")], indent=0)
    yield from findings.unanswered(subject.not_checked, subject.crashes, without_device)
    if subject.findings:
        yield b.Lines(
            [b.dim("What certain, likely, hint and the grades mean: docs/definitions.md")], indent=0, on=b.TERMINAL
        )


# -- where a step's time and the run's went, by the user's lines ------------------------------------


def _accounts(run: RecordedRun | None) -> Iterator[b.Block]:
    if run is not None and run.account is not None:
        yield from pictures.account(run.account, N_ACCOUNT_LINES)
    if run is not None and (whole := run.run_account) is not None:
        yield from pictures.run_account(whole, N_ACCOUNT_LINES)


# -- findings --------------------------------------------------------------------------------------


def _findings(
    subject: Result | JobResult, summary: Summary | None, top: int | None, quote: Quote | None
) -> Iterator[b.Block]:
    serious = [note for note in _by_level(subject.notes) if note.level != "info"]
    yield b.Notes(subject.notes, codes=True, on=b.PAGE)
    # what the verdict says already is not repeated
    new = [
        replace(note, message="") if any(note.message.rstrip(".") in line for line in subject.verdict) else note
        for note in serious
    ]
    yield b.Notes(new, codes=True, on=b.TERMINAL + b.MARKDOWN)
    shown = subject.findings if top is None else subject.findings[: max(top, 0)]
    saving = [finding for finding in shown if finding.saves or finding.grave]
    others = [finding for finding in shown if finding not in saving]
    columns = ("severity", "finding", "where", "saves", "certainty")
    yield b.Table(columns, [_cells(finding) for finding in saving], align="lllll", on=b.MARKDOWN)
    for rank, finding in enumerate(saving, start=1):
        yield findings.entry(finding, rank, summary=summary, quote=quote)
    yield b.Lines([b.bold("Without a saving in time:")] if others else [], indent=0, on=b.TERMINAL + b.MARKDOWN)
    for finding in others:
        yield findings.entry(finding, None, summary=summary, quote=quote)
    if hidden := len(subject.findings) - len(shown):
        yield b.Lines([b.dim(f"{format_count(hidden, 'more finding')} not shown.")], indent=0)
    if together := words.joint(subject):
        yield b.Lines([(b.bold("All together "), together)], indent=0, hang=0)


def _cells(finding: Finding) -> tuple[b.Text, ...]:
    frame = finding.place.frame
    where = words.source_line(frame) if frame else (finding.place.ops or ("",))[-1]
    return (
        finding.severity,
        (f"{finding.title} ", b.code(finding.code)),
        b.code(words.event_name(where)) if where else "",
        words.saving(finding.cost) if finding.cost else "not costed",
        finding.certainty,
    )


def _by_level(notes: Sequence[Note]) -> list[Note]:
    return sorted(notes, key=lambda note: _LEVELS.index(note.level))


# -- where time goes -------------------------------------------------------------------------------


def _recording(result: Result, *, named: bool = False) -> Iterator[b.Block]:
    path, *facts = words.recording(result)
    yield b.Lines([b.dim(path)] if not named else [], fit=True, on=b.TERMINAL)
    yield b.Lines([b.dim(fact) for fact in facts], tight=not named, on=b.TERMINAL)
    first, *others = [*words.losses(result.trace), ""]
    yield b.Lines([b.Span(first, "yellow"), *map(b.dim, others)], tight=True)


def _host(summary: Summary) -> Iterator[b.Rows]:
    walls = [step.end_ns - step.start_ns for step in summary.steps]
    if walls:
        yield pictures.steps(walls)
    ops = summary.top_ops[:N_OPS]
    room = max((len(format_ns(op.self_ns)) for op in ops), default=0)
    texts = [
        (
            b.bold(format_ns(op.self_ns).rjust(room)),
            f"  {words.event_name(op.name)}",
            b.dim(f", {format_count(op.count, 'call')}"),
        )
        for op in ops
    ]
    whole = format_ns(summary.window_end_ns - summary.window_start_ns)
    below = [b.dim(f"self time in the window of {whole}")] * bool(ops)
    yield b.Rows(b.labelled("top ops", [*texts, *below]), tight=bool(walls), on=b.TERMINAL)


def _rank_table(job: JobResult) -> b.Table:
    parts = words.rank_parts(job)
    ranks = sorted(job.ranks, key=lambda rank: (-rank.caused_wait_ns, rank.rank))
    ranks = [*sorted(ranks[:N_RANKS_IN_MARKDOWN], key=lambda rank: rank.rank), *ranks[N_RANKS_IN_MARKDOWN:]]
    rows = [
        (
            str(rank.rank),
            *map(format_ns, (rank.wall_ns, *(getattr(rank, field) for field, *_ in parts), rank.caused_wait_ns)),
        )
        for rank in ranks
    ]
    columns = ("rank", "step", *(word for _, word, *_ in parts), "makes others wait")
    return b.Table(columns, rows, align="r" * len(columns), limit=N_RANKS_IN_MARKDOWN, on=b.MARKDOWN)


def _collectives(job: JobResult) -> b.Rows:
    texts: list[b.Text] = []
    for collective in job.collectives[:N_COLLECTIVES]:
        size = _size(collective)
        group = f" in group {collective.group}" if collective.group else ""
        bus = f" ({bus_bandwidth.reached(collective)} on the bus)" if collective.bus_gbps is not None else ""
        n = collective.n_per_step
        times = f"transfer {format_ns(n * collective.transfer_ns)}{bus}, wait {format_ns(n * collective.wait_ns)}"
        kind = (
            f"{collective.n_per_step:.3g} x {words.event_name(collective.name)}{f' of {size}' if size else ''}{group}"
        )
        kind = f"{kind}: {times}"
        texts.append((kind, b.dim(f", {who}" if (who := _late(collective)) else "")))
    rest = len(job.collectives) - len(texts)
    if texts:
        more = f"; {rest:,} more kinds not shown" if rest else ""
        texts.append(b.dim(f"per step, mean of the waiting ranks, including waits hidden behind computation{more}"))
    return b.Rows(b.labelled("exchanged", texts), on=b.TERMINAL)


def _collective_table(job: JobResult) -> b.Table:
    columns = ("collective", "size", "ranks", "per step", "transfer", "algorithm", "bus", "wait", "last rank")
    rows = [
        (
            f"{words.event_name(each.name)}{f' in group {each.group}' if each.group else ''}",
            _size(each),
            f"{each.n_ranks:,}",
            f"{each.n_per_step:.3g}",
            format_ns(each.transfer_ns),
            bus_bandwidth.format_gbps(each.algorithm_gbps) if each.algorithm_gbps is not None else "",
            bus_bandwidth.reached(each),
            format_ns(each.wait_ns),
            _late(each),
        )
        for each in job.collectives
    ]
    return b.Table(columns, rows, align="lrrrrrrrl", limit=N_COLLECTIVES_IN_MARKDOWN, on=b.MARKDOWN)


def _late(each: CollectiveSummary) -> str:
    return f"rank {each.late_rank} last in {format_share(each.late_share)}" if each.late_rank is not None else ""


def _size(collective: CollectiveSummary) -> str:
    if collective.size_bytes is not None:
        # sizes that change from step to step
        return f"{format_bytes(collective.size_bytes)}{' on average' * (collective.nelems is None)}"
    return format_count(collective.nelems, "element") if collective.nelems is not None else ""
