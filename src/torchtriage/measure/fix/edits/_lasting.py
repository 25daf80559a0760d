"""Which statements and parts of a statement give the same whenever they run, and what to call them elsewhere."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import names_in
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._escapes import escapes
from torchtriage.measure.fix.edits._flow import Flow, comprehended, meets
from torchtriage.measure.fix.statements import complete, indent_of, insert_before, source

# too cheap to be worth a line of their own, or used up when they are gone through
CHEAP = re.compile(
    r"^(len|range|float|int|str|bool|enumerate|zip|isinstance|min|max|sum|list|tuple|dict|set|round|abs|iter|reversed|map"
    r"|filter|open|csv\.\w+|torch\.device|pathlib\.Path|os\.path\.\w+|math\.\w+|getattr|hasattr|slice|torch\.is_\w+"
    r"|torch\.finfo|functools\.partial)$"
    r"|^(size|dim|item|to|cuda|cpu|float|double|half|detach|view|reshape|join|format|keys|values|items|get|numel|split"
    r"|lower|upper|strip|shape|long|int|bool|replace|startswith|endswith|squeeze|unsqueeze|flatten|parameters|copy"
    r"|expand|type|astype|contiguous|permute|transpose|t)$"
)
USED_UP = words("open zip map filter iter enumerate reversed csv.reader csv.DictReader")
READS = re.compile(r"\b(open|load\w*|read\w*|fromfile|genfromtxt|memmap)\(")
WRITES = re.compile(r"""["'](w|a|wb|ab|w\+|a\+)["']|\.write|\bsave\w*\(|\bdump\(|\.to_csv""")
SETTINGS_OF_GRADIENTS = re.compile(r"no_grad|inference_mode|record_function|timer|nullcontext|^\w+$")
WORDS = {
    "load": "loaded",
    "read": "content",
    "compile": "pattern",
    "tensor": "values",
    "stack": "stacked",
    "cat": "joined",
}
VERBS = re.compile(r"^_*(get|make|build|create|compute|load|read|prepare|new|from|init)_(?=\w)")


def lasting(flow: Flow, around: ast.AST, body: Iterable[ast.stmt], varying: set[str]) -> dict[ast.stmt, str]:
    """Return the assignments in a body that can stand outside of what repeats it, and the name that each binds."""
    fixed: set[str] = set()
    found: dict[ast.stmt, str] = {}
    for node, name, value in _assignments(body):
        if has_other_values(flow.module, name, node, around) or _in_block(flow.module, node, around):
            continue
        lasts = stays(flow, value, varying - fixed, around) and not escapes(flow, [value])
        if lasts and (is_work(flow, value) or names_in(value) & fixed):
            fixed.add(name)
            found[node] = name
    return found


def has_other_values(module: Module, name: str, node: ast.stmt, around: ast.AST) -> bool:
    """Return whether what repeats an assignment may use its name for something else than it gives."""
    names = [item for item in ast.walk(around) if isinstance(item, ast.Name) and item.id == name]
    if any(item.lineno < node.lineno for item in names) or _n_bound(names) > 1:
        return True
    if module.parents[node] is around:
        return False
    # a turn that passes it by keeps the value from before
    scope = module.scope(node)
    given = any(isinstance(item, ast.arg) and item.arg == name for item in ast.walk(scope))
    return given or _n_bound(module.names(name, scope)) > 1


def _n_bound(names: Iterable[ast.Name]) -> int:
    return sum(not isinstance(item.ctx, ast.Load) for item in names)


def _assignments(body: Iterable[ast.stmt]) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Yield the assignments to one name, in order, where they stand in the body itself or in a block of it."""
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node, node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node, node.target.id, node.value
        elif isinstance(node, ast.If | ast.With | ast.Try | ast.For | ast.While):
            yield from _assignments(node.body)
            if isinstance(node, ast.If):
                yield from _assignments(node.orelse)


def _in_block(module: Module, node: ast.AST, around: ast.AST) -> bool:
    """Return whether a statement stands in a block that changes what it does: ``with autocast():``, a function."""
    for outer in takewhile(lambda outer: outer is not around, module.outward(node)):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return True
        if isinstance(outer, ast.With | ast.AsyncWith):
            texts = [source(module, item.context_expr) for item in outer.items]
            if not all(SETTINGS_OF_GRADIENTS.search(text) for text in texts):
                return True
    return False


def connected(module: Module, moved: dict[ast.stmt, str], statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements beside a statement, what they need, and what needs nothing but these, in order."""
    reads = {item: names_in(item) - {name} for item, name in moved.items()}
    group = {statement} | {item for item in moved if module.parents[item] is module.parents[statement]}
    for _ in moved:
        needed = set().union(*(reads[item] for item in group))
        bound = {moved[item] for item in group}
        group |= {item for item, name in moved.items() if name in needed}
        group |= {item for item in moved if reads[item] & bound and not (reads[item] & set(moved.values())) - bound}
    return sorted(group, key=lambda item: item.lineno)


def stays(flow: Flow, node: ast.expr, varying: set[str], around: ast.AST, *, anywhere: bool = False) -> bool:
    """Return whether an expression gives the same in every turn and does no more; ``anywhere`` : on any device."""
    reads = {path for path in flow.reads(node) if not (anywhere and path.endswith(".device"))}
    if "self" in reads or any(meets(path, varying) for path in reads) or flow.learns(reads) or not flow.repeats(node):
        return False
    if flow.module.name_called(node) in USED_UP:
        return False
    text = source(flow.module, node)
    return not (READS.search(text) and WRITES.search(source(flow.module, around)))


def is_work(flow: Flow, node: ast.AST) -> bool:
    """Return whether an expression does more than look something up."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            name = flow.module.name_of(part.func)
            last = part.func.attr if isinstance(part.func, ast.Attribute) else name
            if not CHEAP.search(name) and not CHEAP.search(last):
                return True
    return False


def parts_of(
    flow: Flow, root: ast.stmt, varying: set[str], around: ast.AST, *, anywhere: bool = False
) -> list[ast.expr]:
    """Return the largest parts of a statement, blocks below it left out, that stay the same; the longest first."""
    found: list[ast.expr] = []
    todo: list[ast.AST] = [root]
    own = comprehended(root)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Lambda) or (isinstance(node, ast.stmt) and node is not root):
            continue
        if isinstance(node, ast.Call | ast.BinOp | ast.ListComp | ast.DictComp | ast.SetComp) and is_work(flow, node):
            lasts = stays(flow, node, varying | (own - comprehended(node)), around, anywhere=anywhere)
            if lasts and not escapes(flow, [node]):
                found.append(node)
                continue
        todo += ast.iter_child_nodes(node)
    return sorted(found, key=lambda node: -len(source(flow.module, node)))


def same(root: ast.AST, part: ast.expr) -> list[ast.expr]:
    """Return the expressions in a piece of syntax that are written as ``part`` is."""
    wanted = ast.dump(part)
    return [node for node in ast.walk(root) if type(node) is type(part) and ast.dump(node) == wanted]


def replaced(roots: Iterable[ast.AST], part: ast.expr, text: str) -> list[SourceEdit]:
    """Return the edits that put ``text`` in the place of an expression, wherever it is written there."""
    return [replace_node(node, text) for root in roots for node in same(root, part)]


def outdented(module: Module, node: ast.expr, statement: ast.stmt) -> str:
    """Return the text of an expression as it stands outside of its statement's indentation."""
    first, *rest = source(module, node).splitlines()
    indent = indent_of(module, statement) or ""
    return "\n".join([first, *(row.removeprefix(indent) for row in rest)])


def kept_by_key(
    module: Module, value: ast.expr, statement: ast.stmt, loop: ast.stmt, table: str, key: str
) -> tuple[SourceEdit, ...]:
    """Return the edits that compute a value once for each key, kept in a dictionary that is made before a loop."""
    asked = f"({key})" if "," in key else key
    check = f"if {asked} not in {table}:\n    {table}[{key}] = {outdented(module, value, statement)}"
    before = insert_before(module, loop, f"{table} = {{}}"), insert_before(module, statement, check)
    return complete((*before, replace_node(value, f"{table}[{key}]")))


def name_for(module: Module, part: ast.expr) -> str:
    """Return a new name for what an expression gives: by the argument it is, or by what makes it."""
    outer = module.parents.get(part)
    word = outer.arg if isinstance(outer, ast.keyword) and outer.arg else ""
    if not word:
        call: ast.AST = part
        while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and CHEAP.search(call.func.attr):
            call = call.func.value
        func = call.func if isinstance(call, ast.Call) else None
        word = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else "fixed"
        word = WORDS.get(word, word)
    word = VERBS.sub("", re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", word).lower()) or "fixed"
    taken = names_in(module.tree) | set(dir(builtins))
    taken |= {node.name for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    taken |= set(module.aliases) | {node.arg for node in ast.walk(module.tree) if isinstance(node, ast.arg)}
    names = (word, f"fixed_{word}", *(f"{word}_{number}" for number in range(2, 99)))
    return next(name for name in names if name not in taken)
