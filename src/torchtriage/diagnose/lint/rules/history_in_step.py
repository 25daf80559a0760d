"""A list of all steps is worked through again in every step.

Looks like: ``losses.append(x)`` and, in the same step, ``np.mean(losses)``, ``torch.stack(losses)``,
    ``sorted(losses)`` over all of it; ``list.pop(0)`` and ``insert(0, x)``.
Slow because: the work grows with the number of steps, so that a long run gets slower and slower.
Fix: keep a running sum, or ``collections.deque(maxlen=n)``.
Quiet when: the list is cleared in the loop, only its end is taken (``losses[-100:]``), or it is behind
    ``if step % n``.
Source: Python documentation of ``collections.deque``.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Assign, Context, Fix, Hit, Module, Rule, SourceCall, SourceLoop, text_of
from torchtriage.diagnose.lint.torch_names import words

RULE = Rule("HST106", "history-in-step", "host", "The cost of a step grows with the steps before it", "low")

FIX = Fix(
    text="Keep a running value, or the last N.",
    code="""window = collections.deque(maxlen=100)   # drops the oldest by itself
total += loss.detach()                   # instead of np.mean(all_losses)""",
    link="https://docs.python.org/3/library/collections.html#collections.deque",
)

_OVER = (
    *(
        f"numpy.{name}"
        for name in words("""
            mean std var median percentile quantile array asarray stack concatenate vstack hstack sum max min cumsum
        """)
    ),
    *(f"torch.{name}" for name in ("stack", "cat", "tensor", "concat")),
    *(f"statistics.{name}" for name in ("mean", "fmean", "median", "stdev", "pstdev", "quantiles")),
    *("sorted", "sum", "max", "min", "set", "collections.Counter", "pandas.DataFrame"),
)
_CHEAP = words("append extend len print isinstance Thread submit put")
Grown = dict[str, set[SourceLoop | None]]
_SHORT = 1000
_COPIES = words("stack cat concat array asarray tensor concatenate vstack hstack DataFrame")


def find(module: Module) -> Iterator[Hit]:
    """Yield work over whole histories in hot code, and lists that lose their first element."""
    for call in module.sent("pop", "insert"):
        first = call.node.args[0] if call.node.args else None
        if call.context.hot and isinstance(first, ast.Constant) and first.value == 0 and _is_list(module, call):
            said = f"every element moves by one place: {text_of(call.node)}"
            yield Hit(call.node, said, call.attr, severity="note" if _is_short(module, call) else None)
    grown: dict[str, set[SourceLoop | None]] = defaultdict(set)
    for assign in module.assigns:
        if assign.how in ("append", "extend") and assign.context.hot and _outlives(module, assign):
            grown[assign.target].add(assign.context.step_loop)
    if not grown:
        return
    yield from _whole(module, grown)
    for call in module.called(*_OVER):
        given = call.node.args[0] if call.node.args else None
        if call.context.hot and given is not None and _beside(given, call.context, grown):
            yield Hit(
                call.node,
                f"everything so far is worked through again: {text_of(call.node)}",
                call.attr,
                severity="medium" if call.attr in _COPIES else None,
            )


def _beside(node: ast.expr, context: Context, grown: Grown) -> bool:
    """Return whether an expression is a history, and stands where it grows: in the same loop of steps."""
    name = text_of(node, 200)
    if name not in grown:
        return False
    return name.startswith("self.") or bool(grown[name] & set(context.loops()))


def _whole(module: Module, grown: Grown) -> Iterator[Hit]:
    """Yield loops over, and functions that are given, everything so far."""
    for loop in module.loops:
        context = module.loop_contexts[loop]
        if not context.hot or loop.steps or isinstance(loop.node, ast.While):
            continue
        if _beside(loop.node.iter, context, grown):
            node = loop.node if isinstance(loop.node, ast.stmt) else loop.node.iter
            yield Hit(node, f"this goes over everything so far: {text_of(loop.node.iter)}")
    for call in module.calls:
        if not call.context.hot or call.name in _OVER or call.attr in _CHEAP:
            continue
        if (call.callees or call.attr in ("encode", "decode", "batch_decode", "transform", "fit")) and any(
            _beside(item, call.context, grown) for item in call.node.args
        ):
            yield Hit(call.node, f"everything so far is worked through again: {text_of(call.node)}", call.attr)


def _is_list(module: Module, call: SourceCall) -> bool:
    name = text_of(call.owner, 200) if call.owner is not None else ""
    made = [one.expression for one in module.assigns if one.target == name and one.how == "="]
    return bool(made) and all(isinstance(node, ast.List | ast.ListComp) or text_of(node) == "list()" for node in made)


def _is_short(module: Module, call: SourceCall) -> bool:
    """Return whether a list is held to few elements: ``if len(window) > 100``."""
    function = call.context.function
    name = text_of(call.owner, 200) if call.owner is not None else ""
    for node in ast.walk(function.node if function is not None else module.tree):
        if isinstance(node, ast.Compare) and text_of(node.left, 200) == f"len({name})":
            bound = module.constant(node.comparators[0], call.context)
            return isinstance(bound, int) and bound <= _SHORT
    return False


def _outlives(module: Module, one: Assign) -> bool:
    """Return whether a list is made before the loop and never shortened."""
    loop = one.context.step_loop
    if loop is not None and (one.target in loop.cleared or one.target in loop.assigned):
        return False
    if loop is None and not one.target.startswith("self."):
        return False
    for call in module.sent("clear", "pop", "popleft"):
        if call.owner is not None and text_of(call.owner, 200) == one.target:
            return False
    made = [other for other in module.assigns if other.target == one.target and other.how == "="]
    if one.target.startswith("self.") and any(other.context.hot for other in made):
        return False
    return bool(made) and all(isinstance(other.expression, ast.List | ast.ListComp) for other in made)
