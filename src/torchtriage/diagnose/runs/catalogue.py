"""Every code that looks at the stacks of a run can report."""

from __future__ import annotations

from torchtriage.diagnose.runs import backward_passes, configuration, hot_lines, padding, threads, unread_results
from torchtriage.diagnose.runs.causes import CAUSES, Cause


def catalogue() -> tuple[Cause, ...]:
    """Return one cause for each code that has a page, in order of code."""
    found = {
        cause.code: cause
        for cause in (
            *CAUSES,
            *hot_lines.CODES,
            threads.RIVAL,
            *configuration.CODES,
            *backward_passes.CODES,
            padding.PADDED,
            unread_results.UNREAD,
        )
        if cause.page
    }
    return tuple(found[code] for code in sorted(found))
