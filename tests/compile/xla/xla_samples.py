"""An XLA result with everything in it, for the reports."""

from __future__ import annotations

from dataclasses import replace

from tests.report.sample_result import HOSTILE

from torchtriage.compile.logs.result import Count, GraphBreak
from torchtriage.compile.xla.result import (
    AnswerCheck,
    CountedStep,
    Fallback,
    FxGraph,
    HloGraph,
    Route,
    RouteTimes,
    XlaModel,
    XlaProgram,
    XlaResult,
)
from torchtriage.compile.xla.verdict import judge
from torchtriage.core.finding import Fix, Frame, Note

FRAME = Frame(f"/home/me/{HOSTILE}.py", 12, "forward", True)
STEP = CountedStep(
    compiled=2,
    executed=2,
    executed_told=2,
    compile_ms=20.0,
    execute_ms=1.0,
    to_device=1,
    from_device=1,
    to_device_bytes=4.0,
    from_device_bytes=4.0,
)
STEADY = replace(STEP, compiled=0, compile_ms=0.0)


def graph(number: int, cause: str = "step", *, extra: bool = False) -> HloGraph:
    return HloGraph(
        number=number,
        hash=f"{number:x}",
        cause=cause,
        reason=f"because of {HOSTILE}",  # type: ignore[arg-type]
        extra=extra,
        op="aten::median",
        fx="0/0 inference",
        frame=FRAME,
        step=0,
        n_inputs=3,
        n_outputs=1,
        n_aliased=2,
        n_ops=17,
        compile_ms=12.5,
        first_step=1,
        per_step=1.0,
    )


def times(steady_ms: float, *, queued: bool = True) -> RouteTimes:
    return RouteTimes(
        first_ms=300.0,
        first_low_ms=250.0,
        first_high_ms=400.0,
        steady_ms=steady_ms,
        low_ms=steady_ms * 0.9,
        high_ms=steady_ms * 1.2,
        queued_ms=steady_ms / 2 if queued else None,
        n_queued=40 if queued else 0,
        n_steps=120,
        n_processes=3,
    )


def route(name: str, steady_ms: float, executed: float, graphs: int) -> Route:
    counted = name != "eager"
    return Route(
        name=name,
        failure="",
        steps=(STEP, STEADY, STEADY) if counted else (),  # type: ignore[arg-type]
        n_compiled=graphs if counted else 0,
        n_steady=2 if counted else 0,
        executed_per_step=executed if counted else None,
        execute_ms_per_step=1.0 if counted else None,
        first_compiled_unwatched=2 if counted else None,
        graphs=tuple(graph(at, "fallback" if at else "step", extra=bool(at)) for at in range(graphs))
        if counted
        else (),
        fallbacks=(Fallback("aten::median", "not lowered", 3, 1.0),) if counted else (),
        times=times(steady_ms, queued=counted),
        answers=AnswerCheck("rounding", "outputs", 1e-7, 9e-8, "output[0]", "") if counted else None,
    )


def model(name: str = HOSTILE, *, train: bool = False, executed: float = 3.0) -> XlaModel:
    broken = GraphBreak(
        id="GB0124",
        type=f"a break {HOSTILE}",
        explanation="",
        hints=(),
        context="",
        trying="",
        frame=FRAME,
        caller=None,
        stack=(FRAME,),
        functions=(),
        count=2,
        compile_ids=("0/0",),
        ranks=(),
        fix=Fix("leave it out"),
    )
    cut = (Count("aten.median.default", 1),)
    fx = FxGraph("0/0 inference", "0/0", "inference", 14, (4, 5), cut, (0, 1), 0)
    return XlaModel(
        target=f"models.py:{name}",
        train=train,
        n_dynamo_graphs=1,
        n_breaks=1,
        breaks=(broken,),
        recompiles=(),
        fx=(fx, replace(fx, id="1/0", hlo=()), replace(fx, parts=(), hlo=())),
        routes=(route("eager", 1.0, 0, 0), route("lazy", 2.0, 2.0, 2), route("openxla", 2.0 * executed, executed, 30)),
        facts=(("torch_xla", "2.9.0"), ("PJRT device", "CPU")),
    )


def program() -> XlaProgram:
    return XlaProgram(
        name=f"/home/me/{HOSTILE}",
        paths=("a", "b"),
        n_compiled=9,
        n_executed=42,
        n_compiled_told=8,
        n_executed_told=40,
        n_modules=9,
        n_saved=9,
        compile_ms=45226.9,
        execute_ms=3059.8,
        to_device=5,
        from_device=36,
        to_device_bytes=None,
        from_device_bytes=468 * 2.0**20,
        fallbacks=(Fallback(HOSTILE, "not lowered", 12, None),),
        graphs=(replace(graph(0, "read", extra=True), per_step=None),),
        counters=(Count("MarkStep", 2),),
        skipped=(Count("lines", 3),),
        notes=(Note("counts-differ", "warn", f"differ {HOSTILE}", "add more"),),
    )


def whole() -> XlaResult:
    """Return many models, some that failed, and a program."""
    models = [model(f"m{at}", train=bool(at % 2), executed=1.0 + at) for at in range(12)]
    why = f"crashed while counting: {HOSTILE}\nsmaller ones"
    failed = replace(models[0].routes[2], failure=why, steps=(), graphs=(), times=None, answers=None)
    models.append(replace(model(), routes=(*models[0].routes[:2], failed)))
    return judge(models, [program()], [Note("x", "info", HOSTILE)])
