"""Compute in float32 what became float64 by a cast, by NumPy's default or by a setting; cast frozen weights once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import add_keyword, arguments, keyword, literal, replace_node
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.syntax import is_self
from torchtriage.measure.fix.edits._torch import calls_at, torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import end_of, remove, source

CODES = frozenset({"CPY012", "HST114"})
CHANGES = "the model computes in float32, with 7 digits where there were 16"
NARROWER = "sums and tensors of the file are kept in float32, with 7 digits where there were 16"

WIDE = re.compile(r"^torch\.(float64|double)$")
CASTS = frozenset({"float", "half", "bfloat16", "to"})
WHOLE = re.compile(r"CrossEntropy|NLL|cross_entropy|nll_loss")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the casts of frozen weights done once, float32 where an array becomes a tensor, and in the whole file."""
    calls = calls_at(site)
    if site.finding.code == "HST114" and not any(_names_double(site.module, call) for call in calls):
        return
    yield from _cast_once(site, calls)
    for call in calls:
        edit = _narrow_array(site, call)
        if edit is not None:
            torch, imports = torch_in(site.module)
            yield Proposal((edit, *imports), f"{torch}.float32 from the array on")
    edits, wide_model = _everywhere(site.module)
    yield Proposal(tuple(edits), "float32 instead of float64", changes=CHANGES if wide_model else NARROWER)


def _names_double(module: Module, call: SourceCall) -> bool:
    return call.attr == "double" or any(WIDE.match(module.name_of(item)) for item in arguments(call.node))


def _narrow_array(site: Site, call: SourceCall) -> SourceEdit | None:
    if call.name not in ("torch.from_numpy", "torch.tensor", "torch.as_tensor") or site.finding.code != "CPY012":
        return None
    cast = call.user is not None and call.user.attr in (*CASTS, "double") and not _only_moves(site.module, call.user)
    if cast or keyword(call.node, "dtype") is not None or len(call.node.args) != 1:
        return None
    if call.attr == "from_numpy":
        return SourceEdit(*end_of(call.node), *end_of(call.node), ".float()")
    return add_keyword(site.module.text, call.node, "dtype", f"{torch_in(site.module)[0]}.float32")


def _only_moves(module: Module, call: SourceCall) -> bool:
    return call.attr == "to" and not any("torch." in module.name_of(item) for item in arguments(call.node))


def _everywhere(module: Module) -> tuple[list[SourceEdit], bool]:
    """Return the edits that make every float64 of torch in the file float32, and whether a whole model was."""
    edits: list[SourceEdit] = []
    models: list[SourceCall] = []
    gone: set[ast.AST] = set()
    for call in module.called("torch.set_default_dtype"):
        statement = module.parents.get(call.node)
        edit = remove(module, statement) if isinstance(statement, ast.Expr) and _names_double(module, call) else None
        if edit is not None:
            edits.append(edit)
            gone |= set(ast.walk(call.node))
            models.append(call)
    for call in module.sent("double"):
        owner = call.owner
        if owner is None or call.node.args:
            continue
        module_itself = call.receiver.kind == "module"
        edits.append(SourceEdit(*end_of(owner), *end_of(call.node), "" if module_itself else ".float()"))
        models += [call] if module_itself else []
    edits += [
        replace_node(node, f"{source(module, node.value)}.float32")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node not in gone and WIDE.match(module.name_of(node))
    ]
    if any(call.attr == "double" for call in models):
        edits += _inputs(module)
    return edits, bool(models)


def _inputs(module: Module) -> Iterator[SourceEdit]:
    """Yield the casts of what a model and a loss of real numbers get."""
    for call in module.calls:
        loss = call.receiver.of.endswith("Loss") or call.name.endswith("_loss") or "cross_entropy" in call.name
        if call.context.in_module or call.attr in ("to", "double", "eval", "train"):
            continue
        if not (loss or call.receiver.kind == "module"):
            continue
        if call.value.kind != "tensor" or WHOLE.search(call.receiver.of + call.name):
            continue
        for item in call.node.args[1:2] if loss else call.node.args[:1]:
            if isinstance(item, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                yield replace_node(item, f"{source(module, item)}.float()")


def _cast_once(site: Site, calls: list[SourceCall]) -> Iterator[Proposal]:
    """Yield the cast of a frozen weight where it is made, and none in each call."""
    function = site.known_function
    owner = function.owner if function is not None else None
    if owner is None:
        return
    for call in calls:
        weight = call.owner
        if call.attr not in CASTS or not isinstance(weight, ast.Attribute) or not is_self(weight.value):
            continue
        cast = source(site.module, call.node)[len(source(site.module, weight)) :]
        if call.attr == "to" and not any(site.module.name_of(item).startswith("torch.") for item in call.node.args):
            continue
        made = _frozen(site.module, owner.node, weight.attr)
        if made is None or source(site.module, made).endswith(cast):
            continue
        edits = [SourceEdit(*end_of(made), *end_of(made), cast)]
        inside = set(ast.walk(owner.node))
        edits += [
            replace_node(item.node, source(site.module, weight))
            for item in site.module.sent(call.attr)
            if item.node in inside and source(site.module, item.node).endswith(cast)
            if item.owner is not None and ast.dump(item.owner) == ast.dump(weight)
        ]
        yield Proposal(tuple(edits), f"convert self.{weight.attr} once")


def _frozen(module: Module, node: ast.ClassDef, name: str) -> ast.expr | None:
    """Return what a buffer, or a parameter that is not trained, is made of."""
    for part in ast.walk(node):
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call):
            target, made = part.targets[0], part.value
            mine = isinstance(target, ast.Attribute) and target.attr == name and is_self(target.value)
            fixed = literal(keyword(made, "requires_grad")) is False
            if mine and fixed and module.name_of(made.func) == "torch.nn.Parameter" and made.args:
                return made.args[0]
        if not isinstance(part, ast.Call) or len(part.args) < 2 or literal(part.args[0]) != name:
            continue
        if isinstance(part.func, ast.Attribute) and part.func.attr == "register_buffer":
            return part.args[1]
    return None
