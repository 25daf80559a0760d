"""Each step works through everything that came before it.

Looks like: ``losses.append(x)`` or ``x = torch.cat([x, y])`` and, in the same step, ``np.mean(losses)``,
    ``roc_auc(scores, labels)`` over all of it; ``x[:i].max()`` in a loop over ``i``; ``if i not in done``
    with a list; ``list.pop(0)``; a deep copy of what refers to its own ancestor.
Slow because: the work grows with the number of steps, so that a long run gets slower and slower.
Fix: keep a running value, a set, or ``collections.deque(maxlen=n)``; compute over everything once, at the end.
Quiet when: the list is cleared in the loop, only its end is taken (``losses[-100:]``), or it is behind
    ``if step % n``.
Source: Python documentation of ``collections.deque``.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import (
    Assign,
    Context,
    Fix,
    Hit,
    Module,
    Rule,
    SourceCall,
    SourceFunction,
    SourceLoop,
    text_of,
)
from torchtriage.diagnose.lint.rules._growth import grown_by, takes_prefix
from torchtriage.diagnose.lint.syntax import indices, method_of, path_of, stored_names, walk
from torchtriage.diagnose.lint.torch_names import REDUCTIONS, words
from torchtriage.diagnose.lint.work_words import PURE_METHODS

RULE = Rule("HST106", "history-in-step", "host", "Steps get slower as history grows", "low")

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
_LIBRARY = words("encode decode batch_decode transform fit fit_transform")
_METRIC = re.compile(
    r"_(score|error|curve|matrix|report|loss|auc|accuracy|distance)$|^(auc|roc|f1|pearsonr|spearmanr|kendalltau)"
)
_CHEAP = words("append extend len print isinstance Thread submit put")
Grown = dict[str, set[SourceLoop | None]]
_ORDERS = words("sort argsort topk cumsum cumprod unique percentile quantile nanmin nanmax average")
_SHORT = 1000
_COPIES = words("stack cat concat array asarray tensor concatenate vstack hstack DataFrame")


def find(module: Module) -> Iterator[Hit]:
    """Yield work over whole histories in hot code, and lists that lose their first element."""
    for call in module.sent("pop", "insert"):
        first = call.node.args[0] if call.node.args else None
        if call.context.hot and isinstance(first, ast.Constant) and first.value == 0 and _is_list(module, call):
            message = f"every element is shifted by one place: {text_of(call.node)}"
            short = _is_short(module, call) or _is_renewed(module, call)
            yield Hit(call.node, message, call.attr, severity="note" if short else None)
    grown: dict[str, set[SourceLoop | None]] = defaultdict(set)
    for assign in module.assigns:
        if grown_by(module, assign) and assign.context.hot and _gathers(assign) and _outlives(module, assign):
            grown[assign.target].add(assign.context.step_loop)
    yield from _prefixes(module)
    yield from _chains(module)
    if not grown:
        return
    yield from _whole(module, grown)
    for call in module.called(*_OVER):
        given = call.node.args[0] if call.node.args else None
        if call.context.hot and given is not None and _beside(given, call.context, grown):
            yield Hit(
                call.node,
                f"everything so far is processed again: {text_of(call.node)}",
                call.attr,
                severity="medium" if call.attr in _COPIES else None,
            )


def _beside(node: ast.expr, context: Context, grown: Grown) -> bool:
    """Return whether an expression is a history, and stands where it grows: in the same loop of steps."""
    name = text_of(node, 200)
    if name not in grown:
        return False
    if name.startswith("self.") or grown[name] & set(context.loops()):
        return True
    return None in grown[name] and context.step_loop is None and name not in _bound(context.function)


def _bound(function: SourceFunction | None) -> set[str]:
    """Return the names that a function binds itself, its parameters too."""
    if function is None:
        return set()
    return stored_names(function.node) | {node.arg for node in walk(function.node) if isinstance(node, ast.arg)}


def _is_shared(module: Module, assign: Assign) -> bool:
    """Return whether a list that a step's function lengthens is made around it, by what runs once."""
    function = assign.context.function
    if "." in assign.target or function is None or assign.target in _bound(function):
        return False
    scopes: list[SourceFunction | None] = [None]
    while (function := function.outer) is not None:
        scopes.append(function)
    return any(
        other.how == "=" and other.context.function in scopes and other.context.loop is None and not other.context.hot
        for other in module.assigns_to(assign.target)
    )


def _whole(module: Module, grown: Grown) -> Iterator[Hit]:
    """Yield loops over, and functions that are given, everything so far."""
    for loop in module.loops:
        if not loop.context.hot or loop.steps or isinstance(loop.node, ast.While):
            continue
        if _beside(loop.node.iter, loop.context, grown):
            yield Hit(loop.place, f"this goes over everything so far: {text_of(loop.node.iter)}")
    for call in module.calls:
        if not call.context.hot or call.name in _OVER or call.attr in _CHEAP:
            continue
        if (call.callees or call.attr in _LIBRARY or _METRIC.search(call.attr)) and any(
            _beside(item, call.context, grown) for item in call.node.args
        ):
            yield Hit(call.node, f"everything so far is processed again: {text_of(call.node)}", call.attr)


def _is_list(module: Module, call: SourceCall) -> bool:
    name = text_of(call.owner, 200) if call.owner is not None else ""
    made = [assign.expression for assign in module.assigns_to(name) if assign.how == "="]
    return bool(made) and all(isinstance(node, ast.List | ast.ListComp) or text_of(node) == "list()" for node in made)


