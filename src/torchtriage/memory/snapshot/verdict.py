"""From a snapshot to what is said about it: three lines, findings, and what could not be judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from torchtriage.core.errors import SnapshotError
from torchtriage.core.finding import SEVERITIES, Crash, Finding, Fix, NotChecked, Note, Place
from torchtriage.core.trace import Trace
from torchtriage.core.units import format_bytes, format_count, format_ns, format_share
from torchtriage.core.version import __version__
from torchtriage.memory.findings.fragmentation import CODE as FRAGMENTATION
from torchtriage.memory.findings.fragmentation import FIX as LET_SEGMENTS_GROW
from torchtriage.memory.findings.out_of_memory import CODE as OUT_OF_MEMORY
from torchtriage.memory.findings.peak_by_line import CODE as PEAK
from torchtriage.memory.snapshot import advice, checkpointing, snapshot_leaks
from torchtriage.memory.snapshot.attribution import Owners
from torchtriage.memory.snapshot.changes import changes
from torchtriage.memory.snapshot.churn import find_churn
from torchtriage.memory.snapshot.events import RecordedEvents, recorded_memory
from torchtriage.memory.snapshot.fragmentation import WHOLE, find_fragmentation, find_out_of_memory
from torchtriage.memory.snapshot.peak_usage import find_peak
from torchtriage.memory.snapshot.result import (
    MEMORY_SCHEMA,
    RECORD,
    DeviceMemory,
    Fragmentation,
    MemoryPeak,
    MemoryResult,
    Opinion,
    OutOfMemory,
)
from torchtriage.memory.snapshot.snapshot import Snapshot
from torchtriage.memory.snapshot.timeline import Timeline, timeline
from torchtriage.memory.snapshot.timeline_chart import draw

UNUSED_SHARE = 0.15
UNUSED_BYTES = 256 << 20
"""The gaps when most is allocated must reach both to be called fragmentation: a tenth of large
segments is rounding, and a few segments are nobody's problem."""


def judge(
    snapshot: Snapshot, progress: Callable[[str], None] | None = None, *, trace: Trace | None = None
) -> MemoryResult:
    """Return everything that can be said about one snapshot.

    ``progress`` : gets what is done next. ``trace`` : of the same program, recorded ``with_stack``: what
    checkpointing would cost per step.
    """
    progress = progress or (lambda _what: None)
    progress("who allocated")
    owners = Owners.of(snapshot)
    crashes: list[Crash] = []
    devices = []
    lives: dict[int, Timeline] = {}
    for device in snapshot.devices:
        progress(f"memory over time, device {device}")
        lives[device] = timeline(snapshot, device)
        devices.append(_device(lives[device], owners))
    progress("growth from step to step")
    leak = _asked("leak", lambda: snapshot_leaks.judge_snapshot(owners, list(lives.values())), crashes)
    worst = max(devices, key=_weight, default=None)
    replayed = max(devices, key=lambda device: (device.n_entries > 0, _weight(device)), default=None)
    progress("replaying the history")
    settings = _asked("allocator settings", lambda: _advice(snapshot, replayed, progress), crashes)
    progress("checkpointing")
    again = _asked("what to change", lambda: _changes(worst, lives, owners, trace), crashes)
    findings = [
        finding
        for device in devices
        for finding in _findings(
            device,
            lives[device.device].settings.expandable,
            settings if device is replayed else Opinion(""),
            again.notes[:1] if device is worst else (),
        )
    ]
    findings += [found for memory in lives.values() if (found := find_churn(memory, owners)) is not None]
    notes = _notes(snapshot)
    not_checked = _not_checked(snapshot, devices)
    for opinion in (leak, settings, again):
        findings += opinion.findings
        not_checked += opinion.not_checked
        notes += opinion.notes
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), -_bytes(finding), finding.code))
    return MemoryResult(
        schema=MEMORY_SCHEMA,
        version=__version__,
        path=snapshot.path,
        size_bytes=snapshot.size_bytes,
        verdict=_verdict(devices, leak, findings, again.notes[:1]),
        healthy=not findings and not crashes and bool(leak.sentence) and not leak.not_checked,
        n_devices=snapshot.n_devices,
        n_entries=len(snapshot.history),
        n_stacks=len(snapshot.stacks),
        settings=_settings(snapshot.settings),
        devices=tuple(devices),
        findings=tuple(findings),
        notes=tuple(notes),
        not_checked=tuple(not_checked),
        crashes=tuple(crashes),
        leak=leak.sentence,
        advice=settings.sentence,
        growth=leak.growth,
    )


