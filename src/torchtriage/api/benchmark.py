"""``tt.benchmark``: what ``torchtriage bench`` does, from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchtriage.api.rendering import Renderable
from torchtriage.core.errors import UsageError
from torchtriage.measure.bench.plan import MODES, BenchPlan, check_target, folder_of, settings, target_of
from torchtriage.measure.bench.result import BenchResult
from torchtriage.measure.bench.run import measure
from torchtriage.measure.bench.summary import summarise


class BenchReport(Renderable, BenchResult):
    """A :class:`~torchtriage.measure.bench.result.BenchResult` that shows itself, in notebooks too."""


def benchmark(
    target: str | Callable[..., Any],
    *,
    modes: Sequence[str] = ("eager", *MODES[:3]),
    backends: Sequence[str] = (),
    batch_sizes: Sequence[int] = (),
    dynamic: Sequence[str] = ("auto",),
    dtypes: Sequence[str] = (),
    out: str | Path | None = None,
    fresh: bool = False,
    progress: Callable[[str, float], None] = lambda _what, _share: None,
    **plan: Any,
) -> BenchReport:
    """Find the fastest way to run a model: eager or compiled, and in which mode.

    Parameters
    ----------
    target
        ``module:function``, ``file.py:function``, or a function at the top of a file. It may take
        ``batch_size``, ``dtype`` and ``device``, and returns ``(model, inputs)``,
        ``(model, inputs, loss)`` or a function without arguments (``docs/bench.md``).
    modes, backends, batch_sizes, dynamic, dtypes
        What is combined; modes are ``eager`` and those of ``torch.compile``.
    out
        Folder that keeps the sessions, ``bench-TARGET`` unless given; a killed benchmark goes on
        there. ``fresh`` measures anew.
    progress
        Called with what begins now and the share that is done.
    **plan
        Other fields of :class:`torchtriage.measure.bench.plan.BenchPlan`: ``train``, ``rounds``, ``steps`` ...

    Raises UsageError: the target cannot be used, a setting does not exist, or the folder holds
    something else.
    """
    name = check_target(target) if isinstance(target, str) else target_of(target)
    unknown = sorted(set(plan) - {field_.name for field_ in fields(BenchPlan)})
    if unknown:
        raise UsageError(
            f"a benchmark has no {', '.join(unknown)}", hint="see torchtriage.measure.bench.plan.BenchPlan"
        )
    ways = settings(modes, backends, batch_sizes, dynamic, dtypes)
    folder = Path(out) if out is not None else folder_of(name)
    return BenchReport.of(summarise(measure(BenchPlan(name, ways, **plan), folder, fresh=fresh, progress=progress)))
