"""Generation that keeps keys and values, and runs only the new token through the model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import keyword, literal, path_of
from torchtriage.measure.fix.proposal import Loop, Proposal, Site, first_only
from torchtriage.measure.fix.statements import (
    bound,
    complete,
    free_name,
    insert_after,
    insert_before,
    replaced_in,
    set_keywords,
    source,
    statement_edit,
)

CODES = frozenset({"LCH104", "CPY013", "LCH105", "LCH017", "LCH014", "HST106", "HST114", "HST020"})
CACHE = re.compile(r"past|cache|kvs?$|kv_|state")
WHAT = "keep keys and values, and run only the new token"


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield a cache for the loop of generation around the line, or for the call of ``generate`` at it."""
    module = site.module
    for call in site.calls:
        if literal(keyword(call.node, "use_cache")) is False and not module.trains:
            yield Proposal(set_keywords(module, call.node, {"use_cache": "True"}), WHAT)
            return
    for loop in site.loops:
        yield Proposal(_edits(module, loop), WHAT)


def _edits(module: Module, loop: Loop) -> tuple[SourceEdit, ...]:
    """Return the edits of a loop with ``out = model(ids)`` and ``ids = torch.cat([ids, token], dim=1)``."""
    joined = next((item for item in loop.body if _joins(module, item)), None)
    if not isinstance(joined, ast.Assign) or not isinstance(joined.value, ast.Call):
        return ()
    ids = path_of(joined.targets[0])
    whole, token = _joined(joined.value)
    new = free_name(module, "new_ids", "step_ids", "last_ids")
    ran = next((item for item in loop.body if isinstance(item, ast.Assign) and _model_call(item.value, ids)), None)
    if whole != ids or token is None or ran is None or not new:
        return ()
    call = _model_call(ran.value, ids)
    if call is None:
        return ()
    before = insert_before(module, loop, f"{new} = {ids}")
    after = insert_after(module, joined, f"{new} = {source(module, token)}")
    run = _own(module, loop, ran, call, new) or _of_transformers(module, loop, ran, call, new)
    return complete((before, *run, after)) if run else ()


def _joins(module: Module, node: ast.stmt) -> bool:
    joins = ("torch.cat", "torch.concat", "torch.hstack")
    return isinstance(node, ast.Assign) and module.name_called(node.value) in joins


def _joined(node: ast.Call) -> tuple[str, ast.expr | None]:
    """Return what a token is put behind, and the token."""
    parts = node.args[0].elts if node.args and isinstance(node.args[0], ast.List | ast.Tuple) else []
    return (path_of(parts[0]), parts[1]) if len(parts) == 2 else ("", None)


def _model_call(node: ast.expr, ids: str) -> ast.Call | None:
    """Return ``model(ids)`` in an expression, where nothing else goes in."""
    calls = [
        item for item in ast.walk(node) if isinstance(item, ast.Call) and len(item.args) == 1 and not item.keywords
    ]
    found = [item for item in calls if path_of(item.args[0]) == ids and isinstance(item.func, ast.Name | ast.Attribute)]
    return found[0] if len(found) == 1 and path_of(found[0].func) not in ("len", "print") else None


def _own(module: Module, loop: Loop, ran: ast.Assign, call: ast.Call, new: str) -> tuple[SourceEdit, ...]:
    """Return the edits for a model of the file that takes and gives a cache: ``logits, cache = model(ids)``."""
    target = ran.targets[0]
    if ran.value is not call or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return ()
    given, cache = path_of(target.elts[0]), path_of(target.elts[1])
    models = [known for known in module.classes.values() if known.is_module and "forward" in known.methods]
    taken = []
    for known in models:
        args = known.methods["forward"].node.args
        names = [arg.arg for arg in args.args[1:]]
        last = args.defaults and literal(args.defaults[-1]) is None
        if len(names) == 2 and last and CACHE.search(names[1]):
            taken.append(names)
    if not cache or not taken or not _only_last(module, loop, given):
        return ()
    start = () if _is_none_before(module, loop, cache) else (insert_before(module, loop, f"{cache} = None"),)
    return complete((*start, replace_node(call, f"{source(module, call.func)}({new}, {cache})")))


def _of_transformers(module: Module, loop: Loop, ran: ast.Assign, call: ast.Call, new: str) -> tuple[SourceEdit, ...]:
    """Return the edits for a model of transformers: ``out = model(ids)``, or ``logits = model(ids).logits[:, -1]``."""
    if module.trains or len(ran.targets) != 1:
        return ()
    name, cache = path_of(ran.targets[0]), free_name(module, "cache", "past_key_values", "kept")
    run = f"{source(module, call.func)}({new}, past_key_values={cache}, use_cache=True)"
    start = insert_before(module, loop, f"{cache} = None")
    if not name or not cache:
        return ()
    if ran.value is call:
        outer = [module.parents.get(item) for item in module.reads(name, module.scope(loop))]
        taken = [item for item in outer if isinstance(item, ast.Attribute) and item.attr == "logits"]
        if len(taken) < len(outer) or not all(_takes_last(module, item) for item in taken):
            return ()
        after = insert_after(module, ran, f"{cache} = {name}.past_key_values")
        return complete((start, replace_node(call, run), after))
    logits = module.parents.get(call)
    out = free_name(module, "out", "output", "result")
    if not isinstance(logits, ast.Attribute) or logits.attr != "logits" or not out:
        return ()
    if not _takes_last(module, logits) and not (ran.value is logits and _only_last(module, loop, name)):
        return ()
    rest = replaced_in(module, ran, (call, out))
    rows = f"{out} = {run}\n{cache} = {out}.past_key_values\n{rest}"
    return complete((start, statement_edit(module, ran, rows)))


def _only_last(module: Module, loop: Loop, name: str) -> bool:
    """Return whether of a variable nothing but the last position is read in a loop, and nothing outside."""
    inside = set(ast.walk(loop))
    reads = module.reads(name, module.scope(loop))
    return bool(reads) and all(item in inside and _takes_last(module, item) for item in reads)


def _takes_last(module: Module, node: ast.expr) -> bool:
    part = module.parents.get(node)
    if not isinstance(part, ast.Subscript) or part.value is not node or not isinstance(part.slice, ast.Tuple):
        return False
    parts: Sequence[ast.expr] = part.slice.elts
    return len(parts) > 1 and source(module, parts[1]) in ("-1", "-1:")


def _is_none_before(module: Module, loop: Loop, name: str) -> bool:
    stores = [item for item in module.stores(name, module.scope(loop)) if item.lineno < loop.lineno]
    made = [module.parents.get(item) for item in stores]
    return any(isinstance(item, ast.Assign) and literal(item.value) is None for item in made) and name in bound(
        loop.body
    )
