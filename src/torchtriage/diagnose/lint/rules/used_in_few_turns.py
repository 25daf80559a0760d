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
from itertools import takewhile

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, text_of
from torchtriage.diagnose.lint.conditions import takes_remainder
from torchtriage.diagnose.lint.facts import SourceCall, SourceLoop
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import parameters
from torchtriage.diagnose.lint.work_words import PURE_BUILTINS, PURE_LIBRARY, PURE_METHODS, RANDOM

RULE = Rule("HST126", "used-in-few-turns", "host", "Computed in every iteration, used in few", "low")

FIX = Fix(
    text="Compute it behind the condition that uses it.",
    code="""if epoch % 25 == 0:
    accuracy = evaluate(model, x, y)
    print(epoch, accuracy)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)

FEWEST = 4
"""Iterations of which one uses it."""
MOST = 200
"""Assignments of a loop that are followed."""
_MODES = words("eval train no_grad inference_mode autocast set_grad_enabled")
_STATISTICS = ("BatchNorm", "InstanceNorm", "from_pretrained", "torchvision", "timm")
"""Layers that change in a forward pass unless they evaluate, and where models come from that may have them."""
_REGISTER = words("backward register_hook retain_grad")
_SEES_ALL = words("locals globals vars")


def find(module: Module) -> Iterator[Hit]:
    """Yield what loops of steps compute for a condition on the count of their turns."""
    if "%" not in module.text or any(path_of(call.node.func) in _SEES_ALL for call in module.calls):
        return
    for loop in module.loops:
        if not loop.comprehension and (loop.steps or loop.rounds or loop.wraps):
            yield from _of_loop(module, loop)


def _of_loop(module: Module, loop: SourceLoop) -> Iterator[Hit]:
    nodes = module.nodes(loop)
    if not any(isinstance(node, ast.If) and _is_seldom(module, loop, node.test) for node in nodes):
        return
    targets: dict[ast.AST, list[str]] = defaultdict(list)
    for assign in module.assigns:
        if assign.context.statement_loop is loop and not assign.context.seldom and isinstance(assign.node, ast.Assign):
            targets[assign.node].append(assign.target)
    if len(targets) > MOST:
        return
    dropped = {
        node
        for node, names in targets.items()
        if not _behind_remainder(module, loop, node) and _alone(module, loop, node, names)
    }
    while kept := {node for node in dropped if not _is_dropped(module, loop, node, targets[node], dropped)}:
        dropped -= kept
    calls = [call for node in nodes if dropped and (call := module.calls_by_node.get(node)) is not None]
    works = [call for call in calls if _is_work(module, call)]
    # what a loop is there for: a model whose result goes on in every turn
    goes_on = [call for call in works if not call.context.seldom and module.around(call.node, ast.stmt) not in dropped]
    if any(_runs(module, call) for call in goes_on):
        for node in targets:
            inside = {*ast.walk(node)} if node in dropped else ()
            work = next((call for call in works if call.node in inside), None)
            if work is not None:
                message = f"every iteration computes this, but few use it: {text_of(work.node)}"
                yield Hit(work.node, message, work.attr)


def _is_seldom(module: Module, loop: SourceLoop, test: ast.expr) -> bool:
    """Return whether a condition holds in one of several turns at most: ``step % n == 0``, ``not step % n``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_is_seldom(module, loop, part) for part in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        remainder: ast.expr = test.left
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        remainder = test.operand
    else:
        return False
    if not isinstance(remainder, ast.BinOp) or not isinstance(remainder.op, ast.Mod):
        return False
    if isinstance(remainder.left, ast.Constant):
        return False  # text with places to fill in
    every = module.constant(remainder.right, loop.context)
    return not isinstance(every, int | float) or every >= FEWEST


def _alone(module: Module, loop: SourceLoop, node: ast.AST, names: list[str]) -> bool:
    """Return whether all that a statement does is to give variables their only value, which no other scope reads."""
    scope = module.scope(node)
    return (
        all(name.isidentifier() and len(module.stores(name, scope)) == 1 for name in names)
        and not any(_is_read_elsewhere(module, name, scope) for name in names)
        and _only_computes(module, loop, node)
    )


def _is_read_elsewhere(module: Module, name: str, scope: ast.AST) -> bool:
    """Return whether another function reads a variable of this name that is none of its own."""
    return any(
        module.reads(name, function.node)
        and not module.stores(name, function.node)
        and name not in parameters(function.node)
        for function in module.functions
        if function.node is not scope
    )


def _is_dropped(module: Module, loop: SourceLoop, node: ast.AST, names: list[str], dropped: set[ast.AST]) -> bool:
    """Return whether variables are read later, and only behind a count of turns or for others of which that holds."""
    reads = [read for name in names for read in module.reads(name, module.scope(node))]
    return bool(reads) and all(
        read.lineno >= getattr(node, "lineno", 0)
        and (_behind_count(module, loop, read) or module.around(read, ast.stmt) in dropped)
        for read in reads
    )


def _behind_count(module: Module, loop: SourceLoop, node: ast.AST) -> bool:
    """Return whether a place of a loop is in the body of ``if step % n == 0``."""
    inner: ast.AST = node
    while (outer := module.parents.get(inner)) is not None and outer is not loop.node:
        if isinstance(outer, ast.If) and inner in outer.body and _is_seldom(module, loop, outer.test):
            return module.around(outer, ast.For, ast.While) is loop.node
        inner = outer
    return False


def _behind_remainder(module: Module, loop: SourceLoop, node: ast.AST) -> bool:
    """Return whether any condition on a count stands around a place of a loop, also one that mostly holds."""
    inside = takewhile(lambda outer: outer is not loop.node, module.outward(node))
    return any(isinstance(outer, ast.If) and takes_remainder(outer.test) for outer in inside)


def _is_work(module: Module, call: SourceCall) -> bool:
    """Return whether a call runs a model, or functions of the file that run one, train one or compute with tensors."""
    return _runs(module, call) or any(callee.works for callee in call.callees)


def _runs(module: Module, call: SourceCall) -> bool:
    """Return whether a call runs a model, or a function of the file that does, or trains one."""
    functions = [item for callee in call.callees for item in (callee, *module.reached(callee.node))]
    return call.runs_module or any(item.runs_module or item.steps for item in functions)


def _only_computes(module: Module, loop: SourceLoop, node: ast.AST) -> bool:
    """Return whether code, with the functions of the file that it calls, computes a value and does nothing else."""
    functions = module.reached(node)
    if any(function.has_backward or function.steps or function.is_generator for function in functions):
        return False
    evaluates = any(".eval()" in module.text_of(function) for function in (loop.function, *functions))
    fixed = evaluates or not any(word in module.text for word in _STATISTICS)
    return all(
        _is_harmless(module, part, root, fixed)
        for root in (node, *(function.node for function in functions))
        for part in ast.walk(root)
    )


def _is_harmless(module: Module, node: ast.AST, root: ast.AST, fixed: bool) -> bool:
    """Return whether a piece of syntax changes nothing that is there when its function has returned.

    ``fixed`` : whether running a model changes none of its layers.
    """
    if isinstance(node, ast.Call):
        return _is_pure(module, node, fixed)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _last(node.value) in (*_MODES, "append")
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return isinstance(node, ast.Subscript) and _is_new(module, node.value, root)
    if isinstance(node, ast.AugAssign):
        return _is_new(module, node.target, root)
    return not isinstance(node, _LEAVES)


_LEAVES = ast.Global | ast.Nonlocal | ast.Yield | ast.YieldFrom | ast.Await | ast.NamedExpr | ast.Raise | ast.Assert


def _last(node: ast.expr) -> str:
    func = node.func if isinstance(node, ast.Call) else node
    return func.attr if isinstance(func, ast.Attribute) else path_of(func)


def _is_pure(module: Module, node: ast.Call, fixed: bool) -> bool:
    call, name, last = module.calls_by_node.get(node), module.name_of(node.func), _last(node)
    if keyword(node, "out") is not None or (RANDOM.search(last) and not (fixed and "dropout" in last)):
        return False
    if call is not None and (call.callees or (call.runs_module and fixed)):
        return True
    if last == "append":
        return isinstance(node.func, ast.Attribute) and _is_new(module, node.func.value, module.scope(node))
    if last.endswith("_") or last in _REGISTER:
        return False
    of_tensor = call is not None and call.receiver.kind == "tensor"
    method = isinstance(node.func, ast.Attribute) and (of_tensor or last in PURE_METHODS)
    return last in _MODES or method or name in PURE_BUILTINS or PURE_LIBRARY.match(name) is not None


def _is_new(module: Module, node: ast.expr, root: ast.AST) -> bool:
    """Return whether a variable holds what its own function has made: a constant, a list, or what a library returns."""
    if not isinstance(node, ast.Name) or not isinstance(root, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    made = [module.parents.get(store) for store in module.stores(node.id, root)]
    values = [item.value for item in made if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)]
    return len(values) == sum(not isinstance(item, ast.AugAssign) for item in made) > 0 and all(
        isinstance(value, ast.Constant | ast.List | ast.Dict | ast.Set | ast.ListComp | ast.BinOp)
        or (isinstance(value, ast.Call) and PURE_LIBRARY.match(module.name_of(value.func)) is not None)
        for value in values
    )
