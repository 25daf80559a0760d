"""One page that holds everything, asks no server for anything and can be mailed around.

``render`` packs the results as JSON into a data block; the scripts and styles in ``templates/``
draw them. Nothing from a trace is ever parsed as HTML: the script writes text nodes only, and
``page.py`` keeps data and policy closed.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from torchtriage.core.finding import Crash, Finding, NotChecked, Note, Quote, TimeClasses
from torchtriage.core.html import as_data, filled, policy, template
from torchtriage.core.names import short_name
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import PathSummary, Result, Summary, TimelineLane
from torchtriage.report import recorded
from torchtriage.report.pages.values import clean, clip, cost, counts, finite, frame, value_of, web_link
from torchtriage.report.words import (
    OPINION,
    RANK_PARTS,
    SUSPICIOUS,
    answer,
    critical,
    event_name,
    needs_device,
    quoted,
    rank_spread,
    replayed,
    saving,
    suspicion,
    without_device,
)

__all__ = ["MAX_PAGE_BYTES", "render"]

MAX_PAGE_BYTES = 3_000_000

MAX_INTERVALS = 200
"""A place this full holds its costliest intervals only."""

MAX_RANKS = 4096
"""Bars of a job: more ranks are in the JSON."""

SPAN_CLASSES = ("compute", "comm", "copy", "op", "wait", "python", "loader", "step")


@dataclass(frozen=True)
class _Detail:
    """How much of each result the page carries; everything cut is said on the page."""

    lanes: int
    spans: int
    intervals: int
    steps: int
    rows: int
    findings: int
    facts: int
    name_chars: int
    text_chars: int


# Tried in turn until the page fits: the first serves any one trace, the others many ranks.
_DETAILS = (
    _Detail(24, 1500, 200, 1000, 200, 200, 40, 160, 2000),
    _Detail(16, 700, 100, 500, 100, 100, 30, 120, 1000),
    _Detail(12, 300, 50, 200, 50, 60, 20, 80, 500),
    _Detail(8, 120, 20, 100, 25, 30, 12, 60, 300),
    _Detail(6, 50, 8, 60, 12, 15, 8, 40, 200),
    _Detail(0, 0, 3, 30, 6, 8, 4, 40, 160),
)


def render(results: Sequence[Result], jobs: Sequence[JobResult] = (), *, quote: Quote | None = None) -> str:
    """Return one self-contained HTML page showing ``jobs`` and ``results``, the first one opened.

    The page stays under ``MAX_PAGE_BYTES``: with many or very large results it carries less
    detail per result, and says what it left out.

    Parameters
    ----------
    results : sequence of Result
        One per trace; several are offered in a selector.
    jobs : sequence of JobResult
        Several of the traces together; offered first.
    quote : Quote, optional
        Gives the source lines to show with the findings.

    Raises
    ------
    ValueError
        If ``results`` is empty.
    """
    if not results:
        raise ValueError("expected at least one result to render, found none")
    for detail in _DETAILS:
        last = detail is _DETAILS[-1]
        if not last and len(results) > 1 and _expected_bytes(results, detail) > MAX_PAGE_BYTES:
            continue
        page = _page(results, jobs, detail, quote)
        if last or len(page.encode()) <= MAX_PAGE_BYTES:
            break
    return page


def _expected_bytes(results: Sequence[Result], detail: _Detail) -> float:
    """Return the data's size judged by the fullest result: packing all of them takes long."""

    def weight(result: Result) -> int:
        lanes = result.summary.timeline if result.summary else ()
        return 100 + sum(len(lane.spans) for lane in lanes) + 200 * len(result.findings)

    fullest = max(results, key=weight)
    packer = _Packer(detail)
    one = len(json.dumps(packer.result(fullest), separators=(",", ":")))
    # ranks of one run share their names
    return one * sum(map(weight, results)) / weight(fullest) + len(json.dumps(packer.names))


# -- the document ------------------------------------------------------------------------------


def _page(results: Sequence[Result], jobs: Sequence[JobResult], detail: _Detail, quote: Quote | None = None) -> str:
    packer = _Packer(detail, quote)
    data = {
        "classes": SPAN_CLASSES,
        "jobs": [packer.job(job, results) for job in jobs],
        "results": [packer.result(result) for result in results],
        "names": packer.names,
        "cut": list(packer.cut),
    }
    script, style = template("page.js"), template("page.css")
    parts = {
        "policy": policy(style, script),
        "title": html.escape(_title(results, jobs)),
        "version": html.escape(clean(results[0].version, 40)),
        "style": style,
        "summary": _plain_summary(results, jobs, detail),
        "data": as_data(data),
        "script": script,
    }
    return filled("page.html", parts)


