"""The arrays of an ``.npz`` read when it is opened, in place of each time that one is asked for by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Class, Module
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.syntax import literal, path_of
from torchtriage.diagnose.lint.work_words import MUTATORS
from torchtriage.measure.fix.edits._flow import mutated
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import source

CODES = frozenset({"DAT103", "DAT105", "HST101", "HST110", "HST111", "HST114", "HST020", "DAT018"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``self.archive = dict(np.load(path))`` for the archives that what runs for each sample asks at the line."""
    module, samples = site.module, samples_of(site.module)
    function = next((item for item in samples.functions if item.node is site.function), None)
    owner = function.owner if function is not None else None
    for node in ast.walk(site.statement) if site.statement is not None and owner is not None else ():
        name = path_of(node.value) if isinstance(node, ast.Subscript) and isinstance(literal(node.slice), str) else ""
        opened = _opened(module, owner, name) if owner is not None and name.startswith("self.") else None
        if opened is not None and _stays(module, name.removeprefix("self.")):
            edit = replace_node(opened, f"dict({source(module, opened)})")
            yield Proposal((edit,), f"read the arrays of {name} once, and keep them in memory")
            return


def _opened(module: Module, owner: Class, name: str) -> ast.Call | None:
    """Return what an attribute is set to, once: a file of NumPy's."""
    made = [
        node.value
        for node in ast.walk(owner.node)
        if isinstance(node, ast.Assign) and name in map(path_of, node.targets)
    ]
    opened = made[0] if len(made) == 1 else None
    return opened if isinstance(opened, ast.Call) and module.name_of(opened.func) == "numpy.load" else None


def _stays(module: Module, name: str) -> bool:
    """Return whether an archive is only asked for arrays, and nothing changes these: each is one object from now on."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Attribute) or node.attr != name or not isinstance(node.ctx, ast.Load):
            continue
        around: ast.AST = module.parents[node]
        if not isinstance(around, ast.Subscript) or around.value is not node or not isinstance(around.ctx, ast.Load):
            return False
        while not isinstance(around, ast.stmt):
            method = around.attr if isinstance(around, ast.Attribute) else ""
            if method in MUTATORS or method.endswith("_"):
                return False
            around = module.parents[around]
        names |= _given(module, around)
    while more := _views(module, names) - names:
        names |= more
    return not names & mutated(module.tree.body)


def _given(module: Module, statement: ast.stmt) -> set[str]:
    """Return the variables that a statement binds, and the function that returns what it makes."""
    if isinstance(statement, ast.Return | ast.Expr):
        around = module.scope(statement)
        return {around.name} if isinstance(around, ast.FunctionDef) else set()
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _views(module: Module, names: set[str]) -> set[str]:
    """Return what is made, as far as names show, of what these variables hold or these functions return."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.For) and names & _read(node):
            found |= _given(module, node)
    return found


def _read(node: ast.Assign | ast.AnnAssign | ast.Return | ast.For) -> set[str]:
    value = node.iter if isinstance(node, ast.For) else node.value
    parts = list(ast.walk(value)) if value is not None else []
    return {part.id for part in parts if isinstance(part, ast.Name)} | {
        part.attr for part in parts if isinstance(part, ast.Attribute)
    }
