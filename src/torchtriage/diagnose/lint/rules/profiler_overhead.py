"""The profiler records a whole run.

Looks like: ``with torch.profiler.profile(...)`` without ``schedule=`` around a loop of steps;
    ``emit_nvtx()`` left on.
Slow because: every operator is recorded for as long as it runs: the step takes up to several times as long, and the
    trace fills the memory.
Fix: ``schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)`` and ``prof.step()``.
Quiet when: a schedule is given, the loop runs at most twenty times, or a switch (``if args.profile``) turns it on.
Source: PyTorch profiler recipe, "Using profiler to analyze long-running jobs".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, keyword
from torchtriage.diagnose.lint.torch_names import PROFILERS

RULE = Rule("MSR045", "profiler-overhead", "measure", "The profiler records a whole run", "medium")

FIX = Fix(
    text="Record a few steps with a schedule.",
    code="""schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
with torch.profiler.profile(schedule=schedule) as prof:
    for batch in loader:
        train(batch)
        prof.step()""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/profiler_recipe.html",
)

MAX_STEPS = 20


def find(module: Module) -> Iterator[Hit]:
    """Yield profilers around loops of steps without a schedule."""
    yield from _started(module)
    for _item, call, context, node in module.withs:
        if context.seldom:
            continue
        if call.name in PROFILERS and keyword(call.node, "schedule") is None:
            if not _optional(call) and (
                any(_inside(loop, node) and _long(loop) for loop in module.loops) or _calls_loop(module, node)
            ):
                yield Hit(call.node, "the profiler records every step of the loop inside it")
        elif call.name == "torch.autograd.profiler.emit_nvtx" and any(
            _inside(loop, node) and _long(loop) for loop in module.loops
        ):
            yield Hit(call.node, "every operator of the loop inside is marked with NVTX")


def _started(module: Module) -> Iterator[Hit]:
    """Yield profilers without a schedule that ``start()`` switches on before a loop of steps."""
    started = {module.name_of(call.owner) for call in module.sent("start", "__enter__") if call.owner is not None}
    for call in module.called(*PROFILERS):
        if call.target and call.target in started and keyword(call.node, "schedule") is None:
            quiet = call.context.seldom or _optional(call)
            if not quiet and any(map(_long, module.loops)):
                yield Hit(call.node, "the profiler records every step until it is stopped")


def _optional(call: SourceCall) -> bool:
    """Return whether a setting decides: ``profile(enabled=args.profile)``, or unknown options."""
    return any(keyword.arg in (None, "enabled", "use_cuda") for keyword in call.node.keywords) or (
        call.name == "torch.autograd.profiler.profile" and bool(call.node.args)
    )


def _calls_loop(module: Module, node: ast.With | ast.AsyncWith) -> bool:
    """Return whether a function that is called inside holds a loop of steps, at any depth."""
    reached = module.reached(node)
    return any(loop.function in reached and _long(loop) for loop in module.loops)


def _inside(loop: SourceLoop, node: ast.With | ast.AsyncWith) -> bool:
    return not loop.comprehension and node.lineno <= loop.place.lineno <= (node.end_lineno or 0)


def _long(loop: SourceLoop) -> bool:
    if loop.n_constant is not None and loop.n_constant <= MAX_STEPS:
        return False
    return loop.steps or any(call.steps for call in loop.calls)
