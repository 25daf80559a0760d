"""Labels taken from the list that a data set has of them, in place of all its samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import literal, names_in, path_of
from torchtriage.measure.fix.edits._settings import origin_of
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import source

CODES = frozenset({"DAT109", "HST110", "HST020", "HST114", "HST101"})
SETS = frozenset({"ImageFolder", "DatasetFolder", "CIFAR10", "CIFAR100"})
"""Of torchvision, with a list of numbers as targets."""


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the comprehension or loop at the line over labels alone."""
    statement = site.statement
    head = [statement.target, statement.iter] if isinstance(statement, ast.For) else [statement]
    nodes = [item for part in head if part is not None for item in ast.walk(part)]
    loops: list[ast.For | ast.comprehension] = [item for item in nodes if isinstance(item, ast.comprehension)]
    loops += [statement] if isinstance(statement, ast.For) else []
    for loop in loops:
        yield Proposal(_edits(site.module, loop), "read only the labels, without loading samples", per_run=True)


def _edits(module: Module, loop: ast.For | ast.comprehension) -> tuple[SourceEdit, ...]:
    """Return the edits for ``y for _, y in data`` and ``data[i][1] for i in range(len(data))``."""
    outer = module.parents.get(loop) if isinstance(loop, ast.comprehension) else loop
    if outer is None:
        return ()
    inside = [item for item in ast.walk(outer) if isinstance(item, ast.expr)]
    over, target = loop.iter, loop.target
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and path_of(over):
        first, label = target.elts
        read = {item.id for item in inside if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)}
        known = _labels(module, over)
        if known and not names_in(first) & read:
            return (replace_node(target, source(module, label)), replace_node(over, f"{source(module, over)}.{known}"))
    taken = [
        item
        for item in inside
        if isinstance(item, ast.Subscript)
        and literal(item.slice) == 1
        and isinstance(item.value, ast.Subscript)
        and isinstance(target, ast.Name)
        and path_of(item.value.slice) == target.id
    ]
    of = taken[0].value.value if taken and isinstance(taken[0].value, ast.Subscript) else None
    known = _labels(module, of) if of is not None else ""
    if of is None or not known or len(taken) != 1:
        return ()
    return (replace_node(taken[0], f"{source(module, of)}.{known}[{path_of(target)}]"),)


def _labels(module: Module, data: ast.expr) -> str:
    """Return the attribute that a data set has its labels in; empty where the file does not show it."""
    made = origin_of(module, data)
    if not isinstance(made, ast.Call):
        return ""
    name = path_of(made.func).rpartition(".")[2]
    if name in SETS:
        plain = len(made.args) < 3 and all(item.arg not in (None, "target_transform") for item in made.keywords)
        return "targets" if plain else ""
    known = module.classes.get(name)
    getter = known.methods.get("__getitem__") if known is not None else None
    last = getter.node.body[-1] if getter is not None else None
    given = last.value if isinstance(last, ast.Return) else None
    label = given.elts[1] if isinstance(given, ast.Tuple) and len(given.elts) == 2 else None
    if not isinstance(label, ast.Subscript) or getter is None or len(getter.node.args.args) != 2:
        return ""
    own, index = (arg.arg for arg in getter.node.args.args)
    holder, _, attribute = path_of(label.value).partition(".")
    return attribute if holder == own and "." not in attribute and path_of(label.slice) == index else ""
