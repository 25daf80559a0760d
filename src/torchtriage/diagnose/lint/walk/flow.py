"""What functions learn of their callers, and calls of their functions, at any depth.

Up: a function that calls one that trains, trains. Down: what a step calls runs in each step, what
compiled code calls is compiled, what runs only without autograd records no graph.
"""

from __future__ import annotations

import ast
import re

from torchtriage.diagnose.lint.facts import Context, Module, SourceFunction, SourceLoop

Edges = list[tuple[Context, SourceFunction]]


def flow(module: Module) -> None:
    """Let facts flow along the calls of a file until nothing changes."""
    edges = module.edges
    if edges:
        _up(edges)
    _mark_outer(module, edges)
    if module.is_program and not any(loop.steps for loop in module.loops):
        _mark_outermost(module, edges)
    _mark_offered(module, edges)
    if edges:
        _down(edges)


def _up(edges: Edges) -> None:
    for context, callee in edges:
        loop = context.statement_loop
        if loop is not None:
            loop.calls.add(callee)
    changed = True
    while changed:
        changed = False
        for context, callee in edges:
            function = context.function
            changed |= _tell_caller(context, callee)
            if function is not None and callee.has_backward and not function.has_backward:
                function.has_backward = changed = True


def _tell_caller(context: Context, callee: SourceFunction) -> bool:
    """Pass on what a call does to the loop or the function that it stands in."""
    function, loop = context.function, context.statement_loop
    runs_module = callee.runs_module or (callee.in_module and callee.works and callee.name != "__init__")
    before = (loop.runs_module, loop.works) if loop is not None else ()
    if loop is not None and not context.rare:
        loop.works = loop.works or callee.works
        loop.runs_module = loop.runs_module or (runs_module and not context.in_module)
    changed = loop is not None and (loop.runs_module, loop.works) != before
    if function is None:
        return changed
    old = (function.steps, function.runs_module, function.works)
    if not context.rare:
        function.works = function.works or callee.works
    if loop is None or loop.short:
        function.steps = function.steps or callee.steps
        if not context.rare and not context.in_module:
            function.runs_module = function.runs_module or runs_module
    return changed or old != (function.steps, function.runs_module, function.works)


def _mark_outer(module: Module, edges: Edges) -> None:
    """Mark loops whose turns each run a loop of inference: one request, frame or episode is a step too."""
    training = {loop.function for loop in module.loops if loop.trains or loop.over_loader}
    inferring = {loop.function for loop in module.loops if loop.runs_module and loop.steps} - training - {None}
    for holding in (training, inferring):
        while found := {context.function for context, callee in edges if callee in holding} - holding:
            holding |= found
    for function in training:
        if function is not None:
            function.holds = True
    for loop in module.loops:
        if loop.trains or loop.over_loader:
            for outer in loop.around():
                outer.wraps = True
        elif any(call.holds for call in loop.calls):
            loop.wraps = True
    for loop in module.loops:
        if loop.steps or loop.comprehension or loop.short or loop.n_constant is not None:
            continue
        if any(call in inferring for call in loop.calls) and not any(call in training for call in loop.calls):
            loop.outermost = _is_work(loop)


def _mark_outermost(module: Module, edges: Edges) -> None:
    """Mark the outermost loops that compute, in a program without training and without models.

    Trials, runs and settings are no such loops: of these each turn holds some.
    """
    repeated = {
        callee
        for context, callee in edges
        if any(_is_work(loop) for loop in context.loops() if not (loop.comprehension or loop.short))
    }
    while called := {callee for context, callee in edges if context.function in repeated} - repeated:
        repeated |= called
    for loop in module.loops:
        if loop.comprehension or loop.short or not _is_work(loop) or loop.function in repeated:
            continue
        works = loop.works or any(inner.works and loop in inner.around() for inner in module.loops)
        if works and not any(_is_work(outer) and not outer.short for outer in loop.around()):
            loop.outermost = True


def _mark_offered(module: Module, edges: Edges) -> None:
    """Mark what a file offers to others: a training step as one; a loss, a sampler or a metric for their steps."""
    called = {callee for _, callee in edges}
    for function in module.functions:
        owner = function.owner
        if function in called or function.sets_up:
            continue
        if function.steps and not function.holds and owner is not None:
            function.called_hot = True
        if module.is_program or _ONCE.search(function.name) or (owner is not None and _ONCE.search(owner.name)):
            continue
        of_steps = owner is not None and (
            (owner.is_module and not owner.is_lightning) or any(map(_STEPS.search, (owner.name, *owner.bases)))
        )
        function.offered = of_steps or _takes_tensors(module, function)


def _takes_tensors(module: Module, function: SourceFunction) -> bool:
    """Return whether a function is for tensors, by its annotations, its docstring, or as it asks for them."""
    arguments = function.node.args
    said = [item.annotation for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if any(item is not None and "Tensor" in ast.unparse(item) for item in said):
        return True
    described = (ast.get_docstring(function.node, clean=False) or "").split("\n")
    if any("Tensor" in line and re.search(r"[:(]", line.partition("Tensor")[0]) for line in described):
        return True
    return _ASKS.search(module.text_of(function)) is not None


_ASKS = re.compile(r"isinstance\(\w+, (torch\.)?Tensor|torch\.is_tensor\(")
_STEPS = re.compile(r"Loss|Criterion|Metric|Scheduler|Sampler$")
_ONCE = re.compile(
    r"plot|draw|show|assert|quantiz|epoch|equal|[sg]et_|index_for|visual|save|write|dump|export|convert|check|valid|debug|test|print|repr|process|collate|augment"
    r"|resize|prompt|predict|generate|infer|Pipeline|Processor$|Tokenizer|Extractor|_init|init_"
)


def _is_work(loop: SourceLoop) -> bool:
    """Return whether a loop may be the program's own: no epochs, no setting up, no part of a module."""
    function = loop.function
    if function is not None and (function.sets_up or function.in_module):
        return False
    if not isinstance(loop.node, ast.For | ast.AsyncFor):
        return True
    return not loop.rounds and not isinstance(loop.node.iter, ast.Tuple | ast.List)


def _down(edges: Edges) -> None:
    for function in {callee for _, callee in edges}:
        function.called_without_grad = True
    changed = True
    while changed:
        changed = False
        for context, callee in edges:
            changed |= _tell_callee(context, callee)


def _tell_callee(context: Context, callee: SourceFunction) -> bool:
    """Pass on what is known of the place that a function is called from."""
    caller = context.function
    old = _call_facts(callee)
    drives = False
    if context.statement_loop is not None or (caller is not None and caller.called_in_loop):
        callee.called_in_loop = True
    if context.repeated and callee.name != "__init__":
        callee.called_again = True
    if not context.no_grad and not (caller is not None and caller.called_without_grad):
        callee.called_without_grad = False
    if caller is not None and not context.rare:
        callee.compiled_by_caller = callee.compiled_by_caller or caller.compiled or caller.compiled_by_caller
        callee.loads = callee.loads or caller.loads
    if caller is not None and caller.offered and not context.rare:
        callee.offered = True
    if context.hot and callee.name != "__init__" and not callee.holds:
        if callee.turns:
            drives = any(not loop.drives for loop in callee.turns)
            for loop in callee.turns:
                loop.drives = True
        else:
            callee.called_hot = True
    return drives or old != _call_facts(callee)


def _call_facts(function: SourceFunction) -> tuple[bool, ...]:
    return (
        function.called_hot,
        function.called_in_loop,
        function.called_again,
        function.offered,
        function.called_without_grad,
        function.compiled_by_caller,
        function.loads,
    )
