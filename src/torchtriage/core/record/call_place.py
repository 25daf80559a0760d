"""Which call of a module begins a step, where an iteration calls it at several places."""

from __future__ import annotations

from types import FrameType

from torchtriage.core.record.stacks import user_calls

N_FRAMES = 2
"""The call and what called its function: a helper may be called twice."""
MOVED_ON = 5
"""So many calls elsewhere, without one at the place between, and the loop has moved there."""


class CallPlace:
    """The place at which a step begins: an encoder that runs for a prompt, and then for an empty one, does one step."""

    def __init__(self) -> None:
        self._place: tuple[tuple[str, int], ...] = ()
        self._elsewhere = MOVED_ON

    def begins_step(self, frame: FrameType | None) -> bool:
        """Return whether the call that a frame lies in is the one that begins a step."""
        place = user_calls(frame, N_FRAMES)
        if place != self._place:
            self._elsewhere += 1
            if self._elsewhere < MOVED_ON:
                return False
            self._place = place
        self._elsewhere = 0
        return True
