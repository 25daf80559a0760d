"""A loop over samples, whose turns do not know of each other, written as one call of ``torch.vmap``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import literal, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import appended
from torchtriage.measure.fix.edits._flow import Flow, flow_of, mutated
from torchtriage.measure.fix.edits._torch import torch_in
from torchtriage.measure.fix.edits._turns import (
    Mapped,
    NotRowsError,
    Turns,
    axis_of,
    counts,
    is_tensor,
    is_whole,
    mapped,
    rest_of,
)
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import INDENT, bound, free_name, indent_of, replaced_in, source

CODES = words("LCH017 LCH102 LCH107 LCH109 LCH014 HST020 HST114 LCH105")
AT_ONCE = 256
"""Samples: more would take more memory, and are not faster."""
NOT_MAPPED = re.compile(
    r"\.(tolist|numpy|nonzero|backward|unique|masked_select|cpu|item)\(|\bnp\.|(?<![.\w])(len|print|int|float|bool)\(|torch\.(\w*Tensor|tensor|as_tensor|from_numpy)\("
)
DRAWS = re.compile(r"[dD]ropout|\brand|bernoulli|normal_?\(|multinomial")
MODEL = re.compile(r"loss|criterion|model|net$|encoder|decoder|head|proj|policy|critic", re.IGNORECASE)
"""Names of what a model or a loss is handed over as."""


@dataclass
class Sink:
    """What a turn leaves: ``target[index] = value``, ``target.append(value)``, or ``target += value``."""

    target: ast.expr
    value: ast.expr
    how: str
    was_read: bool
    axis: int = 0


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the loop around the line, or the comprehension at it, over what is computed of each row of tensors."""
    for loop in site.loops:
        if isinstance(loop, ast.For) and (proposal := _asked(site, loop)) is not None:
            yield proposal
            return
    for node in ast.walk(site.statement) if isinstance(site.statement, ast.Assign | ast.Return | ast.AugAssign) else ():
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and (proposal := _asked(site, node)) is not None:
            yield proposal
            return


def _asked(site: Site, node: ast.For | ast.ListComp | ast.GeneratorExp) -> Proposal | None:
    try:
        edits = _of_loop(site, node) if isinstance(node, ast.For) else _of_comprehension(site, node)
    except NotRowsError:
        return None
    changes = "random numbers are drawn in another order" if DRAWS.search(site.module.text) else ""
    return Proposal(edits, f"compute all turns of the loop in line {node.lineno} at once", changes)


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
    _check(site, loop, parts, steps, [path_of(sink.target) for sink in sinks])
    of_row = _OfRow(site, turns, parts)
    name = free_name(module, "of_row", "value_of_row")
    later = [
        item for path in {*bound(steps), turns.index, *turns.rows} for item in module.names(path, module.scope(loop))
    ]
    if not name or any(item.lineno > (loop.end_lineno or 0) for item in later):
        raise NotRowsError
    returned = ", ".join(of_row.text(sink.value) for sink in sinks)
    text = [f"def {name}({', '.join(of_row.names)}):", *(f"{INDENT}{of_row.text(item)}" for item in steps)]
    torch, more = torch_in(module)
    axes = [sink.axis for sink in sinks]
    out = f", out_dims={axes[0] if len(axes) == 1 else tuple(axes)}" if any(axes) else ""
    called = (
        f'{torch}.vmap({name}{of_row.axes}{out}, randomness="different", chunk_size={AT_ONCE})({of_row.given(torch)})'
    )
    results = [called]
    text += [f"{INDENT}return {returned}", ""]
    if len(sinks) > 1:
        results = [free_name(module, f"{path_of(sink.target).rpartition('.')[2]}_of_rows") for sink in sinks]
        text.append(f"{', '.join(results)} = {called}")
    text += [_filled(site, sink, result) for sink, result in zip(sinks, results, strict=True)]
    new = "\n".join(f"{indent}{item}" if item and number else item for number, item in enumerate(text))
    edit = SourceEdit(loop.lineno, loop.col_offset, loop.end_lineno or 0, loop.end_col_offset or 0, new)
    return (edit, *more)


def _of_comprehension(site: Site, node: ast.ListComp | ast.GeneratorExp) -> tuple[SourceEdit, ...]:
    """Return the edits of ``torch.stack([f(x, y) for x, y in zip(xs, ys)])``, ``torch.cat``, and ``sum``."""
    module, outer = site.module, site.module.parents.get(node)
    if not isinstance(outer, ast.Call) or outer.args[:1] != [node] or len(node.generators) != 1:
        raise NotRowsError
    join, others = module.name_of(outer.func), [*outer.args[1:], *(item.value for item in outer.keywords)]
    axis = literal(others[0]) if others else 0
    if node.generators[0].ifs or len(others) > 1 or type(axis) is not int:
        raise NotRowsError
    turns = Turns.of(module, node.generators[0].target, node.generators[0].iter)
    value, was_read = _unread(node.elt)
    if was_read != (join in ("torch.tensor", "torch.as_tensor")) and was_read:
        raise NotRowsError
    _check(site, node, [value], [], [])
    of_row = _OfRow(site, turns, [value])
    torch, more = torch_in(module)
    out = f", out_dims={axis}" if axis else ""
    text = f"{torch}.vmap(lambda {', '.join(of_row.names)}: {of_row.text(value)}{of_row.axes}{out}, "
    text += f'randomness="different", chunk_size={AT_ONCE})({of_row.given(torch)})'
    after = {"torch.stack": "", "torch.cat": ".flatten(0, 1)", "sum": ".sum(0)", "torch.tensor": ".detach()"}
    if join not in after or (axis and join != "torch.stack") or (join == "torch.tensor" and (others or not was_read)):
        raise NotRowsError
    return (replace_node(outer, text + after[join]), *more)


