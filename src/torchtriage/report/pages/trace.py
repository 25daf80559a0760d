"""One page that holds everything, asks no server for anything and can be mailed around.

``render`` packs the results as JSON into a data block; the scripts and styles in ``templates/``
draw them. Nothing from a trace is ever parsed as HTML: the script writes text nodes only, and
``page.py`` keeps data and policy closed.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtriage.core.finding import Cost, Finding, Quote, TimeClasses
from torchtriage.core.html import as_data, filled, policy, template
from torchtriage.core.names import file_name, short_name, visible
from torchtriage.core.trace.producer import ACCELERATORS
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.runs.result import AccountLine, RecordedRun
from torchtriage.diagnose.verdict.result import (
    BusBandwidth,
    DeviceTime,
    GroupSummary,
    PathSummary,
    Result,
    ServingTime,
    Summary,
    TimelineLane,
    TraceFacts,
)
from torchtriage.diagnose.verdict.summary import SPAN_CLASSES
from torchtriage.report import recorded, words
from torchtriage.report.documents import bus_bandwidth, device_time, pipelines, process_groups, serving
from torchtriage.report.documents.trace import document
from torchtriage.report.page import body

MAX_PAGE_BYTES = 3_000_000

FILLED = 0.9
"""Of that, by as many results as fit at the least detail."""

MAX_INTERVALS = 200
"""A place this full holds its costliest intervals only."""

MAX_RANKS = 4096
"""Bars of a job: more ranks are in the JSON."""


@dataclass(frozen=True)
class _Detail:
    """How much of each result the page carries; the page says what was cut."""

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

    Several results are offered in a selector, jobs first. ``quote`` : gives the source lines to show with the findings.

    Raises ValueError: if ``results`` is empty.
    """
    if not results:
        raise ValueError("expected at least one result to render, found none")
    kept = results
    for detail in _DETAILS:
        last = detail is _DETAILS[-1]
        expected = _expected_bytes(results, detail) if len(results) > 1 else 0.0
        if expected > MAX_PAGE_BYTES:
            if not last:
                continue
            kept = _first_named(results, jobs, int(len(results) * FILLED * MAX_PAGE_BYTES / expected))
        page = _page(kept, jobs, detail, quote, n_all=len(results))
        size_bytes = len(page.encode())
        if size_bytes <= MAX_PAGE_BYTES:
            return page
    fewer = _first_named(kept, jobs, int(len(kept) * FILLED * MAX_PAGE_BYTES / size_bytes))
    return _page(fewer, jobs, detail, quote, n_all=len(results))


def _first_named(results: Sequence[Result], jobs: Sequence[JobResult], n: int) -> Sequence[Result]:
    """Return ``n`` of the results in their order: those of ranks that a job's findings name, then the first."""
    named = {
        rank.path
        for job in jobs
        for finding in job.findings
        for rank in job.ranks
        if rank.rank in (finding.evidence.get("late_rank"), finding.evidence.get("shown_rank"))
    }
    order = sorted(range(len(results)), key=lambda at: (results[at].trace.path not in named, at))
    return [results[at] for at in sorted(order[: max(n, 1)])]


def _expected_bytes(results: Sequence[Result], detail: _Detail) -> float:
    """Return the data's size judged by the fullest result: packing all of them takes long."""

    def weight(result: Result) -> int:
        lanes = result.summary.timeline if result.summary else ()
        return 100 + sum(len(lane.spans) for lane in lanes) + 200 * len(result.findings)

    fullest = max(results, key=weight)
    packer = _Packer(detail)
    size_bytes = len(json.dumps(packer.result(fullest), separators=(",", ":")))
    # ranks of size_bytes run share their names
    return size_bytes * sum(map(weight, results)) / weight(fullest) + len(json.dumps(packer.names))


# -- the document ------------------------------------------------------------------------------


def _page(
    results: Sequence[Result], jobs: Sequence[JobResult], detail: _Detail, quote: Quote | None = None, *, n_all: int = 0
) -> str:
    packer = _Packer(detail, quote)
    packer.take(range(n_all), len(results), "traces' own reports")
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
        "version": html.escape(_clean(results[0].version, 40)),
        "style": style,
        "summary": body(document(results, jobs, top=detail.findings).blocks),
        "data": as_data(data),
        "script": script,
    }
    return filled("page.html", parts)