def _is_renewed(module: Module, call: SourceCall) -> bool:
    """Return whether a list is made anew in each call of the function that a step runs."""
    name = text_of(call.owner, 200) if call.owner is not None else ""
    return call.context.step_loop is None and any(
        "." not in name and assign.how == "=" and assign.context.function is call.context.function is not None
        for assign in module.assigns_to(name)
    )


def _is_short(module: Module, call: SourceCall) -> bool:
    """Return whether a list is held to few elements: ``if len(window) > 100``."""
    name = text_of(call.owner, 200) if call.owner is not None else ""
    for node in ast.walk(module.body(call.context.function)):
        if isinstance(node, ast.Compare) and text_of(node.left, 200) == f"len({name})":
            bound = module.constant(node.comparators[0], call.context)
            return isinstance(bound, int) and bound <= _SHORT
    return False


def _gathers(assign: Assign) -> bool:
    """Return whether results are gathered; a sequence that a model makes longer is what it works on."""
    loop = assign.context.step_loop
    return assign.how != "=" or assign.target.startswith("self.") or (loop is not None and loop.over_loader)


def _outlives(module: Module, assign: Assign) -> bool:
    """Return whether a list is made before the loop and never shortened."""
    loop = assign.context.step_loop
    joins = assign.how == "="
    if loop is not None and (assign.target in loop.cleared or loop.assigned.get(assign.target, 0) > joins):
        return False
    if loop is None and not (assign.target.startswith("self.") or _is_shared(module, assign)):
        return False
    for call in module.sent("clear", "pop", "popleft"):
        if call.owner is not None and text_of(call.owner, 200) == assign.target:
            return False
    made = [other for other in module.assigns_to(assign.target) if other.how == "=" and not grown_by(module, other)]
    if assign.target.startswith("self.") and any(other.context.hot for other in made):
        return False
    return joins or (bool(made) and all(isinstance(other.expression, ast.List | ast.ListComp) for other in made))


def _prefixes(module: Module) -> Iterator[Hit]:
    """Yield what each turn of a counting loop computes of all elements before its own: ``x[:i].max()``."""
    for loop in module.loops:
        if not isinstance(loop.node, ast.For) or not loop.counter or loop.short:
            continue
        setting_up = loop.function is not None and loop.function.name == "__init__"
        if setting_up or not (module.is_program or loop.context.hot or loop.steps):
            continue
        if re.search(rf":\s*{loop.counter}\b", module.text):
            yield from _Prefixes(module, loop.node, loop.counter).hits()


class _Prefixes:
    """A loop's own statements: which values are made of all elements before the turn's own, and nothing else new."""

    def __init__(self, module: Module, loop: ast.For, index: str) -> None:
        self.module, self.loop, self.index = module, loop, index
        self.changing = stored_names(loop)
        self.prefixes: set[str] = set()

    def hits(self) -> Iterator[Hit]:
        for statement in self.loop.body:
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Return | ast.AnnAssign):
                for part in ast.walk(statement):
                    if isinstance(part, ast.Call) and self._reduces(part):
                        called = text_of(part.func).rpartition(".")[2]
                        yield Hit(
                            part, f"every iteration works through all earlier items again: {text_of(part)}", called
                        )
                        return
            if isinstance(statement, ast.Assign) and self._is_prefix(statement.value):
                self.prefixes |= {target.id for target in statement.targets if isinstance(target, ast.Name)}

    def _reduces(self, node: ast.Call) -> bool:
        last = method_of(node) or path_of(node.func)
        if last not in REDUCTIONS and last not in _ORDERS:
            return False
        if isinstance(node.func, ast.Attribute) and self._is_prefix(node.func.value):
            return True
        return bool(node.args) and self._is_prefix(node.args[0])

    def _is_prefix(self, node: ast.expr) -> bool:
        """Return whether an expression is made of a prefix, and of nothing else that changes."""
        return bool(self._parts(node)) and not self._changes(node)

    def _parts(self, node: ast.expr) -> list[ast.expr]:
        return [
            part
            for part in ast.walk(node)
            if (isinstance(part, ast.Name) and part.id in self.prefixes)
            or (isinstance(part, ast.Subscript) and takes_prefix(part, self.index))
        ]

    def _changes(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript) and takes_prefix(node, self.index):
            return any(self._changes(part) for part in indices(node) if not isinstance(part, ast.Slice))
        if isinstance(node, ast.Name):
            return node.id in self.changing and node.id not in self.prefixes
        if isinstance(node, ast.Call) and not self._is_array_work(node):
            return True  # whatever it does, it is no running value
        return any(self._changes(child) for child in ast.iter_child_nodes(node))

    def _is_array_work(self, node: ast.Call) -> bool:
        """Return whether a call is a function of PyTorch or NumPy, or a method of their arrays."""
        if self.module.name_of(node.func).startswith(("torch.", "numpy.")):
            return True
        if isinstance(node.func, ast.Name):
            return node.func.id in ("abs", "sum", "max", "min", "float", "len", "sorted")
        return method_of(node) in PURE_METHODS


def _chains(module: Module) -> Iterator[Hit]:
    """Yield deep copies of what the copy then refers to: each holds, and copies, all that came before."""
    for call in module.called("copy.deepcopy"):
        given = call.node.args[0] if call.node.args else None
        if given is None or not call.target or not path_of(given):
            continue
        if any(
            assign.target.startswith(f"{call.target}.")
            and assign.context.function is call.context.function
            and text_of(assign.expression, 200) == path_of(given)
            for assign in module.assigns
        ):
            message = f"the copy refers to its source, and the next copy copies both: {text_of(call.node)}"
            yield Hit(call.node, message, "deepcopy", "medium")
