"""In the script's process: a recording that makes it grow too much is ended."""

from __future__ import annotations

import _thread
import functools
from collections.abc import Callable

from torchtriage.core.record.main_thread import in_main_thread
from torchtriage.core.record.recorder import Recorder

MOST_GROWTH = 256 << 20
"""A recording is thrown away that makes the process larger than it ever was by more than this and by more than a
quarter, or by eight times this."""


class GrowthGuard:
    """Told the resident bytes by the sampler, again and again; ``recorder`` returns what may be recording."""

    def __init__(self, recorder: Callable[[], Recorder | None]) -> None:
        self._recorder = recorder
        self._most_resident, self._giving_up = 0, False

    def __call__(self, resident: int) -> None:
        """Stop a recording that makes the process grow."""
        recorder = self._recorder()
        if recorder is None or not recorder.capturing:
            self._most_resident = max(self._most_resident, resident)
            return
        grown = resident - self._most_resident
        most = min(max(MOST_GROWTH, self._most_resident // 4), 8 * MOST_GROWTH)
        if grown > most // 2:
            recorder.cut_short()
            if grown > most and not self._giving_up:
                self._giving_up = True
                _thread.start_new_thread(self._give_up, (recorder,))  # the sampler goes on

    def _give_up(self, recorder: Recorder) -> None:
        in_main_thread(
            functools.partial(recorder.give_up, "recording made the process grow by more than 256 MB and a quarter")
        )
        self._giving_up = False
