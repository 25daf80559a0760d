"""A loop over samples, whose turns do not know of each other, written as one call of ``torch.vmap``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import Function, arguments, indices, literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import appended, bound_names, parameters
from torchtriage.measure.fix.edits._flow import Flow, flow_of, mutated
from torchtriage.measure.fix.edits._torch import torch_in
from torchtriage.measure.fix.edits._turns import (
    Mapped,
    NotRowsError,
    Turns,
    assigned,
    axis_of,
    begun,
    counts,
    is_whole,
    mapped,
    rest_of,
)
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import INDENT, bound, free_name, indent_of, replaced_in, source

CODES = words("LCH017 LCH102 LCH107 LCH109 LCH014 HST020 HST114 LCH105")
AT_ONCE = 256
"""Samples: more would take more memory, and are not faster."""
READS = re.compile(r"\.(tolist|numpy|nonzero|backward|unique|masked_select|cpu|item)\(|\bnp\.")
"""What no function may do whose turns are computed at once; in the loop itself, neither ``NOT_MAPPED``."""
NUMBERS = words("int float bool")
NOT_MAPPED = re.compile(r"(?<![.\w])(len|print|str)\(|torch\.(\w*Tensor|tensor|as_tensor|from_numpy)\(")
DRAWS = re.compile(r"[dD]ropout|\brand|bernoulli|normal_?\(|multinomial")
MODEL = re.compile(r"loss|criterion|model|net$|encoder|decoder|head|proj|policy|critic", re.IGNORECASE)
"""Names of what a model or a loss is handed over as."""
SIZES = words("shape ndim size dim numel device dtype format")
NO_TENSOR = ast.List | ast.Tuple | ast.Dict | ast.Set | ast.Constant | ast.JoinedStr
CHOICE = ast.IfExp | ast.BoolOp | ast.Not
USED = words("len min sum map float")
"""Built-in functions that edits call."""
FILLED = re.compile(r"^torch\.(zeros|ones|empty|full)(_like)?$|\.new_(zeros|ones|empty|full)$")


@dataclass
class Sink:
    """What a turn leaves: ``target[index] = value``, ``target.append(value)``, or ``target += value``.

    ``how`` : ``=``, ``append``, ``+=``, or ``+`` for ``target = target + value``; ``read`` : ``float`` or ``item``.
    """

    target: ast.expr
    value: ast.expr
    how: str
    read: str
    axis: int = 0


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield the loop around the line, or the comprehension at it, over what is computed of each row of tensors."""
    for loop in site.for_loops:
        yield _asked(site, loop)
    for node in ast.walk(site.statement) if isinstance(site.statement, ast.Assign | ast.Return | ast.AugAssign) else ():
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            yield _asked(site, node)


def _asked(site: Site, node: ast.For | ast.ListComp | ast.GeneratorExp) -> Proposal | None:
    names = [item for item in site.module.parents if isinstance(item, ast.Name) and item.id in USED]
    if any(isinstance(item.ctx, ast.Store) for item in names):
        return None
    try:
        edits = _of_loop(site, node) if isinstance(node, ast.For) else _of_comprehension(site, node)
    except NotRowsError:
        return None
    changes = "random numbers are drawn in a different order" if DRAWS.search(site.module.text) else ""
    return Proposal(edits, f"compute all iterations of the loop on line {node.lineno} at once", changes)


