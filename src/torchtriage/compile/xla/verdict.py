"""What the counts and times of models, or the dumps of programs, say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import geometric_mean

import numpy as np

from torchtriage.compile.xla.causes import FIXES
from torchtriage.compile.xla.result import (
    XLA_SCHEMA,
    Correlation,
    HloGraph,
    RouteComparison,
    RouteName,
    XlaModel,
    XlaProgram,
    XlaResult,
)
from torchtriage.core.finding import Note
from torchtriage.core.stats.rank_correlation import MIN_PAIRS, rank_correlation
from torchtriage.core.units import format_count, format_ms
from torchtriage.core.version import __version__

TITLES: dict[RouteName, str] = {"openxla": "openxla", "lazy": "LazyTensor", "eager": "eager on the processor"}
COUNTED: tuple[RouteName, ...] = ("openxla", "lazy")


def judge(
    models: Sequence[XlaModel] = (), programs: Sequence[XlaProgram] = (), notes: Iterable[Note] = ()
) -> XlaResult:
    """Return the result of models that were run, or of programs whose dumps were read."""
    graphs = [graph for model in models for route in model.routes for graph in route.graphs]
    graphs += [graph for program in programs for graph in program.graphs]
    causes = Counter(graph.cause for graph in graphs if graph.extra)
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


def _of_models(models: Sequence[XlaModel]) -> tuple[str, str, str]:
    if len(models) > 1:
        return _of_many(models)
    (model,) = models
    mode = "training" if model.train else "inference"
    routes = ((model.route("openxla"), "dynamo"), (model.route("lazy"), "LazyTensor"))
    counts = [
        f"{route.executed_per_step:.3g} by {way}"
        for route, way in routes
        if route is not None and route.executed_per_step is not None
    ]
    if counts:
        first = f"HLO graphs per step in {mode}: {', '.join(counts)}"
    else:
        first = f"No steady step in {mode}: every step compiles, or no way to run it works"
    return first, _second(model), _third(model)


def _second(model: XlaModel) -> str:
    parts = []
    if model.n_dynamo_graphs is not None:
        breaks = format_count(model.n_breaks, "graph break") if model.n_breaks is not None else ""
        handed = [fx_graph for fx_graph in model.fx if not fx_graph.step]
        parts.append(
            f"dynamo: {format_count(model.n_dynamo_graphs, 'graph')}"
            + (f" ({breaks})" if breaks else "")
            + f", {format_count(len(handed), 'FX graph')} for XLA"
        )
    for name in COUNTED:
        route = next((route for route in model.routes if route.name == name), None)
        if route is not None and route.steps:
            parts.append(
                f"{TITLES[name]} compiled {format_count(route.n_compiled, 'HLO graph')}"
                f" in {format_count(len(route.steps), 'step')}, {_extra(route.graphs)}"
            )
        elif route is not None:
            parts.append(f"{TITLES[name]} {route.failure.partition(chr(10))[0]}")
    return "; ".join(parts)


def _extra(graphs: Sequence[HloGraph]) -> str:
    causes = Counter(graph.cause for graph in graphs if graph.extra)
    if not causes:
        return "none extra"
    listed = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
    return f"{causes.total()} extra ({listed})"


def _third(model: XlaModel) -> str:
    times = {route.name: route.times for route in reversed(model.routes) if route.times is not None}
    parts = [
        f"{title} {format_ms(times[name].steady_ms)} (first {format_ms(times[name].first_ms)})"
        for name, title in TITLES.items()
        if name in times
    ]
    if not parts:
        return "not timed"
    found = model.dynamo_over_lazy
    return f"steady step: {', '.join(parts)}" + (f"; {compared(found)}" if found is not None else "")


def compared(found: RouteComparison) -> str:
    """Return which of dynamo and LazyTensor is faster, in one clause."""
    ratio = f"{found.ratio:.3g}"
    if found.low is not None and found.high is not None:
        ratio += f" ({found.low:.3g} to {found.high:.3g})"
    rounds = format_count(found.n_rounds, "round")
    if found.verdict == "undecided":
        return f"not decided in {rounds}: dynamo's step is {ratio} times LazyTensor's"
    if found.verdict == "equal":
        return f"dynamo is as fast as LazyTensor: its step is {ratio} times as long"
    return f"dynamo is {found.verdict} than LazyTensor: its step is {ratio} times as long"


def _of_many(models: Sequence[XlaModel]) -> tuple[str, str, str]:
    both = [
        (dynamo, lazy)
        for model in models
        if (dynamo := model.route("openxla")) is not None and (lazy := model.route("lazy")) is not None
    ]
    counts = [
        (dynamo.executed_per_step, lazy.executed_per_step)
        for dynamo, lazy in both
        if dynamo.executed_per_step is not None and lazy.executed_per_step is not None
    ]
    more = sum(dynamo_count > other for dynamo_count, other in counts)
    same = sum(dynamo_count == other for dynamo_count, other in counts)
    first = (
        f"Of {len(counts)} pairs of model and mode that become steady both ways, dynamo runs more HLO graphs per step"
        f" than LazyTensor in {more}, as many in {same}, fewer in {len(counts) - more - same}"
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
        third = (
            f"steady step of dynamo over LazyTensor: {geometric_mean(ratios):.3g} in the geometric mean of"
            f" {len(ratios)}, {min(ratios):.2g} to {max(ratios):.3g}"
        )
    verdicts = Counter(model.dynamo_over_lazy.verdict for model in models if model.dynamo_over_lazy is not None)
    if verdicts:
        third += (
            f"; faster in {verdicts['faster']}, slower in {verdicts['slower']}, as fast in {verdicts['equal']},"
            f" not decided in {verdicts['undecided']}"
        )
    return first, second, third


def _of_programs(programs: Sequence[XlaProgram]) -> tuple[str, str, str]:
    if len(programs) > 1:
        return f"{format_count(len(programs), 'program')} read from dumps", "", ""
    (program,) = programs
    if program.n_compiled is not None and program.n_executed is not None:
        first = (
            f"{format_count(program.n_compiled, 'HLO graph')} compiled and"
            f" {format_count(program.n_executed, 'execution')}, as the metrics count"
        )
    elif program.n_compiled is not None:
        first = f"{format_count(program.n_compiled, 'HLO graph')} compiled, as the metrics count"
    elif program.n_compiled_told is not None:
        first = (
            f"{format_count(program.n_compiled_told, 'HLO graph')} compiled and"
            f" {format_count(program.n_executed_told or 0, 'execution')}, as PT_XLA_DEBUG reports"
        )
    else:
        n = program.n_modules if program.n_modules is not None else program.n_saved
        graphs = format_count(n, "HLO graph") if n is not None else "No count of HLO graphs"
        first = f"{graphs} in the dumps"
    host = [each for each in program.fallbacks if each.kind == "not lowered"]
    calls = sum(each.first_step for each in program.fallbacks)
    second = (
        f"operators on the host: {calls:,} calls, {format_count(len(host), 'operator')} not lowered"
        if program.fallbacks
        else "no operator ran on the host, as far as the dumps show"
        if program.counters
        else "no counters in the dumps: operators on the host are not counted"
    )
    parts = []
    if program.compile_ms is not None:
        parts.append(f"compiling took {format_ms(program.compile_ms)}")
    if program.execute_ms is not None:
        parts.append(f"executing {format_ms(program.execute_ms)}")
    return first, second, ", ".join(parts) if parts else "no times in the dumps"


def _correlations(models: Sequence[XlaModel]) -> tuple[Correlation, ...]:
    routes = {name: [model.route(name) for model in models] for name in TITLES}
    times = {name: [route.times if route else None for route in column] for name, column in routes.items()}
    first_ms = {name: [time.first_ms if time else None for time in column] for name, column in times.items()}
    steady_ms = {name: [time.steady_ms if time else None for time in column] for name, column in times.items()}
    executed = {name: [route.executed_per_step if route else None for route in routes[name]] for name in COUNTED}
    compiled = {
        name: [float(route.steps[0].compiled) if route and route.steps else None for route in routes[name]]
        for name in COUNTED
    }
    rows = []
    for name in COUNTED:
        title = TITLES[name]
        ratios = _over(steady_ms[name], steady_ms["eager"])
        of, with_ = f"HLO graphs per steady step, {title}", f"steady step, {title} over eager"
        rows.append(_correlation(of, with_, executed[name], ratios))
        of, with_ = f"HLO graphs compiled in the first step, {title}", f"time of the first step, {title}"
        rows.append(_correlation(of, with_, compiled[name], first_ms[name]))
    over = "openxla over LazyTensor"
    graphs = _over(executed["openxla"], executed["lazy"])
    ratios = _over(steady_ms["openxla"], steady_ms["lazy"])
    rows.append(_correlation(f"HLO graphs per steady step, {over}", f"steady step, {over}", graphs, ratios))
    return tuple(rows)


def _over(above: Sequence[float | None], below: Sequence[float | None]) -> list[float | None]:
    return [None if x is None or not y else x / y for x, y in zip(above, below, strict=True)]


def _correlation(of: str, with_: str, xs: Sequence[float | None], ys: Sequence[float | None]) -> Correlation:
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
    if len(pairs) < MIN_PAIRS:
        why = f"{format_count(len(pairs), 'pair')}, and it takes {MIN_PAIRS}"
        return Correlation(of, with_, len(pairs), None, None, None, why)
    try:
        rank = rank_correlation(*np.array(pairs, dtype=float).T)
    except ValueError as error:
        return Correlation(of, with_, len(pairs), None, None, None, str(error))
    return Correlation(of, with_, len(pairs), rank.rho, rank.low, rank.high, "")


def _notes(models: Sequence[XlaModel]) -> Iterable[Note]:
    for model in models:
        name = f"{model.target} ({'training' if model.train else 'inference'})"
        if model.n_dynamo_graphs == 0:
            yield Note(
                "nothing-captured",
                "warn",
                f"{name}: dynamo captured no graph, so that openxla is LazyTensor tracing there",
                "a graph break inside a loop, with, or try makes dynamo leave the whole function",
            )
        for route in model.routes:
            if route.failure:
                yield Note("route-failed", "warn", f"{name}, {route.name}: {route.failure}")
            untold = sum(step.executed - step.executed_told for step in route.steps)
            if untold:
                yield Note(
                    "executions-not-told",
                    "warn",
                    f"{name}, {route.name}: {untold} of {sum(step.executed for step in route.steps)} executions are in"
                    " no dump, so that graphs' own counts do not add up",
                )
            if route.steps and not route.n_steady:
                yield Note(
                    "never-steady",
                    "warn",
                    f"{name}, {route.name}: the last of {len(route.steps)} counted steps still"
                    " compiled; counts per steady step are left out",
                    "count more with --steps, or see why it compiles again",
                )
            if any(not graph.hash for graph in route.graphs):
                yield Note(
                    "graphs-not-named",
                    "warn",
                    f"{name}, {route.name}: the dumps name another number of graphs than the"
                    " metrics count; causes are known from operators alone, without lines",
                )
            unknown = sum(graph.cause == "unknown" for graph in route.graphs)
            if unknown:
                yield Note(
                    "unknown-cause",
                    "info",
                    f"{name}, {route.name}: nothing shows why {format_count(unknown, 'HLO graph')}"
                    " of its own was compiled",
                )
            if route.answers is not None and route.answers.verdict == "wrong":
                why = route.answers.worst_at or route.answers.reason
                text = f"{name}, {route.name}: answers are not those of eager: {why}"
                yield Note("wrong-answers", "warn", text)
