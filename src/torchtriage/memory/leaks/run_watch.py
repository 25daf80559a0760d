"""The leak watch of ``torchtriage run --memory``: beside the recorder, until the script ends.

While the recorder times and records, memory is only read, so that neither disturbs the other; then
the watch looks for what grows. Its report is written every few seconds, so a kill loses no more.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import perf_counter

from torchtriage.memory.leaks.leak_watch import Watch

WRITE_S = 3.0
"""Between two writes of the report at least ..."""
WRITE_SHARE = 0.0025
"""... and so seldom that writing takes no more of the loop's time than this."""
SNAPSHOT_STEPS = 10
"""Of CUDA's allocator: growth is analysed over seven similar steps."""


class LeakWatch:
    """Watches one loop and writes into one folder."""

    def __init__(self, out_dir: Path) -> None:
        # no warning in the script, and no thread in its children: unlike memory.watch()
        self._watch = Watch(out_dir=out_dir, on_alarm=lambda _leak: None)
        self._watch.looking = False
        self._write_s = 0.0

    def step(self, *, recorded: bool) -> None:
        """Note the end of a step; looks begin once all recordings of the loop are complete."""
        watch = self._watch
        if recorded and not watch.looking:
            watch.looking = True
            watch.record_history(SNAPSHOT_STEPS)
        watch.step()
        now = perf_counter()
        if now >= self._write_s:
            with suppress(OSError):  # a full disk, or a folder that the script has removed
                watch.save()
            self._write_s = now + max(WRITE_S, (perf_counter() - now) / WRITE_SHARE)

    def close(self) -> None:
        """Stop, and write the report; a second call does nothing."""
        self._watch.close()