class _OfRow:
    """The function of one row: the names it takes, and what they are given."""

    def __init__(self, site: Site, turns: Turns, parts: Sequence[ast.expr]) -> None:
        self.module, self.turns = site.module, turns
        self.scope = site.function or site.module.tree
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
        proved = not turns.length or any(counts(self.module, turns.length, item, self.scope) for item in self.mapped)
        self.length = "" if proved else turns.length

    @property
    def names(self) -> list[str]:
        return [*(item.name for item in self.mapped), *([self.number] if self.number else [])]

    @property
    def axes(self) -> str:
        axes = tuple(item.axis for item in self.mapped) + ((0,) if self.number else ())
        return f", in_dims={axes[0] if len(axes) == 1 else axes}" if any(axes) else ""

    def given(self, torch: str) -> str:
        """Return what ``vmap`` is handed: the tensors, and the numbers of the turns where they are used."""
        first: Mapped = self.mapped[0]
        wholes = [item.whole(self.length) for item in self.mapped]
        length = self.turns.length or f"len({first.path})"
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


def _check(site: Site, node: ast.AST, parts: Sequence[ast.expr], steps: Sequence[ast.stmt], kept: list[str]) -> None:
    """Raise ``NotRowsError`` where a turn changes what others see, or depends on values for what it does."""
    flow, module = flow_of(site.module), site.module
    masks = {path_of(item.targets[0]) for item in steps if isinstance(item, ast.Assign) and _is_mask(item.value)}
    named = [item for part in parts for item in ast.walk(part)]
    waiting, own = set(bound(steps)), set[str]()
    for item in steps:
        if (waiting - own) & {name.id for name in ast.walk(item) if isinstance(name, ast.Name) and _loads(name)}:
            raise NotRowsError  # what the turn before left
        own |= bound([item])
    if (
        not all(_changes_nothing_in(flow, part) for part in parts)
        or NOT_MAPPED.search("\n".join(source(module, part) for part in parts))
        or mutated(steps) - {"self"}
        or {path for path in kept if path} & {path_of(item) for item in named if isinstance(item, ast.expr)}
        or any(
            isinstance(item, ast.Subscript) and (_is_mask(item.slice) or path_of(item.slice) in masks) for item in named
        )
    ):
        raise NotRowsError


def _loads(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


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
        places = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        if all(path_of(item) == index or (isinstance(item, ast.Slice) and is_whole(item)) for item in places):
            return Sink(target.value, *_both(last.value, "="), axis=axis_of(target, index))
    value, path = last.value, path_of(target)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and path and path_of(value.left) == path:
        return Sink(target, *_both(value.right, "+="))
    return None


def _both(value: ast.expr, how: str) -> tuple[ast.expr, str, bool]:
    inner, was_read = _unread(value)
    return inner, how, was_read


def _filled(site: Site, sink: Sink, result: str) -> str:
    """Return the statement that keeps what all turns give."""
    target, module = source(site.module, sink.target), site.module
    if sink.how == "append":
        return f"{target}.extend({result}.tolist())" if sink.was_read else f"{target}.extend({result})"
    if sink.how == "+=":
        return f"{target} = {target} + {result}.sum(0){'.item()' if sink.was_read else ''}"
    place = f"{target}[:]"
    if not sink.was_read:
        return f"{place} = {result}"
    is_kept_in_tensor = is_tensor(module, path_of(sink.target), site.function or module.tree)
    return f"{place} = {result}.detach(){'' if is_kept_in_tensor else '.cpu().numpy()'}"


def _names(node: ast.Assign) -> bool:
    targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
    return len(node.targets) == 1 and all(isinstance(item, ast.Name) for item in targets)


def _unread(node: ast.expr) -> tuple[ast.expr, bool]:
    """Return an expression without what reads its value: ``float(x)``, ``x.item()``."""
    if isinstance(node, ast.Call) and path_of(node.func) == "float" and len(node.args) == 1:
        return node.args[0], True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return node.func.value, True
    return node, False


def _changes_nothing_in(flow: Flow, node: ast.expr) -> bool:
    """Return whether an expression changes nothing: a model may be called in it."""
    for part in ast.walk(node):
        if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.IfExp | ast.ListComp | ast.Lambda):
            return False
        if isinstance(part, ast.Call) and not _changes_nothing(flow, part):
            return False
    return True


def _changes_nothing(flow: Flow, call: ast.Call) -> bool:
    """Return whether a call, apart from what it is given, gives the same for the same, or is one of a model."""
    known, func = flow.call(call), call.func
    if known is not None and (known.callees or known.receiver.kind == "module"):
        return known.receiver.kind == "module" or all(flow.pure(callee) for callee in known.callees)
    if MODEL.search(path_of(func)) and not flow.module.name_of(func).startswith("torch."):
        return True
    if isinstance(func, ast.Attribute) and not flow.module.name_of(func).startswith("torch."):
        func = ast.Attribute(ast.Name("x"), func.attr)
    return flow.repeats(ast.Call(func, [], []))
