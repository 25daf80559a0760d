"""Gather parts in a list and join them once, instead of joining everything so far with each new part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import assigned_pairs, literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import bound_names, parameters
from torchtriage.measure.fix.edits._flow import flow_of, meets
from torchtriage.measure.fix.edits._meanwhile import changed_in_place, may_wait, shared, takes_steps, viewed
from torchtriage.measure.fix.proposal import Loop, Proposal, Site, first_only
from torchtriage.measure.fix.statements import INDENT, complete, insert_after, insert_before, source, statement_edit

CODES = words("CPY013 HST106 HST020 HST114 LCH014 LCH017 MEM029 CPY010 DAT018 LCH105")
EMPTY = r"{0} is None|not {0}|len\({0}\) == 0|{0} == \[\]"
JOINS = re.compile(r"^(torch\.(cat|concat|concatenate|vstack|hstack)|numpy\.(concatenate|append|vstack|hstack))$")


class Growth(NamedTuple):
    """``path = join([path, part], ...)``; ``rest`` : further arguments; ``starts_empty`` : after ``is None``."""

    statement: ast.Assign
    path: str
    join: str
    part: ast.expr
    rest: str
    starts_empty: bool


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield a list for what grows at the line: of a variable of the loop, or of an attribute of the class."""
    growth = next(filter(None, (_growth(site.module, item) for item in _beside(site))), None)
    if growth is None:
        return
    first = _first(site.module, growth)
    if "." in growth.path:
        yield _in_class(site, growth, first)
    else:
        yield _begun(site, growth, first[0]) if first is not None else _in_loop(site, growth)


def _beside(site: Site) -> Iterator[ast.stmt]:
    """Yield the statement at the line, and those of the condition that it is, or is a branch of."""
    statement = site.statement
    if statement is None:
        return
    yield statement
    around = statement if isinstance(statement, ast.If) else site.module.parents.get(statement)
    if isinstance(around, ast.If):
        yield from (*around.body, *around.orelse)


def _first(module: Module, growth: Growth) -> tuple[ast.If, ast.Assign] | None:
    """Return the condition of which one branch grows, and what the other one begins with: ``path = part``."""
    around = module.parents.get(growth.statement)
    if not isinstance(around, ast.If) or not around.orelse:
        return None
    other = around.orelse if growth.statement in around.body else around.body
    for item in other:
        if isinstance(item, ast.Assign) and [path_of(target) for target in item.targets] == [growth.path]:
            return around, item
    return None


def _begun(site: Site, growth: Growth, condition: ast.If) -> Proposal | None:
    """Return lists that the first turn begins and the others append to: ``if x is None: x = y``, ``else: x = cat``."""
    module, test = site.module, source(site.module, condition.test)
    branch = condition.body if growth.statement in condition.body else condition.orelse
    pairs = [
        (item, found) for item in map(partial(_growth, module), branch) if item and (found := _first(module, item))
    ]
    asked = next((item.path for item, _ in pairs if re.fullmatch(EMPTY.format(item.path), test)), "")
    if not asked and {item.path for item, _ in pairs} & names_in(condition.test):
        return None
    edits: list[SourceEdit | None] = []
    alone = len(pairs) == len(condition.body) == len(condition.orelse)
    same = all(source(module, begins.value) == source(module, item.part) for item, (_, begins) in pairs)
    rows: list[str] = []
    for item, (_, begins) in pairs:
        name, outer = f"{item.path}_parts", _outermost(site, item, condition)
        starts = None if outer is None else _starts(site, item.path, outer)
        if outer is None or starts is None or name in names_in(module.tree) or (asked and not starts):
            return None
        empty = all(source(module, value) in ("None", "[]") for value in starts)
        kept = any(_changes(module, outer, part) for part in (item.part, begins.value))
        if kept or (asked and not empty) or not may_wait(module, item.path, outer):
            return None
        part = source(module, begins.value)
        edits.append(insert_before(module, outer, f"{name} = []" if empty else f"{name} = [{item.path}]"))
        edits.append(insert_after(module, outer, f"if {name}:\n{INDENT}{item.path} = {item.join}({name}{item.rest})"))
        rows.append(f"{name}.append({source(module, item.part)})")
        if not (asked and same and alone):
            edits += [replace_node(begins, f"{name} = [{part}]"), replace_node(item.statement, rows[-1])]
    if asked:
        whole = statement_edit(module, condition, "\n".join(rows))
        edits.append(whole if same and alone else replace_node(condition.test, f"not {asked}_parts"))
    paths = ", ".join(item.path for item, _ in pairs)
    return Proposal(complete(edits), f"join {paths} once, after the loop")


def _outermost(site: Site, growth: Growth, condition: ast.If | None = None) -> Loop | None:
    """Return the outermost loop that does nothing with what grows but let it grow, or begin by a condition."""
    outer, most, tested = None, 1, set[ast.AST]()
    if condition is not None:
        most, tested = 2, set(ast.walk(condition.test))
    for loop in site.loops:
        named = [node for node in ast.walk(loop) if isinstance(node, ast.Name) and node.id == growth.path]
        stores = [node for node in named if not isinstance(node.ctx, ast.Load)]
        if len(stores) > most or set(_reads(loop, growth.path, growth.statement)) - tested:
            break
        outer = loop
    return outer