def _title(results: Sequence[Result], jobs: Sequence[JobResult]) -> str:
    if jobs:
        return f"{len(jobs[0].ranks)} ranks of one job · torchtriage"
    name = clean(_file_name(results[0].trace.path), 80)
    others = f" and {len(results) - 1} more" if len(results) > 1 else ""
    return f"{name}{others} · torchtriage"


def _file_name(path: str) -> str:
    """Return the last part of a path: pages get shared, folders of a machine should not."""
    return PurePosixPath(path.replace("\\", "/")).name or path


def _plain_summary(results: Sequence[Result], jobs: Sequence[JobResult], detail: _Detail) -> str:
    """Return the findings as plain HTML, for a reader without scripts."""
    lines = ["<h1>torchtriage</h1>"]

    def put(tag: str, text: str, limit: int = 400) -> None:
        lines.append(f"<{tag}>{html.escape(clean(text, limit))}</{tag}>")

    for job in jobs:
        put("h2", f"{len(job.ranks)} ranks of one job")
        for line in job.verdict:
            put("p", line)
        for finding in job.findings[: detail.findings]:
            put("h3", f"{finding.code} {finding.title}")
            put("p", finding.message, 1000)
    for result in results:
        put("h2", _file_name(result.trace.path))
        for line in result.verdict:
            put("p", line)
        for note in result.notes[: detail.findings]:
            put("p", f"{note.level}: {note.message} {note.fix}")
        for finding in result.findings[: detail.findings]:
            put("h3", f"{finding.code} {finding.title}")
            put("p", finding.message)
            if finding.cost:
                put("p", f"Saves {saving(finding.cost)}, {finding.cost.basis}.")
            if finding.fix.text:
                put("p", f"Fix: {finding.fix.text}")
        for place in result.suspicions:
            put("p", f"{SUSPICIOUS}: {suspicion(place)} ({OPINION})")
        for one in result.what_ifs[: detail.findings]:
            put("p", f"What if {one.question}: {answer(one)}")
        if result.not_checked:
            codes = ", ".join(item.code for item in result.not_checked)
            put("p", f"Not checked, for want of data: {codes}", 1000)
        if result.crashes:
            codes = ", ".join(item.code for item in result.crashes)
            put("p", f"Not checked, the pattern failed: {codes}", 1000)
    return "\n".join(lines)


# -- the data ----------------------------------------------------------------------------------