def _title(results: Sequence[Result], jobs: Sequence[JobResult]) -> str:
    if jobs:
        return f"{len(jobs[0].ranks)} ranks of one job · torchtriage"
    name = _clean(file_name(results[0].trace.path), 80)
    others = f" and {len(results) - 1} more" if len(results) > 1 else ""
    return f"{name}{others} · torchtriage"


# -- the data ----------------------------------------------------------------------------------


class _Packer:
    """Results as compact JSON values, names stored once, cuts remembered."""

    def __init__(self, detail: _Detail, quote: Quote | None = None) -> None:
        self.detail, self.quote = detail, quote
        self.names: list[str] = [""]
        self.cut: dict[str, None] = {}
        self._name_index: dict[str, int] = {"": 0}

    def name(self, value: str, *, kernel: bool) -> int:
        index = self._name_index.get(value)
        if index is None:
            index = self._name_index[value] = len(self.names)
            self.names.append(_clean(short_name(value) if kernel else value, self.detail.name_chars))
        return index

    def take(self, values: Sequence[Any], limit: int, what: str) -> Sequence[Any]:
        if len(values) > limit:
            cut = f"the first {limit:,} of {len(values):,}" if limit else "none of the"
            self.cut[f"{cut} {what}"] = None
        return values[:limit]

    def value(self, value: Any) -> Any:
        """Return a field as JSON holds it: text that is clean and not too long, numbers that are finite."""
        if isinstance(value, str):
            return _clean(value, self.detail.text_chars)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        return [self.value(item) for item in value] if isinstance(value, (tuple, list)) else value

    def row(self, record: Any, names: str) -> list[Any]:
        return [self.value(getattr(record, name)) for name in names.split()]

    def fields(self, record: Any, names: str) -> dict[str, Any]:
        """Return some fields of a record by their names in the script, ``n_events`` as ``nEvents``."""
        keys = ("".join([name[0], *name.title().replace("_", "")[1:]]) for name in names.split())
        return dict(zip(keys, self.row(record, names), strict=True))

    def result(self, result: Result) -> dict[str, Any]:
        origin_ns = result.summary.window_start_ns if result.summary else 0
        facts = result.trace
        without = words.without_device(result)
        return {
            "run": self.value(recorded.run(result.recorded) if result.recorded else ()),
            "compiled": self.value(recorded.compiled(result.recorded)),
            "where": self.where(result.recorded),
            "trace": {
                **self.fields(facts, "size_bytes n_events n_rows tier n_lost n_repaired vendor"),
                "deviceWord": ACCELERATORS.get(facts.vendor, "GPU"),
                "judgedStep": words.judged_step(facts.selection),
                **self.fields(facts, "rank world_size resolution_ns"),
                "file": self.value(file_name(facts.path)),
                "loss": self.value(self.take(facts.loss, 50, "loss lines")),
                "devices": self.value(facts.device_names[:64]),
                "flags": self.value(facts.torch_flags[:32]),
                "phases": _counts(facts.phases),
                "categories": _counts(facts.categories),
            },
            "summary": self.summary(result.summary, result.critical_path) if result.summary else None,
            **self.common(result, [origin_ns] * len(result.findings), without),
            "replay": self.replay(result),
            "serving": self.serving(result.serving) if result.serving is not None else None,
            "deviceTime": [self.device_time(time, facts) for time in result.device_time],
            "busBandwidth": result.bus_bandwidth and self.bus_bandwidth(result.bus_bandwidth),
            "groups": self.groups(result.process_groups),
            "suspicions": [
                self.value(words.suspicion(place)) for place in self.take(result.suspicions, 16, "suspicious places")
            ],
            "suspicious": [words.SUSPICIOUS, words.OPINION],
            "idle": _idle_by_cause(result),
        }

    def where(self, run: RecordedRun | None) -> dict[str, Any]:
        step, whole = (run.account, run.run_account) if run is not None else (None, None)
        return {
            "step": step
            and {
                **self.fields(step, "per of_ms n_steps n_looks"),
                "parts": [self.row(part, "kind share ms") for part in step.parts],
                "body": self.account_lines(step.body),
                "lines": self.account_lines(step.lines),
                "gradients": self.account_lines(step.gradients),
                "flame": [
                    self.row(bar, "depth begin share name")
                    for bar in self.take(step.flame, 2 * self.detail.spans, "bars of the flame graph")
                ],
            },
            "run": whole
            and {
                **self.fields(whole, "of_ms"),
                "parts": [self.row(part, "kind share ms") for part in whole.parts],
                "lines": self.account_lines(whole.lines),
            },
        }

    def account_lines(self, lines: Sequence[AccountLine]) -> list[list[Any]]:
        return [[self.value(file_name(line.file)), *self.row(line, "line function kind share")] for line in lines]

    def job(self, job: JobResult, results: Sequence[Result]) -> dict[str, Any]:
        """Return a job in the shape of a result, so that the same parts of the page show it."""
        place = {result.trace.path: index for index, result in enumerate(results)}
        parts = " ".join(words.RANK_PARTS)
        collective = (
            "group name nelems n_ranks n_per_step transfer_ns wait_ns max_wait_ns late_rank late_share"
            " size_bytes algorithm_gbps bus_gbps n_missing"
        )
        return {
            **self.common(job, [_origin_ns(finding, job, results) for finding in job.findings]),
            "job": {
                **self.fields(job, "basis world_size step_ms n_matches"),
                "nRanks": len(job.ranks),
                "nSteady": job.n_steady_steps,
                "ranks": [
                    [
                        rank.rank,
                        self.value(file_name(rank.path)),
                        *self.row(rank, "host refused wall_ns"),
                        self.row(rank, parts),
                        *self.row(rank, "caused_wait_ns clock_offset_ns n_findings"),
                        place.get(rank.path, -1),
                    ]
                    for rank in self.take(job.ranks, MAX_RANKS, "ranks")
                ],
                "steps": [
                    self.row(step, "number steady wall_ns wait_ns late_rank late_wait_ns")
                    for step in self.take(job.steps, self.detail.steps, "steps of the job")
                ],
                "collectives": [
                    self.row(kind, collective)
                    for kind in self.take(job.collectives, self.detail.rows, "kinds of collectives")
                ],
                "pipelines": [
                    [
                        pipelines.headline(pipeline),
                        pipeline.basis,
                        [
                            self.row(rank, "rank stages micro_ns busy_ns bubble_ns transfer_ns")
                            for rank in pipeline.ranks
                        ],
                    ]
                    for pipeline in self.take(job.pipelines, self.detail.rows, "pipelines")
                ],
            },
            "groups": self.groups(job.process_groups),
            "summary": None,
            "idle": None,
        }

    def common(self, subject: Result | JobResult, origins_ns: Sequence[int], without: str = "") -> dict[str, Any]:
        """Return what a trace and a job have alike; ``origins_ns`` : where the times of each finding begin."""
        shown = self.take(subject.findings, self.detail.findings, "findings")
        return {
            **self.fields(subject, "verdict healthy refused"),
            "joint": self.cost(subject.joint_cost),
            "notes": [
                {**self.fields(note, "code level message fix"), "evidence": self.evidence(note.evidence)}
                for note in self.take(subject.notes, 100, "notes")
            ],
            "findings": [self.finding(finding, origins_ns[index]) for index, finding in enumerate(shown)],
            "nFindings": len(subject.findings),
            "notChecked": [
                {
                    **self.fields(entry, "code name missing"),
                    "how": _clean(entry.how_to_record, 500, lines=True),
                    "device": bool(without) and words.needs_device(entry),
                }
                for entry in self.take(subject.not_checked, 300, "unchecked patterns")
            ],
            "withoutDevice": without,
            "checked": self.value(subject.checked[:300]),
            "crashes": [
                self.fields(crash, "code error") for crash in self.take(subject.crashes, 300, "failed patterns")
            ],
        }

    def serving(self, time: ServingTime) -> dict[str, Any]:
        return {
            "engine": self.value(time.engine),
            "columns": self.value(serving.COLUMNS),
            "rows": self.value(serving.rows(time)),
            "words": self.value(" ".join(serving.words(time))),
        }

    def device_time(self, time: DeviceTime, facts: TraceFacts) -> dict[str, Any]:
        return {
            **self.fields(time, "by per n_steps busy_ns n_rows captured"),
            "words": self.value(device_time.words(time, facts.vendor, words.judged_step(facts.selection))),
            "mfu": self.value(device_time.mfu(time.mfu) if time.mfu is not None else ""),
            "roofs": [time.roofs.memory_tbps, *time.roofs.peak_tflops] if time.roofs is not None else None,
            "rows": [
                [
                    _clean(device_time.named(time, row), self.detail.name_chars),
                    *self.row(row, "category busy_ns share n_launches mean_ns of_roof roof flop_per_byte tflops"),
                ]
                for row in time.rows[: self.detail.rows]
            ],
        }

    def bus_bandwidth(self, bandwidth: BusBandwidth) -> dict[str, Any]:
        return {
            "words": self.value(bus_bandwidth.words(bandwidth)),
            "rows": [
                [
                    _clean(bus_bandwidth.named(row, bandwidth), self.detail.name_chars),
                    self.value(bus_bandwidth.size(row)),
                    *self.row(row, "most_bytes n_ranks n_per_step mean_ns algorithm_gbps bus_gbps"),
                ]
                for row in bandwidth.rows[: self.detail.rows]
            ],
        }

    def groups(self, groups: Sequence[GroupSummary]) -> dict[str, Any]:
        times = "overlapped_ns exposed_ns waiting_ns transfer_ns"
        return {
            "words": process_groups.WORDS,
            "rows": [
                [
                    _clean(process_groups.called(group), self.detail.name_chars),
                    self.value(process_groups.sizes(group)),
                    self.value(process_groups.rate(group)),
                    *self.row(group, f"n_per_step largest_bytes {times} how bus_gbps"),
                ]
                for group in self.take(groups, self.detail.rows, "process groups")
            ],
        }

    def replay(self, result: Result) -> dict[str, Any] | None:
        path = result.critical_path
        if result.replay is None or not (result.what_ifs or path):
            return None
        bound = f"{words.critical(path, result.summary)}." if path is not None else ""
        questions = self.take(result.what_ifs, 100, "what-if questions")
        return {
            "path": self.value(f"{bound[:1].upper()}{bound[1:]}"),
            "model": self.value(words.replayed(result.replay, result.findings)),
            "whatIfs": [self.value((question.question, words.answer(question))) for question in questions],
        }

    def summary(self, summary: Summary, path: PathSummary | None = None) -> dict[str, Any]:
        detail, origin_ns = self.detail, summary.window_start_ns
        lanes = [*summary.timeline, *([_path_lane(path)] if path is not None else [])]
        device = "device name n_kernels n_copies n_orphans n_streams comm_ns unknown"
        kernel = "name short_name count total_ns mean_ns max_ns share_of_kernel_sum"
        return {
            **self.fields(summary, "step_ms n_kernel_names n_op_names"),
            "wallNs": summary.window_end_ns - origin_ns,
            "basis": self.value(summary.window_basis),
            "nSteady": summary.n_steady_steps,
            "nSteps": len(summary.steps),
            "steps": [
                [
                    step.index,
                    _clean(step.name, detail.name_chars),
                    step.start_ns - origin_ns,
                    step.end_ns - origin_ns,
                    step.steady,
                    self.classes(step.classes),
                ]
                for step in self.take(summary.steps, detail.steps, "steps")
            ],
            "devices": [
                {**self.fields(row, device), "classes": self.classes(row.classes)}
                for row in self.take(summary.devices, 32, "devices")
            ],
            "kernels": [self.row(row, kernel) for row in summary.top_kernels[: detail.rows]],
            "ops": [self.row(row, "name count self_ns total_ns device_ns") for row in summary.top_ops[: detail.rows]],
            "lanes": [self.lane(lane, origin_ns) for lane in self.take(lanes, detail.lanes, "timeline lanes")],
        }

    def classes(self, classes: TimeClasses | None) -> list[int] | None:
        names = "wall_ns compute_ns comm_only_ns copy_only_ns idle_host_late_ns idle_queued_ns idle_unknown_ns"
        return None if classes is None else self.row(classes, names)

    def cost(self, cost: Cost | None) -> dict[str, Any] | None:
        names = "low_ms high_ms per of_ms share_low share_high naive_ms basis method grade"
        if cost is None:
            return None
        return {**self.fields(cost, names), "coverage": cost.calibration.coverage if cost.calibration else None}

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
            kind_index = SPAN_CLASSES.index(kind if kind in SPAN_CLASSES else "op")
            flat += (start_ns - last_ns, end_ns - start_ns, kind_index, self.name(name, kernel=kernel))
            last_ns = start_ns
        return {"label": self.value(lane.label), "kind": lane.kind, "spans": flat}

    def finding(self, finding: Finding, origin_ns: int) -> dict[str, Any]:
        place, detail = finding.place, self.detail
        marks = place.intervals_ns
        if len(marks) > detail.intervals:
            self.cut[f"the {detail.intervals:,} longest intervals of a finding"] = None
            marks = tuple(sorted(marks, key=lambda mark: mark[0] - mark[1])[: detail.intervals])
        frame = "file line function exact lines"
        return {
            **self.fields(finding, "code name family title severity certainty message n_events also_explains"),
            "cost": self.cost(finding.cost) if finding.saves else None,
            "evidence": self.evidence(finding.evidence),
            "ranks": self.value(words.rank_spread(finding)),
            "fix": {
                "text": self.value(finding.fix.text),
                "code": _clean(finding.fix.code, 4 * detail.text_chars, lines=True),
                "link": _web_link(finding.fix.link),
            },
            "place": {
                **self.fields(place, "lane module"),
                "steps": list(place.steps[:200]),
                "nSteps": len(place.steps),
                "marks": [
                    value for start_ns, end_ns in sorted(marks) for value in (start_ns - origin_ns, end_ns - start_ns)
                ],
                "costliest": len(marks) < len(place.intervals_ns) or len(marks) >= MAX_INTERVALS,
                "ops": self.value(place.ops[: detail.facts]),
                "frame": self.fields(place.frame, frame) if place.frame else None,
                "source": self.value(words.quoted(place.frame, self.quote) if place.frame else ()),
                "stack": [self.fields(caller, frame) for caller in place.stack[: detail.facts]],
                "examples": [
                    {
                        **self.fields(example, "event dur_ns pid tid"),
                        "short": _clean(words.event_name(example.name[:4096]), 120),
                        "name": _clean(example.name, 4 * detail.name_chars),
                        "startNs": example.start_ns - origin_ns,
                        # as the trace itself writes it, to search for in a viewer
                        "ts": f"{example.start_ns // 1000}.{example.start_ns % 1000:03d}",
                    }
                    for example in place.examples[: detail.facts]
                ],
            },
        }

    def evidence(self, evidence: Mapping[str, Any]) -> list[list[Any]]:
        pairs = self.take(list(evidence.items()), self.detail.facts, "facts of a finding")
        return [[_clean(key, 80), _evidence(value)] for key, value in pairs]


