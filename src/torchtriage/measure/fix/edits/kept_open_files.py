"""Open a file once for all lines that are written to it, instead of for each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import keyword, literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import Flow, flow_of, meets
from torchtriage.measure.fix.edits.needless_calls_out import UNFLUSHED, UNSYNCED
from torchtriage.measure.fix.proposal import Loop, Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, insert_after, remove, source, unwrap, wrap

HARMLESS = re.compile(
    r"^(print|str|len|pathlib\.(Path|PurePath)|os\.path\.\w+|os\.(makedirs|remove)|mkdir|unlink|exists)$"
)
"""What makes, or asks for, a file's name: any other call that is given it may read the file."""
CODES = words("HST020 HST101 HST102 HST103 HST114 HST115 HST104 DAT018 CPY006")


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield one opening before the loop, or in ``__init__`` for a method that appends a line at each call."""
    block = _appending(site)
    if block is None:
        return
    flow = flow_of(site.module)
    yield _around_loop(site, flow, block) if site.loops else _in_class(site, flow, block)


def _appending(site: Site) -> ast.With | None:
    """Return ``with open(path, "a") as f:`` at or around the line."""
    for node in takewhile(lambda node: not isinstance(node, Loop), site.outward):
        if isinstance(node, ast.With) and len(node.items) == 1 and isinstance(node.items[0].optional_vars, ast.Name):
            call = node.items[0].context_expr
            if isinstance(call, ast.Call) and _mode(call).startswith("a"):
                return node
    return None


def _mode(call: ast.Call) -> str:
    method = isinstance(call.func, ast.Attribute)
    if path_of(call.func) != "open" and not (method and call.func.attr == "open"):  # type: ignore[attr-defined]
        return ""
    given = keyword(call, "mode") or next(iter(call.args[0 if method else 1 :]), None)
    mode = literal(given)
    return mode if isinstance(mode, str) else ""


def _around_loop(site: Site, flow: Flow, block: ast.With) -> Proposal | None:
    """Put the block's ``with`` around the outermost loop in which the file is the same."""
    module, item = site.module, block.items[0]
    outer: Loop | None = None
    for loop in site.loops:
        varying = flow.changes([loop]) - names_in(item.optional_vars or item.context_expr)
        if any(meets(path, varying) for path in flow.reads(item.context_expr)):
            break
        outer = loop
    if outer is None or _is_read(site, item.context_expr, block) or block.body[0].lineno == block.lineno:
        return None
    opened = source(module, item.context_expr)
    inside = range(block.lineno, (block.end_lineno or block.lineno) + 1)
    moved = wrap(module, [outer], f"with {opened} as {source(module, item.optional_vars or item.context_expr)}:")
    edits = [edit for edit in moved if edit.line not in inside]  # a level more outside, and one less inside
    edits += [SourceEdit(block.lineno, 0, block.body[0].lineno, 0, ""), *_without_flush(site, block)]
    what = f"keep {opened} open, around the loop on line {outer.lineno}"
    return Proposal(tuple(edits), what, _changes(site, block)) if moved else None


def _in_class(site: Site, flow: Flow, block: ast.With) -> Proposal | None:
    """Open in ``__init__`` what a method appends to at each call."""
    module, item = site.module, block.items[0]
    function = site.known_function
    owner = function.owner if function is not None else None
    init = owner.methods.get("__init__") if owner is not None else None
    if function is None or owner is None or init is None or init is function or init.owner is not owner:
        return None
    reads = flow.reads(item.context_expr) - flow.constants - {"open"}
    lasting = flow.lasting(owner)
    if not reads or any(path not in lasting for path in reads) or _is_read(site, item.context_expr, block):
        return None
    assert isinstance(item.optional_vars, ast.Name)
    name = f"{next(iter(reads)).rpartition('.')[2].removesuffix('path').strip('_')}_file".lstrip("_")
    if f"self.{name}" in lasting:
        return None
    kept = insert_after(module, init.node.body[-1], f"self.{name} = {source(module, item.context_expr)}")
    flushes = _without_flush(site, block)
    gone = {line for edit in flushes for line in range(edit.line, edit.end_line)}
    body = [edit for edit in unwrap(module, block) if edit.line not in gone]
    if not body:
        return None
    edits: list[SourceEdit | None] = [kept, *flushes, *body]
    edits += [
        replace_node(node, f"self.{name}")
        for statement in block.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id == item.optional_vars.id and node.lineno not in gone
    ]
    what = f"keep {source(module, item.context_expr)} open, in {owner.name}.__init__()"
    return Proposal(complete(edits), what, _changes(site, block))


def _changes(site: Site, block: ast.With) -> str:
    """Return what is different: each line was flushed, by closing at the latest, and synced where the block says so."""
    return UNSYNCED if "sync(" in source(site.module, block) else UNFLUSHED


def _without_flush(site: Site, block: ast.With) -> list[SourceEdit]:
    """Return the edits that take flushes out of a block that does more."""
    flushes = [item for item in block.body if _flushes(site, item)]
    if len(flushes) == len(block.body):
        return []
    return [edit for item in flushes if (edit := remove(site.module, item)) is not None]


def _flushes(site: Site, statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and site.module.name_of(call.func).endswith((".flush", "os.fsync"))


def _is_read(site: Site, opened: ast.expr, block: ast.With) -> bool:
    """Return whether the file is opened in another place as well: what is in the buffer is not seen there."""
    files, inside = _names(opened), set(ast.walk(block))
    calls = [call for call in site.module.calls if call.node not in inside]
    return any(files & _names(call.node) for call in calls if not HARMLESS.search(call.name or call.attr))


def _names(node: ast.AST) -> set[str]:
    """Return the variables, attributes and texts in an expression."""
    parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
    texts = {str(part.value) for part in parts if isinstance(part, ast.Constant)}
    return (texts | {path_of(part) for part in parts}) - {"", "a", "self", "open", "self.open"}
