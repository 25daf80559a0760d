"""Wait for what is to come instead of asking for it again and again, and do not spin."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import keyword, literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import written
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, complete, insert_after, insert_before, module_in, remove, source

CODES = words("HST104 HST108 HST112 HST020 HST054 HST114")
SHORT = "0.001"


def propose(site: Site) -> Iterator[Proposal]:
    """Yield a condition that the other thread notifies, a queue that blocks, a pause in a loop that spins."""
    module = site.module
    for loop in site.loops:
        if not isinstance(loop, ast.While):
            continue
        sleep = _sleep(module, loop)
        if sleep is None:
            if edits := _paused(module, loop):
                yield Proposal(edits, f"pause in the loop on line {loop.lineno}, which would spin")
            continue
        for edits, what in (
            (_blocking(module, loop), "let the queue wait"),
            (_notified(site, loop), "wait for a notification"),
        ):
            if edits:
                yield Proposal(edits, f"{what} instead of polling on line {loop.lineno}")
        if _polls(module, loop, sleep):
            short = replace_node(sleep.args[0], SHORT)
            yield Proposal((short,), f"poll more often on line {loop.lineno}", "it polls more often")
        return


def _sleep(module: Module, around: ast.stmt) -> ast.Call | None:
    for node in ast.walk(around):
        if isinstance(node, ast.Call) and module.name_of(node.func) == "time.sleep" and node.args:
            return node
    return None


def _polls(module: Module, loop: ast.While, sleep: ast.Call) -> bool:
    """Return whether a pause of a fixed time stands between two questions, and is not the shortest already."""
    seconds = module.settings.value(sleep.args[0], module.scope(loop))
    asks = (
        not isinstance(loop.test, ast.Constant)
        or module.around(sleep, ast.If, ast.ExceptHandler, ast.While) is not loop
    )
    return asks and isinstance(seconds, int | float) and float(SHORT) < seconds < 1


def _only_sleeps(module: Module, loop: ast.While) -> bool:
    return len(loop.body) == 1 and isinstance(loop.body[0], ast.Expr) and loop.body[0].value is _sleep(module, loop)


def _blocking(module: Module, loop: ast.While) -> tuple[SourceEdit, ...]:
    """Return the edits that let ``get`` of a queue wait."""
    test = source(module, loop.test)
    body = body_of(module, loop) or []
    if _only_sleeps(module, loop) and test.endswith(".empty()") and loop in body[:-1]:
        after = source(module, body[body.index(loop) + 1])
        if f"{test.removesuffix('.empty()')}.get(" in after:
            return complete([remove(module, loop)])
    for node in ast.walk(loop):
        if not isinstance(node, ast.Try):
            continue
        calls = [part for item in node.body for part in ast.walk(item) if isinstance(part, ast.Call)]
        gets = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "get_nowait"]
        body = [item for handler in node.handlers for item in handler.body]
        sleeps = [item for item in body if isinstance(item, ast.Expr) and item.value is _sleep(module, item)]
        if len(gets) == len(sleeps) == 1:
            seconds = source(module, sleeps[0].value.args[0])  # type: ignore[attr-defined]
            queue = source(module, gets[0].func.value)  # type: ignore[attr-defined]
            return complete([replace_node(gets[0], f"{queue}.get(timeout={seconds})"), remove(module, sleeps[0])])
    return ()


def _notified(site: Site, loop: ast.While) -> tuple[SourceEdit, ...]:
    """Return the edits that make a condition, wait for it, and notify wherever what is waited for is set."""
    module = site.module
    owner = module.around(loop, ast.ClassDef)
    init = next((item for item in getattr(owner, "body", ()) if getattr(item, "name", "") == "__init__"), None)
    if not _only_sleeps(module, loop) or not isinstance(owner, ast.ClassDef) or not isinstance(init, ast.FunctionDef):
        return ()
    paths = {
        path for node in ast.walk(loop.test) if isinstance(node, ast.expr) and (path := path_of(node)).count(".") == 1
    }
    watched = {path for path in paths if path.startswith("self.")}
    setting: list[ast.stmt] = []
    for method in owner.body:
        if not isinstance(method, ast.FunctionDef) or method in (init, module.scope(loop)):
            continue
        setting += [item for item in ast.walk(method) if isinstance(item, _SIMPLE) and watched & written([item])]
    own = set(ast.walk(owner))
    watched_names = {path.partition(".")[2] for path in watched}
    outside = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute) and node not in own]
    if any(node.attr in watched_names for node in outside):
        return ()  # set from outside without a notice
    first = next((item for item in init.body if watched & written([item])), None)
    if first is None or not setting or any("self.changed" in source(module, item) for item in owner.body):
        return ()
    threading, imports = module_in(module, "threading")
    edits = [insert_before(module, first, f"self.changed = {threading}.Condition()")]
    edits += [insert_after(module, item, "with self.changed:\n    self.changed.notify_all()") for item in setting]
    edits += imports
    indent = " " * (loop.col_offset + 4)
    text = f"with self.changed:\n{indent}self.changed.wait_for(lambda: {_opposite(module, loop.test)})"
    edits.append(replace_node(loop, text))
    return complete(edits)


_SIMPLE = ast.Assign | ast.AugAssign | ast.Expr | ast.AnnAssign


def _opposite(module: Module, test: ast.expr) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return source(module, test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.NotIn):
        return f"{source(module, test.left)} in {source(module, test.comparators[0])}"
    return f"not ({source(module, test)})"


def _paused(module: Module, loop: ast.While) -> tuple[SourceEdit, ...]:
    """Return the edits that put a pause where a loop of a thread has nothing to do."""
    given = [keyword(call.node, "target") for call in module.called("threading.Thread", "Thread")]
    targets = {path_of(item).rpartition(".")[2] for item in given if item is not None}
    is_thread = getattr(module.scope(loop), "name", "") in targets
    nothing = all(isinstance(item, ast.Pass) for item in loop.body)
    if not (is_thread or nothing) or (isinstance(loop.test, ast.Constant) and not literal(loop.test)):
        return ()
    time, imports = module_in(module, "time")
    sleep = f"{time}.sleep({SHORT})"
    edits: list[SourceEdit | None] = []
    last = loop.body[-1]
    if nothing:
        edits.append(replace_node(last, sleep))
    elif isinstance(last, ast.If) and not last.orelse and len(loop.body) == 1 and names_in(last.test):
        edits.append(insert_after(module, last, f"else:\n    {sleep}"))
    else:
        return ()
    return complete([*edits, *imports])
