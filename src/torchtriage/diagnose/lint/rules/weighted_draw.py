"""Weights are summed up again for each draw.

Looks like: ``rng.choice(n, p=weights)``, ``random.choices(items, weights=w)`` or ``torch.multinomial(w, k)`` for
    each row of a batch, in a loop or comprehension of a step, in a function that one calls, or in
    ``__getitem__``, with the same weights in every turn.
Slow because: each call checks and sums all weights, however few it draws: over 100,000 of them that is a
    millisecond for one number.
Fix: draw for all rows in one call, ``size=(rows, k)``; or sum once, ``cdf = weights.cumsum()``, and draw with
    ``cdf.searchsorted(rng.random(k) * cdf[-1])`` (``cum_weights=`` of ``random.choices``); the alias method.
Quiet when: the weights change from turn to turn, or are few and written out.
Source: NumPy documentation of ``Generator.choice``; Python documentation of ``random.choices``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Context, Fix, Hit, Module, Rule, SourceCall, SourceFunction, SourceLoop
from torchtriage.diagnose.lint.reads import text_of
from torchtriage.diagnose.lint.syntax import argument, keyword, names_in, path_of, stored_names

RULE = Rule(
    "HST121", "weighted-draw", "host", "Sampling weights are summed again for each draw", "medium", over=("LCH105",)
)

FIX = Fix(
    text="Draw for all rows at once, or sum the weights once.",
    code="""negatives = rng.choice(n_items, size=(len(batch), k), p=weights)   # one call for all rows
cdf = weights.cumsum()                                             # once
negatives = cdf.searchsorted(rng.random((len(batch), k)) * cdf[-1])""",
    link="https://numpy.org/doc/stable/reference/random/generated/numpy.random.Generator.choice.html",
)

_FEW, _MANY = 256, 50_000
_DEPTH = 3


def find(module: Module) -> Iterator[Hit]:
    """Yield draws of a few by weights that stay the same from turn to turn."""
    for call in module.calls:
        weights = _weights(call) if call.attr in ("choice", "choices", "multinomial") else None
        if weights is None or call.context.rare or _is_short(module, call, weights) or _draws_many(module, call):
            continue
        if _again(module, call.context, weights, many=_size(module, call) >= _MANY):
            yield Hit(call.node, f"sums all weights again for each draw: {text_of(call.node)}", call.attr)


def _weights(call: SourceCall) -> ast.expr | None:
    """Return the weights of a draw."""
    node = call.node
    if call.attr == "choice":
        return argument(node, "p", 3)
    if call.attr == "choices":
        return argument(node, "weights", 1)
    if call.name == "torch.multinomial":
        return argument(node, "input", 0)
    return call.owner if call.receiver.kind == "tensor" else None


def _draws_many(module: Module, call: SourceCall) -> bool:
    """Return whether one call for a sample draws as many as a setting says: the sums are shared."""
    function, node = call.context.function, call.node
    if call.context.loop is not None or function is None or not function.loads:
        return False
    given = keyword(node, "size") or keyword(node, "k") or keyword(node, "num_samples")
    if given is None and len(node.args) > 1 and call.attr != "choices":
        given = node.args[1]
    if given is None:
        return False
    number = module.constant(given, call.context)
    return not (isinstance(number, int) and number <= _FEW)


def _size(module: Module, call: SourceCall) -> int:
    """Return how many there are to draw from, 0 where it is not known."""
    known = module.constant(call.node.args[0], call.context) if call.node.args and call.attr == "choice" else 0
    return known if isinstance(known, int) else 0


def _is_short(module: Module, call: SourceCall, weights: ast.expr) -> bool:
    """Return whether the weights are a few: written out, or of a small number of things."""
    if 0 < _size(module, call) <= _FEW:
        return True
    given = [weights, *call.node.args[:1]]
    return any(_is_written(module, item, call.context) for item in given)


def _is_written(module: Module, node: ast.expr, context: Context) -> bool:
    if isinstance(node, ast.Call) and node.args:
        return _is_written(module, node.args[0], context)  # np.array([0.1, 0.9])
    if isinstance(node, ast.BinOp):
        return _is_written(module, node.left, context)
    path = path_of(node)
    made = [assign.expression for assign in module.assigns_to(path) if assign.how == "="]
    if made:
        given = [item.args[0] if isinstance(item, ast.Call) and item.args else item for item in made]
        return all(isinstance(item, ast.List | ast.Tuple) for item in given)
    return isinstance(node, ast.List | ast.Tuple)


def _again(module: Module, context: Context, weights: ast.expr, *, many: bool, depth: int = 0) -> bool:
    """Return whether a draw runs for each row of a step, with the same weights."""
    function, loop = context.function, context.loop
    if loop is not None:
        often = many and loop.steps
        if not often and (loop.steps or loop.short or not _repeats(module, loop.context)):
            return False
        return not _changes(module, weights, loop, function)
    if function is None or context.rare or depth >= _DEPTH:
        return False
    if function.loads:
        return not _changes(module, weights, None, function)
    return any(
        callee is function
        and (passed := _passed(module, function, outer, weights)) is not None
        and _again(module, outer, passed, many=many, depth=depth + 1)
        for outer, callee in module.edges
    )


def _repeats(module: Module, context: Context) -> bool:
    return module.repeats(context) or (context.loads and not context.rare)


def _passed(module: Module, function: SourceFunction, context: Context, weights: ast.expr) -> ast.expr | None:
    """Return what the weights are in a caller: the same attribute, or what it gives for a parameter."""
    if isinstance(weights, ast.Name):
        made = module.made_in(function, weights.id)
        if len(made) == 1:
            return _passed(module, function, context, made[0])
    names = names_in(weights) - {"self"}
    if not names & {*function.places, *stored_names(function.node)}:
        return weights
    if not isinstance(weights, ast.Name) or weights.id not in function.places:
        return None
    calls = (call for call in module.calls if function in call.callees and call.context is context)
    return next((function.given_by(call.node).get(weights.id) for call in calls), None)


def _changes(module: Module, weights: ast.expr, loop: SourceLoop | None, function: SourceFunction | None) -> bool:
    """Return whether weights may be others in the next turn."""
    for node in ast.walk(weights):
        path = path_of(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        if not path:
            continue
        root, dot, _ = path.partition(".")
        if loop is not None and (root in loop.targets or path in loop.assigned or root in loop.assigned):
            return True
        if loop is None and not dot and function is not None and root in stored_names(function.node):
            return True
        if dot and any(assign.context.repeated for assign in module.assigns_to(path)):
            return True
    return isinstance(weights, ast.Call) and not isinstance(weights.func, ast.Attribute)