def judge_trace(trace: Trace, path: str) -> MemoryResult:
    """Return what the memory events of a profiler trace show: the peaks and who held them.

    Raises SnapshotError: the trace has none.
    """
    recorded = recorded_memory(trace)
    if not recorded:
        raise SnapshotError(
            "expected memory events, found a trace without any",
            where=path,
            hint="record with profile_memory=True, or analyse its times: torchtriage analyze FILE",
        )
    devices = [_traced(memory, place) for place, memory in enumerate(recorded)]
    not_checked = [
        NotChecked("MEM029", "memory-growth", ("snapshot",), f"analysed by: torchtriage analyze {path}"),
        NotChecked(FRAGMENTATION.code, FRAGMENTATION.name, ("segments of the allocator",), RECORD),
    ]
    if not trace.has_stacks:
        not_checked.append(NotChecked(PEAK.code, "peak by line", ("stacks",), "record with with_stack=True"))
    return MemoryResult(
        schema=MEMORY_SCHEMA,
        version=__version__,
        path=path,
        size_bytes=trace.report.size_bytes,
        verdict=_verdict(devices, Opinion("Leak: see torchtriage analyze."), []),
        healthy=False,
        n_devices=len(devices),
        n_entries=len(trace.memory.at_ns),
        n_stacks=sum(len(memory.owners.snapshot.stacks) for memory in recorded),
        settings="not recorded",
        devices=tuple(devices),
        findings=(),
        notes=_trace_notes(trace),
        not_checked=tuple(not_checked),
        crashes=(),
    )


def _trace_notes(trace: Trace) -> tuple[Note, ...]:
    report, notes = trace.report, []
    if report.loss:
        lost = f", {format_count(report.n_lost, 'event')} lost" if report.n_lost else ""
        message = f"damaged file: {report.loss[0]}{lost}; the peak may lie in what is missing"
        notes.append(Note("salvaged", "warn", message, "copy the file again, or record anew"))
    if (trace.memory.allocated_bytes < 0).all():
        message = (
            "the trace records no totals: memory that was allocated before it began is not"
            " counted, nor is what was reserved"
        )
        notes.append(Note("totals", "warn", message, "record with a newer torch"))
    return tuple(notes)


def _traced(memory: RecordedEvents, place: int) -> DeviceMemory:
    lives = memory.timeline
    peak = find_peak(lives, memory.owners)
    most = int(lives.reserved_bytes.max())
    picture = draw(lives, memory.owners)
    if not memory.has_reserved:
        peak = peak and replace(peak, reserved_bytes=None)
        picture = picture and replace(picture, reserved_bytes=())
    return DeviceMemory(
        # a number of its own: the page identifies devices by it
        device=place,
        name=memory.name,
        requested_bytes=None,
        allocated_bytes=int(lives.allocated_bytes[-1]),
        active_bytes=None,
        reserved_bytes=int(lives.reserved_bytes[-1]) if memory.has_reserved else None,
        n_segments=0,
        n_blocks=0,
        n_entries=lives.end - lives.start,
        max_reserved_bytes=most if memory.has_reserved else None,
        peak=peak,
        fragmentation=None,
        out_of_memory=(),
        n_out_of_memory=0,
        picture=picture,
    )


