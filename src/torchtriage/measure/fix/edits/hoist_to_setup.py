"""Compute once what a function makes of settings in every call: in ``__init__``, or when the file is loaded."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import SourceFunction, is_step
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.diagnose.lint.work_syntax import parameters
from torchtriage.measure.fix.edits._flow import Flow, flow_of
from torchtriage.measure.fix.edits._lasting import READS, connected, lasting, name_for, outdented, parts_of, replaced
from torchtriage.measure.fix.edits.hoist_from_loop import CODES as CODES
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import bound, complete, insert_after, insert_before, remove, source

BUILTINS = frozenset(dir(builtins))
ELSEWHERE = re.compile(r",\s*device=[\w.]+\.device|\.to\([\w.]+\.device\)")
"""A buffer is where its module is."""


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield the move of what the statement at the line makes of settings alone."""
    statement, flow = site.statement, flow_of(site.module)
    function = site.known_function
    if function is None or statement is None or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if function.name == "__init__" or not _is_called_again(flow, function, READS.search(site.module.text_of(function))):
        return
    yield _into_init(site, flow, function, statement)
    yield _into_file(site, flow, function, statement)


def _is_called_again(flow: Flow, function: SourceFunction, reads: object) -> bool:
    """Return whether a function is called more than once: where another file calls it, the finding says so.

    What it ``reads`` then may not be written yet when the file is loaded.
    """
    called = function.called_hot or function.called_in_loop or function.called_again or function.loads
    named = is_step(function) or function.name in ("forward", "__call__", "__getitem__")
    here = function.sets_up or any(function in call.callees for call in flow.module.calls)
    return called or function.serves or named or not (here or reads)


def _varying(flow: Flow, function: SourceFunction, kept: set[str]) -> set[str]:
    """Return what may differ between calls of a function; ``kept`` : attributes that stay."""
    local = bound(function.node.body) | (parameters(function.node) - {"self"})
    known = flow.constants | BUILTINS
    found = set(local)
    for path in flow.reads(function.node):
        root = path.partition(".")[0]
        stays = any(f"{path}.".startswith(f"{attribute}.") for attribute in kept) if root == "self" else root in known
        if (root in local or not stays) and path != "self":
            found.add(path)
    return found


def _into_init(site: Site, flow: Flow, function: SourceFunction, statement: ast.stmt) -> Proposal | None:
    module, owner = site.module, function.owner
    init = owner.methods.get("__init__") if owner is not None else None
    if owner is None or init is None or init.owner is not owner or owner.children:
        return None
    if any(path_of(call.node.func) == "setattr" for call in module.calls):
        return None
    attributes = flow.lasting(owner)
    varying = _varying(flow, function, attributes)
    moved = lasting(flow, function.node, function.node.body, varying)
    taken = {path.split(".")[1] for path in attributes} | set(owner.methods) | set(owner.attributes)
    edits: list[SourceEdit | None] = []
    names: dict[str, str] = {}
    if statement in moved:
        group = connected(module, moved, statement)
        parts = {moved[item]: item.value for item in group}  # type: ignore[attr-defined]
        inside = {node for item in group for node in ast.walk(item)}
        reads = [node for node in ast.walk(function.node) if isinstance(node, ast.Name) and node not in inside]
        in_use = {node.id for node in reads} | (bound(init.node.body) | parameters(init.node))
        names = {name: f"self.{_free(name, taken)}" if name in in_use else name for name in parts}
        edits += [remove(module, item) for item in group]
        edits += [replace_node(node, names[node.id]) for node in reads if node.id in names]
    else:
        parts_here = parts_of(flow, statement, varying, function.node)
        if owner.is_module:
            anywhere = parts_of(flow, statement, varying, function.node, anywhere=True)
            parts_here = [item for item in anywhere if module.value(item).kind == "tensor"] or parts_here
        part = next(iter(parts_here), None)
        if part is None:
            return None
        name = _target(statement, part) or name_for(module, part)
        names, parts = {name: f"self.{_free(name, taken)}"}, {name: part}
        edits += replaced(function.node.body, part, names[name])
    rows = [_kept(site, part, names[name], names, buffer=owner.is_module) for name, part in parts.items()]
    edits.insert(0, insert_after(module, init.node.body[-1], "\n".join(rows)))
    what = f"compute {', '.join(names)} once, in {owner.name}.__init__()"
    return Proposal(complete(edits), what)


def _free(name: str, taken: set[str]) -> str:
    return f"fixed_{name}" if name in taken else name


def _target(statement: ast.stmt, part: ast.expr) -> str:
    """Return the name that a statement gives to what it makes of a part by nothing but methods."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return ""
    node: ast.expr = statement.value
    while node is not part and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return statement.targets[0].id if node is part else ""


def _kept(site: Site, part: ast.expr, name: str, names: dict[str, str], *, buffer: bool) -> str:
    """Return the statement of ``__init__`` that keeps a value: a buffer where it is a module's tensor."""
    text = outdented(site.module, part, site.statement) if site.statement is not None else ""
    for old in names_in(part) & names.keys():
        text = re.sub(rf"(?<![\w.]){old}\b(?!\s*=[^=])", names[old], text)
    if buffer and name.startswith("self.") and site.module.value(part).kind == "tensor":
        text = ELSEWHERE.sub("", text)
        return f'self.register_buffer("{name[5:]}", {text}, persistent=False)'
    return f"{name} = {text}"


def _into_file(site: Site, flow: Flow, function: SourceFunction, statement: ast.stmt) -> Proposal | None:
    """Propose a constant of the file, above the function or class."""
    module = site.module
    top: ast.AST = function.node
    while module.parents[top] is not module.tree:
        top = module.parents[top]
    for part in parts_of(flow, statement, _varying(flow, function, set()), function.node):
        if READS.search(source(module, part)):
            continue  # a file that may not be written yet
        roots = {path.partition(".")[0] for path in flow.reads(part)} - BUILTINS
        if "self" in roots or not isinstance(top, ast.stmt) or not all(_is_bound(site, root, top) for root in roots):
            continue
        name = (_target(statement, part) or name_for(module, part)).upper()
        if name in names_in(module.tree):
            continue
        before = insert_before(module, top, f"{name} = {outdented(module, part, statement)}\n\n\n")
        edits = [before, *_named(site, function, statement, part, name)]
        if all(edits):
            return Proposal(complete(edits), f"compute {name} once, when the file is loaded")
    return None


def _is_bound(site: Site, name: str, top: ast.stmt) -> bool:
    """Return whether the file binds a name above a statement."""
    places = [node for node in site.module.tree.body if name in bound([node])]
    return bool(places) and all((node.end_lineno or node.lineno) < top.lineno for node in places)


def _named(
    site: Site, function: SourceFunction, statement: ast.stmt, part: ast.expr, name: str
) -> list[SourceEdit | None]:
    """Return the edits that use a constant instead of a part, and of the variable that holds nothing else."""
    named = [node for node in ast.walk(function.node) if isinstance(node, ast.Name)]
    if isinstance(statement, ast.Assign) and statement.value is part and isinstance(statement.targets[0], ast.Name):
        old = [node for node in named if node.id == statement.targets[0].id]
        if sum(not isinstance(node.ctx, ast.Load) for node in old) == 1:
            reads = [node for node in old if isinstance(node.ctx, ast.Load)]
            return [remove(site.module, statement), *(replace_node(node, name) for node in reads)]
    return [*replaced(function.node.body, part, name)]
