"""Models on PyTorch/XLA, or dumps of programs: routes, every HLO graph with its reason, fixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torchtriage.compile.logs.formatting import place
from torchtriage.compile.logs.result import GraphBreak
from torchtriage.compile.xla.result import (
    AnswerCheck,
    Correlation,
    Fallback,
    FxGraph,
    HloGraph,
    Route,
    XlaModel,
    XlaProgram,
    XlaResult,
)
from torchtriage.compile.xla.verdict import compared
from torchtriage.core.units import format_bytes, format_count, format_ms
from torchtriage.report import blocks as b

NONE = "-"
TITLES = {"eager": "eager, processor", "lazy": "LazyTensor", "openxla": "dynamo openxla"}
COLUMNS = ("route", "compiled", "extra", "per step", "host ops", "to / from", "first", "steady", "queued", "answers")
N_ON_TERMINAL, N_IN_MARKDOWN = 24, 40
N_ROWS = 12
_FALLBACK = {"read": "asks for a value", "shape": "has a size that depends on values", "not lowered": "is not lowered"}


def document(result: XlaResult) -> b.Document:
    """Return the report of ``torchtriage xla``."""
    names = [model.target for model in result.models] + [program.name for program in result.programs]
    together = [correlation(row) for row in result.correlations]
    fixes = b.labelled("fixes", [(b.bold(f"{cause}: "), b.Span(fix.text, "green")) for cause, fix in result.fixes])
    more = [
        (b.bold(cause), f": {fix.text}", " " * bool(fix.link), b.Span("more" if fix.link else "", link=fix.link))
        for cause, fix in result.fixes
    ]
    blocks: list[b.Block] = [
        b.Head("torchtriage xla", result.verdict),
        *(block for model in result.models for block in _model(model)),
        *(block for program in result.programs for block in _program(program)),
        b.Rows(b.labelled("together", together), on=b.TERMINAL),
        b.Section("Graphs and time", [b.Lines(together, bullets=True)], on=b.PAGE + b.MARKDOWN),
        b.Rows(fixes, on=b.TERMINAL),
        b.Section("What to change", [b.Lines(more, bullets=True)], on=b.PAGE + b.MARKDOWN),
        b.Notes(result.notes),
        b.Foot(f"torchtriage {result.version}"),
    ]
    remark = (
        "Counts are those of torch_xla's metrics; extra is every HLO graph but one for a step (LazyTensor) or for an FX"
        " graph (dynamo)."
    )
    title = names[0] if len(names) == 1 else f"{len(names)} models"
    return b.Document(title, result.version, result.schema, blocks, "xla.css", remark)


def _model(model: XlaModel) -> Iterator[b.Block]:
    mode = "training" if model.train else "inference"
    facts = ", ".join(f"{name} {value}" for name, value in model.facts)
    table = [cells(route) for route in model.routes]
    failed = [f"{TITLES[route.name]} {route.failure}" for route in model.routes if route.failure]
    fx = [(graph.id, _fx(graph)) for graph in model.fx]
    again = [(place(recompile.function), recompile.guard, f"{recompile.count}x") for recompile in model.recompiles]
    routes = []
    for route in model.routes:
        if route.steps or route.graphs:
            on = (b.TERMINAL + b.PAGE) * bool(route.steps) + b.MARKDOWN * bool(route.graphs)
            routes.append(b.Entry(TITLES[route.name], list(_route(route)), indent=2, kind="route", on=on))
    parts = [
        b.Lines([b.dim(facts)], on=b.TERMINAL),
        b.Table(COLUMNS, table, kind="settings"),
        b.Lines([compared(model.dynamo_over_lazy)] if model.dynamo_over_lazy is not None else []),
        *_breaks(model.breaks),
        b.Rows(
            [b.Row("recompile", (f"{where}: {guard}", b.dim(f", {times}"))) for where, guard, times in again[:N_ROWS]],
            on=b.TERMINAL,
        ),
        b.Table(("compiled again by dynamo", "guard", "times"), again, kind="graphs", on=b.PAGE),
        b.Rows([b.Row("FX graph", (b.bold(f"{name} "), became)) for name, became in fx[:N_ROWS]], on=b.TERMINAL),
        b.more(len(fx) - N_ROWS, "FX graph"),
        b.Table(("FX graph", "became"), fx, kind="graphs", on=b.PAGE),
        b.Rows([b.Row("failed", b.Span(line, "red")) for line in failed]),
        *routes,
    ]
    yield b.Entry((b.bold(model.target), b.dim(f"  {mode}")), parts, on=b.TERMINAL + b.MARKDOWN)
    yield b.Section(f"{model.target}, {mode}", parts, facts, on=b.PAGE)


def _route(route: Route) -> Iterator[b.Block]:
    yield b.Lines([_counted(route), _times(route)], on=b.TERMINAL + b.PAGE)
    if route.answers is not None:
        style = "bold red" if route.answers.verdict == "wrong" else ""
        yield b.Lines([b.Span(f"answers {_answers(route.answers)}", style)], on=b.TERMINAL + b.PAGE)
    yield from _graphs(route.graphs)
    fallbacks = [_fallback(fallback) for fallback in route.fallbacks]
    yield b.Rows([b.Row("host", line) for line in fallbacks[:N_ROWS]], on=b.TERMINAL)
    yield b.more(len(fallbacks) - N_ROWS, "operator")
    yield b.Lines(fallbacks, bullets=True, on=b.PAGE)


def _program(program: XlaProgram) -> Iterator[b.Block]:
    calls = [
        (fallback.name, fallback.kind, format_count(fallback.first_step, "call")) for fallback in program.fallbacks
    ]
    left_out = [b.Row("left out", b.dim(f"{skipped.count:,} {skipped.name}")) for skipped in program.skipped]
    parts = [
        b.Rows([b.Row(label, line) for label, line in _counts(program)]),
        *_breaks(program.breaks),
        *_graphs(program.graphs),
        b.Rows([b.Row("host", f"{name}, {number}") for name, _, number in calls[:N_ROWS]], on=b.TERMINAL),
        b.more(len(calls) - N_ROWS, "operator"),
        b.Table(("operator on the host", "why", "calls"), calls, kind="graphs", align="llr", on=b.MARKDOWN + b.PAGE),
        b.Rows(left_out, on=b.TERMINAL),
        b.Notes(program.notes, apart=False),
    ]
    yield b.Entry(program.name, parts, on=b.TERMINAL + b.MARKDOWN)
    yield b.Section(program.name, parts, on=b.PAGE)


def _breaks(breaks: Sequence[GraphBreak]) -> Iterator[b.Block]:
    rows: list[b.Row] = []
    for graph_break in breaks:
        where = f" at {place(graph_break.caller or graph_break.frame)}, {graph_break.count}x"
        rows += [b.Row("break", (b.bold(graph_break.type), where)), b.Row("", b.Span(graph_break.fix.text, "green"))]
    yield b.Rows(rows[: 2 * N_ROWS], on=b.TERMINAL)
    yield b.Rows(rows, on=b.PAGE)
    yield b.more(len(breaks) - N_ROWS, "graph break")


def _graphs(graphs: Sequence[HloGraph]) -> Iterator[b.Block]:
    rows = []
    for graph in graphs[:N_ON_TERMINAL]:
        style = "yellow" if graph.extra else "dim"
        rows.append(b.Row(f"HLO #{graph.number + 1}", (b.Span(f"{graph.cause}: ", style), _graph(graph)), style))
    yield b.Rows(rows, on=b.TERMINAL)
    rest = Counter(graph.cause for graph in graphs[N_ON_TERMINAL:]).most_common()
    listed = ", ".join(f"{number} {cause}" for cause, number in rest)
    more = [b.dim(f"{len(graphs) - N_ON_TERMINAL} more in --json and --html: {listed}")] if rest else []
    yield b.Lines(more, on=b.TERMINAL)
    cells = [
        (f"{graph.number + 1}", b.bold(graph.cause) if graph.extra else graph.cause, _graph(graph)) for graph in graphs
    ]
    kinds = ["extra" if graph.extra else "by-right" for graph in graphs]
    for on, limit in ((b.MARKDOWN, N_IN_MARKDOWN), (b.PAGE, len(graphs))):
        columns = ("HLO", "cause", "reason")
        yield b.Table(columns, cells, align="rll", kind="graphs", kinds=kinds, limit=limit, on=on)


# -- what the parts say ----------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Return a count or a mean of counts, or a dash."""
    return NONE if value is None else f"{value:.3g}"