def _device(lives: Timeline, owners: Owners) -> DeviceMemory:
    snapshot = owners.snapshot
    in_segments = snapshot.segments.device == lives.device
    segments = snapshot.segments.rows(np.flatnonzero(in_segments))
    failed, n_failed = find_out_of_memory(lives, owners)
    return DeviceMemory(
        device=lives.device,
        name=f"device {lives.device}",
        requested_bytes=int(segments.requested_bytes.sum()) if (segments.requested_bytes >= 0).all() else None,
        allocated_bytes=int(segments.allocated_bytes.sum()),
        active_bytes=int(segments.active_bytes.sum()),
        reserved_bytes=int(segments.size_bytes.sum()),
        n_segments=len(segments),
        n_blocks=int(in_segments[snapshot.blocks.segment].sum()),
        n_entries=lives.end - lives.start,
        max_reserved_bytes=int(lives.reserved_bytes.max()),
        peak=find_peak(lives, owners),
        fragmentation=find_fragmentation(snapshot, lives),
        out_of_memory=tuple(failed),
        n_out_of_memory=n_failed,
        picture=draw(lives, owners, lives.start + failed[-1].entry if failed else None),
    )


# -- findings ----------------------------------------------------------------------------------


def _findings(device: DeviceMemory, grows: bool, settings: Opinion, change: tuple[Note, ...]) -> list[Finding]:
    """``grows`` : whether segments are expandable; ``settings change`` : what was found for this device."""
    if device.out_of_memory:
        return [_oom_finding(device, grows, change)]
    unused = device.fragmentation
    if unused is None or not unused.is_seen:
        return []
    is_much = unused.gap_bytes >= max(UNUSED_BYTES, UNUSED_SHARE * unused.reserved_bytes)
    return [_unused_finding(device, unused, grows, settings)] if is_much else []


def _oom_finding(device: DeviceMemory, grows: bool, change: tuple[Note, ...]) -> Finding:
    last = device.out_of_memory[-1]
    number = format_count(device.n_out_of_memory, "failed allocation")
    return OUT_OF_MEMORY.finding(
        severity="high",
        certainty="certain",
        message=f"{number} on device {device.device}. " + " ".join(last.sentences),
        place=Place(lane=f"device {device.device}", frame=last.frame, stack=last.stack),
        evidence={
            "device": device.device,
            "entry": last.entry,
            "wanted_bytes": last.wanted_bytes,
            "device_free_bytes": last.device_free_bytes,
            "allocated_bytes": last.allocated_bytes,
            "reserved_bytes": last.reserved_bytes,
            "free_bytes": last.free_bytes,
            "largest_bytes": last.largest_bytes,
            "free_by_cause_bytes": {part.name: part.size_bytes for part in last.parts},
            "holders_bytes": {holder.label: holder.size_bytes for holder in last.holders},
        },
        fix=_oom_fix(last, grows, change),
        n_events=device.n_out_of_memory,
    )


def _oom_fix(failure: OutOfMemory, grows: bool, change: tuple[Note, ...]) -> Fix:
    if failure.next_would_fit and not grows:
        return replace(LET_SEGMENTS_GROW, text="Let segments grow instead of leaving gaps between them")
    less = "Segments grow already: hold less at this point" if failure.next_would_fit else "Hold less at this point"
    if change:
        return Fix(f"{less}. First, {change[0].message}", change[0].fix)
    where = f", starting with {failure.holders[0].label}" if failure.holders else ""
    return Fix(f"{less}{where}: a smaller batch, checkpointing, or a lower dtype")


