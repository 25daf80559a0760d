"""A ladder over what was recorded: which modes it would have taken, when and why.

The recorded requests are the full mode's; what another mode would have taken of one is assumed, as
a share of it. The ladder itself is the one that serves, on the recording's clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.operate.ladder.ladder import Ladder, Mode
from torchtriage.operate.ladder.policy import Policy
from torchtriage.operate.ladder.result import LadderEntry

LOOK_S = 0.05  # how often a ladder that serves looks
LOOKS = 200  # looks in a stretch without calls, however long it is
ALARM_S = 30.0  # how long an alarm keeps a ladder down after what raised it has ended


@dataclass(frozen=True)
class AssumedMode:
    """A mode, and what it takes of a call as a share of what the full one took."""

    name: str
    times: float = 1.0


@dataclass(frozen=True)
class RecordedCall:
    """One recorded call. ``took_s`` : None for one that failed. ``alarm`` : what alarms then."""

    at_s: float
    took_s: float | None
    alarm: str = ""


@dataclass(frozen=True)
class LadderChange:
    """One line of what the ladder did, before the recorded row ``row``."""

    row: int
    at_s: float
    kind: str
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class LadderReplay:
    """What a ladder would have done over one stream.

    ``degraded_s`` : of ``seconds``, below the first mode. ``n_late`` : calls beyond the deadline or
    failed, ``n_late_without`` had all been answered by the full mode. ``calls`` : by mode.
    ``faults``, where labels are known: of each, the row it was answered at by a lower mode (None:
    not), and ``outside_s`` : degraded while none lasted.
    """

    modes: tuple[AssumedMode, ...]
    log: tuple[LadderChange, ...]
    n_switches: int
    seconds: float
    degraded_s: float
    calls: dict[str, int]
    n_late: int
    n_late_without: int
    n_fallback: int
    faults: tuple[int | None, ...] = ()
    outside_s: float | None = None


def read_modes(text: str) -> tuple[AssumedMode, ...]:
    """Return the modes of ``full,bf16=0.6,lite=0.2``; ``UsageError`` for what cannot be read so."""
    modes = []
    for part in text.split(","):
        name, _, times = part.strip().partition("=")
        try:
            share = float(times or 1.0)
        except ValueError:
            share = math.nan
        if not name or not 0 < share < math.inf:
            raise UsageError(
                f"expected modes such as full,bf16=0.6,lite=0.2, found {part.strip()!r}",
                hint="the number is the mode's time as a share of the first mode's",
            )
        modes.append(AssumedMode(name, share))
    if len(modes) < 2 or len({mode.name for mode in modes}) < len(modes):
        raise UsageError(
            f"expected two modes or more, each with a name of its own, found {text!r}", hint="full,lite=0.2"
        )
    return tuple(modes)


class _Recorded(Ladder):
    # a ladder whose calls took what was recorded
    times: tuple[float, ...]
    n_beyond = 0
    level_of_call: int | None = None

    @property
    def below(self) -> bool:
        return self._shared.level > 0

    def _try(self, level: int, seen: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        took_s: float | None = args[0]
        deadline_s = self.policy.deadline_s
        late = took_s is None or (deadline_s is not None and took_s * self.times[level] > deadline_s)
        self._rungs[level].n_calls += 1
        if seen is not None:
            seen.append(late)
        if took_s is not None:
            self.n_beyond += late
            self.level_of_call = level
        return took_s is not None, None


def replay_ladder(
    calls: Sequence[RecordedCall],
    modes: Sequence[AssumedMode],
    policy: Policy,
    faults: Sequence[tuple[int, int]] | None = None,
) -> LadderReplay:
    """Return what a ladder would have done.

    ``calls`` : in their order; a clock that goes back stands still. ``faults`` : rows
    ``[start, end)`` where something is known to have been wrong.
    """
    now_s = calls[0].at_s if calls else 0.0
    row, alarm, alarm_s = 0, "", -math.inf
    log: list[LadderChange] = []

    def tell(entry: LadderEntry) -> None:
        log.append(LadderChange(row, entry.at_s, entry.kind, entry.before, entry.after, entry.why))

    ladder = _Recorded(
        "recorded",
        [Mode(mode.name, lambda *_: None) for mode in modes],
        policy,
        alarm=lambda: alarm if now_s - alarm_s < ALARM_S else "",
        dry_run=False,
        log=tell,
        clock=lambda: now_s,
        wall=lambda: now_s,
    )
    ladder.times = tuple(mode.times for mode in modes)
    begun_s = looked_s = now_s
    degraded_s = outside_s = 0.0
    n_late = n_without = 0
    answered: list[int | None] = [None] * len(faults or ())
    marks = {at for start, end in faults or () for at in range(max(start, 0), min(end, len(calls)))}

    def advance(to_s: float) -> None:
        nonlocal now_s, degraded_s, outside_s
        if ladder.below:
            degraded_s += to_s - now_s
            outside_s += 0.0 if row in marks else to_s - now_s
        now_s = to_s

    for row, call in enumerate(calls):
        at_s = max(call.at_s, now_s) if math.isfinite(call.at_s) else now_s
        step_s = max(LOOK_S, (at_s - looked_s) / LOOKS)
        while looked_s < looked_s + step_s <= at_s:  # a clock of other units may be too large for a step to count
            looked_s += step_s
            advance(max(looked_s, now_s))
            ladder.look()
        advance(at_s)
        if call.alarm:
            alarm, alarm_s = call.alarm, now_s
        before, ladder.level_of_call = ladder.n_beyond, None
        ladder(call.took_s)
        failed = call.took_s is None
        n_late += failed or ladder.n_beyond > before
        n_without += failed or (policy.deadline_s is not None and (call.took_s or 0.0) > policy.deadline_s)
        if ladder.level_of_call and row in marks:
            for at, (start, end) in enumerate(faults or ()):
                if start <= row < end and answered[at] is None:
                    answered[at] = row
    status = ladder.status()
    return LadderReplay(
        tuple(modes),
        tuple(log),
        sum(change.kind == "switch" for change in log),
        now_s - begun_s,
        degraded_s,
        {mode.name: mode.n_calls for mode in status.modes},
        n_late,
        n_without,
        status.n_fallback,
        tuple(answered),
        None if faults is None else outside_s,
    )
