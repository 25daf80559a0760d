"""One trace, judged: run the patterns, share out the time, price and rank what is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.errors import PatternError
from torchtriage.core.finding import (
    Certainty,
    Cost,
    Crash,
    Example,
    Finding,
    Frame,
    NotChecked,
    Note,
    Place,
    Severity,
    rank_order,
)
from torchtriage.core.source.locate import Locator
from torchtriage.core.timing import part
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.captured_graphs import CapturedGraphs
from torchtriage.core.trace.frames import frame_label, module_path, user_stack
from torchtriage.core.trace.peak_rates import stated_peak
from torchtriage.core.trace.user_places import origin_of
from torchtriage.diagnose.patterns import Claim, Pattern, PatternEntry, catalogue, lookup
from torchtriage.diagnose.patterns.base import NEEDS, given, missing_needs
from torchtriage.diagnose.ranks.process_groups import groups_of_one
from torchtriage.diagnose.replay import Edit, parse_what_if
from torchtriage.diagnose.verdict.bus_bandwidth import bus_bandwidth
from torchtriage.diagnose.verdict.device_time import device_time
from torchtriage.diagnose.verdict.doctor import examine, missing_rows
from torchtriage.diagnose.verdict.engine_advice import in_engine_words
from torchtriage.diagnose.verdict.kernel_lines import KernelLines
from torchtriage.diagnose.verdict.options import DEFAULTS, Options
from torchtriage.diagnose.verdict.pricing import Pricing, answers
from torchtriage.diagnose.verdict.recorder_advice import in_recorder_words
from torchtriage.diagnose.verdict.result import SCHEMA, Result, TraceFacts
from torchtriage.diagnose.verdict.serving_time import serving_time
from torchtriage.diagnose.verdict.summary import summarise, summarise_path
from torchtriage.diagnose.verdict.time_ownership import MOSTLY, Share, share_out
from torchtriage.diagnose.verdict.verdict_text import MUCH_IDLE, sentences, unexplained_idle

HIGH_SHARE, MEDIUM_SHARE = 0.10, 0.03
MAX_INTERVALS = 200
MAX_EXAMPLES = 3
PIECE = 1 << 14


def diagnose(
    trace: Trace,
    options: Options = DEFAULTS,
    *,
    places: Locator | None = None,
    captured: CapturedGraphs | None = None,
    compiled: KernelLines | None = None,
) -> Result:
    """Analyse a trace; options about reading and source files have been followed already.

    ``places`` : knows more about frames than their recorded names; nothing here opens a source file. ``captured`` : the
    launches that kernels of replayed graphs were captured from. ``compiled`` : the lines that compiled graphs compute.
    """
    return diagnose_with_fixes(trace, options, places=places, captured=captured, compiled=compiled)[0]


def diagnose_with_fixes(
    trace: Trace,
    options: Options = DEFAULTS,
    *,
    places: Locator | None = None,
    captured: CapturedGraphs | None = None,
    compiled: KernelLines | None = None,
) -> tuple[Result, tuple[tuple[Edit, ...], ...]]:
    """Analyse a trace; return with the result what fixing each of its findings changes, in their order."""
    from torchtriage.core.version import __version__

    with part("imports"):
        catalogue()
    if options.peak:
        trace = replace(trace, stated_peak=stated_peak(options.peak))
    wanted = {lookup(code).pattern.code for code in options.only}
    unwanted = {lookup(code).pattern.code for code in options.skip}
    codes = (wanted or {entry.pattern.code for entry in catalogue()}) - unwanted
    chosen = [entry for entry in catalogue() if entry.pattern.code in codes]
    left_out = [entry.pattern for entry in catalogue() if entry.pattern.code not in codes]
    with part("doctor"):
        notes = examine(trace)
    refused = any(note.level == "refuse" for note in notes)
    findings: list[Finding] = []
    fixes: tuple[tuple[Edit, ...], ...] = ()
    claims: list[tuple[Pattern, Claim]] = []
    pricing: Pricing | None = None
    joint: Cost | None = None
    not_checked: list[NotChecked] = []
    crashes: list[Crash] = []
    checked: list[str] = []
    if refused:
        need = ("recording that can be analysed",)
        not_checked += [NotChecked(entry.pattern.code, entry.pattern.name, need, notes[0].fix) for entry in chosen]
    else:
        for entry in chosen:
            _run(trace, entry, notes, claims, not_checked, crashes, checked)
        with part("replay"):
            pricing = Pricing.of(trace, notes, options.step_ms)
        gone = {code for pattern, claim in claims if claim.certainty == "certain" for code in pattern.suppresses}
        claims = [(pattern, claim) for pattern, claim in claims if pattern.code not in gone]
        with part("findings"):
            findings, fixes, joint = _judge(pricing, claims, options.min_share, places, compiled)
        notes += tuple(_replay_notes(pricing, findings))
        if pricing.replayed:
            pricing.replayed.release()
        notes += places.notes() if places is not None else ()
    not_checked += [NotChecked(pattern.code, pattern.name, (), "") for pattern in left_out]
    missing = missing_rows(notes)
    with part("summary"):
        summary = None if refused else summarise(trace, missing.message if missing else "")
        path = summarise_path(trace) if pricing and pricing.replayed and not missing else None
    with part("device time"):
        times = () if refused or missing else device_time(trace, options.by, places, captured, compiled)
        served = None if refused else serving_time(trace, whole=missing is None)
        bandwidth = None if refused or missing or not trace.devices else bus_bandwidth(trace.devices[0])
        groups = () if refused or missing or not trace.devices else groups_of_one(trace)
    result = Result(
        schema=SCHEMA,
        version=__version__,
        verdict=("", "", ""),
        healthy=bool(checked)
        and not crashes
        and not left_out
        and options.min_share <= DEFAULTS.min_share
        and (trace.is_host_only or (bool(trace.devices) and missing is None))
        and all(finding.severity == "note" for finding in findings)
        and all(note.level == "info" for note in notes)
        and (summary is None or unexplained_idle(trace, summary, findings) < MUCH_IDLE),
        refused=refused,
        trace=_facts(trace),
        notes=notes,
        summary=summary,
        findings=tuple(findings),
        not_checked=tuple(not_checked),
        crashes=tuple(crashes),
        joint_cost=joint,
        checked=tuple(checked),
        replay=pricing.facts if pricing else None,
        what_ifs=answers(pricing, [parse_what_if(text) for text in options.what_if]) if pricing else (),
        critical_path=path,
        device_time=times,
        serving=served,
        bus_bandwidth=bandwidth,
        process_groups=groups,
    )
    if options.detector and not refused:
        # only who asks for the detector waits for it to load
        from torchtriage.diagnose.verdict.detector_hints import suspicions

        result = replace(result, suspicions=suspicions(trace, findings))
    result = in_recorder_words(in_engine_words(result, trace), trace)
    return replace(result, verdict=sentences(trace, result, options.min_share)), fixes


# -- patterns ----------------------------------------------------------------------------------


def _run(
    trace: Trace,
    entry: PatternEntry,
    notes: tuple[Note, ...],
    claims: list[tuple[Pattern, Claim]],
    not_checked: list[NotChecked],
    crashes: list[Crash],
    checked: list[str],
) -> None:
    pattern = entry.pattern
    missing = missing_needs(pattern, trace)
    if missing:
        not_checked.append(
            NotChecked(
                pattern.code,
                pattern.name,
                tuple(NEEDS[need][1] for need in missing),
                "; ".join(NEEDS[need][2] for need in missing),
            )
        )
        return
    try:
        with part(f"{pattern.code} {pattern.name}"):
            found = [_sound(trace, claim) for claim in entry.find(trace)]
            found = [claim for claim in found if _is_selected(trace, claim)]
    except Exception as error:  # one broken pattern must not take the others along
        crashes.append(Crash(pattern.code, f"{type(error).__name__}: {error}"))
        return
    idle = [claim for claim in found if claim.time_class == "idle"]
    if idle and missing_rows(notes):
        # idle time in a recording without all its GPU rows proves nothing
        not_checked.append(
            NotChecked(
                pattern.code, pattern.name, ("complete GPU rows",), "record whole steps without filtering or slicing"
            )
        )
        found = [claim for claim in found if claim.time_class != "idle"]
    else:
        checked.append(pattern.code)
    # a window that is cut lacks rows at its edges alone
    if any(note.code == "missing-kernels" for note in notes):
        found = [_unproven(claim) if claim.time_class == "comm" else claim for claim in found]
    claims += [(pattern, claim) for claim in found]


def _unproven(claim: Claim) -> Claim:
    """Return a claim on exposed communication as a hint: what ran beside it may not be in the recording."""
    message = f"{claim.message}; GPU rows may be missing, including those of overlapping work"
    return replace(claim, certainty="hint", message=message)


def _is_selected(trace: Trace, claim: Claim) -> bool:
    """Return whether a claim is about the selected part: time or rows of it, or neither rows nor time at all."""
    if not trace.is_part or not (len(claim.rows) or len(claim.spans)):
        return True
    if intervals.covered(claim.spans, trace.steps.judged).any():
        return True
    rows = np.asarray(claim.rows)
    return bool(trace.steps.in_steady(trace.steps.of_host(rows)).any()) or bool(
        trace.steps.in_steady(trace.steps.of_work(rows)).any()
    )


def _sound(trace: Trace, claim: Claim) -> Claim:
    """Return the claim, or raise: what it says about rows and time must make sense."""
    rows, spans = np.asarray(claim.rows), np.asarray(claim.spans)
    if spans.ndim != 2 or spans.shape[1] != 2 or spans.dtype.kind != "i":
        raise PatternError(f"expected spans int64[k, 2], found {spans.dtype}{list(spans.shape)}")
    if len(rows) and not (rows.dtype.kind in "iu" and 0 <= rows.min() <= rows.max() < len(trace)):
        raise PatternError("expected rows of the trace, found others")
    for gain in (claim.gain_low, claim.gain_high):
        values = np.asarray(gain, float)
        if values.shape not in ((), (len(spans),)) or not np.isfinite(values).all():
            raise PatternError("expected one finite gain, or one for each span")
    return claim


# -- findings ----------------------------------------------------------------------------------


def _judge(
    pricing: Pricing,
    claims: list[tuple[Pattern, Claim]],
    min_share: float,
    places: Locator | None,
    compiled: KernelLines | None,
) -> tuple[list[Finding], tuple[tuple[Edit, ...], ...], Cost | None]:
    trace = pricing.trace
    with part("replay"):
        predictions = pricing.predict([claim for _, claim in claims])
    of_claim = {id(claim): prediction for (_, claim), prediction in zip(claims, predictions, strict=True)}
    shares = share_out(trace, claims)
    # time whose loss costs little is left to those whose fix would win it
    hidden = {id(share.claim) for share in shares if pricing.hides(share, of_claim[id(share.claim)])}
    if hidden:
        shares = share_out(trace, claims, last=hidden)
    entries = {entry.pattern.code: entry for entry in catalogue()}
    found: list[tuple[Finding, Claim]] = []
    for share in shares:
        cost = pricing.cost(share, of_claim[id(share.claim)])
        finding = _finding(pricing, share, entries[share.pattern.code], cost, min_share, places, compiled)
        if finding is not None:
            found.append((finding, share.claim))
    found.sort(key=lambda item: rank_order(item[0]))
    ranked = [claim for _, claim in found]
    with part("replay"):
        findings = pricing.together([finding for finding, _ in found], ranked)
        return findings, tuple(tuple(claim.edits) for claim in ranked), pricing.joint(findings, ranked)


def _replay_notes(pricing: Pricing, findings: list[Finding]) -> Iterator[Note]:
    timed = any(finding.cost is not None and finding.cost.high_ms > 0 for finding in findings)
    facts = pricing.facts
    if not facts.accepted and (timed or facts.unprofiled_step_ms is not None):
        yield Note(
            "no-replay",
            "info",
            f"savings are interval arithmetic, not replayed: {facts.reason}",
            "record whole steps, with the host and every device",
            {"strict_error": facts.strict_error, "unexplained": facts.unexplained, "pinned": facts.pinned},
        )


def _finding(
    pricing: Pricing,
    share: Share,
    entry: PatternEntry,
    cost: Cost | None,
    min_share: float,
    places: Locator | None,
    compiled: KernelLines | None,
) -> Finding | None:
    trace, claim, pattern = pricing.trace, share.claim, share.pattern
    at_stake = share.high_ns / trace.steps.n_steady / pricing.wall_ns
    # what is worth a word is what the fix may save, not what a measurement may be off by
    may_save = 0.0 if cost is None else (cost.calibration or cost).share_high
    worth = cost is not None and max(may_save, at_stake) >= min_share
    if not claim.always and not worth:
        return None
    certainty: Certainty = "hint" if pricing.unlaunched(share) > MOSTLY else claim.certainty
    rows, steps = _judged_rows(trace, claim)
    anchor = claim.anchor if claim.anchor >= 0 else int(rows[0]) if len(rows) else -1
    lines = compiled.at(anchor) if compiled is not None and anchor >= 0 else ()
    return Finding(
        code=pattern.code,
        name=pattern.name,
        family=pattern.family,
        title=claim.title or pattern.title,
        # hidden behind other work: worth knowing, not worth fixing first
        severity="note"
        if cost is not None and not claim.always and may_save < min_share
        else _severity(claim, pattern, cost, certainty),
        certainty=certainty,
        message=claim.message,
        place=_place(trace, share, anchor, rows, steps, places, lines),
        cost=cost,
        evidence={
            **(claim.evidence if len(trace.steps) else of_window(claim.evidence)),
            **given(compiled_lines=[f"{line.file}:{line.line}" for line in lines]),
        },
        fix=claim.fix or entry.fix,
        idle_ns=intervals.length(intervals.intersect(share.taken, trace.devices[0].idle)) if trace.devices else 0,
        n_events=len(rows),
        also_explains=tuple(sorted(share.also_explains)),
    )


_STEP = re.compile(r"(?<=_per_)step$|(?<=share_of_)step$")


def of_window(evidence: dict[str, Any]) -> dict[str, Any]:
    """Return evidence with keys that name the denominator there is without steps."""
    return {_STEP.sub("window", key): value for key, value in evidence.items()}


def _severity(claim: Claim, pattern: Pattern, cost: Cost | None, certainty: Certainty) -> Severity:
    if claim.voids:
        return "high"
    if cost is None or cost.high_ms == 0:
        if pattern.family == "measure":
            return "note"
        return "medium" if certainty == "certain" else "low"
    return severity_of(cost, certainty)


def severity_of(cost: Cost, certainty: str) -> Severity:
    """Return how much a finding matters by what is surely saved, as findings are ranked."""
    if cost.share_low >= HIGH_SHARE and certainty != "hint":
        return "high"
    return "medium" if cost.share_low >= MEDIUM_SHARE else "low"


def _place(
    trace: Trace,
    share: Share,
    anchor: int,
    rows: Ints,
    steps: tuple[int, ...],
    places: Locator | None,
    lines: tuple[Frame, ...],
) -> Place:
    claim = share.claim
    host = _host_row(trace, anchor)
    ops: tuple[str, ...] = ()
    stack: tuple[Frame, ...] = ()
    module = lane = ""
    if host >= 0:
        chain = [item for item in [host, *trace.tree.chain(host)] if trace.hosts[item]]
        ops = tuple(
            frame_label(trace.name_of(item))
            for item in reversed(chain[:8])
            if not trace.name_of(item).startswith("ProfilerStep#")
        )
        made = origin_of(trace, host)
        stack = user_stack(trace, made) if places is None else places.stack(trace, made)
        module = module_path(trace, made) if places is None else places.module(trace, made)
    stack = (*lines[:1], *stack)
    if anchor >= 0:
        lane = trace.lane_label(int(trace.lane[anchor]))
    owned = share.taken[:, 1] - share.taken[:, 0]
    top = np.sort(_largest(owned, MAX_INTERVALS))
    longest = rows[_largest(trace.dur_ns[rows], MAX_EXAMPLES)].tolist()
    return Place(
        steps=steps,
        intervals_ns=tuple((int(a), int(b)) for a, b in share.taken[top].tolist()),
        lane=lane,
        ops=ops,
        frame=stack[0] if stack else None,
        stack=stack,
        module=module,
        examples=tuple(_example(trace, row) for row in (claim.examples or longest)[:MAX_EXAMPLES]),
    )


def _judged_rows(trace: Trace, claim: Claim) -> tuple[Ints, tuple[int, ...]]:
    """Return the rows of the steps that the cost is taken from (all, where none is or it costs no time), and these."""
    steps, rows = trace.steps, claim.rows
    if not len(steps):
        return rows, ()
    judged, seen = np.empty(len(rows), np.bool_), np.zeros(len(steps), np.bool_)
    # a finding may have most rows of a trace: piece by piece they need no memory
    for first in range(0, len(rows), PIECE):
        some = rows[first : first + PIECE]
        step_of = np.where(trace.works[some], steps.of_work(some), steps.of_host(some))
        judged[first : first + PIECE] = steps.in_steady(step_of)
        seen[step_of[step_of >= 0]] = True
    found = np.flatnonzero(seen)
    if claim.time_class != "none" and judged.any():
        rows, found = rows[judged], found[steps.in_steady(found)]
    return rows, tuple(found.tolist())


def _largest(values: Ints, n: int) -> Ints:
    if len(values) <= n:
        return np.argsort(-values, kind="stable")
    # a finding may own millions of rows, and only the first few are shown
    at = np.flatnonzero(values >= np.partition(values, -n)[-n])
    return at[np.argsort(-values[at], kind="stable")[:n]]


def _host_row(trace: Trace, row: int) -> int:
    """Return the host row behind any row: itself, or the call that enqueued it."""
    if row < 0 or trace.hosts[row] or trace.kind[row] == Kind.PYTHON:
        return row
    return int(trace.links.call[row])


def _example(trace: Trace, row: int) -> Example:
    lane = trace.lanes[trace.lane[row]]
    return Example(
        event=row,
        name=frame_label(trace.name_of(row)),
        start_ns=int(trace.start_ns[row]),
        dur_ns=int(trace.dur_ns[row]),
        pid=lane.pid,
        tid=lane.tid,
    )


# -- facts --------------------------------------------------------------------------------------


def _facts(trace: Trace) -> TraceFacts:
    origin, report = trace.origin, trace.report
    counts = np.bincount(trace.cat, minlength=len(trace.cats)).tolist()
    return TraceFacts(
        path=report.path,
        size_bytes=report.size_bytes,
        n_events=report.n_events,
        n_rows=len(trace),
        tier=report.tier,  # type: ignore[arg-type]
        n_lost=report.n_lost,
        n_repaired=report.n_repaired,
        loss=report.loss,
        vendor=origin.vendor,
        device_names=origin.device_names,
        torch_flags=origin.flags,
        rank=origin.rank,
        world_size=origin.world_size,
        base_time_ns=origin.base_time_ns,
        resolution_ns=trace.resolution_ns,
        phases=report.phases,
        categories=dict(sorted(zip(trace.cats, counts, strict=True))),
        selection=trace.selection.label if trace.selection is not None else "",
    )
