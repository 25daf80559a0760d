"""Every code that any part can report, with its page: patterns, rules, memory, alerts.

A page is the docstring of the module that stands for the code. A code may have several: what a
trace shows, what the source shows, and what memory shows of one thing. One code is of compile logs
alone; those of alerts are a table of causes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from torchtriage.core.docpages import section
from torchtriage.core.errors import UsageError
from torchtriage.core.finding import Fix

Part = Literal["trace", "source", "run", "memory", "logs", "alerts"]
PARTS: dict[Part, str] = {
    "trace": "",
    "source": ", in source",
    "run": ", in a run",
    "memory": ", in memory",
    "logs": ", in compile logs",
    "alerts": ", in alerts",
}
"""What a code is seen in, and how its heading says so."""


@dataclass(frozen=True)
class Page:
    """What is known about a code in one part.

    ``titles`` : the sections of ``text``, in their order. ``needs`` : what a file must hold for it
    to be judged, in words; empty where any will do. ``suppresses`` : codes that mean nothing while
    this one is certain.
    """

    code: str
    name: str
    family: str
    title: str
    part: Part
    text: str
    titles: tuple[str, ...]
    fix: Fix
    needs: str = ""
    suppresses: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """Return code, name and part."""
        return f"{self.code} {self.name}{PARTS[self.part]}"

    def section(self, title: str) -> str:
        """Return one section as running text, empty when it has none."""
        return section(self.text, title)


NUMBERS = (
    "Codes below 100 are numbered through all families, those from 101 on within each family. A number is never"
    " reused, so gaps are not missing patterns."
)
WORDS = (
    "A finding is certain if the recording proves it, likely if the recording matches and the time is lost, and a hint"
    " if something needed for proof is missing or the fix is a trade-off. A cost of grade A is measured, B modelled, C"
    " bounded. All terms and numbers: docs/definitions.md."
)


def count() -> str:
    """Return how many patterns there are, and in what they are seen."""
    parts = Counter(page.part for page in pages())
    seen = ", ".join(f"{parts[part]} in {what}" for part, what in _SEEN.items())
    return f"{len({page.code for page in pages()})} patterns: {seen}; some in several."


_SEEN: dict[Part, str] = {
    "trace": "traces",
    "source": "source",
    "run": "runs",
    "memory": "memory",
    "logs": "compile logs",
    "alerts": "running services",
}


@lru_cache(maxsize=1)
def pages() -> tuple[Page, ...]:
    """Return all pages, in order of code; of one code what a trace shows comes first."""
    from torchtriage.compile.logs import collective_order as order
    from torchtriage.diagnose import lint, patterns
    from torchtriage.diagnose.lint import base as rules
    from torchtriage.diagnose.patterns import base
    from torchtriage.diagnose.runs.catalogue import catalogue as run_causes
    from torchtriage.memory import findings as codes
    from torchtriage.operate.monitor import alert as alerts

    def page(part: Part, about: Any, text: str, fix: Fix, titles: tuple[str, ...] = base.SECTIONS, **more: Any) -> Page:
        return Page(about.code, about.name, about.family, about.title, part, text, titles, fix, **more)

    found = [
        page(
            "trace",
            entry.pattern,
            entry.page,
            entry.fix,
            needs=", ".join(base.NEEDS[need][1] for need in sorted(entry.pattern.needs)),
            suppresses=entry.pattern.suppresses,
        )
        for entry in patterns.catalogue()
    ]
    found += [page("source", rule.rule, rule.page, rule.fix, rules.SECTIONS) for rule in lint.catalogue()]
    found += [page("run", cause, cause.page, cause.fix) for cause in run_causes()]
    found += [page("memory", row.identity, row.page, row.fix, needs=row.identity.needs) for row in codes.catalogue()]
    names = order.CODE, order.NAME, order.FAMILY, order.TITLE
    found.append(Page(*names, "logs", order.__doc__ or "", base.SECTIONS, order.FIX, order.NEEDS))
    found += [
        Page(value.code, value.name, alerts.FAMILY, value.title, "alerts", value.page, base.SECTIONS, value.fix)
        for value in alerts.CODES.values()
    ]
    return tuple(sorted(found, key=lambda page: (page.code, [*PARTS].index(page.part))))


def lookup(code_or_name: str) -> tuple[Page, ...]:
    """Return the pages of the code or name.

    Raises UsageError: there is none; the message suggests near ones.
    """
    wanted = code_or_name.strip().lower()
    codes = {key: page.code for page in pages() for key in (page.code.lower(), page.name)}
    if wanted not in codes:
        raise UsageError.unknown("pattern", code_or_name.strip(), codes)
    return tuple(page for page in pages() if page.code == codes[wanted])
