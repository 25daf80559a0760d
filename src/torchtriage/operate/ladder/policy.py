"""When to go down the ladder and when to come back: plain values, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torchtriage.core.errors import UsageError
from torchtriage.core.units import format_share

N_NEWEST = 200  # calls that are looked at, of the current mode and of the better one on trial


@dataclass(frozen=True)
class Policy:
    """When to switch.

    ``deadline_s`` : of one call; without one only alarms count.
    ``enter``, ``leave`` : share of calls beyond the deadline, or failed, above which a mode is left
    downwards, and at or below which a better one is come back to. The gap between them is the hysteresis.
    ``least_calls`` : of the newest calls that are looked at, before their share says anything.
    ``dwell_s`` : least time between two switches, over all workers together.
    ``recover_s`` : how long all must be well before the better mode is tried; doubles when it fails, up to
    ``longest_s``, for all workers together.
    ``ramp`` : shares of calls that the better mode answers on the way back, growing to 1. Each is left upwards after
    a quarter of a dwell, if of ``probe_calls`` or more of this worker, of five times as many at the end, at most
    ``leave`` were late or failed.
    ``budget`` : how many ladders of one store may be below their first mode at the same time.
    ``timeout_s`` : a call that takes longer is given up and answered by the next mode. Each call gets a
    thread of its own, where ``torch.no_grad()`` around the ladder does not reach: put it into the modes.
    Raises ``UsageError``: values that cannot be meant.
    """

    deadline_s: float | None = None
    enter: float = 0.05
    leave: float = 0.01
    least_calls: int = 20
    dwell_s: float = 30.0
    recover_s: float = 30.0
    longest_s: float = 600.0
    ramp: tuple[float, ...] = (0.05, 0.25, 0.5, 1.0)
    probe_calls: int = 20
    budget: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for what in ("deadline_s", "timeout_s", "dwell_s", "recover_s", "longest_s"):
            value = getattr(self, what)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"expected {what} above zero, found {value}")
        if self.recover_s > self.longest_s:
            raise UsageError(
                f"expected recover_s up to longest_s, found {self.recover_s:g} and {self.longest_s:g}",
                hint="longest_s bounds the wait, which doubles with each failed trial",
            )
        if not 0 <= self.leave < self.enter <= 1:
            raise UsageError(
                f"expected 0 <= leave < enter <= 1, found {self.leave} and {self.enter}",
                hint="the gap between them keeps the ladder from flapping",
            )
        growing = all(a < b for a, b in zip((0.0, *self.ramp), self.ramp, strict=False))
        if not self.ramp or not growing or self.ramp[-1] != 1:
            raise UsageError(f"expected a ramp that grows to 1, found {self.ramp}")
        if min(self.least_calls, self.probe_calls) < 1 or (self.budget or 0) < 0:
            raise UsageError("expected least_calls and probe_calls of 1 or more, budget of 0 or more")


class LadderState(NamedTuple):
    """What a worker sees.

    ``alarm`` : why the mode must be left; ``relative`` : it only says that calls differ from before. ``n_calls``,
    ``n_late`` : of the newest calls in this mode. ``well_s`` : since when nothing was bad. ``wait_s`` : before the
    better mode is tried. ``share`` : of calls that it answers, since ``step_s``; ``n_probes``, ``n_probes_late`` : of
    those of this worker.
    """

    level: int
    alarm: str
    relative: bool
    n_calls: int
    n_late: int
    well_s: float
    wait_s: float
    share: float
    step_s: float
    n_probes: int
    n_probes_late: int


class LadderDecision(NamedTuple):
    """What to do, and why; ``share`` : of calls to the better mode, from now on."""

    do: Literal["stay", "down", "up", "probe", "give up"]
    why: str = ""
    share: float = 0.0


def decide(policy: Policy, view: LadderState) -> LadderDecision:
    """Return what to do now; whether the dwell and the budget let it is the store's to say."""
    if bad := trouble(policy, view):
        return LadderDecision("down", bad)
    if view.level == 0:
        return LadderDecision("stay")
    if not view.share:
        if view.well_s < view.wait_s:
            return LadderDecision("stay")
        return LadderDecision("probe", "healthy for long enough", policy.ramp[0])
    n, late = view.n_probes, view.n_probes_late
    text = f"{format_share(late / n)} of {n} trial calls were late or failed" if n else ""
    if late > policy.enter * max(n, policy.probe_calls) or (n >= N_NEWEST and late > policy.leave * n):
        return LadderDecision("give up", text)
    # between the two more calls decide; the more there are the more are asked for, as few say little of rare lateness
    if n < policy.probe_calls * max(1, 5 * view.share) or late > policy.leave * n or view.step_s < policy.dwell_s / 4:
        return LadderDecision("stay")
    larger = next((share for share in policy.ramp if share > view.share), 0.0)
    return LadderDecision("probe" if larger else "up", text, larger)


def trouble(policy: Policy, view: LadderState) -> str:
    """Return why the mode should be left; empty where it is well."""
    known = view.n_calls >= policy.least_calls
    met = policy.deadline_s is not None and known and view.n_late <= policy.leave * view.n_calls
    if view.alarm and not (view.relative and met):
        return view.alarm
    if known and view.n_late > policy.enter * view.n_calls:
        late = format_share(view.n_late / view.n_calls)
        return f"{late} of the newest {view.n_calls} calls were late or failed"
    return ""
