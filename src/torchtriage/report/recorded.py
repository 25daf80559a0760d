"""How ``torchtriage run`` came to a result, and what it kept of memory and of the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchtriage.core.isolate.processes import describe_exit
from torchtriage.core.names import file_name, visible
from torchtriage.core.units import format_bytes, format_count, format_ms, format_share
from torchtriage.diagnose.runs.result import CompileEvent, RecordedRun, WatchedMemory

APART = 0.2
"""Step times on either side of the recordings that differ by more are both reported."""


def run(recorded: RecordedRun) -> tuple[tuple[str, str], ...]:
    """Return how ``torchtriage run`` came to a result, as rows of label and text."""
    rows = [("ran", _ran(recorded))] if recorded.command else []
    if recorded.loop:
        rows.append(("loop", _loop(recorded)))
    if recorded.step_ms:
        text = _step(recorded)
        first, last = recorded.before_ms, recorded.after_ms
        if first and last and abs(last / first - 1) > APART:
            text += f": {format_ms(first)} before the recordings, {format_ms(last)} after them"
        for word, own_ms in (("lightly", recorded.light_ms), ("heavily", recorded.heavy_ms)):
            if own_ms is not None:
                more = own_ms / recorded.step_ms - 1
                text += f"; {format_ms(own_ms)} recorded {word} ({'+' if more >= 0 else '-'}{format_share(abs(more))})"
        rows.append(("step", text))
    if facts := _environment(recorded.environment):
        rows.append(("on", facts))
    if recorded.memory is not None:
        rows += _memory(recorded.memory)
    if recorded.compiled is not None and recorded.compiled.verdict:
        rows.append(("compile", visible(" ".join(recorded.compiled.verdict[:2]))))
    return tuple(rows)


def brief(recorded: RecordedRun) -> tuple[tuple[str, str], ...]:
    """Return of the same what belongs on the first screen."""
    time = _step(recorded) if recorded.step_ms else ""
    memory = _memory(recorded.memory)[0][1] if recorded.memory is not None else ""
    compiled = recorded.compiled.verdict[0] if recorded.compiled is not None and recorded.compiled.verdict else ""
    ran = _ran(recorded) if recorded.command and recorded.exit_code else ""
    loop = _loop(recorded) if recorded.loop else ""
    rows = (("ran", ran), ("loop", loop), ("time", time), ("memory", memory), ("compile", visible(compiled)))
    return tuple(row for row in rows if row[1])


def _ran(recorded: RecordedRun) -> str:
    ended = f" ({describe_exit(recorded.exit_code)})" if recorded.exit_code else ""
    return f"{visible(recorded.command)}{ended}"


def _loop(recorded: RecordedRun) -> str:
    where = f", {visible(file_name(recorded.file))}:{recorded.line}" if recorded.file else ""
    function = f" in {visible(recorded.function)}" if recorded.function else ""
    return f"{visible(recorded.loop)}{where}{function}; {format_count(recorded.n_steps, 'step')} seen"


def _step(recorded: RecordedRun) -> str:
    trend = "" if recorded.settled else ", still changing"
    mean = f"mean of {format_count(recorded.n_timed, 'step')}{trend}"
    return f"{format_ms(recorded.step_ms or 0.0)} without the profiler ({mean})"


def _memory(seen: WatchedMemory) -> list[tuple[str, str]]:
    if seen.answer == "not watched":
        return [("memory", visible(f"not watched: {'; '.join(seen.notes)}"))]
    steps, looks = format_count(seen.n_steps, "step"), format_count(seen.n_looks, "look")
    verdict = {
        "leak": "leak: " + "; ".join(seen.leaks),
        "no leak": f"no leak in {steps}",
        "too early": f"too early to tell whether it leaks: {steps} and {looks}; a verdict needs"
        " about 200 steps after the recordings",
    }[seen.answer]
    first, last, most = map(format_bytes, (seen.rss_first_bytes, seen.rss_last_bytes, seen.rss_peak_bytes))
    used = f"resident {first} at first, {last} at last, {most} at most"
    if seen.allocated_peak_bytes is not None and seen.reserved_peak_bytes is not None:
        used += (
            f"; on the device {format_bytes(seen.allocated_peak_bytes)} allocated at most,"
            f" {format_bytes(seen.reserved_peak_bytes)} reserved"
        )
    rows = [("memory", visible(f"{verdict}; {used}"))]
    rows += [("note", visible(note)) for note in seen.notes]
    if seen.snapshot:
        rows.append(("snapshot", f"torchtriage memory {visible(seen.snapshot)}"))
    return rows


N_COMPILE_EVENTS = 4
"""Of each kind."""


def compiled(recorded: RecordedRun | None) -> tuple[tuple[str, str], ...]:
    """Return what the compiler's log names, the costliest first, as rows of label and text."""
    seen = None if recorded is None else recorded.compiled
    if seen is None:
        return ()
    rows = []
    for kind, label in (("graph break", "break"), ("recompilation", "recompile")):
        events = [event for event in seen.events if event.kind == kind]
        rows += [(label, visible(_compile_event(event))) for event in events[:N_COMPILE_EVENTS]]
        if (more := len(events) - N_COMPILE_EVENTS) > 0:
            rows.append((label, f"{more:,} more in --json"))
    if seen.payback:
        rows.append(("pays back", visible(seen.payback)))
    rows += [("note", visible(note)) for note in seen.notes]
    if seen.log:
        beside = f" --trace {seen.trace}" if seen.trace else ""
        rows.append(("all of it", visible(f"torchtriage compile {seen.log}{beside}")))
    return tuple(rows)


