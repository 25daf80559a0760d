"""Rows of a table grouped by their key once, in place of a search through all rows for each sample."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import SourceFunction
from torchtriage.diagnose.lint.samples import Samples, samples_of
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.edits._loaders import sample_function
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, insert_after, source

CODES = frozenset({"DAT110", "HST111", "HST114", "HST020", "HST118", "DAT018"})


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the lookup of what ``self.table[self.table["key"] == key]`` selects."""
    samples, function, statement = samples_of(site.module), sample_function(site), site.statement
    if function is None or function.owner is None or statement is None or isinstance(statement, ast.FunctionDef):
        return
    init = function.owner.methods.get("__init__")
    for node in ast.walk(statement) if init is not None and init.owner is function.owner else ():
        if isinstance(node, ast.Subscript):
            yield Proposal(_edits(samples, function, node), "group the rows by their key once")


def _edits(samples: Samples, function: SourceFunction, node: ast.Subscript) -> tuple[SourceEdit, ...]:
    module, owner = samples.module, function.owner
    test: ast.expr = node.slice
    table, wanted = node.value, ""
    if isinstance(table, ast.Attribute) and table.attr == "loc":
        table = table.value
        if isinstance(test, ast.Tuple) and len(test.elts) == 2:
            wanted = f"[{source(module, test.elts[1])}]"
            test = test.elts[0]
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq) or owner is None:
        return ()
    column, key = test.left, test.comparators[0]
    if not samples.is_fixed(column, function):
        column, key = key, column
    name = path_of(table)
    said = ""
    of: ast.expr | None = None
    if isinstance(column, ast.Subscript):
        of, said = column.value, source(module, column.slice)
    elif isinstance(column, ast.Attribute):
        of, said = column.value, f'"{column.attr}"'
    if not name.startswith("self.") or of is None or path_of(of) != name or not samples.follows(key, function):
        return ()
    rows = f"{name}_rows"
    # rows that no sample asks for stay out of it; a key without rows selects none
    put = insert_after(module, owner.methods["__init__"].node.body[-1], f"{rows} = dict(tuple({name}.groupby({said})))")
    found = f"{rows}.get({source(module, key)}, {name}[:0]){wanted}"
    return complete((put, replace_node(node, found)))