def _starts(site: Site, path: str, outer: Loop) -> list[ast.expr] | None:
    """Return what a variable is given before a loop, as often as that is run; None where that cannot be told."""
    values: list[ast.expr] = []
    function = site.module.scope(outer)
    again = site.module.around(outer, ast.For, ast.AsyncFor, ast.While)
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and path in parameters(function):
        return None
    for node in site.module.names(path, function):
        if isinstance(node.ctx, ast.Load) or node.lineno >= outer.lineno:
            continue
        around = site.module.parents[node]
        made = site.module.parents[around] if isinstance(around, ast.Tuple) else around
        if not isinstance(made, ast.Assign) or (again is not None and made not in ast.walk(again)):
            return None
        value = made.value
        if isinstance(around, ast.Tuple):
            if not isinstance(value, ast.Tuple) or len(value.elts) != len(around.elts):
                return None
            value = value.elts[around.elts.index(node)]
        values.append(value)
    return values


def _changes(module: Module, outer: ast.AST, part: ast.expr) -> bool:
    """Return whether a part that is kept may be changed before the parts are joined: it is one object in all turns."""
    kept = shared(module, module.scope(outer), viewed(module, part))
    own = bound_names(outer)
    lasting = {path for path in kept if path.partition(".")[0] not in own}
    trains = takes_steps(outer)
    changed, handed = changed_in_place(module, outer), flow_of(module).handed([outer])
    return any(meets(path, changed) for path in kept) or any(trains or meets(path, handed) for path in lasting)


def _growth(module: Module, statement: ast.stmt) -> Growth | None:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    path, value = path_of(statement.targets[0]), statement.value
    none = False
    if isinstance(value, ast.IfExp) and "None" in source(module, value.test):
        value = value.orelse if isinstance(value.orelse, ast.Call) else value.body
        none = True
    if not isinstance(value, ast.Call) or not path or not JOINS.match(module.name_of(value.func)) or not value.args:
        return None
    given: list[ast.expr] = list(value.args)
    rest = [source(module, item) for item in value.keywords]
    if isinstance(given[0], ast.List | ast.Tuple):
        pair, rest = given[0].elts, [*(source(module, item) for item in given[1:]), *rest]
    elif module.name_of(value.func) == "numpy.append" and len(given) == 2 and any("axis" in item for item in rest):
        pair = given
    else:
        return None
    if len(pair) != 2 or path_of(pair[0]) != path:
        return None
    if path in (path_of(node) for node in ast.walk(pair[1]) if isinstance(node, ast.expr)):
        return None
    join = source(module, value.func)
    join = f"{join.rpartition('.')[0]}.concatenate" if join.endswith(".append") else join
    rest_text = "".join(f", {item}" for item in rest)
    return Growth(statement, path, join, pair[1], rest_text, none)


def _reads(root: ast.AST, path: str, without: ast.AST) -> list[ast.expr]:
    inside = set(ast.walk(without))
    named = [node for node in ast.walk(root) if isinstance(node, ast.Name | ast.Attribute) and path_of(node) == path]
    return [node for node in named if isinstance(node.ctx, ast.Load) and node not in inside]


def _in_loop(site: Site, growth: Growth) -> Proposal | None:
    module, path, outer = site.module, growth.path, _outermost(site, growth)
    if outer is None:
        return None
    name = f"{path}_parts"
    if name in names_in(module.tree) or not may_wait(module, path, outer) or _changes(module, outer, growth.part):
        return None
    starts = _starts(site, path, outer) if growth.starts_empty else None
    if growth.starts_empty and (not starts or any(source(module, value) != "None" for value in starts)):
        return None
    begin = f"{name} = []" if growth.starts_empty else f"{name} = [{path}]"
    guard = f" if {name} else None" if growth.starts_empty else ""
    edits: list[SourceEdit | None] = [
        insert_before(module, outer, begin),
        replace_node(growth.statement, f"{name}.append({source(module, growth.part)})"),
        insert_after(module, outer, f"{path} = {growth.join}({name}{growth.rest}){guard}"),
    ]
    return Proposal(complete(edits), f"join {path} once, after the loop")


def _in_class(site: Site, growth: Growth, first: tuple[ast.If, ast.Assign] | None) -> Proposal | None:
    """Make an attribute a list that other methods join when they read it."""
    appending: ast.stmt = growth.statement
    if first is not None:
        same = source(site.module, first[1].value) == source(site.module, growth.part)
        test = source(site.module, first[0].test)
        if not same or len(first[0].body) != 1 or not re.fullmatch(EMPTY.format(growth.path), test):
            return None
        appending = first[0]
    module, path = site.module, growth.path
    owner = module.around(growth.statement, ast.ClassDef)
    if owner is None or not path.startswith("self.") or path.count(".") != 1:
        return None
    attribute = path[5:]
    inside = set(ast.walk(owner))
    named = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute) and node.attr == attribute]
    foreign = any(node not in inside for node in named)
    kept = shared(module, module.scope(appending), viewed(module, growth.part))
    if any(meets(item, changed_in_place(module, owner)) for item in kept - {path}):
        return None
    if foreign or _reads(site.function or owner, path, appending):
        return None
    edits = [replace_node(appending, f"{path}.append({source(module, growth.part)})")]
    replaced = set(ast.walk(appending))
    for node in ast.walk(owner):
        if not isinstance(node, ast.Assign) or node in replaced:
            continue
        for item, value in assigned_pairs(node):
            if path_of(item) == path:
                text = "[]" if literal(value) is None else f"[{source(module, value)}]"
                edits.append(replace_node(value, text))
    if len(edits) < 2:
        return None
    edits += [replace_node(node, f"{growth.join}({path}{growth.rest})") for node in _reads(owner, path, appending)]
    return Proposal(tuple(edits), f"join {path} once, where it is read")