class _Packer:
    """Results as compact JSON values, names stored once, cuts remembered."""

    def __init__(self, detail: _Detail, quote: Quote | None = None) -> None:
        self.detail, self.quote = detail, quote
        self.names: list[str] = [""]
        self.cut: dict[str, None] = {}
        self._name_index: dict[str, int] = {"": 0}

    def name(self, value: str, *, kernel: bool) -> int:
        """Return the index of a span's name in the page's own table, kernels by short name."""
        index = self._name_index.get(value)
        if index is None:
            index = self._name_index[value] = len(self.names)
            shown = short_name(value) if kernel else value
            self.names.append(clean(shown, self.detail.name_chars))
        return index

    def text(self, value: object) -> str:
        return clean(value, self.detail.text_chars)

    def take(self, values: Sequence[Any], limit: int, what: str) -> Sequence[Any]:
        """Return the first ``limit`` values, and remember it when that is not all of them."""
        if len(values) > limit:
            kept = f"the first {limit:,} of {len(values):,}" if limit else "none of the"
            self.cut[f"{kept} {what}"] = None
        return values[:limit]

    def result(self, result: Result) -> dict[str, Any]:
        summary = result.summary
        origin_ns = summary.window_start_ns if summary else 0
        facts = result.trace
        without = without_device(result)
        return {
            "verdict": [self.text(line) for line in result.verdict],
            "healthy": result.healthy,
            "refused": result.refused,
            "joint": cost(result.joint_cost),
            "run": [
                [label, self.text(text)] for label, text in (recorded.run(result.recorded) if result.recorded else ())
            ],
            "compiled": [[label, self.text(text)] for label, text in recorded.compiled(result.recorded)],
            "trace": {
                "file": clean(_file_name(facts.path), 200),
                "sizeBytes": facts.size_bytes,
                "nEvents": facts.n_events,
                "nRows": facts.n_rows,
                "tier": facts.tier,
                "nLost": facts.n_lost,
                "nRepaired": facts.n_repaired,
                "loss": [self.text(line) for line in self.take(facts.loss, 50, "loss lines")],
                "vendor": clean(facts.vendor, 40),
                "devices": [clean(name, 80) for name in facts.device_names[:64]],
                "flags": [clean(flag, 60) for flag in facts.torch_flags[:32]],
                "rank": facts.rank,
                "worldSize": facts.world_size,
                "resolutionNs": facts.resolution_ns,
                "phases": counts(facts.phases),
                "categories": counts(facts.categories),
            },
            "notes": self.notes(result.notes),
            "summary": self.summary(summary, result.critical_path) if summary else None,
            "replay": self.replay(result),
            "suspicions": [self.text(suspicion(one)) for one in self.take(result.suspicions, 16, "suspicious places")],
            "suspicious": [SUSPICIOUS, OPINION],
            "idle": _idle_by_cause(result),
            "findings": [
                self.finding(finding, origin_ns)
                for finding in self.take(result.findings, self.detail.findings, "findings")
            ],
            "nFindings": len(result.findings),
            "notChecked": self.not_checked(result.not_checked, device=bool(without)),
            "withoutDevice": without,
            "checked": [clean(code, 40) for code in result.checked[:300]],
            "crashes": self.crashes(result.crashes),
        }

    def job(self, job: JobResult, results: Sequence[Result]) -> dict[str, Any]:
        """Return a job in the shape of a result, so that the same parts of the page show it."""
        place = {result.trace.path: index for index, result in enumerate(results)}
        return {
            "verdict": [self.text(line) for line in job.verdict],
            "healthy": job.healthy,
            "refused": job.refused,
            "joint": cost(job.joint_cost),
            "job": {
                "basis": self.text(job.basis),
                "nRanks": len(job.ranks),
                "worldSize": job.world_size,
                "stepMs": job.step_ms,
                "nSteady": job.n_steady_steps,
                "nMatches": job.n_matches,
                "ranks": [
                    [
                        one.rank,
                        clean(_file_name(one.path), 200),
                        clean(one.host, 80),
                        one.refused,
                        one.wall_ns,
                        [int(getattr(one, field)) for field, *_ in RANK_PARTS],
                        one.caused_wait_ns,
                        one.clock_offset_ns,
                        one.n_findings,
                        place.get(one.path, -1),
                    ]
                    for one in self.take(job.ranks, MAX_RANKS, "ranks")
                ],
                "steps": [
                    [one.number, one.steady, one.wall_ns, one.wait_ns, one.late_rank, one.late_wait_ns]
                    for one in self.take(job.steps, self.detail.steps, "steps of the job")
                ],
                "collectives": [
                    [
                        clean(one.group, 60),
                        clean(one.name, 120),
                        one.nelems,
                        one.n_ranks,
                        one.n_per_step,
                        one.transfer_ns,
                        one.wait_ns,
                        one.max_wait_ns,
                        one.late_rank,
                        one.late_share,
                    ]
                    for one in self.take(job.collectives, self.detail.rows, "kinds of collectives")
                ],
            },
            "notes": self.notes(job.notes),
            "summary": None,
            "idle": None,
            "findings": [
                self.finding(finding, _origin_ns(finding, job, results))
                for finding in self.take(job.findings, self.detail.findings, "findings")
            ],
            "nFindings": len(job.findings),
            "notChecked": self.not_checked(job.not_checked),
            "withoutDevice": "",
            "checked": [clean(code, 40) for code in job.checked[:300]],
            "crashes": self.crashes(job.crashes),
        }

    def not_checked(self, entries: Sequence[NotChecked], *, device: bool = False) -> list[dict[str, Any]]:
        return [
            {
                "code": clean(entry.code, 40),
                "name": clean(entry.name, 80),
                "missing": [clean(need, 120) for need in entry.missing[:20]],
                "how": clean(entry.how_to_record, 500, lines=True),
                "device": device and needs_device(entry),
            }
            for entry in self.take(entries, 300, "unchecked patterns")
        ]

    def crashes(self, crashes: Sequence[Crash]) -> list[dict[str, Any]]:
        return [
            {"code": clean(crash.code, 40), "error": self.text(crash.error)}
            for crash in self.take(crashes, 300, "failed patterns")
        ]

    def notes(self, notes: Sequence[Note]) -> list[dict[str, Any]]:
        return [
            {
                "code": clean(note.code, 40),
                "level": note.level,
                "message": self.text(note.message),
                "fix": self.text(note.fix),
                "evidence": self.evidence(note.evidence),
            }
            for note in self.take(notes, 100, "notes")
        ]

    def replay(self, result: Result) -> dict[str, Any] | None:
        """Return what bounds a step, the answers to questions, and how far to trust them."""
        if result.replay is None or not (result.what_ifs or result.critical_path):
            return None
        path = result.critical_path
        said = f"{critical(path, result.summary)}." if path is not None else ""
        return {
            "path": self.text(f"{said[:1].upper()}{said[1:]}"),
            "model": self.text(replayed(result.replay)),
            "whatIfs": [
                [self.text(one.question), self.text(answer(one))]
                for one in self.take(result.what_ifs, 100, "what-if questions")
            ],
        }

    def summary(self, summary: Summary, path: PathSummary | None = None) -> dict[str, Any]:
        detail, origin_ns = self.detail, summary.window_start_ns
        lanes = [*summary.timeline, *([_path_lane(path)] if path is not None else [])]
        return {
            "wallNs": summary.window_end_ns - origin_ns,
            "basis": self.text(summary.window_basis),
            "stepMs": summary.step_ms,
            "nSteady": summary.n_steady_steps,
            "nSteps": len(summary.steps),
            "steps": [
                [
                    step.index,
                    clean(step.name, detail.name_chars),
                    step.start_ns - origin_ns,
                    step.end_ns - origin_ns,
                    step.steady,
                    _classes(step.classes),
                ]
                for step in self.take(summary.steps, detail.steps, "steps")
            ],
            "devices": [
                {
                    "device": clean(device.device, 40),
                    "name": clean(device.name, 80),
                    "classes": _classes(device.classes),
                    "nKernels": device.n_kernels,
                    "nCopies": device.n_copies,
                    "nOrphans": device.n_orphans,
                    "nStreams": device.n_streams,
                    "commNs": device.comm_ns,
                }
                for device in self.take(summary.devices, 32, "devices")
            ],
            "kernels": [
                [
                    self.text(kernel.name),
                    clean(kernel.short_name, 160),
                    kernel.count,
                    kernel.total_ns,
                    finite(kernel.mean_ns),
                    kernel.max_ns,
                    finite(kernel.share_of_kernel_sum),
                ]
                for kernel in summary.top_kernels[: detail.rows]
            ],
            "nKernelNames": summary.n_kernel_names,
            "nOpNames": summary.n_op_names,
            "ops": [
                [self.text(op.name), op.count, op.self_ns, op.total_ns, op.device_ns]
                for op in summary.top_ops[: detail.rows]
            ],
            "lanes": [self.lane(lane, origin_ns) for lane in self.take(lanes, detail.lanes, "timeline lanes")],
        }

    def lane(self, lane: TimelineLane, origin_ns: int) -> dict[str, Any]:
        """Return a lane as flat rows of gap from the last start, duration, class and name."""
        spans: Iterable[tuple[int, int, str, str]] = lane.spans
        limit = self.detail.spans
        if len(lane.spans) > limit:
            self.cut[f"the {limit:,} longest spans of a timeline lane"] = None
            shortest = sorted(range(len(lane.spans)), key=lambda i: lane.spans[i][0] - lane.spans[i][1])
            spans = [lane.spans[i] for i in sorted(shortest[:limit])]
        kernel = lane.kind == "device"
        flat: list[int] = []
        last_ns = origin_ns
        for start_ns, end_ns, kind, name in spans:
            code = self.name(name, kernel=kernel)
            flat += (start_ns - last_ns, end_ns - start_ns, _class_index(kind), code)
            last_ns = start_ns
        return {"label": clean(lane.label, 120), "kind": lane.kind, "spans": flat}

    def finding(self, finding: Finding, origin_ns: int) -> dict[str, Any]:
        place, detail = finding.place, self.detail
        marks = place.intervals_ns
        if len(marks) > detail.intervals:
            self.cut[f"the {detail.intervals:,} longest intervals of a finding"] = None
            marks = tuple(sorted(marks, key=lambda mark: mark[0] - mark[1])[: detail.intervals])
        return {
            "code": clean(finding.code, 40),
            "name": clean(finding.name, 80),
            "family": clean(finding.family, 40),
            "title": clean(finding.title, 300),
            "severity": finding.severity,
            "certainty": finding.certainty,
            "message": self.text(finding.message),
            "cost": cost(finding.cost),
            "evidence": self.evidence(finding.evidence),
            "nEvents": finding.n_events,
            "ranks": self.text(rank_spread(finding)),
            "alsoExplains": [clean(code, 40) for code in finding.also_explains[:40]],
            "fix": {
                "text": self.text(finding.fix.text),
                "code": clean(finding.fix.code, 4 * detail.text_chars, lines=True),
                "link": web_link(finding.fix.link),
            },
            "place": {
                "steps": list(place.steps[:200]),
                "nSteps": len(place.steps),
                "marks": [
                    value for start_ns, end_ns in sorted(marks) for value in (start_ns - origin_ns, end_ns - start_ns)
                ],
                "costliest": len(marks) < len(place.intervals_ns) or len(marks) >= MAX_INTERVALS,
                "lane": clean(place.lane, 120),
                "ops": [clean(op, 200) for op in place.ops[: detail.facts]],
                "frame": frame(place.frame) if place.frame else None,
                "source": [clip(row, 200) for row in (quoted(place.frame, self.quote) if place.frame else ())],
                "stack": [frame(caller) for caller in place.stack[: detail.facts]],
                "module": clean(place.module, 200),
                "examples": [
                    {
                        "event": example.event,
                        "short": clean(event_name(example.name[:4096]), 120),
                        "name": clean(example.name, 4 * detail.name_chars),
                        "startNs": example.start_ns - origin_ns,
                        "durNs": example.dur_ns,
                        # as the trace itself writes it, to search for in a viewer
                        "ts": f"{example.start_ns // 1000}.{example.start_ns % 1000:03d}",
                        "pid": clean(example.pid, 60),
                        "tid": clean(example.tid, 60),
                    }
                    for example in place.examples[: detail.facts]
                ],
            },
        }

    def evidence(self, evidence: Mapping[str, Any]) -> list[list[Any]]:
        """Return evidence as pairs; a list becomes its first values and its length."""
        pairs = self.take(list(evidence.items()), self.detail.facts, "facts of a finding")
        return [[clean(key, 80), value_of(value)] for key, value in pairs]


