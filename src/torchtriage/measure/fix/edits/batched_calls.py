"""Run a model on a whole batch instead of on each of its samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import arguments, literal, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import appended
from torchtriage.measure.fix.edits._flow import Flow, flow_of
from torchtriage.measure.fix.edits._lift import Lift, NotBatchedError
from torchtriage.measure.fix.proposal import Loop, Proposal, Site
from torchtriage.measure.fix.statements import body_of, complete, remove, source

CODES = words("LCH102 LCH107 LCH017 LCH014 LCH109 HST020 HST114 KRN024 LCH105")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the comprehension, or the loop that appends, that is joined right away, as one call."""
    statement, flow = site.statement, flow_of(site.module)
    if statement is None:
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.ListComp) and (edit := _comprehension(site, flow, node)) is not None:
            yield Proposal((edit,), "run the model on all samples at once")
            return
    for loop in site.loops:
        edits = _loop(site, flow, loop)
        if edits:
            yield Proposal(edits, f"run all turns of the loop in line {loop.lineno} at once")
            return


def _lifting(site: Site, flow: Flow, target: ast.expr, over: ast.expr) -> Lift | None:
    if not isinstance(target, ast.Name):
        return None
    if isinstance(over, ast.Call) and path_of(over.func) == "range" and len(over.args) == 1:
        length = over.args[0]
        whole = ""
        if isinstance(length, ast.Call) and path_of(length.func) == "len":
            whole = source(site.module, length.args[0])
        elif isinstance(length, ast.Subscript) and literal(length.slice) == 0:
            whole = source(site.module, length.value).removesuffix(".shape")
        elif isinstance(length, ast.Call) and source(site.module, length).endswith(".size(0)"):
            whole = source(site.module, length).removesuffix(".size(0)")
        return Lift(site, flow, whole, index=target.id) if whole else None
    if path_of(over):
        kind = site.module.value(over).kind
        whole = source(site.module, over)
        return Lift(site, flow, f"torch.stack({whole})" if kind == "list" else whole, sample=target.id)
    return None


def _joined(lift: Lift, node: ast.expr, join: str) -> str | None:
    """Return what a join of all results is for the batch."""
    try:
        batch = lift.lift(node)
    except NotBatchedError:
        return None
    if "(" not in batch.text.replace("torch.stack(", ""):
        return None  # no work at all
    if join == "torch.cat":
        return batch.text if batch.single else None
    return f"{batch.text}.unsqueeze(1)" if batch.single else batch.text


def _comprehension(site: Site, flow: Flow, node: ast.ListComp) -> SourceEdit | None:
    outer = site.module.parents.get(node)
    join = site.module.name_of(outer.func) if isinstance(outer, ast.Call) else ""
    if join not in ("torch.cat", "torch.stack") or len(node.generators) != 1 or node.generators[0].ifs:
        return None
    assert isinstance(outer, ast.Call)
    if any(literal(item) != 0 for item in arguments(outer)[1:]):
        return None
    lift = _lifting(site, flow, node.generators[0].target, node.generators[0].iter)
    text = _joined(lift, node.elt, join) if lift is not None else None
    return replace_node(outer, text) if text else None


def _loop(site: Site, flow: Flow, loop: Loop) -> tuple[SourceEdit, ...]:
    """Return the edits of ``outs = []``, ``for ...: outs.append(f(x))``, and ``torch.cat(outs)`` below."""
    module = site.module
    if not isinstance(loop, ast.For) or len(loop.body) != 1 or not isinstance(loop.body[0], ast.Expr):
        return ()
    call, added = loop.body[0].value, appended(loop.body[0].value)
    if added is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ()
    name = path_of(call.func.value)
    named = module.names(name, module.scope(loop))
    reads = [node for node in named if isinstance(node.ctx, ast.Load) and node not in ast.walk(loop)]
    stores = [node for node in named if isinstance(node.ctx, ast.Store)]
    if call.func.attr != "append" or len(reads) != 1 or len(stores) != 1:
        return ()
    outer, made = module.parents[reads[0]], module.parents[stores[0]]
    join = module.name_of(outer.func) if isinstance(outer, ast.Call) else ""
    lift = _lifting(site, flow, loop.target, loop.iter)
    if join not in ("torch.cat", "torch.stack") or lift is None or not isinstance(made, ast.Assign):
        return ()
    assert isinstance(outer, ast.Call)
    if any(literal(item) != 0 for item in arguments(outer)[1:]) or made not in (body_of(module, loop) or []):
        return ()
    text = _joined(lift, added, join)
    if text is None:
        return ()
    return complete([remove(module, made), remove(module, loop), replace_node(outer, text)])