def _unused_finding(device: DeviceMemory, unused: Fragmentation, grows: bool, settings: Opinion) -> Finding:
    share = unused.gap_bytes / unused.reserved_bytes
    causes = ", ".join(f"{format_bytes(part.size_bytes)} {part.name}" for part in unused.parts if part.name != WHOLE)
    # a fix that does not go against what replaying the settings has shown
    fix = LET_SEGMENTS_GROW
    if settings.findings:
        fix = Fix(f"Use the setting that the replay found best ({advice.CODE})")
    elif settings.sentence or grows:
        why = "No replayed allocator setting helps" if settings.sentence else "Segments grow already"
        fix = Fix(
            f"{why}: ask for fewer different large sizes, or give"
            " back what one phase leaves with torch.cuda.empty_cache() before the next"
        )
    return FRAGMENTATION.finding(
        severity="medium" if share >= 0.4 else "low",
        certainty="certain",
        message=f"{format_bytes(unused.gap_bytes)} of {format_bytes(unused.reserved_bytes)} reserved"
        f" on device {device.device} lay in gaps at the peak"
        f" ({format_share(share)}): {causes}",
        place=Place(lane=f"device {device.device}"),
        evidence={
            "device": device.device,
            "entry": unused.entry,
            "free_bytes": unused.free_bytes,
            "gap_bytes": unused.gap_bytes,
            "reserved_bytes": unused.reserved_bytes,
            "allocated_bytes": unused.allocated_bytes,
            "share_of_reserved": share,
            "free_by_cause_bytes": {part.name: part.size_bytes for part in unused.parts},
        },
        fix=fix,
    )


def _bytes(finding: Finding) -> int:
    for name in ("wanted_bytes", "saving_bytes", "free_bytes"):
        value = finding.evidence.get(name)
        if isinstance(value, int):
            return value
    return 0


# -- other judges ------------------------------------------------------------------------------


def _asked(what: str, ask: Callable[[], Opinion], crashes: list[Crash]) -> Opinion:
    try:
        return ask()
    except Exception as error:
        crashes.append(Crash(what, f"{type(error).__name__}: {error}"))
        return Opinion("")


def _changes(device: DeviceMemory | None, lives: dict[int, Timeline], owners: Owners, trace: Trace | None) -> Opinion:
    """Return what to change on one device, as notes."""
    if device is None:
        return Opinion("")
    memory = lives[device.device]
    row = memory.start + device.out_of_memory[-1].entry if device.out_of_memory else memory.peak
    units = checkpointing.units(owners.snapshot, owners=owners, trace=trace, memory=memory)
    return Opinion("", notes=changes(memory, owners, row, checkpointing.notes(units, traced=trace is not None)))


def _advice(snapshot: Snapshot, device: DeviceMemory | None, progress: Callable[[str], None]) -> Opinion:
    """Return what other settings would change on one device."""
    advised = advice.advise(
        snapshot,
        None if device is None else device.device,
        progress=lambda done, n: progress(f"replaying allocator settings, {done} of {n}"),
    )
    several = len(snapshot.devices) > 1
    if advised.refusal:
        how = f"{advised.refusal}; {advised.how_to_record}" if advised.how_to_record else advised.refusal
        what = "history that replays as recorded" + (f" on device {advised.device}" if several else "")
        missing = NotChecked(advice.CODE, "allocator-settings", (what,), how)
        return Opinion("", not_checked=(missing,))
    finding = advice.finding(advised)
    where = f"GPU {advised.device}: " if several else ""
    return Opinion(where + advice.sentence(advised), () if finding is None else (finding,))


# -- words -------------------------------------------------------------------------------------


def _verdict(
    devices: list[DeviceMemory], leak: Opinion, findings: list[Finding], change: tuple[Note, ...] = ()
) -> tuple[str, str, str]:
    with_memory = [device for device in devices if device.max_reserved_bytes or device.peak is not None]
    if not with_memory:
        return ("No memory was reserved on any device.", "Nothing else was recorded.", "Record while the program runs.")
    worst = max(with_memory, key=_weight)
    others = len(with_memory) - 1
    also = f" ({format_count(others, 'other device')} below)" if others else ""
    if worst.out_of_memory:
        last = worst.out_of_memory[-1]
        first = f"{last.sentences[0]}{also}"
        second = " ".join(last.sentences[-2:])
    elif worst.peak is not None:
        first = f"{_peak_sentence(worst, worst.peak)}{also}"
        second = _held(worst.peak)
    else:
        first = (
            f"{worst.name.capitalize()} held {format_bytes(worst.allocated_bytes)} allocated of"
            f" {format_bytes(worst.reserved_bytes or 0)} reserved at the snapshot{also}."
        )
        second = "No history was recorded: the peak and its lines are not known."
    if change:
        second += f" Change first: {change[0].message}."
    return first, second, _third(worst, leak, findings)


