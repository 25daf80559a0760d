"""What has been measured so far, as it came from the sessions, and what it says about times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.bench.plan import Plan
from torchtriage.bench.result import Setting
from torchtriage.host import HostUse
from torchtriage.stats.steady import Steady, find_steady

__all__ = ["Measured", "Session"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Session:
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
        return np.array([np.median(one) for one in self.blocks])

    @property
    def values(self) -> Floats:
        """Return the steady times of the turns; all of them where they never became steady."""
        begin = self.steady.begin
        skip = 0 if begin is None else max(begin - len(self.warm_up_ns), 0)
        return np.concatenate(self.blocks)[skip:]


@dataclass
class Measured:
    """Raw answers of all sessions: ``cold[key]``, and ``rounds[number][key]``."""

    plan: Plan
    opened: dict[str, Any]
    cold: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounds: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    interleaved: bool = True
    _sessions: dict[tuple[int, str], Session] = field(default_factory=dict, repr=False)

    def failure(self, setting: Setting) -> dict[str, Any] | None:
        """Return what ended a setting, None where it is alive.

        Answers that could not be compared are no end.
        """
        for one in (self.cold.get(setting.key, {}), *self._raw(setting)):
            found: dict[str, Any] | None = one.get("failure")
            if found is not None and found["stage"] != "numerics":
                return found
        return None

    def is_alive(self, setting: Setting) -> bool:
        """Whether the setting can still be measured."""
        return self.failure(setting) is None

    def _raw(self, setting: Setting) -> Iterable[dict[str, Any]]:
        return (one[setting.key] for one in self.rounds.values() if setting.key in one)

    def raw(self, setting: Setting) -> list[dict[str, Any]]:
        """Return the answers of each whole warm session."""
        return [one for one in self._raw(setting) if "failure" not in one]

    def session(self, setting: Setting, number: int) -> Session | None:
        """Return the session of a round; None where there is none, or not to its end."""
        raw = self.rounds.get(number, {}).get(setting.key)
        if raw is None or "failure" in raw or not raw["blocks"]:
            return None
        known = self._sessions.get((number, setting.key))
        if known is None:
            known = Session(
                np.array([raw["first"]["ns"], *raw["warm_up"]], dtype=float),
                tuple(np.array(block["ns"], dtype=float) for block in raw["blocks"]),
            )
            self._sessions[number, setting.key] = known
        return known

    def sessions(self, setting: Setting) -> list[Session]:
        """Return all whole warm sessions, in order of the rounds."""
        found = (self.session(setting, number) for number in sorted(self.rounds))
        return [one for one in found if one is not None]

    def ratios(self, one: Setting, other: Setting, q: float = 0.5) -> Floats:
        """Return ``other`` over ``one`` for each round that has both; float64[rounds].

        Medians are compared turn by turn, where both took turns in one round: what disturbed the
        machine for longer than a turn cancels. Other quantiles need a whole session.
        """
        found = []
        for number in sorted(self.rounds):
            a, b = self.session(one, number), self.session(other, number)
            if a is None or b is None:
                continue
            in_turns = (one.batch_size, one.dtype) == (other.batch_size, other.dtype)
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
            queued = [(one["queued_ns"], len(one["ns"])) for one in blocks if "queued_ns" in one]
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
                others_s = max(sum(one["busy_s"] for one in hosts) - own_s, 0.0)
                stolen_s = max(sum(one["stolen_s"] for one in hosts), 0.0)
                found.append(
                    HostUse(
                        sum(one["wall_s"] for one in hosts),
                        own_s,
                        others_s,
                        stolen_s,
                        hosts[0]["n_cores"],
                    )
                )
        return found