def _of_loop(site: Site, loop: ast.For) -> tuple[SourceEdit, ...]:
    module, indent = site.module, indent_of(site.module, loop)
    turns = Turns.of(module, loop.target, loop.iter)
    sinks: list[Sink] = []
    while len(sinks) < len(loop.body) and (sink := _sink(loop.body[-1 - len(sinks)], turns.index)) is not None:
        sinks.insert(0, sink)
    steps = loop.body[: len(loop.body) - len(sinks)]
    values = [item.value for item in steps if isinstance(item, ast.Assign) and _names(item)]
    if indent is None or loop.orelse or not sinks or len(values) != len(steps):
        raise NotRowsError
    parts = [*values, *(sink.value for sink in sinks)]
    kept, own = [path_of(sink.target) for sink in sinks], {*bound(steps), turns.index, *turns.rows}
    made = {name: item.value for item in steps if isinstance(item, ast.Assign) for name in bound([item])}
    _check(site, parts, steps, kept)
    of_row = _OfRow(site, turns, parts)
    name = free_name(module, "of_row", "value_of_row")
    outside = {path.partition(".")[0] for path in (*kept, *(item.path for item in of_row.mapped))}
    if (
        not name
        or outside & own
        or len({*kept}) < len(kept)
        or not flow_of(module).repeats(loop.iter)
        or _are_seen(site, loop, own)
        or not all(own & names_in(sink.value) and _is_tensor(sink.value, made) for sink in sinks)
    ):
        raise NotRowsError
    counted = turns.name_length()
    returned = ", ".join(of_row.text(sink.value) for sink in sinks)
    text = [f"def {name}({', '.join(of_row.names)}):", *(f"{INDENT}{of_row.text(item)}" for item in steps)]
    torch, more = torch_in(module)
    axes = [sink.axis for sink in sinks]
    called = of_row.mapped_by(torch, name, axes)
    results = [called] if len(sinks) == 1 else _results(site, kept)
    rows = [_filled(site, sink, result, turns) for sink, result in zip(sinks, results, strict=True)]
    rows = [f"{', '.join(results)} = {called}", *rows] if len(sinks) > 1 else rows
    if not turns.length.isdigit():  # vmap takes no empty tensors
        rows = [f"if {turns.length} > 0:", *(f"{INDENT}{row}" for row in rows)]
    text += [f"{INDENT}return {returned}", "", *counted, *rows]
    new = "\n".join(f"{indent}{item}" if item and number else item for number, item in enumerate(text))
    edit = replace_node(loop, new)
    return (edit, *more)


def _of_comprehension(site: Site, node: ast.ListComp | ast.GeneratorExp) -> tuple[SourceEdit, ...]:
    """Return the edits of ``torch.stack([f(x, y) for x, y in zip(xs, ys)])``, ``torch.cat``, and ``sum``."""
    module, outer = site.module, site.module.parents.get(node)
    if not isinstance(outer, ast.Call) or outer.args[:1] != [node] or len(node.generators) != 1:
        raise NotRowsError
    join, others = module.name_of(outer.func), arguments(outer)[1:]
    axis = literal(others[0]) if others else 0
    if node.generators[0].ifs or len(others) > 1 or type(axis) is not int:
        raise NotRowsError
    turns = Turns.of(module, node.generators[0].target, node.generators[0].iter)
    value, read = _unread(node.elt)
    if (
        bool(read) != (join == "torch.tensor")
        or not _is_tensor(value, {})
        or not flow_of(module).repeats(node.generators[0].iter)
    ):
        raise NotRowsError
    _check(site, [value], [], [])
    of_row = _OfRow(site, turns, [value])
    torch, more = torch_in(module)
    text = of_row.mapped_by(torch, f"lambda {', '.join(of_row.names)}: {of_row.text(value)}", [axis])
    if (axis and join != "torch.stack") or (read and others):
        raise NotRowsError
    is_any = "" if turns.length.isdigit() else f" if {turns.length} > 0 else "
    if join == "sum":
        text = f"({text}.sum(0){is_any}0)" if is_any else f"{text}.sum(0)"
    elif read:
        numbers = f"[*{_numbers(text, read)}]" if read == "float" else _numbers(text, read)
        text = f"{source(module, outer.func)}({numbers}{is_any and f'{is_any}[]'})"
    elif join in ("torch.stack", "torch.cat"):
        text += ".flatten(0, 1)" if join == "torch.cat" else ""
    else:
        raise NotRowsError
    return (replace_node(outer, text), *more)


