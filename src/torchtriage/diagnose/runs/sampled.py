"""A process' result together with what looks at its stacks showed: the accounts, and findings at exact lines."""

from __future__ import annotations

import ast
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchtriage.core.finding import Cost, Finding, Frame, Note, rank_order
from torchtriage.core.isolate.processes import describe_exit
from torchtriage.core.names import file_name
from torchtriage.core.record.recorder import NO_STACKS
from torchtriage.core.source.files import Sources
from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import Trace
from torchtriage.core.units import format_count, format_ms, format_range
from torchtriage.core.version import __version__
from torchtriage.diagnose.runs.account import (
    COLLECTION,
    OPERATORS,
    SampledLoop,
    line_of,
    longer_loop,
    outside,
    run_account,
    sampled_loop,
    step_account,
)
from torchtriage.diagnose.runs.backward_lines import backward_lines
from torchtriage.diagnose.runs.backward_passes import backward_passes
from torchtriage.diagnose.runs.compile_findings import compile_findings
from torchtriage.diagnose.runs.configuration import configuration
from torchtriage.diagnose.runs.costs import WORTH, counting_error, of_looks, of_share, severity_of
from torchtriage.diagnose.runs.flame import flame_bars
from torchtriage.diagnose.runs.hot_lines import HOT_LINE, PYTHON_LOOP, growing_step, hot_lines
from torchtriage.diagnose.runs.loaders import (
    LOADING,
    STARVED,
    causes_first,
    loader_cost,
    restarted_workers,
    slow_workers,
    spent_loading,
)
from torchtriage.diagnose.runs.memory_growth import CODE as LEAK
from torchtriage.diagnose.runs.memory_growth import growing_memory, growth_per_step, with_graph_cost
from torchtriage.diagnose.runs.padding import padding
from torchtriage.diagnose.runs.recorded_host import host_shares, long_operators
from torchtriage.diagnose.runs.repeated_calls import repeated_calls
from torchtriage.diagnose.runs.repeated_values import repeated_values
from torchtriage.diagnose.runs.result import RecordedRun
from torchtriage.diagnose.runs.run_folder import Recording, failed_early
from torchtriage.diagnose.runs.source_hints import UNNAMED, with_source
from torchtriage.diagnose.runs.source_view import SourceView, sequential
from torchtriage.diagnose.runs.symptoms import one_of_each_cause, symptoms_last
from torchtriage.diagnose.runs.threads import rival_threads
from torchtriage.diagnose.runs.unread_results import UNREAD, unread_results
from torchtriage.diagnose.verdict.result import SCHEMA, Result, TraceFacts
from torchtriage.diagnose.verdict.verdict_text import growth_first

REPLACED = ("HST020", "HST021", "MEM028")
"""Codes that a recording and the looks at the stack both report; the looks know the line and do not slow it down."""


