"""What ``torchtriage run`` left in its folder: processes, their loops and their recordings."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from torchtriage.core.isolate.processes import describe_exit
from torchtriage.core.record.profiler_capture import BUSY
from torchtriage.core.record.recorder import HEAVY_FILE, LIGHT_FILE, RECORDING_FILE
from torchtriage.core.record.stack_sampler import samples_of
from torchtriage.core.record.structured_log import log_of
from torchtriage.core.record.timing import step_wall_ns
from torchtriage.core.trace.anonymise import Anonymiser
from torchtriage.diagnose.runs.result import RecordedRun, WatchedMemory
from torchtriage.diagnose.runs.samples import Samples, read_samples, shortened
from torchtriage.memory.leaks.leak_report import REPORT as MEMORY_FILE
from torchtriage.memory.leaks.leak_report import SNAPSHOT as SNAPSHOT_FILE
from torchtriage.memory.leaks.leak_report import WatchReport

FACTS = {"pid": int, "folder": str, "roots": list, "loop": dict}
"""What is read of a process' own words, and what it must be; else it was not said."""
MOST_BYTES = 64 << 20
"""What is larger was not written by the recorder, which keeps a few numbers for each step."""
BY_SIGNALS = frozenset(128 + number for number in signal.valid_signals())
"""The exit codes that shells give for signals: the script did not fail by itself."""
AS_WITHOUT = "see its output; without torchtriage it ends the same way"


@dataclass(frozen=True)
class Recording:
    """One process that imported torch: what it said of itself, and its recordings so far.

    ``facts`` : ``process-*.json``. ``measured`` : ``recording.json``, empty where no loop was
    found. ``light``, ``heavy`` : the traces, None where it did not come to them. ``memory`` : what
    the leak watch saw, None without one; ``snapshot`` : of CUDA's allocator. ``compile_log`` :
    where something was compiled and its log was asked for. ``samples_file`` : what the sampler of
    stacks wrote, if it did.
    """

    facts: dict[str, Any]
    measured: dict[str, Any]
    light: Path | None
    heavy: Path | None
    memory: WatchReport | None = None
    snapshot: Path | None = None
    compile_log: Path | None = None
    samples_file: Path | None = None

    @cached_property
    def samples(self) -> Samples | None:
        """What the sampler of stacks saw; None where it did not run."""
        return None if self.samples_file is None else read_samples(self.samples_file, self._roots)

    @property
    def _roots(self) -> list[str]:
        return [str(root) for root in self.facts.get("roots", ())]

    def short(self, file: str) -> str:
        """Return a path as stacks name it: below the script's folder, without that."""
        return shortened(file, self._roots)

    @property
    def complete(self) -> bool:
        """Whether all that was wanted is on disk."""
        early = any((self.measured.get(kind) or {}).get("early") for kind in ("light", "heavy"))
        return self.light is not None and self.heavy is not None and not early


def find_recordings(out: Path) -> list[Recording]:
    """Return the processes that imported torch, in order of rank; those with a recording first."""
    found = []
    for path in sorted(out.glob("process-*.json")):
        facts: dict[str, Any] = {
            name: fact for name, fact in _read(path).items() if isinstance(fact, FACTS.get(name, object))
        }
        folder = out / str(facts.get("folder") or "-")
        files = [folder / name for name in (LIGHT_FILE, HEAVY_FILE, SNAPSHOT_FILE)]
        light, heavy, snapshot = (file if file.exists() else None for file in files)
        memory = _report(folder / MEMORY_FILE)
        measured = _read(folder / RECORDING_FILE)
        pid = facts.get("pid", 0)
        log, samples = log_of(out, pid), samples_of(out, pid)
        found.append(Recording(facts, measured, light, heavy, memory, snapshot, log, samples))
    return sorted(
        found,
        key=lambda item: (
            item.light is None and item.heavy is None,
            -1 if item.facts.get("rank") is None else item.facts["rank"],
            item.facts.get("pid", 0),
        ),
    )


def source_roots(out: Path) -> list[str]:
    """Return the folders that the scripts of a folder were in and were run in."""
    roots = [root for recording in find_recordings(out) for root in recording.facts.get("roots", ())]
    return list(dict.fromkeys(map(str, roots)))


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            return {}
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _report(path: Path) -> WatchReport | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=WatchReport)
    except (OSError, msgspec.DecodeError):
        return None


def all_recorded(out: Path) -> bool:
    """Return whether every process with a loop has both its recordings."""
    loops = [recording for recording in find_recordings(out) if recording.facts.get("loop")]
    return bool(loops) and all(recording.complete for recording in loops)


def anonymised(recording: Recording, names: Anonymiser) -> Recording:
    """Return a process' traces and times alone: stacks, logs and watches are full of names."""
    loop = recording.facts.get("loop") or {}
    kept = ("pid", "folder", "rank")
    facts: dict[str, Any] = {name: recording.facts[name] for name in kept if name in recording.facts}
    if loop:
        place = {"file": names.path(str(loop.get("file", ""))), "line": loop.get("line", 0), "how": loop.get("how", "")}
        facts["loop"] = {**place, "function": names.function(str(loop.get("function", "")))}
    measured = {name: value for name, value in recording.measured.items() if name != "environment"}
    return Recording(facts, measured, recording.light, recording.heavy)


