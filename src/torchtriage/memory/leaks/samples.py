"""Memory by step, as a watch keeps it: columns of numbers, bounded for any length of the loop."""

from __future__ import annotations

from array import array

MAX_SAMPLES = 2048


class Samples:
    """Rows of whole numbers, the step first; where there are too many, every second one goes.

    Arrays, not tuples: a watch that makes objects at each sample could not tell that the program makes none.
    """

    def __init__(self, n_columns: int, every_steps: int) -> None:
        self.columns = [array("q") for _ in range(n_columns)]
        self.every_steps = every_steps

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0])

    def due(self, step: int) -> bool:
        """Return whether the next row is that of this step; the first step has one too."""
        return step == 1 or step % self.every_steps == 0

    def add(self, *row: int) -> None:
        """Note a row."""
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)
        if len(self) > MAX_SAMPLES:
            self.columns = [column[::2] for column in self.columns]
            self.every_steps *= 2
