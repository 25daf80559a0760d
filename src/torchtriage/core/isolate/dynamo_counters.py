"""What the compiler did in this process: graphs, breaks, recompiles, time by phase."""

from __future__ import annotations

from typing import Any

PHASES = ("capture", "autograd and graph passes", "lowering", "code and kernels")
"""Dynamo; AOTAutograd; Inductor up to its code; writing, building and tuning that code."""


LIMIT = 1_000_000
"""Compilations whose times are kept: torch itself keeps the last 64."""


def keep_all() -> None:
    """Have torch keep the times of all compilations; call before the first."""
    from torch._dynamo import utils

    utils.set_compilation_metrics_limit(LIMIT)


def gather() -> dict[str, Any]:
    """Return the counts so far, and ``phases`` : seconds by phase, empty where nothing compiled."""
    from torch._dynamo import utils

    counters: Any = utils.counters
    metrics = list(utils.get_compilation_metrics())
    frames = {str(getattr(metric, "compile_id", "")) for metric in metrics}
    reasons = {_first_line(str(text)): int(n) for text, n in counters["graph_break"].items()}
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "graph_breaks": sum(reasons.values()),
        # of compile id a/b, b counts how often frame a was compiled before
        "recompiles": sum(_again(frame) for frame in frames),
        "reasons": sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])),
        "phases": _phases(metrics),
    }


def _again(compile_id: str) -> bool:
    before = compile_id.strip("[]").rpartition("/")[2].partition("_")[0]
    return before.isdigit() and int(before) > 0


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "unknown"


def _phases(metrics: list[Any]) -> dict[str, float]:
    """Return seconds by phase: each timer encloses the next, so differences do not overlap.

    A backward pass is compiled without the outer ones; what a timer lacks is what it encloses.
    """
    if not metrics:
        return {}
    spent = dict.fromkeys(PHASES, 0.0)
    for metric in metrics:
        inner = 0.0
        nested = [inner]
        for name in ("code_gen", "inductor_compile", "backend_compile", "entire_frame_compile"):
            inner = max(getattr(metric, f"{name}_time_s", None) or 0.0, inner)
            nested.append(inner)
        for phase, outside, inside in zip(PHASES[::-1], nested[1:], nested, strict=False):
            spent[phase] += outside - inside
    return {name: round(value, 6) for name, value in spent.items()}
