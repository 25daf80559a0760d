"""The gradients of all outputs in one call of autograd, where each output depends on its own row of the inputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._torch import torch_in
from torchtriage.measure.fix.edits._turns import counted
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, remove, replaced_in, source, statement_edit

CODES = words("LCH017 LCH014 LCH105 LCH109 HST020 HST114")


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield one call for a loop that takes row i of the gradient of output i: the other rows of it are zeros."""
    for loop in site.for_loops:
        if isinstance(loop.target, ast.Name) and len(loop.body) == 2:
            what = f"compute the gradients of the loop on line {loop.lineno} in one call"
            yield Proposal(_at_once(site, loop, loop.target.id), what)


def _at_once(site: Site, loop: ast.For, index: str) -> tuple[SourceEdit, ...]:
    module, (made, kept) = site.module, loop.body
    if not isinstance(made, ast.Assign) or not isinstance(kept, ast.Expr) or not isinstance(kept.value, ast.Call):
        return ()
    call = next((item for item in ast.walk(made.value) if isinstance(item, ast.Call)), None)
    if call is None or module.name_of(call.func) != "torch.autograd.grad" or len(call.args) != 2:
        return ()
    output, append = call.args[0], kept.value
    if not _is_row(output, index) or index in names_in(call.args[1]):
        return ()
    whole = source(module, output.value)  # type: ignore[attr-defined]
    if counted(module, loop.iter) != whole:
        return ()
    if not isinstance(append.func, ast.Attribute) or append.func.attr != "append" or len(append.args) != 1:
        return ()
    row, rows = append.args[0], path_of(append.func.value)
    named = next((item.id for item in ast.walk(made.targets[0]) if isinstance(item, ast.Name)), "")
    if not _is_row(row, index) or path_of(row.value) != named or not named:  # type: ignore[attr-defined]
        return ()
    scope = module.scope(loop)
    starts = [module.parents[item] for item in module.stores(rows, scope)]
    joins = [module.parents[item] for item in module.reads(rows, scope) if item is not append.func.value]
    if len(starts) != 1 or len(joins) != 1 or not isinstance(join := joins[0], ast.Call) or len(join.args) != 1:
        return ()
    if module.name_of(join.func) != "torch.stack" or join.keywords or not isinstance(starts[0], ast.Assign):
        return ()
    torch, more = torch_in(module)
    weights = f"{source(module, call.args[1])}, {torch}.ones_like({whole})"
    text = replaced_in(module, made, (output, whole), (call.args[1], weights))
    edits = [remove(module, starts[0]), statement_edit(module, loop, text), replace_node(join, named)]
    return complete([*edits, *more])


def _is_row(node: ast.expr, index: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id == index
