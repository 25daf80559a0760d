"""A loader, or the data set below it, made once: before the loop that makes it again in each turn."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.syntax import keyword, literal, names_in
from torchtriage.diagnose.lint.torch_names import DATASETS, LOADERS
from torchtriage.measure.fix.edits._flow import flow_of, meets
from torchtriage.measure.fix.edits._lasting import has_other_values
from torchtriage.measure.fix.edits._loaders import REORDERED, draws, shuffles
from torchtriage.measure.fix.edits._settings import constant_of
from torchtriage.measure.fix.proposal import Loop, Proposal, Site, first_only
from torchtriage.measure.fix.statements import (
    again,
    edits_between,
    free_name,
    insert_before,
    move_before,
    set_keywords,
    source,
)

CODES = frozenset({"DAT018", "DAT019", "DAT113", "HST105", "LCH105", "HST020", "HST114"})
DRAWS = re.compile(r"\brandom\b|rand(n|int|perm)?\(|epoch|seed|shuffle\(|Generator")


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the loader of the line, or what the line calls to make one, moved out of the loops around it."""
    module = site.module
    for call in site.calls:
        if _makes_data(module, call):
            text = _moved(module, call)
            if text != module.text:
                thing = "loader" if _is_loader(module, call) else "data"
                edits = edits_between(module.text, text)
                yield Proposal(edits, f"make the {thing} once, before the loop", _changes(module, call))


def _changes(module: Module, call: SourceCall) -> str:
    """Return what differs where the workers of a loader that is made once are kept from epoch to epoch."""
    inside = [item.node.body[-1].value for item in call.callees if isinstance(item.node.body[-1], ast.Return)]
    for loader in module.called(*LOADERS):
        if loader is not call and loader.node not in inside:
            continue
        given = keyword(loader.node, "persistent_workers")
        kept = literal(given) is not False if given is not None else loader is call and _lasts(module, call.node)
        if kept and (shuffles(loader) or draws(module, loader)):
            return REORDERED
    return ""


def _makes_data(module: Module, call: SourceCall) -> bool:
    """Return whether a call gives a loader or a data set, itself or as a function of the file, and draws nothing."""
    known = module.classes.get(call.attr)
    if _is_loader(module, call):
        bodies: list[ast.AST] = [item.node for item in call.callees]
    elif known is not None and "__getitem__" in known.methods:
        bodies = [item.node for name, item in known.methods.items() if name == "__init__"]
    elif call.name in DATASETS or call.name.endswith("Dataset"):
        bodies = []
    else:
        return False
    bodies += [item.node for body in list(bodies) for item in module.reached(body)]
    return not any(DRAWS.search(source(module, body)) for body in (*bodies, call.node))


def _is_loader(module: Module, call: SourceCall) -> bool:
    if call.name in LOADERS:
        return True
    last = [item.node.body[-1] for item in call.callees]
    return bool(last) and all(
        isinstance(item, ast.Return) and module.name_called(item.value) in LOADERS for item in last
    )


def _moved(module: Module, call: SourceCall) -> str:
    """Return the text with a call before the outermost loop in whose turns it stays the same; the same where none."""
    place = (call.node.lineno, call.node.col_offset)
    for name in names_in(call.node):
        # the data set that this loader goes over, where the same loop makes it
        made = [item for item in module.calls if item.target == name and item.context.loop is call.context.loop]
        if call.context.loop is not None and len(made) == 1 and _makes_data(module, made[0]):
            text = _moved(module, made[0])
            if text != module.text:
                number = text.count("\n") - module.text.count("\n")
                module = again(module, edits_between(module.text, text))
                return _moved(module, _at(module, (place[0] + number, place[1])))
    loops = _around(module, call.node)
    outermost = None
    for loop in loops:
        if not _stays(module, call.node, loop):
            break
        outermost = loop
    if outermost is None:
        return module.text
    lasts = _lasts(module, call.node)
    if lasts:
        module = again(module, set_keywords(module, call.node, {"persistent_workers": lasts}))
        call = _at(module, place)
        outermost = _around(module, call.node)[loops.index(outermost)]
    return _before(module, call.node, outermost)


def _lasts(module: Module, node: ast.Call) -> str:
    """Return what ``persistent_workers`` a loader that is made once gets; empty: none, or it has it."""
    given = keyword(node, "num_workers")
    workers = constant_of(module, given)
    if given is None or workers is None or not workers.value or keyword(node, "persistent_workers") is not None:
        return ""
    if module.name_of(node.func) not in LOADERS:
        return ""
    return "True" if workers is given else f"{source(module, given)} > 0"


def _before(module: Module, node: ast.Call, loop: Loop) -> str:
    statement = module.around(node, ast.stmt)
    if isinstance(statement, ast.Assign) and statement.value is node and isinstance(statement.targets[0], ast.Name):
        edits = move_before(module, statement, loop)
    else:
        name = free_name(module, "loader", "batches", "data_loader")
        lines = source(module, node)
        put = insert_before(module, loop, f"{name} = {lines}") if name and "\n" not in lines else None
        edits = (put, replace_node(node, name)) if put is not None else ()
    return again(module, edits).text if edits else module.text


def _at(module: Module, place: tuple[int, int]) -> SourceCall:
    return next(call for call in module.calls if (call.node.lineno, call.node.col_offset) == place)


def _around(module: Module, node: ast.AST) -> list[Loop]:
    """Return the loops that make a node again in each turn, innermost first."""
    loops: list[Loop] = []
    for child, outer in pairwise([node, *module.outward(node)]):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            break
        if isinstance(outer, Loop) and child not in (getattr(outer, "iter", None), *outer.orelse):
            loops.append(outer)
    return loops


def _stays(module: Module, node: ast.Call, loop: Loop) -> bool:
    """Return whether all that a call reads comes from outside of a loop, and its name means nothing else there."""
    inside = [loop.test if isinstance(loop, ast.While) else loop.target, *loop.body]
    own = module.parents.get(node)
    if isinstance(own, ast.Assign):
        target = own.targets[0]
        if isinstance(target, ast.Name) and has_other_values(module, target.id, own, loop):
            return False
    flow = flow_of(module)
    varying = flow.changes(inside) | flow.handed_over(inside)
    return not any(meets(path, varying) for path in flow.reads(node))