class _OfRow:
    """The function of one row: the names it takes, and what they are given."""

    def __init__(self, site: Site, turns: Turns, parts: Sequence[ast.expr]) -> None:
        self.module, self.turns = site.module, turns
        self.scope = site.scope
        self.mapped, self.numbers = mapped(turns, self.scope, parts)
        if not self.mapped:
            raise NotRowsError
        for item in self.mapped:
            last = item.path.rpartition(".")[2]
            first = (
                *(("row",) if len(self.mapped) == 1 else ()),
                f"{last}_row",
                f"{last}_{item.axis % 10}",
                f"{last}_one",
            )
            item.name = item.name or free_name(self.module, *first)
            if not item.name:
                raise NotRowsError
        self.number = turns.index if self.numbers else ""

    @property
    def names(self) -> list[str]:
        return [*(item.name for item in self.mapped), *([self.number] if self.number else [])]

    def mapped_by(self, torch: str, function: str, out: Sequence[int]) -> str:
        """Return the call of a function for all rows; ``out`` : the dimension of the rows in each of its results."""
        axes = [*(item.axis for item in self.mapped), *([0] if self.number else [])]
        options = f'{_dims("in", axes)}{_dims("out", out)}, randomness="different", chunk_size={AT_ONCE}'
        return f"{torch}.vmap({function}{options})({self._given(torch)})"

    def _given(self, torch: str) -> str:
        """Return what ``vmap`` is handed: the tensors, and the numbers of the turns where they are used."""
        first: Mapped = self.mapped[0]
        length = self.turns.length
        wholes = [item.whole("" if counts(self.module, length, item, self.scope) else length) for item in self.mapped]
        return ", ".join([*wholes, *([f"{torch}.arange({length}, device={first.path}.device)"] if self.number else [])])

    def text(self, node: ast.stmt | ast.expr) -> str:
        """Return the text of a part of a turn, of the rows that the function takes."""
        inside = set(ast.walk(node))
        uses = [
            (use, rest_of(self.module, use, self.turns.index, item.name))
            for item in self.mapped
            for use in item.uses
            if use in inside
        ]
        return replaced_in(self.module, node, *uses)


def _dims(which: str, axes: Sequence[int]) -> str:
    return f", {which}_dims={axes[0] if len(axes) == 1 else tuple(axes)}" if any(axes) else ""


def _check(site: Site, parts: Sequence[ast.expr], steps: Sequence[ast.stmt], kept: list[str]) -> None:
    """Raise ``NotRowsError`` where a turn changes what others see, or depends on values for what it does."""
    flow, module = flow_of(site.module), site.module
    masks = {path_of(item.targets[0]) for item in steps if isinstance(item, ast.Assign) and _is_mask(item.value)}
    named = [item for part in parts for item in ast.walk(part)]
    waiting, own = set(bound(steps)), set[str]()
    for item in steps:
        read = (name for name in ast.walk(item) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load))
        if (waiting - own) & {name.id for name in read}:
            raise NotRowsError  # what the turn before left
        own |= bound([item])
    if (
        not all(_changes_nothing_in(flow, part) for part in parts)
        or any(_reads(part) or NOT_MAPPED.search(source(module, part)) for part in parts)
        or mutated(steps) - {"self"}
        or {path for path in kept if path} & {path_of(item) for item in named if isinstance(item, ast.expr)}
        or any(
            isinstance(item, ast.Subscript) and (_is_mask(item.slice) or path_of(item.slice) in masks) for item in named
        )
    ):
        raise NotRowsError


