"""Watches for loops of tests."""

from __future__ import annotations

from typing import Any

from torchtriage.memory.leaks.leak_watch import Watch

BIG = 4096


def quiet(**options: Any) -> Watch:
    # steps that take no time earn no budget, and see time_for_all_names
    return Watch(**{"on_alarm": lambda leak: None, "credit_s": 600.0, **options})


def spend() -> None:
    sum(range(200))
