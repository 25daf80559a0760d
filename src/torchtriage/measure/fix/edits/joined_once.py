"""Gather parts in a list and join them once, instead of joining everything so far with each new part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import insert_after, insert_before, source

CODES = words("CPY013 HST106 HST020 HST114 LCH014 LCH017 MEM029 CPY010 DAT018 LCH105")
JOINS = re.compile(r"^(torch\.(cat|concat|concatenate|vstack|hstack)|numpy\.(concatenate|append|vstack|hstack))$")


class Growth(NamedTuple):
    """``path = join([path, part], ...)``; ``rest`` : further arguments; ``starts_empty`` : after ``is None``."""

    statement: ast.Assign
    path: str
    join: str
    part: str
    rest: str
    starts_empty: bool


def propose(site: Site) -> Iterator[Proposal]:
    """Yield a list for what grows at the line: of a variable of the loop, or of an attribute of the class."""
    growth = _growth(site)
    if growth is None:
        return
    proposal = _in_loop(site, growth) if "." not in growth.path else _in_class(site, growth)
    if proposal is not None:
        yield proposal


def _growth(site: Site) -> Growth | None:
    statement, module = site.statement, site.module
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
    if (
        len(pair) != 2
        or path_of(pair[0]) != path
        or path in (path_of(node) for node in ast.walk(pair[1]) if isinstance(node, ast.expr))
    ):
        return None
    join = source(module, value.func)
    join = f"{join.rpartition('.')[0]}.concatenate" if join.endswith(".append") else join
    rest_text = "".join(f", {item}" for item in rest)
    return Growth(statement, path, join, source(module, pair[1]), rest_text, none)


def _reads(root: ast.AST, path: str, without: ast.AST) -> list[ast.expr]:
    inside = set(ast.walk(without))
    return [
        node
        for node in ast.walk(root)
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and path_of(node) == path
        and node not in inside
    ]


def _in_loop(site: Site, growth: Growth) -> Proposal | None:
    module, path = site.module, growth.path
    loops = site.loops
    outer = None
    for loop in loops:
        stores = [
            node
            for node in ast.walk(loop)
            if isinstance(node, ast.Name) and node.id == path and not isinstance(node.ctx, ast.Load)
        ]
        if _reads(loop, path, growth.statement) or len(stores) > 1:
            break
        outer = loop
    if outer is None:
        return None
    name = f"{path}_parts"
    if name in names_in(module.tree):
        return None
    begin = f"{name} = []" if growth.starts_empty else f"{name} = [{path}]"
    guard = f" if {name} else None" if growth.starts_empty else ""
    edits: list[SourceEdit | None] = [
        insert_before(module, outer, begin),
        _statement(growth, f"{name}.append({growth.part})"),
        insert_after(module, outer, f"{path} = {growth.join}({name}{growth.rest}){guard}"),
    ]
    return Proposal(tuple(filter(None, edits)), f"join {path} once, after the loop") if all(edits) else None


def _in_class(site: Site, growth: Growth) -> Proposal | None:
    """Make an attribute a list that other methods join when they read it."""
    module, path = site.module, growth.path
    owner = module.around(growth.statement, ast.ClassDef)
    if owner is None or not path.startswith("self.") or path.count(".") != 1:
        return None
    attribute = path[5:]
    inside = set(ast.walk(owner))
    foreign = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr == attribute and node not in inside
    ]
    if foreign or _reads(site.function or owner, path, growth.statement):
        return None
    edits = [_statement(growth, f"{path}.append({growth.part})")]
    for node in ast.walk(owner):
        if not isinstance(node, ast.Assign) or node is growth.statement:
            continue
        for target in node.targets:
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            values = (
                node.value.elts
                if isinstance(node.value, ast.Tuple) and len(targets) > 1
                else [node.value] * len(targets)
            )
            for item, value in zip(targets, values, strict=False):
                if path_of(item) == path:
                    text = "[]" if literal(value) is None else f"[{source(module, value)}]"
                    edits.append(replace_node(value, text))
    if len(edits) < 2:
        return None
    edits += [
        replace_node(node, f"{growth.join}({path}{growth.rest})") for node in _reads(owner, path, growth.statement)
    ]
    return Proposal(tuple(edits), f"join {path} once, where it is read")


def _statement(growth: Growth, text: str) -> SourceEdit:
    node = growth.statement
    return SourceEdit(node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0, text)
