"""Which allocator setting would have reserved less, by replaying what was recorded.

The simulated allocator first has to give the recorded reserved curve again, under the recorded
settings; only then are others tried on it. A refusal says what the recording lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from torchtriage.core.finding import Finding, Place, Severity
from torchtriage.core.names import word_list
from torchtriage.core.units import format_bytes, format_count, format_share
from torchtriage.memory.allocator import AllocatorRecording, Replayed, ReplayError, Settings, record
from torchtriage.memory.allocator import replay as replay_under
from torchtriage.memory.allocator.settings import MIB
from torchtriage.memory.findings.allocator_settings import CODE as ALLOCATOR_SETTINGS
from torchtriage.memory.findings.allocator_settings import FIX
from torchtriage.memory.snapshot.snapshot import Snapshot

CODE = ALLOCATOR_SETTINGS.code
MAX_ERROR = 0.02
"""Of the recorded peak: a replay farther off than this advises nothing."""
MIN_GAIN = 0.03
"""Of the recorded peak: what a setting must save to be worth a word."""
MIN_GAIN_BYTES = 40 * MIB
"""Two large segments: below this, one segment more or less is chance."""
_NEAR_BEST = 0.01
"""Settings this close to the best one are as good; the first tried, the simplest, is named."""
_CALLS_TO_TIME = 5

_TRIED = word_list("""
    expandable_segments:True max_split_size_mb:512 max_split_size_mb:256 max_split_size_mb:128 max_split_size_mb:64
    roundup_power2_divisions:16 roundup_power2_divisions:8 roundup_power2_divisions:4 roundup_power2_divisions:2
    roundup_power2_divisions:[256:1,512:2,1024:4,>:8] expandable_segments:True,roundup_power2_divisions:8
    max_split_size_mb:256,roundup_power2_divisions:8
""")
_WITH_LIMIT = (
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:256,garbage_collection_threshold:0.8",
)


@dataclass(frozen=True)
class SettingOutcome:
    """What one setting would have done with the recorded requests.

    ``saving_bytes`` : of the peak reserved, negative when more is reserved; ``saving_share`` : of
    the recorded peak. ``n_calls`` : calls that take memory from the device or give it back;
    ``extra_calls`` : against the recorded setting, replayed alike. ``extra_ms`` : what these cost
    at most, None where the recording has no time for such calls. ``n_fitted`` : recorded
    out-of-memory errors that had room, and for one more of their size. ``n_ooms`` : requests without room that had it.
    """

    conf: str
    peak_bytes: int
    saving_bytes: int
    saving_share: float
    n_calls: int
    extra_calls: int
    extra_ms: float | None
    n_fitted: int
    n_ooms: int


@dataclass(frozen=True)
class Advice:
    """What other settings would have reserved on one device.

    ``error`` : largest distance of the replayed reserved curve to the recorded one, and
    ``start_error`` : of its peak when the blocks in use at the start are allocated anew; both
    shares of the recorded peak, None where refused before. ``same_address`` : share of the
    allocations that got their recorded address. ``floor_bytes`` : the most bytes requested at one
    time; no setting can reserve less. ``best`` : None where nothing is worth it. ``not_tried`` :
    settings left out, with the reason.
    """

    device: int
    recorded_conf: str
    n_events: int
    peak_bytes: int
    floor_bytes: int
    error: float | None = None
    start_error: float | None = None
    same_address: float | None = None
    outcomes: tuple[SettingOutcome, ...] = ()
    best: SettingOutcome | None = None
    n_ooms: int = 0
    refusal: str = ""
    how_to_record: str = ""
    not_tried: tuple[str, ...] = ()


def advise(
    snapshot: Snapshot,
    device: int | None = None,
    *,
    limit_bytes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Return what other allocator settings would have reserved.

    Parameters
    ----------
    device : int, optional
        By default the one with the longest history.
    limit_bytes : int, optional
        What the process may reserve on it, where known; by default what the recording shows.
    progress : callable, optional
        Gets replays done and replays in all.
    """
    if device is None:
        rows = np.bincount(snapshot.history.device, minlength=1)
        device = int(np.argmax(rows)) if rows.any() else next(iter(snapshot.devices), 0)
    n_events = int((snapshot.history.device == device).sum())
    conf = Settings.recorded(snapshot.settings).conf
    advice = Advice(device, conf, n_events, snapshot.reserved_bytes(device), 0)
    try:
        recording = record(snapshot, device)
    except ReplayError as refusal:
        return replace(advice, refusal=refusal.message, how_to_record=refusal.hint)
    if limit_bytes is not None and limit_bytes < recording.peak_bytes:
        limit_bytes = None  # it cannot be: more than that was reserved
    limit = limit_bytes if limit_bytes is not None else recording.limit_bytes
    settings = recording.settings
    n_ooms = int((recording.op & 7 == 5).sum())
    advice = replace(
        advice,
        peak_bytes=recording.peak_bytes,
        floor_bytes=int(recording.allocated_bytes.max(initial=recording.start_held_bytes)),
        n_ooms=n_ooms,
    )
    if settings.gc_threshold and limit_bytes is None:
        return replace(
            advice,
            refusal="garbage_collection_threshold was set: when it collects depends on"
            " set_per_process_memory_fraction and the device's memory, which no snapshot holds",
            how_to_record="record without garbage_collection_threshold",
        )
    as_it_was = replay_under(recording, limit_bytes=limit)
    error = as_it_was.error(recording)
    if error > MAX_ERROR and recording.n_held_back:
        recording = record(snapshot, recording.device, as_asked=True)
        as_it_was = replay_under(recording, limit_bytes=limit)
        error = as_it_was.error(recording)
    advice = replace(advice, error=error, same_address=as_it_was.same_address)
    if error > MAX_ERROR:
        return replace(
            advice,
            refusal=f"the replayed reserved curve is {format_share(error)} of the peak away from"
            f" the recorded one, more than {format_share(MAX_ERROR)}",
            how_to_record="record from the start of the program, with one setting throughout",
        )
    base = replay_under(recording, settings, limit_bytes=limit)
    start_error = abs(base.peak_bytes - recording.peak_bytes) / max(recording.peak_bytes, 1)
    advice = replace(advice, start_error=start_error)
    if start_error > MAX_ERROR:
        return replace(
            advice,
            refusal=f"{format_bytes(recording.start_bytes)} were reserved before the recording"
            f" began, {format_bytes(recording.start_held_bytes)} of it in use; how that came about"
            " is not recorded, and without it the same requests reserve"
            f" {format_bytes(base.peak_bytes)}, not {format_bytes(recording.peak_bytes)}",
            how_to_record="call torch.cuda.memory._record_memory_history() before the model is"
            " built, or torch.cuda.empty_cache() just before recording",
        )
    confs, not_tried = _candidates(snapshot, settings, limit_known=limit_bytes or n_ooms)
    advice = replace(advice, not_tried=not_tried)
    if not n_ooms and advice.peak_bytes - advice.floor_bytes < _worthwhile(advice.peak_bytes):
        return advice  # no setting can save more than what was not requested
    outcomes = []
    progress = progress or (lambda _done, _n: None)
    for index, conf in enumerate(confs):
        progress(index, len(confs))
        replayed = replay_under(recording, _combined(settings, conf), limit_bytes=limit)
        outcomes.append(_outcome(replayed, base, recording))
    progress(len(confs), len(confs))
    return replace(advice, outcomes=tuple(outcomes), best=_best(outcomes, advice))


