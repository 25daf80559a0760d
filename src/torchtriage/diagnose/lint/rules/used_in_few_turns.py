"""Each iteration computes what only one in many uses.

Looks like: ``accuracy = evaluate(model, x, y)`` in every iteration, and ``if epoch % 25 == 0: print(accuracy)`` its
    only reader.
Slow because: a pass over the data, forward through a model included, is dropped in all other iterations.
Fix: move it behind the condition.
Quiet when: anything else reads it, it trains or changes something that stays, or it runs no model and no function of
    the file.
Source: PyTorch performance tuning guide.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, text_of
from torchtriage.diagnose.lint.conditions import is_rare, takes_remainder
from torchtriage.diagnose.lint.facts import SourceCall, SourceLoop
from torchtriage.diagnose.lint.syntax import names_in
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import bound_names, stored_attributes
from torchtriage.diagnose.lint.work_words import MUTATORS

RULE = Rule("HST126", "used-in-few-turns", "host", "Computed in every iteration, used in few", "low")

FIX = Fix(
    text="Compute it behind the condition that uses it.",
    code="""if epoch % 25 == 0:
    accuracy = evaluate(model, x, y)
    print(epoch, accuracy)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)

_STAYS = words("print write writerow open next save dump step backward log info add_scalar put send recv get")
"""Calls that leave something behind, or take something that is then gone."""


def find(module: Module) -> Iterator[Hit]:
    """Yield what loops of steps compute for a condition on the count of their turns."""
    if "%" not in module.text:
        return
    for loop in module.loops:
        if loop.steps or loop.rounds or loop.wraps:
            yield from _of_loop(module, loop)


def _of_loop(module: Module, loop: SourceLoop) -> Iterator[Hit]:
    targets: dict[ast.AST, list[str]] = defaultdict(list)
    for assign in module.assigns:
        if assign.context.statement_loop is loop and not assign.context.seldom and isinstance(assign.node, ast.Assign):
            targets[assign.node].append(assign.target)
    dropped = {
        node for node, names in targets.items() if not _behind_count(module, loop, node) and _alone(module, node, names)
    }
    while kept := {node for node in dropped if not _is_dropped(module, loop, node, targets[node], dropped)}:
        dropped -= kept
    if not dropped or not any(_goes_on(module, loop, call, dropped) for call in module.calls):
        return
    for node in targets:
        work = next(_work(module, node), None) if node in dropped else None
        if work is not None:
            yield Hit(work.node, f"every iteration computes this, but few use it: {text_of(work.node)}", work.attr)


def _goes_on(module: Module, loop: SourceLoop, call: SourceCall, dropped: set[ast.AST]) -> bool:
    """Return whether a call is what a loop is there for: work in every turn whose result goes on."""
    inside = loop in call.context.loops() and not call.context.seldom and _is_work(module, call)
    return inside and module.around(call.node, ast.stmt) not in dropped


def _alone(module: Module, node: ast.AST, names: list[str]) -> bool:
    """Return whether all that a statement does is to give variables their only value."""
    scope = module.scope(node)
    return all(name.isidentifier() and len(module.stores(name, scope)) == 1 for name in names) and not _stays(
        module, node
    )


def _is_dropped(module: Module, loop: SourceLoop, node: ast.AST, names: list[str], dropped: set[ast.AST]) -> bool:
    """Return whether variables are read, and only behind a count of turns or for others of which that holds."""
    reads = [read for name in names for read in module.reads(name, module.scope(node))]
    return bool(reads) and all(
        _behind_count(module, loop, read) or module.around(read, ast.stmt) in dropped for read in reads
    )


def _behind_count(module: Module, loop: SourceLoop, node: ast.AST) -> bool:
    """Return whether a place of a loop is in the body of ``if step % n == 0``."""
    inner: ast.AST = node
    while (outer := module.parents.get(inner)) is not None and outer is not loop.node:
        if isinstance(outer, ast.If) and inner in outer.body and takes_remainder(outer.test) and is_rare(outer.test):
            return module.around(outer, ast.For, ast.While) is loop.node
        inner = outer
    return False


def _work(module: Module, statement: ast.AST) -> Iterator[SourceCall]:
    for node in ast.walk(statement):
        call = module.calls_by_node.get(node)
        if call is not None and _is_work(module, call):
            yield call


def _is_work(module: Module, call: SourceCall) -> bool:
    """Return whether a call runs a model, or functions of the file that run one, train one or compute with tensors."""
    functions = [item for callee in call.callees for item in (callee, *module.reached(callee.node))]
    return call.runs_module or any(item.runs_module or item.works or item.steps for item in functions)


def _stays(module: Module, node: ast.AST) -> bool:
    """Return whether code, or a function of the file that it calls, trains or leaves anything else behind."""
    functions = module.reached(node)
    if any(function.has_backward or function.steps or function.is_generator for function in functions):
        return True
    return any(_leaves(part) for part in (node, *(function.node for function in functions)))


def _leaves(root: ast.AST) -> bool:
    if stored_attributes(root):
        return True
    own = bound_names(root)
    for node in ast.walk(root):
        if isinstance(node, ast.Global | ast.Nonlocal | ast.Yield | ast.Await | ast.NamedExpr):
            return True
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else text_of(node.func)
            changed = names_in(node.func.value) if isinstance(node.func, ast.Attribute) else set()
            in_place = last in MUTATORS or (last[-1:] == "_" and last[:1] != "_")
            if last in _STAYS or (in_place and not changed <= own):
                return True
    return False
