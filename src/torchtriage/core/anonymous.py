"""Whether what is read here and now gets pseudonyms: one switch for every report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtriage.core.trace.anonymise import Anonymiser

_NAMES: ContextVar[Anonymiser | None] = ContextVar("names", default=None)


def current() -> Anonymiser | None:
    """Return what replaces names, None where they stay."""
    return _NAMES.get()


@contextmanager
def anonymous(names: Anonymiser | None) -> Iterator[None]:
    """Have every trace that this thread reads meanwhile anonymised."""
    token = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(token)
