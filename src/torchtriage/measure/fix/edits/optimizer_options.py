"""Let an optimizer update all parameters at once: ``fused=True``, or ``foreach=True`` where it has no fused kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import add_keyword, keyword, literal, replace_node
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.edits._torch import calls_at
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete

CODES = frozenset({"HST020", "HST114", "LCH014", "LCH016", "OPT041"})

FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})
FOREACH = frozenset({"ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"})
OPTIMIZERS = tuple(f"torch.optim.{name}" for name in sorted(FUSED | FOREACH))
CODES_ELSEWHERE = frozenset({"LCH016"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the option for the optimizer whose step the line takes, or that it makes; else for the file's only one."""
    made = [*site.module.called(*OPTIMIZERS), *_chosen_by_name(site.module)]
    if not site.line and len(made) == 1:
        yield from _faster(site.module, made[0])
    at = calls_at(site) if site.line else []
    for call in at:
        if call in made:
            yield from _faster(site.module, call)
        elif call.attr == "step" and call.owner is not None and not call.callees:
            last = path_of(call.owner).rpartition(".")[2]
            same = [item for item in made if item.target.rpartition(".")[2] == last]
            known = same or (made if len(made) == 1 and call.receiver.kind == "optimizer" else [])
            for item in known[:1]:
                yield from _faster(site.module, item)


def _chosen_by_name(module: Module) -> list[SourceCall]:
    """Return the calls of ``getattr(torch.optim, name)``."""
    makers = [call.node for call in module.calls if call.attr == "getattr" and call.node.args]
    optimizers = {node for node in makers if module.name_of(node.args[0]) == "torch.optim"}
    return [call for call in module.calls if call.node.func in optimizers]


def _faster(module: Module, call: SourceCall) -> Iterator[Proposal]:
    name = call.attr
    if isinstance(call.node.func, ast.Call):
        name = str(module.constant(call.node.func.args[1], call.context)) if len(call.node.func.args) > 1 else ""
    option = "fused" if name in FUSED else "foreach"
    if any(literal(keyword(call.node, name)) is True for name in ("fused", "foreach", "differentiable")):
        return
    edit = _replaced(call, option) or add_keyword(module.text, call.node, option, "True")
    shown = name if name.isidentifier() else "optimizer"
    yield Proposal(complete((edit,)), f"update all parameters at once: {shown}(..., {option}=True)")


def _replaced(call: SourceCall, option: str) -> SourceEdit | None:
    """Return the edit of ``foreach=False``, which cannot stand beside ``fused=True``."""
    for item in call.node.keywords:
        if item.arg == "foreach" and option == "fused" and literal(item.value) in (False, None):
            edit = replace_node(item.value, "True")
            return SourceEdit(item.lineno, item.col_offset, edit.end_line, edit.end_column, "fused=True")
    return None