def _is_mask(node: ast.AST) -> bool:
    """Return whether what is picked by it has another size in each turn."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitAnd | ast.BitOr) and (_is_mask(node.left) or _is_mask(node.right))
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert))


def _sink(last: ast.stmt, index: str) -> Sink | None:
    """Return what a statement keeps of a turn."""
    added = appended(last.value) if isinstance(last, ast.Expr) else None
    if added is not None and isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        func = last.value.func
        if isinstance(func, ast.Attribute) and func.attr == "append" and path_of(func.value):
            return Sink(func.value, *_both(added, "append"))
    if isinstance(last, ast.AugAssign) and isinstance(last.op, ast.Add) and path_of(last.target):
        return Sink(last.target, *_both(last.value, "+="))
    target = last.targets[0] if isinstance(last, ast.Assign) and len(last.targets) == 1 else None
    if not isinstance(last, ast.Assign) or target is None:
        return None
    if isinstance(target, ast.Subscript) and index and path_of(target.value):
        places = indices(target)
        if all(path_of(item) == index or is_whole(item) for item in places):
            return Sink(target.value, *_both(last.value, "="), axis=axis_of(target, index))
    value, path = last.value, path_of(target)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and path and path_of(value.left) == path:
        return Sink(target, *_both(value.right, "+"))
    return None


def _both(value: ast.expr, how: str) -> tuple[ast.expr, str, str]:
    inner, read = _unread(value)
    return inner, how, read


def _results(site: Site, kept: Sequence[str]) -> list[str]:
    """Return names, each another one, for what all turns give."""
    names: list[str] = []
    for path in kept:
        last = path.rpartition(".")[2]
        first = [f"{last}_of_rows", *(f"{last}_of_rows_{number}" for number in range(2, len(kept) + 1))]
        names.append(free_name(site.module, *(name for name in first if name not in names)))
    if "" in names:
        raise NotRowsError
    return names


def _filled(site: Site, sink: Sink, result: str, turns: Turns) -> str:
    """Return the statement that keeps what all turns give."""
    target, numbers = source(site.module, sink.target), _numbers(result, sink.read)
    if sink.how == "append":
        return f"{target}.extend({numbers if sink.read else result})"
    if sink.how in ("+=", "+"):
        added = f"sum({numbers})" if sink.read else f"{result}.sum(0)"
        return f"{target} += {added}" if sink.how == "+=" else f"{target} = {target} + {added}"
    kind = _kind(site, sink.target, turns.length)
    if not kind or (sink.axis and (kind == "list" or sink.read)):
        raise NotRowsError
    place = begun(target, sink.axis, turns.length)
    if not sink.read:
        return f"{place} = {result}{'.flatten()' if kind == 'numbers' else ''}"
    if kind == "list":
        return f"{place} = {numbers}"
    return f"{place} = {result}.{'flatten().tolist()' if kind == 'array' else 'detach().flatten()'}"


def _numbers(result: str, read: str) -> str:
    """Return the numbers of what all turns give, as ``float`` or ``.item()`` read them."""
    return f"map(float, {result}.flatten().tolist())" if read == "float" else f"{result}.flatten().tolist()"


def _kind(site: Site, target: ast.expr, length: str) -> str:
    """Return what is filled, which the function makes, as ``_kind_of`` says; nothing where that cannot be seen."""
    kinds = {
        _kind_of(site, value, length) if place == -1 else "" for value, place in assigned(site.scope, path_of(target))
    }
    return kinds.pop() if len(kinds) == 1 else ""


def _kind_of(site: Site, value: ast.expr, length: str) -> str:
    """Return ``list``, ``array``, ``numbers`` for a tensor of one dimension, ``tensor`` for another one, or nothing."""
    made = value.left if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) else value
    if isinstance(made, ast.List):
        return "list"
    name = site.module.name_of(value.func) if isinstance(value, ast.Call) else ""
    if name.startswith("numpy."):
        return "array"
    if not isinstance(value, ast.Call) or not FILLED.search(name or path_of(value.func)):
        return ""
    sizes = [source(site.module, item) for item in value.args]
    return "numbers" if len(sizes) == 1 and (sizes[0] == length or sizes[0].isdigit()) else "tensor"


def _are_seen(site: Site, loop: ast.For, names: set[str]) -> bool:
    """Return whether code outside a loop may read what its turns bind: below it, in a next turn, or in a function."""
    module, scope = site.module, site.module.scope(loop)
    inside, again = set(ast.walk(loop)), set(ast.walk(site.loops[-1]))
    for node in ast.walk(scope):
        if isinstance(node, ast.Global | ast.Nonlocal) and names & {*node.names}:
            return True
        if not isinstance(node, ast.Name) or node.id not in names or node in inside:
            continue
        function = module.scope(node)
        is_later = node in again or node.lineno > loop.lineno or module.around(node, ast.Lambda) is not None
        if function is scope and is_later:
            return True
        if function is scope or not isinstance(function, Function):
            continue
        if node.id not in bound_names(function) | parameters(function):
            return True
    return False


def _is_tensor(value: ast.expr, made: Mapping[str, ast.expr]) -> bool:
    """Return whether a value can be a tensor, as what ``vmap`` returns has to be; ``made`` : what names stand for."""
    if isinstance(value, ast.BinOp):
        return _is_tensor(value.left, made) or _is_tensor(value.right, made)
    if isinstance(value, ast.Name) and value.id in made:
        return _is_tensor(made[value.id], {name: item for name, item in made.items() if name != value.id})
    inner = value.value if isinstance(value, ast.Subscript) else value
    inner = inner.func if isinstance(inner, ast.Call) else inner
    if isinstance(inner, ast.Attribute):
        return inner.attr not in SIZES
    return not isinstance(inner, NO_TENSOR)


def _names(node: ast.Assign) -> bool:
    targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
    return len(node.targets) == 1 and all(isinstance(item, ast.Name) for item in targets)


def _unread(node: ast.expr) -> tuple[ast.expr, str]:
    """Return an expression without what reads its value, and what reads it: ``float(x)``, ``x.item()``."""
    if isinstance(node, ast.Call) and path_of(node.func) == "float" and len(node.args) == 1:
        return node.args[0], "float"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return (node, "") if node.args else (node.func.value, "item")
    return node, ""


def _changes_nothing_in(flow: Flow, node: ast.expr) -> bool:
    """Return whether an expression changes nothing: a model may be called in it."""
    for part in ast.walk(node):
        if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | CHOICE | ast.ListComp | ast.Lambda):
            return False
        if isinstance(part, ast.Call) and not _changes_nothing(flow, part):
            return False
    return True


def _changes_nothing(flow: Flow, call: ast.Call) -> bool:
    """Return whether a call, apart from what it is given, gives the same for the same, or is one of a model."""
    known, func = flow.call(call), call.func
    if known is not None and (known.callees or known.receiver.kind == "module"):
        return known.receiver.kind == "module" or (
            all(flow.pure(callee) for callee in known.callees)
            and not any(_reads(function.node) for function in flow.facts.reached([known]))
        )
    if MODEL.search(path_of(func)) and not flow.module.name_of(func).startswith("torch."):
        return True
    if isinstance(func, ast.Attribute) and not flow.module.name_of(func).startswith("torch."):
        func = ast.Attribute(ast.Name("x"), func.attr)
    return flow.repeats(ast.Call(func, [], []))


def _reads(node: ast.AST) -> bool:
    """Return whether code reads what tensors hold, which those of one turn do not tell."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call) and path_of(part.func) in NUMBERS]
    return READS.search(ast.unparse(node)) is not None or any(not _is_size(arg) for call in calls for arg in call.args)


def _is_size(node: ast.expr) -> bool:
    """Return whether an expression is made of constants and the sizes of tensors alone."""
    of = node.func if isinstance(node, ast.Call) else node
    if path_of(of) == "len" or (isinstance(of, ast.Attribute) and of.attr in SIZES):
        return True
    inner = [item for item in ast.iter_child_nodes(node) if isinstance(item, ast.expr)]
    return isinstance(node, ast.Constant | ast.BinOp | ast.UnaryOp | ast.Subscript) and all(map(_is_size, inner))
