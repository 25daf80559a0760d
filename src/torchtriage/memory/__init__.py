"""Memory: snapshots of the allocator read as columns, and what they say about a program.

``tt.memory.watch()`` watches a loop for leaks while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtriage.memory.leaks.leak_report import Leak, WatchReport
    from torchtriage.memory.leaks.leak_watch import LeakWarning, Watch, start, watch

__all__ = ["Leak", "LeakWarning", "Watch", "WatchReport", "start", "watch"]


def __getattr__(name: str) -> Any:
    """Import the watch when it is first used; reading snapshots does not need it."""
    if name not in __all__:
        raise AttributeError(f"module 'torchtriage.memory' has no attribute {name!r}")
    from torchtriage.memory.leaks import leak_watch

    return getattr(leak_watch, name)