def with_samples(
    result: Result,
    recording: Recording,
    facts: RecordedRun,
    traces: Sequence[Trace],
    folders: Sequence[str] | None,
    places: Locator | None = None,
) -> tuple[Result, RecordedRun]:
    """Return the result with the findings of the sampled stacks, and the facts with the accounts."""
    samples = recording.samples
    result = replace(result, notes=(*result.notes, *_missing(recording, facts)))
    if samples is None or not samples.looks:
        return replace(result, healthy=result.healthy and not recording.facts.get("sampled")), facts
    view = SourceView(None if folders is None else Sources(folders))
    file = recording.short(facts.file)
    loop = sampled_loop(samples, view, (file, facts.function, facts.line), host_shares(traces[0] if traces else None))
    facts = replace(facts, run_account=run_account(samples, loop))
    growth = growth_per_step(samples)
    found: list[Finding] = []
    step_ms, part = facts.step_ms or 0.0, 1.0
    timed: list[tuple[SampledLoop, float]] = []
    if loop is not None:
        step_ms = facts.step_ms if loop.n_steps and facts.step_ms else loop.step_ns / 1e6
        timed = [(loop, step_ms)]
        account = replace(step_account(loop, samples, step_ms), flame=flame_bars(loop))
        collecting = sum(share.share for share in account.parts if share.kind == COLLECTION)
        roots = [str(root) for root in recording.facts.get("roots", ())]
        infers = (recording.facts.get("loop") or {}).get("boundary") == "forward"
        calls = recording.measured.get("calls") or ()
        again, rest = repeated_calls(loop, calls, roots, view, step_ms, infers=infers)
        values = repeated_values(recording.measured.get("repeated") or (), roots, rest, step_ms)
        found += [*again, *values, *hot_lines(rest, view, step_ms)]
        if loop.place is not None and (longer := longer_loop(samples, view, loop)) is not None:
            other, part = longer
            other_ms = other.step_ns / 1e6
            timed.append((other, other_ms))
            beside = list(hot_lines(outside(other, view, loop.place), view, other_ms))
            if part < 0.5:
                account = replace(step_account(other, samples, other_ms), flame=flame_bars(other))
                found, beside = beside, found
            seen = {(finding.code, _line(finding)) for finding in found}
            found += [finding for finding in beside if (finding.code, _line(finding)) not in seen]
        lines = backward_lines(traces[-1], places, loop.backward_share) if traces and part >= 0.5 else ()
        facts = replace(facts, account=replace(account, gradients=lines))
        found += growing_step(loop, samples, step_ms, traces)
        found += restarted_workers(loop, step_ms)
        found += rival_threads(loop, samples, view, step_ms)
        found += backward_passes(recording, samples, loop, view, step_ms)
        if folders is not None:
            found += padding(recording, loop, step_ms, on_device=bool(samples.torch.get("device")))
        found += unread_results(recording.measured.get("unread") or (), roots, loop, step_ms)
    found += growing_memory(samples, growth, step_ms)
    known = _cautious(result, recording).findings
    if loop is not None:
        cores = int(samples.torch.get("cores") or 1)
        checked = [_of_the_loop(finding, loop, view, step_ms, cores, collecting) for finding in known]
        known = tuple(finding for finding in checked if finding is not None)
        if not any(finding.code == STARVED for finding in (*known, *found)):
            found += slow_workers(loop, step_ms, cores)
    findings = _inner_loops(_merged(known, found), view)
    findings = (*findings, *configuration(recording, samples, loop, view, step_ms))
    if facts.compiled is not None and facts.run_account is not None:
        findings = compile_findings(facts.compiled, findings, facts.run_account.of_ms, view)
    if folders is not None:
        on_device = any(trace.devices for trace in traces)
        findings = tuple(_at_its_cause(finding, view) for finding in findings)
        findings = with_source(
            findings,
            samples,
            folders,
            on_device=on_device,
            judged=result.checked,
            timed=timed,
            view=view,
            held=long_operators(traces[-1] if traces else None) if not on_device else 0.0,
        )
    if step_ms and result.summary is not None:
        n_steps = max(result.summary.n_steady_steps, 1)
        findings = tuple(
            with_graph_cost(finding, finding.evidence.get("n_core_ops", 0) / n_steps, growth, step_ms)
            for finding in findings
        )
    findings = tuple(sorted(findings, key=lambda finding: _order(finding, part)))
    if loop is not None:
        findings = symptoms_last(causes_first(findings, loop))
    grows = tuple(finding.message for finding in findings if finding.code == LEAK and finding.certainty == "certain")
    if grows and facts.memory is not None and facts.memory.answer == "too early":
        facts = replace(facts, memory=replace(facts.memory, answer="leak", leaks=grows))
    findings = one_of_each_cause(findings)
    loud = any(finding.severity != "note" and finding.cost for finding in findings)
    joint = _joint(result.joint_cost, findings, loop)
    named = {code for finding in findings for code in (finding.code, *finding.also_explains)}
    return (
        replace(
            result,
            findings=findings,
            joint_cost=joint,
            healthy=result.healthy and not loud and not grows,
            checked=tuple(
                sorted({*result.checked, *(entry.code for entry in result.not_checked if entry.code in named)})
            ),
            not_checked=tuple(entry for entry in result.not_checked if entry.code not in named),
        ),
        facts,
    )


def _order(finding: Finding, part: float) -> tuple[object, ...]:
    """Return what a finding is ranked by: what a step saves counts by ``part``, the steps' share of a longer loop."""
    cost = finding.cost
    if cost is None:
        return rank_order(finding)
    finding = replace(finding, cost=replace(cost, calibration=None))
    return rank_order(finding, part if cost.per == "step" else 1.0)


ASKED_TO_END = 0, -signal.SIGINT, -signal.SIGTERM