_PATH_CLASSES = {"host": "op", "lag": "wait", "unexplained": "wait"}


def _path_lane(path: PathSummary) -> TimelineLane:
    """Return the critical path of a step as one more lane: who bounds the step, and when."""
    spans = tuple(
        (
            piece.start_ns,
            piece.end_ns,
            _PATH_CLASSES.get(piece.what, piece.what),
            ": ".join(filter(None, (piece.label, piece.why or ", ".join(piece.names)))),
        )
        for piece in path.pieces
    )
    return TimelineLane("Critical path of one step", "steps", spans)


def _class_index(kind: str) -> int:
    return SPAN_CLASSES.index(kind) if kind in SPAN_CLASSES else SPAN_CLASSES.index("op")


def _classes(classes: TimeClasses | None) -> list[int] | None:
    if classes is None:
        return None
    parts = (classes.compute_ns, classes.comm_only_ns, classes.copy_only_ns)
    return [classes.wall_ns, *parts, classes.idle_host_late_ns, classes.idle_queued_ns, classes.idle_unknown_ns]


def _origin_ns(finding: Finding, job: JobResult, results: Sequence[Result]) -> int:
    """Return where the window of the rank begins that stands for a job's finding."""
    path = next((one.path for one in job.ranks if one.rank == finding.evidence.get("shown_rank")), "")
    found = next((one.summary for one in results if one.trace.path == path), None)
    return found.window_start_ns if found is not None else 0


def _idle_by_cause(result: Result) -> dict[str, Any] | None:
    """Return which finding explains how much of the judged idle time; None without a device."""
    summary = result.summary
    if summary is None or not summary.devices:
        return None
    causes = [[index, one.idle_ns] for index, one in enumerate(result.findings) if one.idle_ns > 0]
    rest_ns = summary.judged_idle_ns - sum(own_ns for _, own_ns in causes)
    return {
        "idleNs": summary.judged_idle_ns,
        "causes": sorted(causes, key=lambda cause: (-cause[1], cause[0])),
        "restNs": max(rest_ns, 0),
    }
