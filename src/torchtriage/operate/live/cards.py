"""Ladders and rollouts as the page shows them: where they are, and each time that they moved."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from torchtriage.operate.live.events import PageEvent, Tone, cut
from torchtriage.operate.rollout.summary import percent

if TYPE_CHECKING:
    from torchtriage.operate.ladder import Ladder
    from torchtriage.operate.ladder.result import LadderEntry
    from torchtriage.operate.rollout import Rollout, RolloutState

N_CHANGES = 60


class LadderCard:
    """A ladder: its status, and its log since the last look."""

    def __init__(self, ladder: Ladder) -> None:
        self.name = ladder.name
        self._ladder = ladder
        self._modes = [mode.name for mode in ladder.modes]
        self._last: LadderEntry | None = None
        self._changes: deque[tuple[float, int]] = deque(maxlen=N_CHANGES)
        self._status = ladder.status()

    def look(self, at_s: float) -> list[PageEvent]:
        """Look again; return what happened since."""
        self._status = self._ladder.status()
        level = self._status.level
        if not self._changes or self._changes[-1][1] != level:
            self._changes.append((round(at_s, 3), level))
        entries = list(takewhile(lambda entry: entry is not self._last, reversed(self._ladder.entries)))
        if entries:
            self._last = entries[0]
        return [self._event(entry) for entry in reversed(entries)]

    def state(self) -> dict[str, Any]:
        """Return what the page draws, as JSON's types."""
        status = asdict(self._status)
        for part in (status, *status["modes"]):
            part["why"] = cut(part["why"])
        return status | {"changes": list(self._changes)}

    def _event(self, entry: LadderEntry) -> PageEvent:
        moved = entry.kind in ("switch", "would switch", "hold", "release")
        tone: Tone = "plain"
        if moved and entry.before != entry.after:
            up = self._modes.index(entry.after) < self._modes.index(entry.before)
            tone = "good" if up else "bad"
        text = f"{entry.before} → {entry.after}" if entry.before != entry.after else entry.after
        return PageEvent("ladder", self.name, entry.kind, cut(f"{text}: {entry.why}".rstrip(": ")), tone)


class RolloutCard:
    """A rollout, as far as this process knows it."""

    def __init__(self, rollout: Rollout) -> None:
        self.name = rollout.plan.name
        self._rollout = rollout
        self._state: RolloutState | None = None
        self._changes: deque[tuple[float, float]] = deque(maxlen=N_CHANGES)

    def look(self, at_s: float) -> list[PageEvent]:
        """Look again; return what happened since."""
        before, now = self._state, self._rollout.state
        self._state = now
        if not self._changes or self._changes[-1][1] != now.share:
            self._changes.append((round(at_s, 3), now.share))
        if before is not None and before.epoch == now.epoch:
            return []
        return [self._event(before, now)]

    def state(self) -> dict[str, Any]:
        """Return what the page draws, as JSON's types."""
        plan, state = self._rollout.plan, self._rollout.state
        return {
            "name": self.name,
            "control": cut(plan.control),
            "candidate": cut(plan.candidate),
            "steps": plan.steps,
            "stage": state.stage,
            "share": state.share,
            "status": state.status,
            "waiting": cut(state.waiting),
            "error": cut(self._rollout.error),
            "changes": list(self._changes),
        }

    def _event(self, before: RolloutState | None, now: RolloutState) -> PageEvent:
        name, candidate = self.name, self._rollout.plan.candidate
        if now.status == "rolled back":
            return PageEvent("rollout", name, "rolled back", cut(now.waiting), "bad")
        if now.status == "done":
            return PageEvent("rollout", name, "done", f"all requests go to {candidate}", "good")
        text = f"{percent(now.share)} of requests go to {candidate}"
        if before is None or now.stage <= before.stage:
            return PageEvent("rollout", name, "running", text, "plain")
        return PageEvent("rollout", name, "promoted", text, "good")
