"""A recurrent layer over the whole sequence, in place of its cell in a loop over the steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, add_keyword, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import argument, indices, path_of
from torchtriage.measure.fix.edits._settings import origin_of
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, remove, source, statement_edit

CODES = frozenset({"LCH106", "LCH109", "LCH014", "LCH015", "LCH017", "HST020", "HST114"})
NAMES = "parameters have different names: old checkpoints do not load"
CELLS = frozenset({"torch.nn.LSTMCell", "torch.nn.GRUCell", "torch.nn.RNNCell"})


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the layer for the loop around the line that runs a cell and keeps its outputs."""
    for loop in site.for_loops:
        yield Proposal(_edits(site, loop), "run the recurrent layer over the whole sequence", NAMES)


def _edits(site: Site, loop: ast.For) -> tuple[SourceEdit, ...]:
    """Return the edits for ``for t in range(n): h = cell(x[:, t], h)``, with ``outputs.append(h)`` or without."""
    module = site.module
    ran = next((item for item in loop.body if isinstance(item, ast.Assign) and isinstance(item.value, ast.Call)), None)
    if ran is None or not isinstance(ran.value, ast.Call) or len(ran.value.args) != 2 or ran.value.keywords:
        return ()
    made = origin_of(module, ran.value.func)
    kept = [item for item in loop.body if item is not ran]
    if not isinstance(made, ast.Call) or module.name_of(made.func) not in CELLS or len(kept) > 1:
        return ()
    if not _is_alone(module, ran.value.func):
        return ()
    sequence, batch_first = _sequence(module, loop, ran.value.args[0])
    state = source(module, ran.value.args[1])
    lstm = module.name_of(made.func).endswith("LSTMCell")
    after = source(module, ran.targets[0])
    if not sequence or state.strip("()") != after.strip("()") or lstm != isinstance(ran.value.args[1], ast.Tuple):
        return ()
    names = [item.strip() for item in after.strip("()").split(",")]
    outputs = _kept(module, loop, kept[0], names[0]) if kept else ("", None)
    if outputs is None:
        return ()
    name, stacked = outputs
    if stacked is not None and not _along(module, stacked, batch_first):
        return ()
    layer = source(module, made.func).removesuffix("Cell")
    edits: list[SourceEdit | None] = [replace_node(made.func, layer)]
    if batch_first:
        edits.append(add_keyword(module.text, made, "batch_first", "True"))
    call = f"{source(module, ran.value.func)}({sequence}, "
    old = ", ".join(f"{item}[None]" for item in names)
    call += f"({old}))" if lstm else f"{old})"
    states = ", ".join(names)
    rows = f"{name or '_'}, {f'({states})' if lstm else states} = {call}\n"
    rows += f"{states} = {', '.join(f'{item}[0]' for item in names)}"
    edits.append(statement_edit(module, loop, rows))
    if stacked is not None:
        edits.append(replace_node(stacked, name))
        start = next(iter(module.stores(name, module.scope(loop))), None)
        first = module.parents.get(start) if start is not None else None
        edits.append(remove(module, first) if isinstance(first, ast.Assign) else None)
    return complete(edits)


def _sequence(module: Module, loop: ast.For, given: ast.expr) -> tuple[str, bool]:
    """Return what ``x[:, t]`` or ``x[t]`` is a step of, and whether its batch comes first."""
    if not isinstance(loop.target, ast.Name):
        return "", False
    if isinstance(given, ast.Name) and given.id == loop.target.id:
        over = loop.iter
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr == "unbind":
            axis = argument(over, "dim", 0)
            return source(module, over.func.value), axis is not None and source(module, axis) == "1"
        return (path_of(over), False) if path_of(over) else ("", False)
    counts = isinstance(loop.iter, ast.Call) and path_of(loop.iter.func) == "range" and len(loop.iter.args) == 1
    if not isinstance(given, ast.Subscript) or not counts or not isinstance(loop.iter, ast.Call):
        return "", False
    parts = indices(given)
    said = [source(module, item) for item in parts]
    while said and said[-1] == ":":
        said.pop()
    whole = source(module, given.value)
    if said not in ([loop.target.id], [":", loop.target.id]):
        return "", False
    along = len(said) - 1
    lengths = [f"{whole}.size({along})", f"{whole}.shape[{along}]", *([f"len({whole})"] if not along else [])]
    return (whole, bool(along)) if source(module, loop.iter.args[0]) in lengths else ("", False)


def _is_alone(module: Module, cell: ast.expr) -> bool:
    """Return whether a cell is used at one place in the file."""
    last = path_of(cell).rpartition(".")[2]
    uses = [node.ctx for node in module.parents if isinstance(node, ast.Name) and node.id == last]
    uses += [node.ctx for node in module.parents if isinstance(node, ast.Attribute) and node.attr == last]
    return sum(isinstance(use, ast.Load) for use in uses) == 1


def _kept(module: Module, loop: ast.For, statement: ast.stmt, hidden: str) -> tuple[str, ast.Call] | None:
    """Return the list that a loop appends its hidden state to, and the stack that is made of it."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
        return None
    name = path_of(call.func.value)
    reads = module.reads(name, module.scope(loop))
    uses = [module.parents.get(item) for item in reads if item is not call.func.value]
    stack = uses[0] if len(uses) == 1 and [path_of(item) for item in call.args] == [hidden] else None
    is_stack = module.name_called(stack) == "torch.stack"
    return (name, stack) if isinstance(stack, ast.Call) and is_stack else None


def _along(module: Module, stack: ast.Call, batch_first: bool) -> bool:
    """Return whether steps are stacked along the axis that they have in the sequence."""
    axis = argument(stack, "dim", 1)
    number = source(module, axis) if axis is not None else "0"
    return number == ("1" if batch_first else "0")
