"""Whether an object that code makes may be kept or changed where that cannot be seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import argument, keyword, literal, path_of, unpacks
from torchtriage.diagnose.lint.torch_names import LOADERS, words
from torchtriage.diagnose.lint.work_words import MUTATORS, PURE_BUILTINS, PURE_LIBRARY, PURE_METHODS
from torchtriage.measure.fix.edits._flow import FILLERS, FORM, Flow
from torchtriage.measure.fix.edits._meanwhile import VIEWS, is_seen_elsewhere

FIXED = re.compile(
    r"^(re\.compile|torch\.(compile|device|utils\.data\.\w+)|torchvision\.transforms\..*)$|Loss$|_pretrained$"
)
"""What makes objects that use does not change."""
HOLDS = VIEWS | words("items values get atleast_1d atleast_2d ascontiguousarray asanyarray broadcast_to expand_dims")
NUMBERS = words("len int float str bool isinstance repr range any all callable type print")
PARTS = ast.Tuple | ast.List | ast.Set | ast.Dict | ast.Starred | ast.BoolOp | ast.DictComp
MADE = ast.ListComp | ast.SetComp | ast.GeneratorExp
PLAIN = ast.UnaryOp | ast.Compare | ast.FormattedValue | ast.Slice | ast.If | ast.While | ast.Assert | ast.Expr
LISTS = ast.List | ast.Tuple | ast.ListComp


def escapes(flow: Flow, made: Iterable[ast.expr]) -> bool:
    """Return whether objects, or views of them, get to code that may keep or change them."""
    todo: list[ast.expr] = [
        node for node in made if not (isinstance(node, ast.Call) and FIXED.search(flow.module.name_of(node.func)))
    ]
    seen: set[ast.expr] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        holders = _holders(flow, node)
        if holders is None:
            return True
        todo += holders
    return False


def _holders(flow: Flow, node: ast.expr) -> list[ast.expr] | None:
    """Return what holds an object, or a view of it, next; None where that cannot be seen."""
    module, outer = flow.module, flow.module.parents[node]
    if isinstance(outer, ast.Attribute):
        return _of_attribute(module, outer)
    if isinstance(outer, ast.Subscript):
        if node is outer.slice or (isinstance(outer.ctx, ast.Load) and module.value(outer.slice).kind == "tensor"):
            return []
        return [outer] if isinstance(outer.ctx, ast.Load) else None
    if isinstance(outer, ast.BinOp):
        return [outer] if _is_list(module, node) else []
    if isinstance(outer, ast.IfExp):
        return [] if node is outer.test else [outer]
    if isinstance(outer, PARTS | MADE):
        return [outer]
    if isinstance(outer, ast.comprehension | ast.For):
        return _named(module, [outer.target], node) if node is outer.iter else []
    if isinstance(outer, ast.Assign | ast.AnnAssign):
        return _named(module, outer.targets if isinstance(outer, ast.Assign) else [outer.target], node)
    if isinstance(outer, ast.AugAssign):
        return None if _is_list(module, node) or isinstance(node, ast.Call) else []
    if isinstance(outer, ast.keyword):
        call = module.parents[outer]
        return None if outer.arg == "out" or not isinstance(call, ast.Call) else _given(flow, call, node)
    if isinstance(outer, ast.Call):
        return [] if node is outer.func else _given(flow, outer, node)
    if isinstance(outer, ast.Return):
        return [] if _is_sample(module, outer) else None
    return [] if isinstance(outer, PLAIN) else None


def _is_list(module: Module, node: ast.expr) -> bool:
    return isinstance(node, LISTS) or module.value(node).kind == "list"


def _of_attribute(module: Module, node: ast.Attribute) -> list[ast.expr] | None:
    call = module.parents[node]
    if not isinstance(call, ast.Call) or call.func is not node:
        held: list[ast.expr] | None = [] if node.attr in FORM else [node]
        return held if isinstance(node.ctx, ast.Load) else None
    if node.attr in HOLDS or any(item.arg == "copy" for item in call.keywords):
        return [call]
    return [] if node.attr in PURE_METHODS and node.attr not in MUTATORS else None


def _named(module: Module, targets: Iterable[ast.expr], at: ast.AST) -> list[ast.expr] | None:
    """Return where the variables are read that hold an object; None where others see them or something changes them."""
    reads: list[ast.expr] = []
    scope = module.scope(at)
    for target in (item for root in targets for item in (root.elts if isinstance(root, ast.Tuple) else [root])):
        if not isinstance(target, ast.Name) or is_seen_elsewhere(module, target.id, scope):
            return None
        named = module.names(target.id, scope)
        if any(isinstance(module.parents[item], ast.AugAssign) and isinstance(item.ctx, ast.Store) for item in named):
            return None
        reads += (item for item in named if isinstance(item.ctx, ast.Load))
    return reads


def _given(flow: Flow, call: ast.Call, node: ast.expr) -> list[ast.expr] | None:
    """Return what holds an object that a call is given."""
    module, known, name = flow.module, flow.call(call), flow.module.name_of(call.func)
    last = call.func.attr if isinstance(call.func, ast.Attribute) else name
    if known is not None and known.callees:
        return [call] if all(flow.pure(callee) for callee in known.callees) else None
    if name in PURE_BUILTINS or name in NUMBERS:
        return [] if name in NUMBERS else [call]
    if any(item.arg == "inplace" for item in call.keywords):
        return None
    if PURE_LIBRARY.match(name):
        # np.clip(x, 0, 1, x) writes to the last one
        out = name.startswith("numpy.") and last != "where" and node in call.args[2:]
        if out or last in FILLERS or last.endswith("_"):
            return None
        return [call] if last in HOLDS or any(item.arg == "copy" for item in call.keywords) else []
    if isinstance(call.func, ast.Attribute) and not name:
        changes = last.endswith("_") and not last.startswith("_")  # x.add_(node) reads what it is given
        if changes or (last in PURE_METHODS - MUTATORS and not isinstance(module.parents[call], ast.Expr)):
            return []
    return [] if module.value(call.func).kind == "module" else None


def _is_sample(module: Module, node: ast.Return) -> bool:
    """Return whether what a data set returns is copied into a batch."""
    scope = module.scope(node)
    is_item = isinstance(scope, ast.FunctionDef) and scope.name == "__getitem__"
    return is_item and _is_collated(module, module.around(scope, ast.ClassDef))


def _is_collated(module: Module, owner: ast.AST | None) -> bool:
    """Return whether only loaders ask a data set for samples, of which they make batches: new tensors."""
    loaders = [call.node for call in module.called(*LOADERS)]
    if any(keyword(item, "collate_fn") or unpacks(item) for item in loaders):
        return False
    if any(literal(argument(item, "batch_size", 1)) is None for item in loaders):
        return False
    named = [item for item in module.parents if isinstance(item, ast.Name) and item.id == getattr(owner, "name", "")]
    made = [module.parents[item] for item in named]
    asked = [use for call in made if isinstance(call, ast.Call) for use in module.uses(call)]
    goes = [module.parents[use] for use in asked]
    return bool(asked) and all(
        isinstance(call, ast.Call) and (call in loaders or path_of(call.func) == "len") for call in goes
    )