def _weight(device: DeviceMemory) -> tuple[bool, int]:
    peak = device.peak.allocated_bytes if device.peak is not None else device.allocated_bytes
    return bool(device.out_of_memory), peak


def _peak_sentence(device: DeviceMemory, peak: MemoryPeak) -> str:
    when = f", {format_ns(peak.at_us * 1000)} into the recording" if peak.at_us is not None else ""
    most = device.max_reserved_bytes
    reserved = f", {format_bytes(most)} reserved at most" if most is not None else ""
    return f"Peak: {format_bytes(peak.allocated_bytes)} allocated on {device.name}{when}{reserved}."


def _held(peak: MemoryPeak) -> str:
    known = [line for line in peak.lines if line.stack or line.phase == "backward"]
    if not known:
        return "No stacks were recorded: whose memory it was is not known."
    purposes = [part for part in peak.categories if part.name != "unknown" and part.share >= 0.05][:2]
    top = ", ".join(f"{part.name} {format_bytes(part.size_bytes)} ({format_share(part.share)})" for part in purposes)
    line = f"{known[0].label} {format_bytes(known[0].size_bytes)} ({format_share(known[0].share)})"
    return f"Held then: {top}; the largest line is {line}." if top else f"Held then: {line}."


def _third(device: DeviceMemory, leak: Opinion, findings: list[Finding]) -> str:
    unused = device.fragmentation
    first = leak.sentence or "Leak: not checked."
    if unused is None or device.out_of_memory:
        return first
    if not unused.is_seen:
        return f"{first} Fragmentation: not checked, the peak is not recorded."
    share = unused.gap_bytes / unused.reserved_bytes
    calm = ", which is normal" if share < UNUSED_SHARE else ", too little to matter"
    if any(finding.code == FRAGMENTATION.code and finding.evidence["device"] == device.device for finding in findings):
        calm = ""
    return (
        f"{first} Fragmentation: {format_bytes(unused.gap_bytes)} of {format_bytes(unused.reserved_bytes)}"
        f" reserved ({format_share(share)}) lay in gaps at the peak{calm}."
    )


def _settings(settings: dict[str, Any]) -> str:
    conf = settings.get("PYTORCH_CUDA_ALLOC_CONF") or settings.get("PYTORCH_ALLOC_CONF")
    if isinstance(conf, str) and conf:
        return conf
    if settings.get("expandable_segments") is True:
        return "expandable_segments:True"
    return "default" if settings else "not recorded"


def _notes(snapshot: Snapshot) -> list[Note]:
    fix = "it may have been edited; dump a new snapshot"
    notes = [Note("totals", "warn", f"The file's own totals disagree: {line}", fix) for line in snapshot.check()]
    if snapshot.unknown:
        counts = ", ".join(f"{name} ({count:,})" for name, count in snapshot.unknown.items())
        notes.append(Note("unknown", "info", f"Not understood: {counts}", "", dict(snapshot.unknown)))
    return notes


def _not_checked(snapshot: Snapshot, devices: list[DeviceMemory]) -> list[NotChecked]:
    if not len(snapshot.history):
        return [NotChecked(PEAK.code, "peak", ("history of allocations",), RECORD)]
    if not len(snapshot.stacks):
        return [NotChecked(PEAK.code, "peak by line", ("stacks",), RECORD)]
    missing = []
    for device in devices:
        peak = device.peak
        if peak is not None and peak.no_stack_bytes > 0.5 * peak.allocated_bytes:
            share = format_share(peak.no_stack_bytes / peak.allocated_bytes)
            what = f"stacks of {share} of the peak on device {device.device}"
            how = "start recording before the model is built:\n" + RECORD
            missing.append(NotChecked(PEAK.code, "peak by line", (what,), how))
    return missing
