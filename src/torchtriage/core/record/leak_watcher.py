"""What the loop finder asks of a leak watch, which knows more than this package may import."""

from __future__ import annotations

from typing import Protocol


class LeakWatcher(Protocol):
    """What looks for leaks beside the recorder."""

    def step(self, *, recorded: bool) -> None:
        """Note the end of a step; ``recorded`` once all recordings are complete."""

    def close(self) -> None:
        """Stop and write its report."""