def _missing(recording: Recording, facts: RecordedRun) -> Iterator[Note]:
    """Yield a note for each part of the run that was not seen."""
    samples, code = recording.samples, facts.exit_code or 0
    if code < 0 and code not in ASKED_TO_END:
        yield Note(
            "ended-by-signal",
            "warn",
            f"the script {describe_exit(code)}: what it did at the end was not recorded",
            "if it ends well without torchtriage, report it",
        )
    if not recording.facts.get("loop") and (failed := failed_early(code)):
        yield Note("failed-early", "warn", *failed)
    if recording.facts.get("sampled") and (samples is None or not samples.looks):
        file = recording.samples_file
        damaged = samples is None and file is not None and file.exists()
        why = f"{file.name} is damaged" if damaged and file else "the process ended before they were written"
        yield Note("no-stacks", "warn", f"there are no samples of the script's stacks: {why}", "run it again, longer")
    elif samples is not None and samples.problem:
        yield Note("no-stacks", "warn", f"stacks were sampled in part: {samples.problem}", "report it")
    for why in recording.measured.get("failures") or ():
        if why.startswith(NO_STACKS):
            yield Note("no-stacks", "warn", why, "without that, lines and shapes of operators are recorded, too")


MADE_BY = {"DAT018": ("DataLoader",), "DAT019": ("DataLoader",), "CFG044": ("set_detect_anomaly", "detect_anomaly")}
"""Codes whose time is spent at one line and whose cause stands at another: what is called there."""


def _at_its_cause(finding: Finding, view: SourceView) -> Finding:
    """Return a finding with the line that makes the loader, or switches the mode on, where there is one such line."""
    frame = finding.place.frame
    if finding.code not in MADE_BY or frame is None or not frame.file:
        return finding
    made = tuple(line for name in MADE_BY[finding.code] for line in view.made(name, frame.file))
    if len(made) != 1 or frame.line == made[0]:
        return finding
    at = Frame(frame.file, made[0], "", exact=True, called=MADE_BY[finding.code][0], lines=made)
    return replace(finding, place=replace(finding.place, frame=at, stack=(at, frame, *finding.place.stack[1:])))


ROWS, FLOAT64, GARBAGE, UNREAD_ROWS = "LCH017", "CPY012", "HST021", "KRN075"
MOST_LINES = 5
PYTHON_SURELY = 0.3
"""What is surely saved of Python that waits for nothing, where the looks do not say what it does."""
ROWS_SURELY = 0.5
"""What working on all rows at once surely gives back of a loop over them; at most it is all of it."""


def _of_the_loop(
    finding: Finding, loop: SampledLoop, view: SourceView, step_ms: float, cores: int, collecting: float
) -> Finding | None:
    """Return a finding of a recording by what the looks at the stack say of the same time; None where it is nothing.

    Waiting for the loader is long in the first steps, which a short run records: the looks know the others. The
    garbage collector runs more often while the profiler makes objects. A window is scaled to all of the loop, which
    costs are shares of.
    """
    cost = finding.cost
    if cost is None or not cost.of_ms:
        return finding
    if finding.code in (LOADING, STARVED):
        return loader_cost(finding, loop, step_ms, cores)
    if finding.code == GARBAGE:
        if collecting < WORTH:
            return None
        return replace(finding, cost=of_looks(cost, collecting / 2, collecting, step_ms, "time in the collector"))
    frame = finding.place.frame
    if finding.code == ROWS and frame is not None:
        loops = {around for line in (frame.lines or (frame.line,)) for around in view.loops(frame.file, line)[-1:]}
        if loops and all(map(sequential, loops)):
            return None
        share = loop.share_inside({(frame.file, inner.lineno) for inner in loops})
        backward = loop.backward_share
        if backward < 1:  # what is recorded operator by operator is gone through backwards in the same way
            share += backward * min(share / (1 - backward), 1.0)
        if share >= WORTH:
            error = counting_error(share, len(loop.seen))
            low, high = ROWS_SURELY * max(share - error, 0.0), min(share + error, 1.0)
            return replace(finding, cost=of_looks(cost, low, high, step_ms, "share of stack samples in this loop"))
    if finding.code == PYTHON_LOOP.code and frame is not None and not frame.exact:
        return _at_its_python(finding, frame, loop, view, step_ms)
    if finding.code == FLOAT64 and frame is not None and _asks_for_float64(finding, view, frame.file):
        # on purpose, it seems: asked about, and nothing promised
        cost = replace(cost, low_ms=0.0, share_low=0.0, together_ms=None)
        return replace(finding, cost=cost, certainty="hint", severity="note")
    if cost.per == "window" and loop.n_steps is None:
        low, high = cost.low_ms / cost.of_ms, cost.high_ms / cost.of_ms
        whole = of_share(cost, low, high, step_ms, f"{cost.method}; in proportion to all of the loop")
        return replace(finding, cost=replace(whole, calibration=cost.calibration))
    return finding


