"""A progress bar for anything that takes longer than a second; only on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from torchtriage.units import format_bytes

__all__ = ["counting", "doing", "reading", "reading_many"]

DELAY_S = 1.0


@contextmanager
def reading(name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for bytes read that shows a line on stderr after a second."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from torchtriage.names import elide, visible

    begun = time.monotonic()
    shown = 0.0
    label = elide(visible(name), 40)

    def progress(read_bytes: int, _size_bytes: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - begun < DELAY_S or now - shown < 0.1:
            return
        shown = now
        rate = read_bytes / (now - begun)
        sys.stderr.write(
            f"\r\x1b[Kreading {label}: {format_bytes(read_bytes)}, {format_bytes(rate)}/s"
        )
        sys.stderr.flush()

    try:
        yield progress
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def reading_many(
    number: int, *, quiet: bool
) -> Iterator[Callable[[str, int], Callable[[int, int], None] | None] | None]:
    """Yield a callback for each file in turn that says which of how many, as :func:`reading`."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    begun = time.monotonic()
    with ExitStack() as shown:

        def starting(path: str, done: int) -> Callable[[int, int], None] | None:
            shown.close()
            if time.monotonic() - begun >= DELAY_S:
                sys.stderr.write(f"\r\x1b[K{done} of {number} traces")
                sys.stderr.flush()
            name = f"{done + 1} of {number}: {path}"
            return shown.enter_context(reading(name, quiet=quiet))

        yield starting
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


@contextmanager
def doing(name: str, *, quiet: bool, since_s: float) -> Iterator[Callable[[str], None] | None]:
    """Yield a callback for what is done now that shows a line on stderr.

    Nothing is shown in the first second after ``since_s``, of ``time.monotonic()``: what was quick
    to read is quick to judge.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from torchtriage.names import elide, visible

    shown = False
    label = elide(visible(name), 40)

    def progress(what: str) -> None:
        nonlocal shown
        if time.monotonic() - since_s >= DELAY_S:
            shown = True
            sys.stderr.write(f"\r\x1b[Kjudging {label}: {what}")
            sys.stderr.flush()

    try:
        yield progress
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def counting(noun: str, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Yield a callback for a number of things done that shows a line on stderr after a second."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    begun = time.monotonic()
    shown = 0.0

    def progress(number: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - begun >= DELAY_S and now - shown >= 0.1:
            shown = now
            sys.stderr.write(f"\r\x1b[K{number:,} {noun}")
            sys.stderr.flush()

    try:
        yield progress
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
