"""What the counts and times of models, or the dumps of programs, say together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from torchtriage.finding import Note
from torchtriage.stats.rank_correlation import MIN_PAIRS, rank_correlation
from torchtriage.units import format_count, format_ms
from torchtriage.version import __version__
from torchtriage.xla.causes import FIXES
from torchtriage.xla.result import XLA_SCHEMA, Correlation, HloGraph, Model, Program, XlaResult

__all__ = ["judge"]


def judge(
    models: Sequence[Model] = (), programs: Sequence[Program] = (), notes: Iterable[Note] = ()
) -> XlaResult:
    """Return everything said about models that were run, or programs whose dumps were read."""
    graphs = [graph for model in models for route in model.routes for graph in route.graphs]
    graphs += [graph for program in programs for graph in program.graphs]
    causes = Counter(one.cause for one in graphs if one.extra)
    return XlaResult(
        schema=XLA_SCHEMA,
        version=__version__,
        verdict=_of_models(models) if models else _of_programs(programs),
        models=tuple(models),
        programs=tuple(programs),
        correlations=_correlations(models) if len(models) > 1 else (),
        fixes=tuple((cause, FIXES[cause]) for cause, _ in causes.most_common() if cause in FIXES),
        notes=(*notes, *_notes(models)),
    )


def _of_models(models: Sequence[Model]) -> tuple[str, str, str]:
    if len(models) > 1:
        return _of_many(models)
    (model,) = models
    mode = "training" if model.train else "inference"
    dynamo, lazy = model.route("openxla"), model.route("lazy")
    said = []
    if dynamo is not None and dynamo.executed_per_step is not None:
        said.append(f"{_number(dynamo.executed_per_step)} by dynamo")
    if lazy is not None and lazy.executed_per_step is not None:
        said.append(f"{_number(lazy.executed_per_step)} by LazyTensor")
    if said:
        first = f"HLO graphs per step in {mode}: {', '.join(said)}"
    else:
        first = f"No steady step in {mode}: every step compiles, or no way to run it works"
    return first, _second(model), _third(model)


def _number(value: float) -> str:
    return f"{value:.3g}"


def _second(model: Model) -> str:
    parts = []
    if model.n_dynamo_graphs is not None:
        breaks = format_count(model.n_breaks, "graph break") if model.n_breaks is not None else ""
        handed = [one for one in model.fx if not one.step]
        parts.append(
            f"dynamo: {format_count(model.n_dynamo_graphs, 'graph')}"
            + (f" ({breaks})" if breaks else "")
            + f", {format_count(len(handed), 'FX graph')} for XLA"
        )
    for name, title in (("openxla", "openxla"), ("lazy", "LazyTensor")):
        route = next((one for one in model.routes if one.name == name), None)
        if route is not None and route.steps:
            parts.append(
                f"{title} compiled {format_count(route.n_compiled, 'HLO graph')}"
                f" in {format_count(len(route.steps), 'step')}, {_extra(route.graphs)}"
            )
        elif route is not None:
            parts.append(f"{title} {route.failure.partition(chr(10))[0]}")
    return "; ".join(parts)


def _extra(graphs: Sequence[HloGraph]) -> str:
    causes = Counter(one.cause for one in graphs if one.extra)
    if not causes:
        return "none extra"
    listed = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
    return f"{causes.total()} extra ({listed})"


def _third(model: Model) -> str:
    parts = []
    for name, title in (
        ("openxla", "openxla"),
        ("lazy", "LazyTensor"),
        ("eager", "eager on the processor"),
    ):
        route = next((one for one in model.routes if one.name == name), None)
        if route is not None and route.times is not None:
            times = route.times
            parts.append(
                f"{title} {format_ms(times.steady_ms)} (first {format_ms(times.first_ms)})"
            )
    return f"steady step: {', '.join(parts)}" if parts else "not timed"


def _of_many(models: Sequence[Model]) -> tuple[str, str, str]:
    both = [
        (dynamo, lazy)
        for one in models
        if (dynamo := one.route("openxla")) is not None and (lazy := one.route("lazy")) is not None
    ]
    counts = [
        (dynamo.executed_per_step, lazy.executed_per_step)
        for dynamo, lazy in both
        if dynamo.executed_per_step is not None and lazy.executed_per_step is not None
    ]
    more = sum(one > other for one, other in counts)
    same = sum(one == other for one, other in counts)
    first = (
        f"Of {len(counts)} pairs of model and mode that become steady both ways, dynamo runs more"
        f" HLO graphs per step than LazyTensor in {more}, as many in {same}, fewer in"
        f" {len(counts) - more - same}"
    )
    graphs = [graph for dynamo, _ in both for graph in dynamo.graphs]
    second = f"openxla compiled {format_count(len(graphs), 'HLO graph')}, {_extra(graphs)}"
    ratios = [
        dynamo.times.steady_ms / lazy.times.steady_ms
        for dynamo, lazy in both
        if dynamo.times is not None and lazy.times is not None
    ]
    third = "not timed"
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        third = (
            f"steady step of dynamo over LazyTensor: {mean:.3g} in the geometric mean of"
            f" {len(ratios)}, {min(ratios):.2g} to {max(ratios):.3g}"
        )
    return first, second, third


def _of_programs(programs: Sequence[Program]) -> tuple[str, str, str]:
    if len(programs) > 1:
        return f"{format_count(len(programs), 'program')} read from dumps", "", ""
    (one,) = programs
    if one.n_compiled is not None and one.n_executed is not None:
        first = (
            f"{format_count(one.n_compiled, 'HLO graph')} compiled and"
            f" {format_count(one.n_executed, 'execution')}, as the metrics count"
        )
    elif one.n_compiled is not None:
        first = f"{format_count(one.n_compiled, 'HLO graph')} compiled, as the metrics count"
    elif one.n_compiled_told is not None:
        first = (
            f"{format_count(one.n_compiled_told, 'HLO graph')} compiled and"
            f" {format_count(one.n_executed_told or 0, 'execution')}, as PT_XLA_DEBUG tells"
        )
    else:
        n = one.n_modules if one.n_modules is not None else one.n_saved
        graphs = format_count(n, "HLO graph") if n is not None else "No count of HLO graphs"
        first = f"{graphs} in the dumps"
    host = [each for each in one.fallbacks if each.kind == "not lowered"]
    calls = sum(each.first_step for each in one.fallbacks)
    second = (
        f"operators on the host: {calls:,} calls, {format_count(len(host), 'operator')} not lowered"
        if one.fallbacks
        else "no operator ran on the host, as far as the dumps tell"
        if one.counters
        else "no counters in the dumps: operators on the host are not told"
    )
    parts = []
    if one.compile_ms is not None:
        parts.append(f"compiling took {format_ms(one.compile_ms)}")
    if one.execute_ms is not None:
        parts.append(f"executing {format_ms(one.execute_ms)}")
    return first, second, ", ".join(parts) if parts else "no times in the dumps"


# -- correlations ------------------------------------------------------------------------------


def _correlations(models: Sequence[Model]) -> tuple[Correlation, ...]:
    def executed(model: Model, name: str) -> float | None:
        route = model.route(name)  # type: ignore[arg-type]
        return route.executed_per_step if route else None

    def steady(model: Model, name: str) -> float | None:
        route = model.route(name)  # type: ignore[arg-type]
        return route.times.steady_ms if route and route.times else None

    def first(model: Model, name: str) -> float | None:
        route = model.route(name)  # type: ignore[arg-type]
        return route.times.first_ms if route and route.times else None

    def compiled(model: Model, name: str) -> float | None:
        route = model.route(name)  # type: ignore[arg-type]
        return float(route.steps[0].compiled) if route and route.steps else None

    rows: list[
        tuple[str, str, Callable[[Model], float | None], Callable[[Model], float | None]]
    ] = []
    for name, title in (("openxla", "openxla"), ("lazy", "LazyTensor")):
        rows += [
            (f"HLO graphs per steady step, {title}", f"steady step, {title} over eager",
             lambda one, name=name: executed(one, name),  # type: ignore[misc]
             lambda one, name=name: _over(steady(one, name), steady(one, "eager"))),  # type: ignore[misc]
            (f"HLO graphs compiled in the first step, {title}", f"time of the first step, {title}",
             lambda one, name=name: compiled(one, name),  # type: ignore[misc]
             lambda one, name=name: first(one, name)),  # type: ignore[misc]
        ]  # fmt: skip
    rows.append((
        "HLO graphs per steady step, openxla over LazyTensor",
        "steady step, openxla over LazyTensor",
        lambda one: _over(executed(one, "openxla"), executed(one, "lazy")),
        lambda one: _over(steady(one, "openxla"), steady(one, "lazy")),
    ))  # fmt: skip
    return tuple(_correlation(models, *row) for row in rows)


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _correlation(
    models: Sequence[Model],
    of: str,
    with_: str,
    x: Callable[[Model], float | None],
    y: Callable[[Model], float | None],
) -> Correlation:
    pairs = [(a, b) for one in models if (a := x(one)) is not None and (b := y(one)) is not None]
    if len(pairs) < MIN_PAIRS:
        why = f"{format_count(len(pairs), 'pair')}, and it takes {MIN_PAIRS}"
        return Correlation(of, with_, len(pairs), None, None, None, why)
    try:
        found = rank_correlation(
            *(np.array(side, dtype=float) for side in zip(*pairs, strict=True))
        )
    except ValueError as error:
        return Correlation(of, with_, len(pairs), None, None, None, str(error))
    return Correlation(of, with_, len(pairs), found.rho, found.low, found.high, "")


# -- what limits it ----------------------------------------------------------------------------


def _notes(models: Sequence[Model]) -> Iterable[Note]:
    for model in models:
        name = f"{model.target} ({'training' if model.train else 'inference'})"
        if model.n_dynamo_graphs == 0:
            yield Note(
                "nothing-captured", "warn",
                f"{name}: dynamo captured no graph, so that openxla is LazyTensor tracing there",
                "a graph break inside a loop, with, or try makes dynamo leave the whole function",
            )  # fmt: skip
        for route in model.routes:
            if route.failure:
                yield Note("route-failed", "warn", f"{name}, {route.name}: {route.failure}")
            untold = sum(one.executed - one.executed_told for one in route.steps)
            if untold:
                yield Note(
                    "executions-not-told", "warn",
                    f"{name}, {route.name}: {untold} of"
                    f" {sum(one.executed for one in route.steps)} executions are in no dump, so"
                    " that graphs' own counts do not add up",
                )  # fmt: skip
            if route.steps and not route.n_steady:
                yield Note(
                    "never-steady", "warn",
                    f"{name}, {route.name}: the last of {len(route.steps)} counted steps still"
                    " compiled; counts per steady step are left out",
                    "count more with --steps, or see why it compiles again",
                )  # fmt: skip
            if any(not one.hash for one in route.graphs):
                yield Note(
                    "graphs-not-named", "warn",
                    f"{name}, {route.name}: the dumps name another number of graphs than the"
                    " metrics count; causes are told by operators alone, without lines",
                )  # fmt: skip
            unknown = sum(one.cause == "unknown" for one in route.graphs)
            if unknown:
                yield Note(
                    "unknown-cause", "info",
                    f"{name}, {route.name}: nothing tells why {format_count(unknown, 'HLO graph')}"
                    " of its own was compiled",
                )  # fmt: skip
            if route.answers is not None and route.answers.verdict == "wrong":
                why = route.answers.worst_at or route.answers.reason
                text = f"{name}, {route.name}: answers are not those of eager: {why}"
                yield Note("wrong-answers", "warn", text)