def _candidates(snapshot: Snapshot, settings: Settings, *, limit_known: object) -> tuple[list[str], tuple[str, ...]]:
    """Return the settings to try on top of the recorded ones, and those left out with a reason."""
    confs, left_out = list(_TRIED), []
    if limit_known:
        confs += _WITH_LIMIT
    else:
        left_out.append("garbage_collection_threshold: the snapshot does not record how much the process may use")
    if any(re.match(r"[A-Za-z]:[\\/]", file) for file in snapshot.stacks.files):
        confs = [conf for conf in confs if "expandable" not in conf]
        left_out.append("expandable_segments: PyTorch does not support it on Windows")
    if settings.conf:
        confs.insert(0, "")  # PyTorch's own default
    first: dict[Settings, str] = {settings: ""}
    for conf in confs:
        first.setdefault(_combined(settings, conf), conf)
    del first[settings]
    return list(first.values()), tuple(left_out)


def _combined(settings: Settings, conf: str) -> Settings:
    if not conf:
        return Settings(others=settings.others)
    return Settings.parse(f"{settings.conf},{conf}" if settings.conf else conf)


def _outcome(replayed: Replayed, base: Replayed, recording: AllocatorRecording) -> SettingOutcome:
    saving = base.peak_bytes - replayed.peak_bytes
    n_calls = replayed.n_mallocs + replayed.n_frees
    extra = n_calls - base.n_mallocs - base.n_frees
    extra_ms: float | None = None
    alike = replayed.settings.expandable == recording.settings.expandable
    if extra <= 0:
        extra_ms = 0.0
    elif alike and len(recording.malloc_us) >= _CALLS_TO_TIME:
        extra_ms = round(extra * float(np.median(recording.malloc_us)) / 1e3, 3)
    return SettingOutcome(
        conf=replayed.settings.conf,
        peak_bytes=replayed.peak_bytes,
        saving_bytes=saving,
        saving_share=saving / max(recording.peak_bytes, 1),
        n_calls=n_calls,
        extra_calls=extra,
        extra_ms=extra_ms,
        n_fitted=replayed.n_fitted,
        n_ooms=max(replayed.n_ooms - base.n_ooms, 0),
    )


