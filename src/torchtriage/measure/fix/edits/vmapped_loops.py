"""A loop over samples, whose turns do not know of each other, written as one call of ``torch.vmap``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import Flow, flow_of, mutated
from torchtriage.measure.fix.edits._torch import torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import INDENT, bound, free_name, indent_of, replaced_in, source

CODES = words("LCH017 LCH102 LCH107 LCH109 LCH014 HST020 HST114 LCH105")
AT_ONCE = 256
"""Samples: more would take more memory, and are not faster."""
NOT_MAPPED = re.compile(r"\.(tolist|numpy|nonzero|backward|unique|masked_select|cpu)\(|\bnp\.|\blen\(|\bprint\(")
DRAWS = re.compile(r"[dD]ropout|\brand|bernoulli|normal_?\(|multinomial")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the loop around the line that fills an array with what it computes of each row of a tensor."""
    for loop in site.loops:
        if isinstance(loop, ast.For) and (proposal := _mapped(site, flow_of(site.module), loop)) is not None:
            yield proposal
            return


def _mapped(site: Site, flow: Flow, loop: ast.For) -> Proposal | None:
    module, indent = site.module, indent_of(site.module, loop)
    index, row, whole = _rows(site, loop)
    *steps, last = loop.body
    kept = _kept(last, index)
    if not whole or indent is None or loop.orelse or kept is None:
        return None
    place, (value, was_read) = path_of(kept[0]), _unread(kept[1])
    values = [item.value for item in steps if isinstance(item, ast.Assign) and _is_name(item)]
    if len(values) != len(steps) or not all(_is_whole(flow, item) for item in (*values, value)):
        return None
    if NOT_MAPPED.search("\n".join(source(module, item) for item in (*values, value))) or mutated(steps) - {"self"}:
        return None
    named = [node for item in (*values, value) for node in ast.walk(item) if isinstance(node, ast.Name | ast.Attribute)]
    later = [item for name in {*bound(steps), index, row} for item in module.names(name, module.scope(loop))]
    if place in map(path_of, named) or any(item.lineno > (loop.end_lineno or 0) for item in later):
        return None
    picked = [node for item in (*steps, value) for node in ast.walk(item) if isinstance(node, ast.Subscript)]
    uses = [node for node in picked if index and source(module, node) == f"{whole}[{index}]"]
    paths = [path_of(node) for node in named]
    if paths.count(index) != len(uses) or not (uses or row in paths):
        return None
    row, name = row or free_name(module, "row", "sample_row"), free_name(module, "of_row", "value_of_row")
    if not row or not name:
        return None

    def text_of(node: ast.stmt | ast.expr) -> str:
        return replaced_in(module, node, *((use, row) for use in uses if use in set(ast.walk(node))))

    torch, more = torch_in(module)
    called = f'{torch}.vmap({name}, randomness="different", chunk_size={AT_ONCE})({whole})'
    target = source(module, kept[0])
    if isinstance(last, ast.Expr):
        filled = f"{target}.extend({called}.tolist())" if was_read else f"{target}.extend({called})"
    elif was_read and module.value(kept[0]).kind != "tensor" and not _is_tensor(site, kept[0]):
        filled = f"{target}[:] = {called}.detach().cpu().numpy()"
    else:
        filled = f"{target}[:] = {called}.detach()" if was_read else f"{target}[:] = {called}"
    text = [f"def {name}({row}):", *(f"{INDENT}{text_of(item)}" for item in steps), f"{INDENT}return {text_of(value)}"]
    new = "\n".join(f"{indent}{item}" if item and number else item for number, item in enumerate([*text, "", filled]))
    edit = SourceEdit(loop.lineno, loop.col_offset, loop.end_lineno or 0, loop.end_col_offset or 0, new)
    changes = "random numbers are drawn in another order" if DRAWS.search(module.text) else ""
    return Proposal((edit, *more), f"compute all turns of the loop in line {loop.lineno} at once", changes)


def _kept(last: ast.stmt, index: str) -> tuple[ast.expr, ast.expr] | None:
    """Return what a turn's value is kept in, and the value: ``out[i] = value``, ``out.append(value)``."""
    if isinstance(last, ast.Assign) and len(last.targets) == 1 and isinstance(target := last.targets[0], ast.Subscript):
        return (target.value, last.value) if index and path_of(target.slice) == index else None
    call = last.value if isinstance(last, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
        return (call.func.value, call.args[0]) if len(call.args) == 1 and path_of(call.func.value) else None
    return None


def _is_name(node: ast.Assign) -> bool:
    return len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)


def _rows(site: Site, loop: ast.For) -> tuple[str, str, str]:
    """Return the variable that counts, the one that is a row, and the tensor whose rows a loop goes through."""
    over, target = loop.iter, loop.target
    called = path_of(over.func) if isinstance(over, ast.Call) and len(over.args) == 1 and not over.keywords else ""
    index, row, whole = "", "", path_of(over)
    if isinstance(over, ast.Call) and called == "range":
        counted = source(site.module, over.args[0])
        found = re.fullmatch(r"len\(([\w.]+)\)|([\w.]+)\.(?:shape\[0\]|size\(0\))", counted)
        index, whole = path_of(target), (found[1] or found[2]) if found else ""
    elif isinstance(over, ast.Call) and called == "enumerate" and isinstance(target, ast.Tuple):
        index, row = (path_of(item) for item in (*target.elts, target, target)[:2])
        whole = path_of(over.args[0])
    else:
        row = path_of(target)
    is_known = whole and (index or row) and _is_tensor(site, ast.parse(whole, mode="eval").body)
    return (index, row, whole) if is_known else ("", "", "")


def _is_tensor(site: Site, node: ast.expr) -> bool:
    """Return whether a variable is a tensor wherever it is assigned in sight."""
    path = path_of(node)
    made = [
        item.value
        for item in ast.walk(site.function or site.module.tree)
        if isinstance(item, ast.Assign) and path in map(path_of, item.targets)
    ]
    return bool(made) and all(
        site.module.value(item).kind == "tensor"
        or (isinstance(item, ast.Call) and site.module.name_of(item.func).startswith("torch."))
        for item in made
    )


def _unread(node: ast.expr) -> tuple[ast.expr, bool]:
    """Return an expression without what reads its value: ``float(x)``, ``x.item()``."""
    if isinstance(node, ast.Call) and path_of(node.func) == "float" and len(node.args) == 1:
        return node.args[0], True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return node.func.value, True
    return node, False


def _is_whole(flow: Flow, node: ast.expr) -> bool:
    """Return whether an expression changes nothing: a model may be called in it."""
    for part in ast.walk(node):
        if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.IfExp | ast.ListComp | ast.Lambda):
            return False
        if isinstance(part, ast.Call) and not _changes_nothing(flow, part):
            return False
    return True


def _changes_nothing(flow: Flow, call: ast.Call) -> bool:
    """Return whether a call, apart from what it is given, gives the same for the same, or is one of a model."""
    known, func = flow.call(call), call.func
    if known is not None and (known.callees or known.receiver.kind == "module"):
        return known.receiver.kind == "module" or all(flow.pure(callee) for callee in known.callees)
    if isinstance(func, ast.Attribute) and not flow.module.name_of(func).startswith("torch."):
        func = ast.Attribute(ast.Name("x"), func.attr)
    return flow.repeats(ast.Call(func, [], []))
