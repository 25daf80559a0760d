"""What has been measured so far, as it came from the sessions, and what it says about times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.machine import HostUse
from torchtriage.core.stats.steady_state import Steady, find_steady
from torchtriage.measure.bench.plan import BenchPlan
from torchtriage.measure.bench.result import Setting


@dataclass(frozen=True)
class WarmSession:
    """One warm session: its times in nanoseconds. ``blocks`` : of its turns, warm-up left out."""

    warm_up_ns: Floats
    blocks: tuple[Floats, ...]

    @cached_property
    def steady(self) -> Steady:
        """Where the steady state begins, counted from the first call."""
        steady = find_steady(self.warm_up_ns)
        if steady.begin is not None:
            # turns cannot unmake it: what moves them is what moves the other settings' turns
            return steady
        return find_steady(np.concatenate([self.warm_up_ns, *self.blocks]))

    @cached_property
    def turns(self) -> Floats:
        """The median of each turn."""
        return np.array([np.median(block) for block in self.blocks])

    @property
    def values(self) -> Floats:
        """Return the steady times of the turns; all of them where they never became steady."""
        begin = self.steady.begin
        skip = 0 if begin is None else max(begin - len(self.warm_up_ns), 0)
        return np.concatenate(self.blocks)[skip:]


@dataclass
class Measurements:
    """Raw answers of all sessions: ``cold[key]``, and ``rounds[number][key]``."""

    plan: BenchPlan
    opened: dict[str, Any]
    cold: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounds: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    interleaved: bool = True
    _sessions: dict[tuple[int, str], WarmSession] = field(default_factory=dict, repr=False)

    def failure(self, setting: Setting) -> dict[str, Any] | None:
        """Return what ended a setting, None where it is alive.

        Answers that could not be compared are no end.
        """
        for raw in (self.cold.get(setting.key, {}), *self._raw(setting)):
            found: dict[str, Any] | None = raw.get("failure")
            if found is not None and found["stage"] != "numerics":
                return found
        return None

    def is_alive(self, setting: Setting) -> bool:
        """Whether the setting can still be measured."""
        return self.failure(setting) is None

    def _raw(self, setting: Setting) -> Iterable[dict[str, Any]]:
        return (sessions[setting.key] for sessions in self.rounds.values() if setting.key in sessions)

    def raw(self, setting: Setting) -> list[dict[str, Any]]:
        """Return the answers of each whole warm session."""
        return [raw for raw in self._raw(setting) if "failure" not in raw]

    def session(self, setting: Setting, number: int) -> WarmSession | None:
        """Return the session of a round; None where there is none, or not to its end."""
        raw = self.rounds.get(number, {}).get(setting.key)
        if raw is None or "failure" in raw or not raw["blocks"]:
            return None
        known = self._sessions.get((number, setting.key))
        if known is None:
            known = WarmSession(
                np.array([raw["first"]["ns"], *raw["warm_up"]], dtype=float),
                tuple(np.array(block["ns"], dtype=float) for block in raw["blocks"]),
            )
            self._sessions[number, setting.key] = known
        return known

    def sessions(self, setting: Setting) -> list[WarmSession]:
        """Return all whole warm sessions, in order of the rounds."""
        found = (self.session(setting, number) for number in sorted(self.rounds))
        return [session for session in found if session is not None]

    def ratios(self, first: Setting, other: Setting, q: float = 0.5) -> Floats:
        """Return ``other`` over ``one`` for each round that has both; float64[rounds].

        Medians are compared turn by turn, where both took turns in one round: what disturbed the machine for longer
        than a turn cancels. Other quantiles need a whole session.
        """
        found = []
        for number in sorted(self.rounds):
            a, b = self.session(first, number), self.session(other, number)
            if a is None or b is None:
                continue
            in_turns = (first.batch_size, first.dtype) == (other.batch_size, other.dtype)
            if q == 0.5 and in_turns and len(a.blocks) == len(b.blocks):
                found.append(float(np.median(b.turns / a.turns)))
            else:
                found.append(float(np.quantile(b.values, q) / np.quantile(a.values, q)))
        return np.array(found)

    def step_means(self, setting: Setting) -> dict[int, float]:
        """Return nanoseconds per step by round, back to back: of queued steps on a device."""
        found = {}
        for number in sorted(self.rounds):
            session = self.session(setting, number)
            if session is None:
                continue
            blocks = self.rounds[number][setting.key]["blocks"]
            queued = [(block["queued_ns"], len(block["ns"])) for block in blocks if "queued_ns" in block]
            if queued:
                found[number] = sum(ns for ns, _ in queued) / sum(n for _, n in queued)
            else:
                found[number] = float(session.values.mean())
        return found

    def uses(self) -> list[HostUse]:
        """Return what the machine did while each session had its turns."""
        found = []
        for setting in self.plan.settings:
            for raw in self.raw(setting):
                hosts = [block["host"] for block in raw["blocks"] if "host" in block]
                own_s = sum(block["cpu_ns"] for block in raw["blocks"]) / 1e9
                wall_s = sum(block["wall_ns"] for block in raw["blocks"]) / 1e9
                if len(hosts) < len(raw["blocks"]):
                    found.append(HostUse(wall_s, own_s))
                    continue
                # sums first: the kernel counts in steps of 10 ms
                others_s = max(sum(host["busy_s"] for host in hosts) - own_s, 0.0)
                stolen_s = max(sum(host["stolen_s"] for host in hosts), 0.0)
                found.append(
                    HostUse(sum(host["wall_s"] for host in hosts), own_s, others_s, stolen_s, hosts[0]["n_cores"])
                )
        return found