def _worthwhile(peak_bytes: int) -> float:
    return max(MIN_GAIN * peak_bytes, MIN_GAIN_BYTES)


def _best(outcomes: list[SettingOutcome], advice: Advice) -> SettingOutcome | None:
    safe = [outcome for outcome in outcomes if not outcome.n_ooms]
    if not safe:
        return None
    most_fitted = max(safe, key=lambda outcome: outcome.n_fitted)
    if most_fitted.n_fitted:
        return most_fitted
    if advice.n_ooms:
        return None  # what is reserved in less is no help where it still runs out
    most = max(outcome.saving_bytes for outcome in safe)
    near = most - _NEAR_BEST * advice.peak_bytes
    first = next(outcome for outcome in safe if outcome.saving_bytes >= near)
    doubt = ((advice.error or 0.0) + (advice.start_error or 0.0)) * advice.peak_bytes
    return first if first.saving_bytes - doubt >= _worthwhile(advice.peak_bytes) else None


def finding(advice: Advice) -> Finding | None:
    """Return the advice as a finding, None where nothing is worth it."""
    best = advice.best
    if best is None:
        return None
    conf = _words(best.conf)
    saves = (
        f"the same requests reserve {format_bytes(best.saving_bytes)} less at the peak,"
        f" {format_share(best.saving_share)} of the {format_bytes(advice.peak_bytes)} reserved"
    )
    if best.n_fitted:
        saves = (
            f"{best.n_fitted} of {format_count(advice.n_ooms, 'out-of-memory error')} had room, and for one"
            f" more request of that size, with {format_bytes(best.peak_bytes)} reserved for both"
        )
    severity: Severity = (
        "high" if best.n_fitted or best.saving_share >= 0.2 else "medium" if best.saving_share >= 0.1 else "low"
    )
    code = (
        "# in the environment, before the process starts;\n"
        "# before torch 2.9: PYTORCH_CUDA_ALLOC_CONF\n"
        f"PYTORCH_ALLOC_CONF={best.conf}"
    )
    if not best.conf:
        code = "unset PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF"
    if "garbage_collection" in best.conf:
        code += "\n# takes effect after torch.cuda.set_per_process_memory_fraction(...)"
    return ALLOCATOR_SETTINGS.finding(
        severity=severity,
        certainty="likely",
        message=f"replayed with {conf}, {saves}",
        place=Place(lane=f"device {advice.device}"),
        evidence={
            "saving_bytes": best.saving_bytes,
            "saving_share": best.saving_share,
            "peak_reserved_bytes": advice.peak_bytes,
            "peak_reserved_after_bytes": best.peak_bytes,
            "peak_requested_bytes": advice.floor_bytes,
            "extra_device_calls": best.extra_calls,
            "extra_ms": best.extra_ms,
            "recorded_conf": advice.recorded_conf,
            "conf": best.conf,
            "replay_error": advice.error,
            "same_address": advice.same_address,
            "n_events": advice.n_events,
        },
        fix=replace(FIX, text=f"Start the process with {conf}.", code=code),
        n_events=advice.n_events,
    )


def _words(conf: str) -> str:
    if Settings.parse(conf) != Settings():
        return conf
    return f"PyTorch's default, keeping {conf}" if conf else "PyTorch's default (unset)"


def sentence(advice: Advice) -> str:
    """Return the advice as one sentence; empty where it was refused."""
    if advice.refusal:
        return ""
    best = finding(advice)
    if best is not None:
        return best.message[:1].upper() + best.message[1:] + "."
    worth = f"{format_share(MIN_GAIN)} of the peak reserved and {format_bytes(MIN_GAIN_BYTES)}"
    if not advice.outcomes:
        return (
            f"No allocator setting can save {worth}:"
            f" {format_bytes(advice.floor_bytes)} of {format_bytes(advice.peak_bytes)} were"
            " requested at once."
        )
    replayed = f"Of {format_count(len(advice.outcomes), 'allocator setting')} replayed, none"
    if advice.n_ooms:
        return f"{replayed} has room for the request that failed and one more of its size."
    most = max(advice.outcomes, key=lambda outcome: outcome.saving_bytes)
    if most.saving_bytes <= 0:
        return f"{replayed} reserves less at the peak."
    return (
        f"{replayed} saves {worth}; {_words(most.conf)} comes nearest with"
        f" {format_bytes(most.saving_bytes)}, {format_share(most.saving_share)}."
    )
