"""Compile once for what changes: sizes without a blind setting, counters and dtypes that stay the same for a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import add_keyword, compiled, keyword, literal, replace_node
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import is_self, path_of
from torchtriage.measure.fix.edits._torch import torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, end_of, remove, source, without_keyword

CODES = frozenset({"CMP031", "CMP101"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the setting taken out, then counters as tensors, then one dtype for compiled code."""
    module, code = site.module, site.finding.code
    made = list(_compilations(module))
    for call in made:
        if literal(keyword(call, "dynamic")) is (code == "CMP101"):
            edit = without_keyword(call, "dynamic") or _without_first(call)
            yield Proposal((edit,), "let PyTorch see which sizes change")
    if code == "CMP101":
        return
    for name in ("automatic_dynamic_shapes", "assume_static_by_default"):
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and path_of(node.targets[0]).endswith(f"config.{name}"):
                yield Proposal(complete((remove(module, node),)), "let PyTorch see which sizes change")
    edits = [*_counters(module), *_dtypes(module, made)]
    if edits:
        yield Proposal((*edits, *torch_in(module)[1]), "counters as tensors, and one dtype, for compiled code")
    elif made and not any(keyword(call, "dynamic") for call in made):
        more = add_keyword(module.text, made[0], "dynamic", "True")
        yield Proposal(complete((more,)), "compile for all sizes at once")


def _compilations(module: Module) -> Iterator[ast.Call]:
    """Yield the calls that set compilation up: ``torch.compile(...)``, as a decorator, by ``partial``."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            partial = module.name_of(node.func) == "functools.partial" and node.args
            name = module.name_of(node.args[0] if partial else node.func)
            method = isinstance(node.func, ast.Attribute) and node.func.attr == "compile"
            if name == "torch.compile" or (method and name.partition(".")[0] not in ("re", "regex")):
                yield node


def _without_first(call: ast.Call) -> SourceEdit:
    """Return the edit that takes the first keyword out, with the comma behind it."""
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    first, *rest = sorted(given, key=lambda item: (item.lineno, item.col_offset))
    end = (rest[0].lineno, rest[0].col_offset) if rest else end_of(first)
    return SourceEdit(first.lineno, first.col_offset, *end, "")


def _counters(module: Module) -> Iterator[SourceEdit]:
    """Yield tensors for the numbers that compiled code counts on its object."""
    for assign in module.assigns:
        owner = assign.context.owner
        if assign.how != "+=" or not assign.target.startswith("self.") or not compiled(assign.context):
            continue
        name = assign.target.removeprefix("self.")
        begun = _begun(owner.methods.get("__init__") if owner is not None else None, name)
        if owner is None or begun is None or type(literal(begun.value)) not in (int, float):
            continue
        tensor = f"{torch_in(module)[0]}.tensor({source(module, begun.value)})"
        if owner.is_module:
            yield replace_node(begun, f'self.register_buffer("{name}", {tensor}, persistent=False)')
        else:
            yield replace_node(begun.value, tensor)


def _begun(function: SourceFunction | None, name: str) -> ast.Assign | None:
    for node in ast.walk(function.node) if function is not None else ():
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == name and is_self(target.value):
                return node
    return None


def _dtypes(module: Module, made: list[ast.Call]) -> Iterator[SourceEdit]:
    """Yield casts before compiled code of what it casts first thing itself."""
    for compilation in made:
        callee = _compiled_function(module, compilation)
        names = [item.target for item in module.assigns if item.expression is compilation]
        if callee is None or not names:
            continue
        places = [arg.arg for arg in callee.args.args if arg.arg != "self"]
        for call in module.calls:
            if path_of(call.node.func) == names[0]:
                yield from _cast(module, call, callee, places)


def _cast(module: Module, call: SourceCall, callee: ast.AST, places: list[str]) -> Iterator[SourceEdit]:
    for name, given in zip(places, call.node.args, strict=False):
        calls = [path_of(node.func) for node in ast.walk(callee) if isinstance(node, ast.Call)]
        cast = next((path for path in calls if path in (f"{name}.float", f"{name}.half")), "")
        used = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(callee))
        if cast and used == 1 and isinstance(given, ast.Name | ast.Attribute):
            yield replace_node(given, f"{source(module, given)}.{cast.rpartition('.')[2]}()")


def _compiled_function(module: Module, node: ast.Call) -> ast.FunctionDef | None:
    """Return the function that a call of ``torch.compile`` is about: of a model its ``forward``."""
    if not node.args:
        return None
    given = node.args[0]
    known = module.classes.get(module.value(given).of)
    last = path_of(given).rpartition(".")[2]
    for function in module.functions:
        forward = known is not None and function.owner is known and function.name == "forward"
        if (forward or (last and function.name == last)) and isinstance(function.node, ast.FunctionDef):
            return function.node
    return None