def cells(route: Route) -> tuple[str, ...]:
    """Return a row of the table, one cell for each of ``COLUMNS``."""
    counted = bool(route.steps)
    steady = route.steps[len(route.steps) - route.n_steady :] if route.n_steady else ()
    moved = [
        sum(getattr(step, name) for step in steady) / len(steady) if steady else None
        for name in ("to_device", "from_device")
    ]
    times = route.times
    return (
        TITLES[route.name],
        f"{route.n_compiled}" if counted else NONE,
        f"{route.n_extra}" if counted else NONE,
        number(route.executed_per_step),
        number(sum(fallback.per_step or 0 for fallback in route.fallbacks)) if steady else NONE,
        " / ".join(map(number, moved)) if steady else NONE,
        format_ms(times.first_ms) if times else NONE,
        format_ms(times.steady_ms) if times else NONE,
        format_ms(times.queued_ms) if times and times.queued_ms is not None else NONE,
        route.answers.verdict if route.answers else NONE,
    )


def _counted(route: Route) -> str:
    compiled = ", ".join(str(step.compiled) for step in route.steps)
    executed = ", ".join(str(step.executed) for step in route.steps)
    spent_ms = sum(step.compile_ms for step in route.steps)
    line = (
        f"compiled {compiled} and executed {executed} HLO graphs in steps 1 to {len(route.steps)};"
        f" compiling took {format_ms(spent_ms)}"
    )
    if route.execute_ms_per_step is not None:
        line += f", executing {format_ms(route.execute_ms_per_step)} per steady step"
    return line


