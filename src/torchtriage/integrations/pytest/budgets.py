"""What a user may limit, and whether what is written can be meant."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from torchtriage.core.errors import UsageError

BUDGETS = {
    "step_ms": "step time",
    "kernels_per_step": "kernels a step",
    "syncs_per_step": "synchronisations a step",
    "graph_breaks": "graph breaks",
    "recompiles": "recompilations",
    "graphs": "graphs",
    "peak_memory_mb": "peak memory",
}
"""Names of budgets, and how people call what they limit."""
COMPILER = frozenset({"graph_breaks", "recompiles", "graphs"})
LIMITS = {f"max_{name}": name for name in ("graph_breaks", "recompiles", "graphs")}
"""Names in ``torch_compile``, and the budgets they are."""
_MEASURED = frozenset({"step_ms", "peak_memory_mb"})
"""Everything else is counted."""


def read_budgets(
    given: Mapping[str, Any], *, where: str, positional: Iterable[Any] = (), names: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Return budgets by name.

    ``given`` : what the user wrote, by the name it was given. ``where`` : for messages:
    ``@pytest.mark.perf_budget``. ``positional`` : what was given without a name. ``names`` : names
    that can be given, and the budgets they are; ``BUDGETS`` as they are.

    Raises UsageError: a name is not known, a number cannot be meant, or there is none.
    """
    known = names or {name: name for name in BUDGETS}
    listed = ", ".join(known)
    for value in positional:
        raise UsageError(
            f"expected names with numbers, found {value!r} alone",
            where=where,
            hint=f"{next(iter(known))}={value!r}; names: {listed}",
        )
    budgets = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"names: {listed}"
            raise UsageError(f"no budget is called {name!r}", where=where, hint=hint)
        budgets[known[name]] = _number(known[name], value, f"{where}: {name}")
    return budgets


def _number(budget: str, value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"expected a number, found {value!r}", where=where)
    number = float(value)
    if budget in _MEASURED:
        wanted, fits = "a number above 0", math.isfinite(number) and number > 0
    else:
        wanted, fits = "a count from 0", number >= 0 and number.is_integer()
    if not fits:
        raise UsageError(f"expected {wanted}, found {value!r}", where=where)
    return number
