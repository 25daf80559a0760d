"""Keep images in one memory layout: no copies that undo it, and ``channels_last`` for a model and its input."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.edits._torch import calls_at, torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import end_of, remove

CODES = frozenset({"CPY011", "HST114", "LCH014"})

CONVOLUTIONS = ("Conv2d", "ConvTranspose2d", "conv2d", "conv_transpose2d")
FLAT = frozenset({"view", "numpy", "data_ptr", "flatten"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the copies of the file's layers taken out, and the model and its input in ``channels_last``."""
    module = site.module
    if site.finding.code == "CPY011":
        edits = [edit for call in module.sent("contiguous") for edit in _uncopied(module, call)]
        if edits:
            yield Proposal(tuple(edits), "no copies that undo the layout of images")
    if "channels_last" not in module.text and (site.finding.code == "CPY011" or _is_convolution(site)):
        yield from _channels_last(module)


def _is_convolution(site: Site) -> bool:
    """Return whether the line runs a convolution, or a model that has some."""
    function = site.known_function
    layer = function is not None and function.in_module
    return any(name in site.module.text for name in CONVOLUTIONS) and any(
        call.attr in CONVOLUTIONS
        or call.receiver.of.endswith("Conv2d")
        or (call.receiver.kind == "module" and not layer)
        for call in calls_at(site)
    )


def _uncopied(module: Module, call: SourceCall) -> Iterator[SourceEdit]:
    owner = call.owner
    flattened = call.user is not None and call.user.attr in FLAT
    if owner is None or call.node.args or call.node.keywords or not call.context.in_module or flattened:
        return
    statement = module.parents.get(call.node)
    if isinstance(statement, ast.Assign) and [path_of(item) for item in statement.targets] == [path_of(owner)]:
        edit = remove(module, statement)
        if edit is not None:
            yield edit
        return
    yield SourceEdit(*end_of(owner), *end_of(call.node), "")


def _channels_last(module: Module) -> Iterator[Proposal]:
    torch, imports = torch_in(module)
    cast = f".to(memory_format={torch}.channels_last)"
    for call in module.calls:
        path, context = path_of(call.node.func), call.context
        if call.receiver.kind != "module" or not path or len(call.node.args) != 1:
            continue
        if context.in_module or not context.hot:
            continue
        made = [item for item in module.assigns if item.target == path and item.how == "="]
        given = call.node.args[0]
        if len(made) != 1 or not isinstance(made[0].expression, ast.Call) or call.receiver.of.endswith("Loss"):
            continue
        if not isinstance(given, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            continue
        edits = [SourceEdit(*end_of(node), *end_of(node), cast) for node in (made[0].expression, given)]
        yield Proposal((*edits, *imports), f"{path} and its input in channels_last")
        return
