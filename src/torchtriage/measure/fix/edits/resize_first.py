"""Images made small before anything else works on them: in a pipeline of transforms, and in a data set's own code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.syntax import names_in, path_of, stored_names
from torchtriage.measure.fix.edits._loaders import sample_function
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, move_before, source, statement_edit

CODES = frozenset({"DAT101", "HST110", "HST114"})
CHANGES = "pixels differ: what comes after the resize works on the small image"
SMALLER = re.compile(r"^(Resize|RandomResizedCrop|CenterCrop|Scale|LongestMaxSize|SmallestMaxSize)$")
LIGHT = re.compile(r"^(Random\w*Flip|Lambda|Normalize|ToTensor|PILToTensor|ConvertImageDtype|ToImage|ToDtype)$")
SHRINKS = frozenset({"resize", "thumbnail", "center_crop"})
WORKS = re.compile(
    r"rotate|filter|enhance|[bB]lur|warp|affine|augment|jitter|contrast|equalize|denoise|sharpen|perspective"
)


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the pipeline or the method at the line with its resize in front."""
    found = False
    for function in _methods(site):
        for edits in (_moved(site.module, function), _drafted(site.module, function)):
            if edits:
                found = True
                yield Proposal(edits, "resize first, and work on the small image", CHANGES)
    for node in [] if found else _pipelines(site):
        edits = _first_in(site.module, node)
        if edits:
            yield Proposal(edits, "resize first, and transform the small image", CHANGES)
            return


def _pipelines(site: Site) -> list[ast.List]:
    """Return the lists of transforms at the line, or of the file where the line makes a sample or a loader."""
    made = [call.node for call in site.module.calls if call.attr == "Compose" and call.node.args]
    lists = [node.args[0] for node in made if isinstance(node.args[0], ast.List)]
    here = [node for node in lists if site.holds(node)]
    return here or (lists[:1] if len(lists) <= 2 and _methods(site) else [])


def _first_in(module: Module, steps: ast.List) -> tuple[SourceEdit, ...]:
    """Return the edits that put the first resize before the first transform that works on pixels."""
    names = [path_of(item.func).rpartition(".")[2] if isinstance(item, ast.Call) else "" for item in steps.elts]
    small = next((at for at, name in enumerate(names) if SMALLER.match(name)), None)
    if small is None:
        return ()
    target = next((at for at in range(small) if not LIGHT.match(names[at])), None)
    if target is None:
        return ()
    # every place between takes the text of the one before it
    order = [small, *range(target, small)]
    texts = [source(module, steps.elts[at]) for at in order]
    return tuple(replace_node(steps.elts[at], text) for at, text in zip(range(target, small + 1), texts, strict=True))


def _methods(site: Site) -> list[ast.FunctionDef]:
    """Return the method that makes the sample at the line, itself or by what it calls."""
    if sample_function(site) is None:
        return []
    roots = [
        item
        for item in samples_of(site.module).roots
        if item.name == "__getitem__" and isinstance(item.node, ast.FunctionDef)
    ]
    return [
        root.node
        for root in roots
        if isinstance(root.node, ast.FunctionDef)
        and (root.node is site.function or any(item.node is site.function for item in site.module.reached(root.node)))
    ]


def _shrinks(module: Module, statement: ast.stmt) -> str:
    """Return the variable that a statement makes small: ``image = image.resize(size)``; empty where it does more."""
    call = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in SHRINKS:
        return ""
    of: ast.expr | None = call.func.value
    if not isinstance(of, ast.Name) or of.id in module.aliases:
        of = call.args[0] if call.args else None
    if not isinstance(of, ast.Name) or (isinstance(statement, ast.Expr) and call.func.attr != "thumbnail"):
        return ""
    if isinstance(statement, ast.Assign) and [path_of(item) for item in statement.targets] != [of.id]:
        return ""
    return of.id


def _moved(module: Module, function: ast.FunctionDef) -> tuple[SourceEdit, ...]:
    """Return the edits that move a resize before the statements that work on the same image at its full size."""
    body = function.body
    for at, statement in enumerate(body):
        name = _shrinks(module, statement)
        if not name:
            continue
        target = None
        for earlier in reversed(body[:at]):
            plain = isinstance(earlier, ast.Assign | ast.If | ast.Expr) and name in names_in(earlier)
            made = isinstance(earlier, ast.Assign) and name not in names_in(earlier.value)
            if made or not plain or stored_names(earlier) - {name}:
                break
            texts = [source(module, earlier), *(source(module, item.node) for item in module.reached(earlier))]
            if any(WORKS.search(text) for text in texts):
                target = earlier
        if target is not None:
            return move_before(module, statement, target)
    return ()


def _drafted(module: Module, function: ast.FunctionDef) -> tuple[SourceEdit, ...]:
    """Return the edits by which the decoder makes an image small: ``draft`` between ``open`` and ``convert``."""
    sizes = [
        call.node.args[0]
        for call in module.calls
        if call.attr == "resize" and isinstance(call.node.func, ast.Attribute) and call.node.args
        and any(item is call.node for item in ast.walk(function)) and isinstance(call.node.args[0], ast.Tuple)
    ]  # fmt: skip
    for statement in function.body:
        value = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != "convert":
            continue
        opened = value.func.value
        if not isinstance(opened, ast.Call) or module.name_of(opened.func) != "PIL.Image.open" or not sizes:
            continue
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name, mode = statement.targets[0].id, source(module, value.args[0]) if value.args else '"RGB"'
        size = ", ".join(f"2 * {source(module, item)}" for item in sizes[0].elts)
        rows = f"{name} = {source(module, opened)}\n{name}.draft({mode}, ({size}))\n{name} = {name}.convert({mode})"
        return complete((statement_edit(module, statement, rows),))
    return ()