def recorded(recording: Recording, command: str, exit_code: int | None) -> RecordedRun:
    """Return how a process was recorded, for its report."""
    loop = recording.facts.get("loop") or {}
    measured = recording.measured
    queued = bool(measured.get("queued"))
    kinds = ("before", "light", "heavy", "after")
    own = {kind: _mean_ms(measured.get(kind), queued) for kind in kinds}
    times = [time for when in ("before", "after") for time in (measured.get(when) or {}).get("step_ns") or ()]
    samples = recording.samples
    recurring = samples is not None and bool(samples.recurring)
    if samples is not None and (recurring or not times):
        times = [step.ns for step in samples.steady if not step.recorded]
    unprofiled = step_wall_ns(times, all_steps=queued or recurring)
    return RecordedRun(
        command=command,
        exit_code=exit_code,
        loop=str(loop.get("how", "")),
        file=str(loop.get("file", "")),
        line=int(loop.get("line", 0)),
        function=str(loop.get("function", "")),
        # the sampler sees those after the recordings, too
        n_steps=max(int(measured.get("steps_seen") or 0), len(samples.own) if samples is not None else 0),
        step_ms=unprofiled / 1e6 if unprofiled else None,
        n_timed=len(times),
        settled=bool((measured.get("before") or {}).get("settled")),
        light_ms=own["light"],
        heavy_ms=own["heavy"],
        environment=measured.get("environment") or {},
        memory=watched(recording),
        before_ms=own["before"],
        after_ms=own["after"],
    )


def watched(recording: Recording) -> WatchedMemory | None:
    """Return what the leak watch saw, for the report; None without one."""
    seen = recording.memory
    if problem := recording.facts.get("memory_problem"):
        return WatchedMemory("not watched", 0, 0, (), 0, 0, 0, None, None, "", 0.0, (str(problem),))
    if seen is None:
        return None
    return WatchedMemory(
        answer=seen.answer,
        n_steps=seen.n_steps,
        n_looks=seen.n_looks,
        leaks=tuple(leak.sentence for leak in seen.leaks),
        rss_first_bytes=seen.rss_first_bytes,
        rss_last_bytes=seen.rss_last_bytes,
        rss_peak_bytes=seen.rss_peak_bytes,
        allocated_peak_bytes=seen.allocated_peak_bytes,
        reserved_peak_bytes=seen.reserved_peak_bytes,
        snapshot="" if recording.snapshot is None else str(recording.snapshot),
        own_share=seen.own_share,
        notes=seen.notes,
    )


def _mean_ms(facts: dict[str, Any] | None, queued: bool) -> float | None:
    mean = step_wall_ns((facts or {}).get("step_ns") or (), all_steps=queued)
    return mean / 1e6 if mean else None


def failed_early(exit_code: int | None) -> tuple[str, str] | None:
    """Return that the script failed by itself before there was anything to judge, and what to try; None if not."""
    if exit_code is None or exit_code <= 0 or exit_code in BY_SIGNALS:
        return None
    return f"the script {describe_exit(exit_code)} before a step was recorded", AS_WITHOUT


def why_nothing(out: Path, recordings: list[Recording], exit_code: int | None = None) -> tuple[str, str]:
    """Return why there is nothing to judge, and what to try."""
    for path in sorted(out.glob("errors-*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        if not text:
            return ("the recordings could not be written", "is the disk full? --out DIR writes to another folder")
        return f"watching failed: {text.splitlines()[-1]}", f"report it with {path}"
    if not out.is_dir():
        return "the folder of the recordings is gone", "use --out DIR with a folder that the script leaves alone"
    if not recordings and exit_code:
        return (f"the script {describe_exit(exit_code)} before it imported torch", AS_WITHOUT)
    if not recordings:
        return (
            "the script never imported torch",
            "is torch installed there? torchtriage run PYTHON script.py uses another interpreter",
        )
    looped = [recording for recording in recordings if recording.facts.get("loop")]
    reason, hint = _why_no_step(recordings, looped)
    if not any(recording.measured.get("ended") for recording in looped) and (failed := failed_early(exit_code)):
        return f"{failed[0]}: {reason}", f"{failed[1]}; if it is meant to, {hint}"
    return reason, hint


def _why_no_step(recordings: list[Recording], looped: list[Recording]) -> tuple[str, str]:
    """Return why processes that imported torch have no recording, and what to try; ``looped`` : those with a loop."""
    longer = "let it run longer: timing and recording take about 40 steps"
    if not looped:
        steps = sum(int(recording.facts.get("n_optimizer_steps") or 0) for recording in recordings)
        if steps:
            return f"the script ended after {steps} optimizer step{'s' * (steps > 1)}", longer
        return (
            "no loop was found: no optimizer stepped, no module was called again, and no"
            " DataLoader was iterated for long",
            "mark the steps yourself: with torchtriage.profile(…) as p, p.step() in the loop",
        )
    ended = looped[0].measured.get("ended")
    if ended == BUSY:
        return (f"nothing was recorded: {ended}", "remove its profiler, or run torchtriage analyze on what it writes")
    if failures := looped[0].measured.get("failures"):
        return f"nothing was recorded: {next(iter(failures))}", "report it, with torch's version"
    if ended and ended not in ("exit", "complete"):
        return f"nothing was recorded: {ended}", longer
    return "the loop was over before any step was recorded", longer