def _at_its_python(finding: Finding, frame: Frame, loop: SampledLoop, view: SourceView, step_ms: float) -> Finding:
    """Return what waits for Python at the line of its function that most looks saw, at no more than they saw of it.

    The profiler makes each call of Python longer, of all of which stacks are recorded.
    """
    cost, lines, where = finding.cost, Counter[int](), (file_name(frame.file), frame.function)
    for item in loop.seen:
        at = [
            line
            for file, function, line in map(line_of, item.chain)
            if (file_name(file), function) == where and _inside(view.statement(file, frame.line), line)
        ]
        if at and item.kind != OPERATORS:
            lines[at[0]] += item.weight_ns
    if cost is None or not lines.total():
        return finding
    share = lines.total() / loop.judged_ns
    error, most = counting_error(share, len(loop.seen)), sorted(lines, key=lambda line: -lines[line])
    high = min(share + error, cost.share_high)
    low = min(PYTHON_SURELY * max(share - error, 0.0), cost.share_low)
    hot = replace(frame, line=most[0], exact=True, lines=tuple(most[:MOST_LINES]))
    return replace(
        finding,
        place=replace(finding.place, frame=hot, stack=(hot, *finding.place.stack[1:])),
        cost=of_looks(cost, low, high, step_ms, "share of stack samples in this function"),
        severity=severity_of(low, high),
    )


def _inside(function: ast.stmt | None, line: int) -> bool:
    """Return whether a line is of the function that a trace names by its first; of any where none begins there."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    return function.lineno <= line <= (function.end_lineno or line)


def _asks_for_float64(finding: Finding, view: SourceView, file: str) -> bool:
    """Whether a program computes in float64 because its source says so, and not because one operand is."""
    everywhere = finding.evidence.get("float64_everywhere", False)
    return bool(view.made("set_default_dtype", file) or (everywhere and view.made("double", file)))


def _cautious(result: Result, recording: Recording) -> Result:
    """Return the result with half of each low end where only the first steps were recorded: caches were cold."""
    kinds = [recording.measured.get(kind) for kind in ("light", "heavy")]
    if not any(kind is not None and kind.get("early") for kind in kinds):
        return result
    halved = tuple(
        finding
        if finding.cost is None or finding.certainty == "certain"
        else replace(
            finding,
            cost=replace(
                finding.cost,
                low_ms=finding.cost.low_ms / 2,
                share_low=finding.cost.share_low / 2,
                method=f"{finding.cost.method}; half at the low end: only the first steps were recorded",
            ),
        )
        for finding in result.findings
    )
    return replace(result, findings=halved)


def _merged(known: Sequence[Finding], found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return both, without what the stack looks report better, and without a bare line that a pattern explains."""
    named = {finding.code for finding in found}
    others = [
        finding
        for finding in known
        if not (finding.code in REPLACED and finding.code in named)
        and not (finding.code == UNREAD_ROWS and UNREAD.code in named)
        and not _named_better(finding, found)
    ]
    lines = {_line(finding) for finding in others}
    loads = any(finding.code in (LOADING, STARVED) for finding in others)
    new = [
        finding
        for finding in found
        if not (finding.code == HOT_LINE.code and _line(finding) in lines)
        and not (finding.code in UNNAMED and loads and _fetches(finding))
    ]
    return (*others, *new)


def _inner_loops(findings: Sequence[Finding], view: SourceView) -> tuple[Finding, ...]:
    """Return findings with a loop over rows left to a loop in Python inside of it, where that is most of its time."""
    out = list(findings)
    for rows in [finding for finding in findings if finding.code == ROWS and finding.cost is not None]:
        frame = rows.place.frame
        if frame is None or rows.cost is None:
            continue
        loops = {around for line in (frame.lines or (frame.line,)) for around in view.loops(frame.file, line)[-1:]}
        for at, inner in enumerate(out):
            if inner.code != PYTHON_LOOP.code or inner.cost is None or 2 * inner.cost.high_ms < rows.cost.high_ms:
                continue
            callers = [above.line for above in inner.place.stack[1:] if above.file == frame.file]
            if any(loop.lineno <= line <= (loop.end_lineno or loop.lineno) for loop in loops for line in callers):
                out[at] = replace(inner, also_explains=(*inner.also_explains, ROWS))
                out.remove(rows)
                break
    return tuple(out)