_PATH_CLASSES = {"host": "op", "lag": "wait", "unexplained": "wait"}


def _path_lane(path: PathSummary) -> TimelineLane:
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


def _origin_ns(finding: Finding, job: JobResult, results: Sequence[Result]) -> int:
    path = next((rank.path for rank in job.ranks if rank.rank == finding.evidence.get("shown_rank")), "")
    found = next((result.summary for result in results if result.trace.path == path), None)
    return found.window_start_ns if found is not None else 0


def _idle_by_cause(result: Result) -> dict[str, Any] | None:
    """Return which finding explains how much of the judged idle time; None where it is not known."""
    summary = result.summary
    if summary is None or not summary.devices or summary.judged_idle_ns is None:
        return None
    causes = [[index, finding.idle_ns] for index, finding in enumerate(result.findings) if finding.idle_ns > 0]
    rest_ns = summary.judged_idle_ns - sum(own_ns for _, own_ns in causes)
    return {
        "idleNs": summary.judged_idle_ns,
        "causes": sorted(causes, key=lambda cause: (-cause[1], cause[0])),
        "restNs": max(rest_ns, 0),
    }


# -- values: short, visible and finite ----------------------------------------------------------


def _clean(value: object, limit: int, *, lines: bool = False) -> str:
    """Return a name fit to print: nothing invisible, one line unless ``lines``, not too long."""
    # cut before and after cleaning: neither a 10 MB name nor its escapes reach the page
    text = _clip(str(value), limit)
    shown = "\n".join(map(visible, text.splitlines())) if lines else visible(text)
    return _clip(shown, limit)


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _counts(counts: Mapping[str, int]) -> list[list[Any]]:
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:40]
    return [[_clean(name, 60), count] for name, count in rows]


def _evidence(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        value = value.tolist()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        pairs = [[_clean(k, 60), _flat(v)] for k, v in list(value.items())[:12]]
        return {"pairs": pairs, "n": len(value)}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else list(value)
        return {"first": [_flat(item) for item in items[:12]], "n": len(items)}
    return _clean(value, 300)


def _flat(value: Any) -> Any:
    plain = _evidence(value)
    return _clean(json.dumps(value, default=str), 200) if isinstance(plain, dict) else plain


def _web_link(link: str) -> str:
    return _clean(link, 500) if re.match(r"https?://[^\s]+$", link) else ""
