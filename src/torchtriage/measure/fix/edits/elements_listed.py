"""Numbers of a tensor taken out at once, in place of one by one: ``x.tolist()`` before the loop that reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import flow_of, meets
from torchtriage.measure.fix.edits._turns import is_tensor
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import free_name, insert_before, source

CODES = words("""
    LCH017 LCH105 LCH108 LCH109 LCH014 HST020 HST106 HST110 HST111 HST114 SYN001 SYN004 CPY102 DAT018 DAT114
""")
CASTS = frozenset({"int", "float", "bool"})
MOVES = frozenset({"detach", "cpu", "numpy", "item"})
Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the loops and comprehensions at the line that read numbers of a tensor, with a list in its place."""
    for loop in site.loops:
        if isinstance(loop, ast.For) and (edits := _listed(site, loop, loop.target, loop.iter, loop.body, loop)):
            yield Proposal(edits, f"take the numbers that the loop in line {loop.lineno} reads out at once")
            return
    for node in ast.walk(site.statement) if site.statement is not None else ():
        if isinstance(node, Comprehension) and len(node.generators) == 1 and site.statement is not None:
            over = node.generators[0]
            given = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            if edits := _listed(site, node, over.target, over.iter, [*given, *over.ifs], site.statement):
                yield Proposal(edits, "take the numbers that are read out at once")
                return


def _listed(
    site: Site, node: ast.AST, target: ast.expr, over: ast.expr, body: list[ast.stmt] | list[ast.expr], outer: ast.stmt
) -> tuple[SourceEdit, ...]:
    reads = [read for part in body for item in ast.walk(part) if (read := _read(item)) is not None]
    reads.sort(key=lambda read: (read[0].lineno, read[0].col_offset))
    numbers = {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
    rows = [(name, tensor) for name, tensor in _rows(target, over) if _only_read(name, body, reads)]
    edits: list[SourceEdit | None] = []
    for name, tensor in rows:
        if _is_array(site, path_of(tensor), [read for read, value in reads if path_of(value) == name]):
            edits.append(replace_node(tensor, f"{source(site.module, tensor)}.tolist()"))
            edits += [_without(read, name) for read, value in reads if path_of(value) == name]
    changed = flow_of(site.module).changes([node])
    for path in dict.fromkeys(path for _, value in reads if (path := _indexed(value, numbers))):
        name = free_name(site.module, f"{path.rpartition('.')[2]}_list", f"{path.rpartition('.')[2]}_numbers")
        taken = [read for read, value in reads if _indexed(value, numbers) == path]
        if meets(path, changed) or not name or not _is_array(site, path, taken):
            continue
        edits.append(insert_before(site.module, outer, f"{name} = {path}.tolist()"))
        edits += [
            _without(read, _entry(site.module, value, name))
            for read, value in reads
            if _indexed(value, numbers) == path
        ]
    return tuple(edit for edit in edits if edit is not None) if all(edits) else ()


def _is_array(site: Site, path: str, reads: list[ast.Call]) -> bool:
    """Return whether what is read is a tensor, as far as its function shows, and no list."""
    scope = site.function or site.module.tree
    known = is_tensor(site.module, path, scope)
    made = [
        item.value
        for item in ast.walk(scope)
        if isinstance(item, ast.Assign) and path in map(path_of, item.targets) and isinstance(item.value, ast.Call)
    ]
    asked = any(isinstance(part, ast.Attribute) and part.attr in MOVES for read in reads for part in ast.walk(read))
    return known or (known is None and (asked or any(isinstance(item.func, ast.Attribute) for item in made)))


def _read(node: ast.AST) -> tuple[ast.Call, ast.expr] | None:
    """Return what reads a number, ``float(x)``, ``x.detach().item()``, and of what."""
    if not isinstance(node, ast.Call):
        return None
    value: ast.expr = node
    if path_of(node.func) in CASTS and len(node.args) == 1 and not node.keywords:
        value = node.args[0]
    elif not (isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args):
        return None
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MOVES:
        value = value.func.value
    return node, value


def _rows(target: ast.expr, over: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables that are elements of what is gone through."""
    called = path_of(over.func) if isinstance(over, ast.Call) else ""
    if isinstance(over, ast.Call) and called in ("enumerate", "zip") and isinstance(target, ast.Tuple):
        targets = target.elts[1:] if called == "enumerate" else target.elts
        for item, given in zip(targets, over.args, strict=False):
            yield from _rows(item, given)
    elif isinstance(target, ast.Name) and path_of(over):
        yield target.id, over


def _only_read(name: str, body: list[ast.stmt] | list[ast.expr], reads: list[tuple[ast.Call, ast.expr]]) -> bool:
    """Return whether a variable is used for nothing but its number."""
    inside = {item for _, value in reads if path_of(value) == name for item in ast.walk(value)}
    named = [item for part in body for item in ast.walk(part) if isinstance(item, ast.Name) and item.id == name]
    return bool(named) and all(item in inside for item in named)


def _indexed(value: ast.expr, numbers: set[str]) -> str:
    """Return the tensor of ``x[i]`` or ``x[i, j]``, of which a variable of the loop is one place."""
    places = value.slice.elts if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Tuple) else []
    if isinstance(value, ast.Subscript):
        plain = [item for item in places or [value.slice] if isinstance(item, ast.Name | ast.Constant | ast.BinOp)]
        if len(plain) == len(places or [value.slice]) and names_in(value.slice) & numbers:
            return path_of(value.value)
    return ""


def _entry(module: Module, value: ast.expr, name: str) -> str:
    assert isinstance(value, ast.Subscript)
    places = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
    return name + "".join(f"[{source(module, item)}]" for item in places)


def _without(read: ast.Call, text: str) -> SourceEdit:
    """Return the edit that leaves the number itself; a cast that may round or tell stays."""
    cast = path_of(read.func)
    return replace_node(read, f"{cast}({text})" if cast in CASTS else text)