def _named_better(finding: Finding, found: Sequence[Finding]) -> bool:
    """Return whether the looks know what most of the Python is that a recording saw the step wait for."""
    frame, cost = finding.place.frame, finding.cost
    if finding.code != PYTHON_LOOP.code or frame is None or cost is None:
        return False
    return any(
        other.code not in UNNAMED and 2 * other.cost.high_ms >= cost.high_ms
        for other in found
        if other.cost is not None and other.place.frame is not None
        if (file_name(other.place.frame.file), other.place.frame.function) == (file_name(frame.file), frame.function)
    )


def _fetches(finding: Finding) -> bool:
    frame = finding.place.frame
    return frame is not None and frame.called.startswith("torch.utils.data.")


def _line(finding: Finding) -> tuple[str, int]:
    frame = finding.place.frame
    return (file_name(frame.file), frame.line) if frame is not None else ("", 0)


def _joint(joint: Cost | None, findings: Sequence[Finding], loop: SampledLoop | None) -> Cost | None:
    """Return what all findings give back together: no more than their sum or the step, no less than the largest.

    What is slow inside the loader is part of what loading elsewhere saves.
    """
    costs = [(finding, finding.cost) for finding in findings if finding.cost is not None and finding.cost.high_ms > 0]
    if not costs:
        return joint
    of_ms = costs[0][1].of_ms
    costs = [(finding, cost) for finding, cost in costs if cost.of_ms == of_ms]
    low = min(of_ms, max(cost.low_ms for _, cost in costs))
    highs = {"loading": 0.0, "inside": 0.0, "beside": 0.0}
    for finding, cost in costs:
        inside = loop is not None and spent_loading(finding, loop)
        highs["loading" if finding.code == LOADING else "inside" if inside else "beside"] += cost.high_ms
    high = min(of_ms, max(max(highs["loading"], highs["inside"]) + highs["beside"], low))
    base = joint or replace(costs[0][1], together_ms=None)
    return replace(base.saving(low, high, of_ms=of_ms), calibration=None)


def untraced(recording: Recording, facts: RecordedRun, reason: str, hint: str, folders: Sequence[str] | None) -> Result:
    """Return the result of a process without a recording of the profiler: what its stacks alone show."""
    empty = TraceFacts(
        path=str(recording.samples_file),
        size_bytes=0,
        n_events=0,
        n_rows=0,
        tier="strict",
        n_lost=0,
        n_repaired=0,
        loss=(),
        vendor="",
        device_names=(),
        torch_flags=(),
        rank=recording.facts.get("rank"),
        world_size=recording.facts.get("world_size"),
        base_time_ns=None,
        resolution_ns=1,
        phases={},
        categories={},
    )
    note = Note("no-recording", "warn", f"no operators were recorded: {reason}", hint)
    result = Result(
        schema=SCHEMA,
        version=__version__,
        verdict=("", "", ""),
        healthy=False,
        refused=False,
        trace=empty,
        notes=(note,),
        summary=None,
        findings=(),
        not_checked=(),
        crashes=(),
        joint_cost=None,
    )
    result, facts = with_samples(result, recording, facts, (), folders)
    return replace(result, verdict=_verdict(result, facts), recorded=facts)


def _verdict(result: Result, facts: RecordedRun) -> tuple[str, str, str]:
    account = facts.account
    if account is None:
        return ("No loop was found.", "Nothing was checked.", f"Limited trust: {result.notes[0].message}.")
    parts = ", ".join(f"{part.share:.0%} {part.kind}" for part in account.parts[:3])
    samples = format_count(account.n_looks, "stack sample")
    first = f"{format_ms(account.of_ms)} per {account.per}: {parts}."
    best = next((finding for finding in result.findings if finding.cost and finding.cost.high_ms > 0), None)
    second = "Nothing stands out in the stacks."
    if best is not None and best.cost is not None:
        amount = format_range(
            format_ms(best.cost.low_ms), format_ms(best.cost.high_ms), from_zero=best.cost.low_ms <= 0
        )
        second = (
            f"Largest saving: {best.title} ({best.code}), {amount} of {format_ms(best.cost.of_ms)} per {account.per}."
        )
    second = growth_first(result.findings, second)
    return first, second, f"Limited trust: {result.notes[0].message}; {samples}."
