"""Take calls out of the step that it does not need: collections, waits, flushes, tracing, copies that nobody reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import keyword, literal, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, remove, source, without_keyword

CODES = words("""
    HST020 HST021 HST054 HST101 HST103 HST104 HST109 HST113 HST114 HST115 HST102 MEM028 SYN003 MSR045 MSR101 CPY006
""")
NEEDLESS = re.compile(
    r"^(gc\.(collect|get_objects|get_stats)|time\.sleep|os\.(sync|fsync|fdatasync|sched_yield)|sys\.(settrace|setprofile)"
    r"|threading\.(settrace|setprofile)|traceback\.print_stack|tracemalloc\.(start|take_snapshot|clear_traces)"
    r"|torch\.\w+(\.memory)?\.(empty_cache|synchronize|ipc_collect|reset_peak_memory_stats|reset_max_memory_allocated)"
    r"|torch\.\w+\.memory\._record_memory_history|empty_cache|synchronize|sleep|inspect\.stack|warnings\.warn)$"
    r"|\.(flush|fsync)$"
)
UNFLUSHED = "the last output is seen later, by other programs, too"
UNPACED = "the loop no longer pauses: what it polls or drives may need the pause"
UNSYNCED = "the last writes may be lost if the machine fails"
CLOCK = re.compile(r"perf_counter|time\.time\(|monotonic|Event\(|\.record\(|elapsed_time|timeit")
COPIES = re.compile(r"^(copy\.(deepcopy|copy)|deepcopy|traceback\.(extract_stack|format_stack)|inspect\.stack)$")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the statement at the line without what it does not need, or its body without all such statements."""
    module, statement = site.module, site.statement
    if statement is None:
        return
    while isinstance(outer := module.parents.get(statement), ast.If) and _is_needless(site, outer):
        statement = outer
    if _is_needless(site, statement):
        beside = body_of(module, statement) or [statement]
        calls = [item for item in beside if _is_needless(site, item)]
        edits = tuple(filter(None, (remove(module, item) for item in calls)))
        if len(calls) == len(beside):
            edits = tuple(filter(None, [remove(module, statement)]))
        text = "\n".join(source(module, item) for item in calls)
        if edits:
            what = f"remove {_names(module, calls)} from the step"
            yield Proposal(edits, what, changes=_changes(text))
    elif (edit := _without_flush(statement)) is not None:
        yield Proposal((edit,), "let the output buffer fill")
    elif _is_unread_copy(site, statement) and (edit := remove(module, statement)) is not None:
        yield Proposal((edit,), "leave out a copy that is never read")


def _changes(text: str) -> str:
    """Return what is different without calls."""
    if "sync(" in text and "os." in text:
        return UNSYNCED
    return UNFLUSHED if ".flush(" in text else UNPACED if "sleep(" in text else ""


def _names(module: Module, statements: list[ast.stmt]) -> str:
    calls = [call for statement in statements for call in ast.walk(statement) if isinstance(call, ast.Call)]
    found = [path_of(call.func) for call in calls if NEEDLESS.search(_name(module, call))]
    return ", ".join(dict.fromkeys(filter(None, found))) or source(module, statements[0])


def _name(module: Module, call: ast.Call) -> str:
    return module.name_of(call.func) or (f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else "")


def _is_needless(site: Site, statement: ast.stmt) -> bool:
    """Return whether a statement does nothing that the step's results need."""
    module = site.module
    if isinstance(statement, ast.If):
        calls = [path_of(part.func) for part in ast.walk(statement.test) if isinstance(part, ast.Call)]
        plain = not statement.orelse and all(name.endswith("is_available") for name in calls)
        return plain and all(_is_needless(site, item) for item in statement.body)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    known = next((item for item in module.calls if item.node is call), None)
    if known is not None and known.callees:
        bodies = [callee.node.body for callee in known.callees]
        return all(_is_needless(site, item) or _is_text(item) for body in bodies for item in body)
    name = _name(module, call)
    if not NEEDLESS.search(name):
        return False
    if name.endswith("sleep"):
        return _is_fixed(site, call) and not _is_polling(site, statement)
    copies_later = "non_blocking" in module.text  # the host must not read the copy before it is there
    return not (name.endswith("synchronize") and (copies_later or _is_timed(site, statement)))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _is_fixed(site: Site, call: ast.Call) -> bool:
    value = site.module.settings.value(call.args[0] if call.args else None, site.function)
    return isinstance(value, int | float)


def _is_polling(site: Site, statement: ast.stmt) -> bool:
    """Return whether a loop around does nothing but wait for something."""
    loop = site.module.around(statement, ast.While)
    return isinstance(loop, ast.While) and (len(loop.body) == 1 or not isinstance(loop.test, ast.Constant))


def _is_timed(site: Site, statement: ast.stmt) -> bool:
    """Return whether a clock is read right before or after a statement."""
    body = body_of(site.module, statement) or []
    at = body.index(statement) if statement in body else 0
    return any(CLOCK.search(source(site.module, item)) for item in body[max(at - 1, 0) : at + 2])


def _without_flush(statement: ast.stmt) -> SourceEdit | None:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and literal(keyword(call, "flush")) is True:
        return without_keyword(call, "flush")
    return None


def _is_unread_copy(site: Site, statement: ast.stmt) -> bool:
    """Return whether a statement copies what nothing reads afterwards."""
    module = site.module
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    if not isinstance(statement.value, ast.Call) or not COPIES.search(module.name_of(statement.value.func)):
        return False
    scope = module.scope(statement)
    return isinstance(scope, ast.FunctionDef) and not module.reads(statement.targets[0].id, scope)
