"""A line of progress for anything that takes longer than a second; only on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from torchtriage.core.units import format_bytes

if TYPE_CHECKING:
    from torchtriage.core.trace import Trace

DELAY_S = 1.0
EVERY_S = 0.1
SLOW_S = 5.0
"""A read by the Python engine that took this long says which engine would be faster."""


class _Line:
    """One line of stderr that is written over, and gone in the end."""

    def __init__(self, since_s: float | None) -> None:
        self.begun_s = time.monotonic() if since_s is None else since_s
        self.shown_s: float | None = None

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.begun_s

    def due(self) -> bool:
        recently = self.shown_s is not None and self.passed_s - self.shown_s < EVERY_S
        return self.passed_s >= DELAY_S and not recently

    def show(self, text: str) -> None:
        if self.passed_s >= DELAY_S:
            self.shown_s = self.passed_s
            self._write(text)

    def clear(self) -> None:
        if self.shown_s is not None:
            self._write("")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


@contextmanager
def _line(*, quiet: bool, since_s: float | None = None) -> Iterator[_Line | None]:
    if quiet or not sys.stderr.isatty():
        yield None
        return
    line = _Line(since_s)
    try:
        yield line
    finally:
        line.clear()


@contextmanager
def reading(name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for bytes read that shows a line on stderr after a second."""
    with _line(quiet=quiet) as line:
        if line is None:
            yield None
            return
        label = _label(name)
        took_s = 0.0

        def progress(read_bytes: int, _size_bytes: int) -> None:
            nonlocal took_s
            took_s = line.passed_s
            if line.due():
                rate = format_bytes(read_bytes / took_s)
                line.show(f"reading {label}: {format_bytes(read_bytes)}, {rate}/s")

        yield progress
    if took_s > SLOW_S:
        _name_faster_engine()


@cache
def _name_faster_engine() -> None:
    """Say once that the native engine is missing, to whoever has waited for the other one."""
    from torchtriage.core.engine import READER_VARIABLE, find_engine

    engine = find_engine()
    if engine.library is None and not os.environ.get(READER_VARIABLE):
        sys.stderr.write(f"read by the Python engine, several times slower than the native one: {engine.reason}\n")


def read(path: str, *, quiet: bool) -> Trace:
    """Return a trace, read with a line of progress."""
    from torchtriage.core.trace import read_trace

    with reading(path, quiet=quiet) as progress:
        return read_trace(path, progress=progress)


@contextmanager
def reading_many(
    number: int, *, quiet: bool
) -> Iterator[Callable[[str, int], Callable[[int, int], None] | None] | None]:
    """Yield a callback for each file in turn that says which of how many, as :func:`reading`."""
    with _line(quiet=quiet) as line, ExitStack() as shown:
        if line is None:
            yield None
            return

        def starting(path: str, done: int) -> Callable[[int, int], None] | None:
            shown.close()
            line.show(f"{done} of {number} traces")
            return shown.enter_context(reading(f"{done + 1} of {number}: {path}", quiet=quiet))

        yield starting


@contextmanager
def doing(name: str, *, quiet: bool, since_s: float) -> Iterator[Callable[[str], None] | None]:
    """Yield a callback for what is done now that shows a line on stderr.

    Nothing is shown in the first second after ``since_s``, of ``time.monotonic()``: what was quick
    to read is quick to judge.
    """
    with _line(quiet=quiet, since_s=since_s) as line:
        if line is None:
            yield None
            return
        label = _label(name)
        yield lambda what: line.show(f"analysing {label}: {what}")


@contextmanager
def counting(noun: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a callback for a number of things done that shows a line on stderr after a second."""
    with _line(quiet=quiet) as line:

        def progress(number: int) -> None:
            if line is not None and line.due():
                line.show(f"{number:,} {noun}")

        yield progress


@contextmanager
def working(*, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a callback for what begins now and the share that is done; each takes long."""
    with _line(quiet=quiet, since_s=time.monotonic() - DELAY_S) as line:

        def progress(what: str, share: float) -> None:
            if line is not None and what:
                line.show(f"{share:4.0%}  {_label(what, 70)}")

        yield progress


def _label(name: str, length: int = 40) -> str:
    from torchtriage.core.names import elide, visible

    return elide(visible(name), length)