def _compile_event(event: CompileEvent) -> str:
    times = f", {event.count}x" if event.count > 1 else ""
    at = f" at {visible(file_name(event.frame.file))}:{event.frame.line}" if event.frame else ""
    of = f" in {event.function}" if event.function else ""
    parts = [f"{event.what}{at}{of}{times}"]
    if event.total_ms:
        parts.append(f"{format_ms(event.total_ms)} of compiling")
    if event.limit:
        parts.append("the recompile limit is reached: later calls run uncompiled")
    if event.host_ms is not None and event.of_ms is not None:
        most = "at most " if event.at_most else ""
        idle = "" if event.idle_ms is None else f", device idle {most}{format_ms(event.idle_ms)}"
        parts.append(f"host {most}{format_ms(event.host_ms)}{idle} {event.per} of {format_ms(event.of_ms)}")
    elif event.kind == "graph break":
        parts.append("not in the recorded steps")
    return f"{'; '.join(parts)}. {event.fix.text}"


def _environment(facts: Mapping[str, Any]) -> str:
    parts = []
    if torch := facts.get("torch"):
        parts.append(f"torch {torch}")
    parts += [str(name) for name in dict.fromkeys(facts.get("devices") or ())]
    if driver := facts.get("driver"):
        parts.append(f"driver {driver}")
    threads, cores = facts.get("threads"), facts.get("cpus_allowed") or facts.get("cpu_count")
    if threads and cores:
        parts.append(f"{format_count(threads, 'thread')} on {format_count(cores, 'core')}")
    for loader in (facts.get("loaders") or ())[:1]:
        pinned = ", pinned" if loader.get("pin_memory") else ""
        parts.append(f"DataLoader with {format_count(loader.get('num_workers') or 0, 'worker')}{pinned}")
    flags = facts.get("flags") or {}
    parts += [name.replace("_", " ") for name in _DEBUG_FLAGS if flags.get(name)]
    parts += [f"{name}={value}" for name, value in (facts.get("variables") or {}).items()]
    return visible(", ".join(parts))


_DEBUG_FLAGS = ("anomaly_mode", "deterministic_algorithms", "cudnn_benchmark")
