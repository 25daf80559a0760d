"""What a memory verdict's page is, and the list of all of them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from torchtriage.core.errors import PatternError
from torchtriage.core.finding import Certainty, Finding, Fix, Place, Severity


@dataclass(frozen=True)
class MemoryCode:
    """The identity of a verdict; ``code`` may be a trace pattern's, whose memory side it is then.

    ``needs`` : what a file must hold for it to be judged, in words.
    """

    code: str
    name: str
    title: str
    needs: str
    family: str = "alloc"

    def finding(
        self,
        *,
        severity: Severity,
        certainty: Certainty,
        message: str,
        place: Place,
        evidence: dict[str, Any],
        fix: Fix,
        n_events: int = 0,
    ) -> Finding:
        """Return a finding of this verdict; memory costs bytes, which the evidence holds, no time."""
        return Finding(
            code=self.code,
            name=self.name,
            family=self.family,
            title=self.title,
            severity=severity,
            certainty=certainty,
            message=message,
            place=place,
            cost=None,
            evidence=evidence,
            fix=fix,
            n_events=n_events,
        )


@dataclass(frozen=True)
class MemoryEntry:
    """A verdict, its fix and its page."""

    identity: MemoryCode
    fix: Fix
    page: str


@lru_cache(maxsize=1)
def catalogue() -> tuple[MemoryEntry, ...]:
    """Return every verdict in this folder, in order of code.

    Raises PatternError: a module is not of the shape every verdict has; the message names it.
    """
    from torchtriage.memory import findings as package

    entries = [
        _entry(importlib.import_module(f"{package.__name__}.{info.name}"))
        for info in pkgutil.iter_modules(package.__path__)
        if info.name != "base"
    ]
    return tuple(sorted(entries, key=lambda entry: entry.identity.code))


def _entry(module: ModuleType) -> MemoryEntry:
    code, fix = getattr(module, "CODE", None), getattr(module, "FIX", None)
    if (
        not isinstance(code, MemoryCode)
        or not isinstance(fix, Fix)
        or not re.fullmatch(r"[A-Z]{3}\d{3}", code.code)
        or code.name.replace("-", "_") != module.__name__.rpartition(".")[2]
    ):
        raise PatternError(
            "expected CODE = Code(...) with the name of the file, and FIX = Fix(...)", where=module.__name__
        )
    return MemoryEntry(code, fix, module.__doc__ or "")
