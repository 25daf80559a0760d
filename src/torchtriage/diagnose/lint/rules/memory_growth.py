"""Tensors, or the graph behind them, are kept from step to step.

Looks like: ``total += loss`` or ``losses.append(loss)`` with a loss that still holds its graph; a
    list of device tensors that grows in a training loop; ``register_forward_hook`` in each step;
    ``retain_graph=True`` or ``create_graph=True`` without a second backward pass.
Slow because: every step's graph stays alive. After a backward pass it holds little, without one it
    holds all activations, until memory runs out.
Fix: ``total += loss.detach()``; clear the list, or keep numbers.
Quiet when: the sum is what ``backward()`` is called on, or the list is cleared in the loop.
Source: PyTorch FAQ, "My model reports cuda runtime error(2): out of memory".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.abstract_values import Value
from torchtriage.diagnose.lint.base import (
    Assign,
    Fix,
    Hit,
    Module,
    Rule,
    Severity,
    SourceCall,
    SourceFunction,
    SourceLoop,
    keyword,
    literal,
    names_in,
    text_of,
)
from torchtriage.diagnose.lint.syntax import attributes_in

_HOOKS = frozenset(
    f"register_{name}hook"
    for name in ("forward_", "forward_pre_", "full_backward_", "full_backward_pre_", "backward_", "module_forward_")
)

_OPTIONS = frozenset({"gradient", "grad_tensors", "inputs", "retain_graph", "create_graph"})
"""Of a backward pass: what else it is given by name is a loss."""

RULE = Rule("MEM029", "memory-growth", "alloc", "Memory grows from step to step", "medium")

FIX = Fix(
    text="Detach what is kept.",
    code="""total += loss.detach()              # not: total += loss
losses.append(loss.detach())        # not: losses.append(loss)""",
    link="https://docs.pytorch.org/docs/stable/notes/faq.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield sums and lists that outlive the step and hold a graph, hooks that pile up."""
    yield from _hooks(module)
    yield from _retained(module)
    for assign in module.assigns:
        value, context = _stored_value(assign), assign.context
        if value.kind != "tensor" or value.guess or context.no_grad or not context.hot:
            continue
        if not value.grad and not value.on_device:
            continue
        loop = context.step_loop
        own = assign.target.startswith("self.") and loop is None
        if loop is None and not own:
            continue
        if loop is not None and (_renewed(loop, assign) or assign.target in loop.targets):
            continue
        if _is_trained(module, assign, loop):
            continue
        steps = loop is not None and (loop.trains or loop.over_loader or (value.grad and module.is_program))
        if assign.how == "append" and (own or steps):
            yield from _list(module, assign, loop, value)
        elif assign.how != "append" and value.grad and value.scalar and (assign.how == "+=" or _adds_itself(assign)):
            yield Hit(assign.node, f"keeps the graph of every step: {text_of(assign.node)}")


def _hooks(module: Module) -> Iterator[Hit]:
    """Yield hooks on modules that each step adds and nobody removes."""
    for call in module.calls:
        adds = call.context.hot and call.attr in _HOOKS and call.receiver.kind != "tensor"
        if adds and ".remove()" not in module.text_of(call.context.function):
            yield Hit(call.node, f"every step adds another hook: {text_of(call.node)}", call.attr)


def _retained(module: Module) -> Iterator[Hit]:
    """Yield backward passes that keep a graph which no second one uses, or make one of their own."""
    backward = module.sent("backward")
    for call in backward:
        asked = [name for name in ("create_graph", "retain_graph") if literal(keyword(call.node, name)) is True]
        if not call.context.hot or not asked:
            continue
        beside = [other for other in backward if other.context.function is call.context.function]
        if len(beside) == 1 and not _SECOND_ORDER.search(module.text) and not _in_own_loop(call):
            what = "makes a graph of the gradients" if asked[0] == "create_graph" else "keeps a graph"
            yield Hit(call.node, f"{asked[0]}=True {what} that nothing uses again", "backward", "low")


_SECOND_ORDER = re.compile(
    r"autograd\.grad|[Hh]essian|Sophia|create_graph=(?!True\))|\.grad\b(?!\s*(=|is|\.zero_|\.data))"
)


def _in_own_loop(call: SourceCall) -> bool:
    """Return whether a loop within the step takes gradients of the same graph again and again."""
    loop = call.context.loop
    return loop is not None and loop.outer is not None and loop.outer.steps


def _takes_gradients(module: Module, function: SourceFunction | None) -> bool:
    """Return whether a function, or the file's own level, takes gradients itself or by what it calls."""
    if function is not None:
        return function.has_backward
    return any(event.kind == "backward" for event in module.module_events) or any(
        context.function is None and callee.has_backward for context, callee in module.edges
    )


def _stored_value(assign: Assign) -> Value:
    """Return what is kept: of a tuple the part that holds a graph."""
    return next((item for item in assign.value.items if item.kind == "tensor" and item.grad), assign.value)


def _list(module: Module, assign: Assign, loop: SourceLoop | None, value: Value) -> Iterator[Hit]:
    severity: Severity = "medium"
    if value.grad:
        if loop is not None and not loop.trains and _takes_gradients(module, loop.function):
            return  # gathered on purpose for a backward pass after the loop
        message = "keeps the graph of every step"
    elif loop is not None and loop.trains and not value.scalar:
        message, severity = "keeps a device tensor of every step", "low"
    else:
        return
    yield Hit(assign.node, f"{message}: {text_of(assign.node)}", "append", severity)


def _adds_itself(assign: Assign) -> bool:
    node = assign.expression
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and assign.target in (text_of(node.left, 999), text_of(node.right, 999))
    )


def _renewed(loop: SourceLoop, assign: Assign) -> bool:
    """Return whether the target starts afresh in each step."""
    own = assign.how == "="
    return assign.target in loop.cleared or loop.assigned.get(assign.target, 0) > own


def _is_trained(module: Module, assign: Assign, loop: SourceLoop | None) -> bool:
    """Return whether a backward pass runs on the target, or on what is computed from it."""
    last = assign.target.rpartition(".")[2]
    for call in (*module.sent("backward", "manual_backward"), *module.called("torch.autograd.backward")):
        named = [item.value for item in call.node.keywords if item.arg not in _OPTIONS]
        inside = [*call.node.args, *named, *([call.owner] if call.owner is not None else [])]
        if any(last in names_in(part) | attributes_in(part) for part in inside):
            return True
    function = assign.context.function
    if module.is_program and not module.trains:
        return False
    if function is not None and not (loop is not None and loop.over_loader):
        for returned, _ in function.returns:
            if returned.value is not None and assign.target in names_in(returned.value) and not function.has_backward:
                return True  # a loss that is put together for the caller
    # torch.stack(losses).mean() and the like feed a loss
    return (
        loop is not None
        and not loop.trains
        and any(
            last in names_in(other.expression)
            for other in module.assigns
            if other.how == "=" and "loss" in other.target.lower() and other.target != assign.target
        )
    )