def _times(route: Route) -> str:
    times = route.times
    if times is None:
        return ""
    line = (
        f"steady {format_ms(times.steady_ms)}, {format_ms(times.low_ms)} to {format_ms(times.high_ms)}"
        f" over {format_count(times.n_processes, 'process', 'processes')} ({format_count(times.n_steps, 'step')});"
        f" first {format_ms(times.first_ms)}, {format_ms(times.first_low_ms)} to {format_ms(times.first_high_ms)}"
    )
    if times.queued_ms is not None:
        line += f"; {format_ms(times.queued_ms)} each when {times.n_queued} are waited for at once"
    return line


def _graph(graph: HloGraph) -> str:
    parts = [graph.reason, place(graph.frame)]
    if graph.n_ops is not None:
        parts.append(format_count(graph.n_ops, "instruction"))
    if graph.n_aliased:
        parts.append(f"{graph.n_aliased} of its outputs in place of inputs")
    if graph.compile_ms is not None:
        parts.append(f"compiled in {format_ms(graph.compile_ms)}")
    if graph.per_step is not None:
        parts.append(f"run {format_count(graph.per_step, 'time')} per steady step")
    elif graph.first_step:
        parts.append(f"run {format_count(graph.first_step, 'time')}")
    return "; ".join(filter(None, parts))


def _fx(graph: FxGraph) -> str:
    size = format_count(graph.n_ops, "operator") if graph.n_ops is not None else "of unknown size"
    names = ", ".join(op.name for op in graph.not_lowered[:4])
    cut = f", cut at {names}" if names else ""
    if graph.hlo:
        listed = ", ".join(f"#{number + 1}" for number in graph.hlo)
        equal = len(graph.parts) - len(graph.hlo)
        rest = f"; {equal} of {len(graph.parts)} parts equal graphs compiled before" if equal else ""
        return f"{size}{cut}: HLO {listed}{rest}"
    return f"{size}{cut}: " + (
        "no HLO of its own, XLA had equal ones" if graph.parts else "nothing that XLA could be given"
    )


def _fallback(fallback: Fallback) -> str:
    per = f", {number(fallback.per_step)} per steady step" if fallback.per_step is not None else ""
    calls = format_count(fallback.first_step, "call")
    return f"{fallback.name} {_FALLBACK[fallback.kind]}: {calls} in the first step{per}"


def _answers(answers: AnswerCheck) -> str:
    line = answers.verdict
    if answers.error is not None and answers.eager_error is not None:
        line += f": relative error {answers.error:.1e}, eager's own {answers.eager_error:.1e}"
    return f"{line}; {answers.reason}" if answers.reason else line


def correlation(row: Correlation) -> str:
    """Return a correlation in a sentence."""
    head = f"{row.of} with {row.with_}"
    if row.rho is None or row.low is None or row.high is None:
        return f"{head}: unknown ({row.why_not})"
    return f"{head}: rho {row.rho:.2f} ({row.low:.2f} to {row.high:.2f}), n = {row.n}"


def _counts(program: XlaProgram) -> Iterator[tuple[str, str]]:
    for label, n_calls, ms, metric in (
        ("compiled", program.n_compiled, program.compile_ms, "CompileTime"),
        ("executed", program.n_executed, program.execute_ms, "ExecuteTime"),
    ):
        if n_calls is not None:
            yield label, f"{n_calls:,} ({metric}){f', {format_ms(ms)} in all' if ms is not None else ''}"
    if program.n_compiled_told is not None:
        executions = format_count(program.n_executed_told or 0, "execution")
        yield "reported", f"{format_count(program.n_compiled_told, 'compilation')} and {executions} (PT_XLA_DEBUG)"
    if program.n_saved is not None:
        yield "saved", f"{format_count(program.n_saved, 'distinct graph')} (XLA_SAVE_TENSORS_FILE)"
    if program.n_modules is not None:
        yield "modules", f"{program.n_modules:,} (--xla_dump_to)"
    for label, n_calls, size in (
        ("to device", program.to_device, program.to_device_bytes),
        ("from device", program.from_device, program.from_device_bytes),
    ):
        if n_calls is not None:
            yield label, f"{format_count(n_calls, 'transfer')}{f', {format_bytes(size)}' if size is not None else ''}"
