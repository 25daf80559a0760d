"""Search in a set or a dictionary beside a list, and take from the front of a deque."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import assigned_pairs, literal, method_of, path_called, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import flow_of, meets
from torchtriage.measure.fix.edits._turns import stores_of
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import (
    alias_of,
    body_of,
    complete,
    free_name,
    import_edit,
    insert_after,
    insert_before,
)

CODES = words("HST020 HST106 HST111 HST114 HST118 LCH017 LCH105 DAT018 DAT019 DAT110 DAT113 HST135")


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield a set for ``x in items``, a dictionary for ``items.index(x)``, a deque for ``items.pop(0)``."""
    statement = site.statement
    if statement is None:
        return
    for node in _own_parts(statement):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
            yield _looked_up(site, statement, node, node.comparators[0], "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "index":
            yield _looked_up(site, statement, node, node.func.value, "index") if len(node.args) == 1 else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            from_front = len(node.args) == 1 and literal(node.args[0]) == 0
            yield _deque(site, path_of(node.func.value)) if from_front else None


def _own_parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement, those of blocks below it left out."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop(0)
        yield node
        todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _looked_up(site: Site, statement: ast.stmt, node: ast.expr, over: ast.expr, method: str) -> Proposal | None:
    module, path = site.module, path_of(over)
    if not path or not _is_list(site, path) or (method and "ValueError" in module.text):
        return None  # a dictionary raises another error for what is missing
    flow = flow_of(module)
    inner = module.around(node, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
    place = statement
    added: list[ast.Call] = []
    for loop in site.loops:
        if loop is statement:
            continue
        changes = _changing(loop, path)
        others = flow.changes([item for item in loop.body if not any(call in ast.walk(item) for call in changes)])
        appends = all(call.func.attr == "append" for call in changes if isinstance(call.func, ast.Attribute))
        if meets(path, others) or not appends or (method and changes) or stores_of(loop, path):
            break
        place, added = loop, changes
    shared = _shared(site, path) if place is statement and not site.loops and site.function is not None else None
    if place is statement and inner is None and shared is None:
        return None
    base = re.sub(r"^_+", "", path.rpartition(".")[2])
    names = (f"{base}_set", f"known_{base}") if not method else (f"{base}_places", f"place_in_{base}")
    name = free_name(module, *names)
    pairs = f"reversed(list(enumerate({path})))"  # of equal items the first is found
    made = f"set({path})" if not method else f"{{item: place for place, item in {pairs}}}"
    row = f"{name} = {made}"
    before = insert_after(module, shared, row) if shared is not None else insert_before(module, place, row)
    later: list[SourceEdit | None] = []
    for call in added:
        outer = module.parents.get(call)
        if not isinstance(outer, ast.Expr) or not isinstance(call.args[0], ast.Name | ast.Constant):
            return None
        later.append(insert_after(module, outer, f"{name}.add({ast.unparse(call.args[0])})"))
    if not name:
        return None
    if method and isinstance(node, ast.Call):
        calls = _searches(site, place, path) if shared is None else [node]
        edits = [replace_node(item, f"{name}[{ast.unparse(item.args[0])}]") for item in calls]
    else:
        edits = [replace_node(item, name) for item in _same_tests(place, path)]
    kind = "dictionary" if method else "set"
    return Proposal(complete((before, *edits, *later)), f"look up in a {kind} instead of searching {path}")


def _shared(site: Site, path: str) -> ast.stmt | None:
    """Return the statement of the file that makes a list once, above the function that searches it."""
    module, function = site.module, site.function
    if path not in flow_of(module).constants or function is None:
        return None
    if stores_of(function, path) or path in {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}:
        return None
    made = [node for node in module.tree.body if isinstance(node, ast.Assign) and path in map(path_of, node.targets)]
    return made[0] if len(made) == 1 else None


def _searches(site: Site, place: ast.stmt, path: str) -> list[ast.Call]:
    """Return the calls of ``items.index(x)`` in a statement and those after it, up to one that changes the list."""
    body = body_of(site.module, place) or [place]
    found: list[ast.Call] = []
    for item in body[body.index(place) :]:
        if item is not place and (_changing(item, path) or stores_of(item, path)):
            break
        calls = [node for node in ast.walk(item) if isinstance(node, ast.Call) and len(node.args) == 1]
        found += [call for call in calls if path_of(call.func) == f"{path}.index"]
    return found


def _same_tests(root: ast.AST, path: str) -> list[ast.expr]:
    tests = [node for node in ast.walk(root) if isinstance(node, ast.Compare) and len(node.ops) == 1]
    searched = [node.comparators[0] for node in tests if isinstance(node.ops[0], ast.In | ast.NotIn)]
    return [node for node in searched if path_of(node) == path]


def _is_list(site: Site, path: str) -> bool:
    """Return whether a path is a list, as far as the file shows."""
    pairs = (pair for node in ast.walk(site.module.tree) for pair in assigned_pairs(node))
    made = [value for target, value in pairs if path_of(target) == path]
    return bool(made) and all(_gives_list(value) or _returns_list(site, value) for value in made)


def _gives_list(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.List | ast.ListComp)
        or (isinstance(value, ast.BinOp) and isinstance(value.left, ast.List))
        or (isinstance(value, ast.Call) and path_of(value.func).rpartition(".")[2] in ("list", "sorted"))
        or method_of(value) in _LISTS
    )


def _returns_list(site: Site, value: ast.expr) -> bool:
    """Return whether a value is what a function of the file returns, which returns nothing but new lists."""
    known = flow_of(site.module).call(value) if isinstance(value, ast.Call) else None
    nodes = [node for callee in (known.callees if known is not None else ()) for node in ast.walk(callee.node)]
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    return bool(returned) and all(item is not None and _gives_list(item) for item in returned)


_LISTS = words("tolist split splitlines readlines copy")


def _changing(loop: ast.AST, path: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and path_of(node.func.value) == path
        and node.func.attr in ("append", "extend", "remove", "pop", "insert", "clear", "sort", "reverse")
    ]


def _is_queue(site: Site, path: str) -> bool:
    """Return whether a list is only appended to, taken from, counted and gone through: a deque is no list to others."""
    owner, _, last = path.rpartition(".")
    elsewhere = (node for other in site.module.others for node in ast.walk(other.tree))
    if owner and any(isinstance(node, ast.Attribute) and node.attr == last for node in elsewhere):
        return False
    for node in ast.walk(site.module.tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name != last or ("." in path) != isinstance(node, ast.Attribute):
            continue
        outer = site.module.parents.get(node)
        called = path_called(outer)
        used = (isinstance(outer, ast.Attribute) and outer.attr in ("append", "pop")) or called == "len"
        through = isinstance(outer, ast.For | ast.comprehension) and outer.iter is node
        if isinstance(getattr(node, "ctx", None), ast.Load) and not used and not through:
            return False
    return True


def _deque(site: Site, path: str) -> Proposal | None:
    """Make a list that is emptied from the front a deque, where nothing takes slices of it."""
    module = site.module
    if not path or not _is_list(site, path) or not _is_queue(site, path):
        return None
    edits: list[SourceEdit | None] = []
    name, root = alias_of(module, "collections.deque", "deque"), alias_of(module, "collections")
    if name not in module.aliases and root:
        name = f"{root}.deque"
    for node in ast.walk(module.tree):
        for target, value in assigned_pairs(node):
            if path_of(target) == path:
                given = ast.get_source_segment(module.text, value) or ""
                edits.append(replace_node(value, f"{name}()" if given in ("[]", "list()") else f"{name}({given})"))
        if isinstance(node, ast.Subscript) and path_of(node.value) == path and isinstance(node.slice, ast.Slice):
            return None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and path_of(node.func.value) == path:
            method = node.func.attr
            if method == "pop" and len(node.args) == 1 and literal(node.args[0]) == 0:
                edits.append(replace_node(node, f"{path}.popleft()"))
            elif method == "sort" or (method == "pop" and node.args):
                return None
    if name == "deque" and name not in module.aliases:
        edits.append(import_edit(module, "from collections import deque"))
    return Proposal(complete(edits), f"make {path} a deque") if len(edits) > 1 else None
