"""Update all parameters with a few calls: a loop over tensors becomes operators on lists of them."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, lines_of, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import assigned_pairs, names_in, path_called, path_of
from torchtriage.measure.fix.edits._foreach import Lists, NotListsError, without_history
from torchtriage.measure.fix.edits._torch import torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import INDENT, body_of, indent_of, replaced_in, source

CODES = frozenset({"HST020", "HST114", "LCH014", "LCH015", "LCH016"})

_X, _READ = r"\(?(?P<x>[\w.]+(\(\))?(-[\w.]+)?)\)?", r"(\.item\(\))?"
NORMS = [
    (rf"\(*{_X}\.norm\((p=)?2?\.?0?\)\)?{_READ}\*\*2(\.0)?", "", True),
    (rf"\(*torch\.(linalg\.vector_)?norm\({_X}(,(p=)?2)?\)\)?{_READ}\*\*2(\.0)?", "", True),
    (rf"\(*{_X}(\*\*2|\.pow\(2\)|\.square\(\))\)?\.sum\(\)\)?{_READ}", "", True),
    (rf"torch\.sum\({_X}(\*\*2|\.pow\(2\))\)\)?{_READ}", "", True),
    (rf"\(*{_X}\.norm\((p=)?2?\)\)?{_READ}", "", False),
    (rf"\(*torch\.norm\({_X}(,(p=)?2)?\)\)?{_READ}", "", False),
    (rf"\(*{_X}\.abs\(\)\.sum\(\)\)?{_READ}", ", 1", False),
]
"""Terms of a sum over parameters: the pattern, the order of the norm, and whether it is squared."""
PLURALS = {"p": "params", "param": "params", "parameter": "parameters"}


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the loop around the line, and those beside it, as operators on lists: arithmetic on parameters."""
    module = site.module
    for loop in site.loops:
        edit = _lists(module, loop)
        if edit is not None:
            beside = [item for item in body_of(module, loop) or [] if item is not loop]
            edits = [edit, *filter(None, (_lists(module, item) for item in beside))]
            lines = f"loop on line {loop.lineno}" if len(edits) == 1 else f"loops around line {loop.lineno}"
            torch, imports = torch_in(module)
            yield Proposal((*edits, *imports), f"run the {lines} on lists: {torch}._foreach_...")
            return
    if site.statement is not None and not hasattr(site.statement, "body"):
        yield from _comprehensions(module, site.statement)


def _comprehensions(module: Module, statement: ast.stmt) -> Iterator[Proposal]:
    """Yield ``sum(p.pow(2).sum() for p in ps)`` and ``torch.stack([p.grad.norm() for p in ps])`` of all at once."""
    torch, imports = torch_in(module)
    for call in ast.walk(statement):
        made = call.args[0] if isinstance(call, ast.Call) and call.args else None
        if not isinstance(call, ast.Call) or not isinstance(made, ast.ListComp | ast.GeneratorExp):
            continue
        term = _term(made.elt)
        joins = module.name_of(call.func)
        if term is None or joins not in ("sum", "torch.stack") or len(made.generators) != 1:
            continue
        if not re.search("param|grad|weight", source(module, made)):
            continue
        tensor, order, squared, was_read = term
        rest = ast.unparse(ast.ListComp(ast.Name("x"), made.generators))[2:-1]
        norms = f"{torch}._foreach_norm([{tensor}{rest}]{order})"
        after = ".square()" * squared
        if joins == "sum" and len(call.args) == 1:
            text = f"{torch}.stack({norms}){after}.sum(){'.item()' * was_read}"
            yield Proposal((replace_node(call, text), *imports), "compute the norms of all tensors at once")
        elif joins == "torch.stack" and not squared and not was_read:
            yield Proposal((replace_node(made, norms), *imports), "compute the norms of all tensors at once")
        return


def _term(node: ast.expr) -> tuple[str, str, bool, bool] | None:
    """Return the tensor of a norm, the order, whether it is squared, and whether it is read as a number."""
    text = re.sub(r"\s+", "", ast.unparse(node))
    for pattern, order, squared in NORMS:
        found = re.fullmatch(pattern, text)
        if found is not None:
            return ast.unparse(ast.parse(found["x"], mode="eval")), order, squared, ".item()" in text
    return None


def _lists(module: Module, loop: ast.stmt) -> SourceEdit | None:
    if not isinstance(loop, ast.For) or loop.orelse:
        return None
    try:
        known = _Loop(module, loop)
        rows = _sum_of_norms(known) or _rows(known)
    except NotListsError:
        return None
    if known.test:
        (chosen,) = known.lists.values()  # operators on lists want one tensor at least
        rows = [f"if {chosen}:", *(f"{INDENT}{row}" for row in rows)]
    return _instead(module, loop, [*known.rows, *rows])


class _Loop:
    """A loop over tensors: the lists that it goes over, in rows before the arithmetic."""

    def __init__(self, module: Module, loop: ast.For) -> None:
        self.module, self.loop = module, loop
        self.rows: list[str] = []
        self.lists: dict[str, str] = {}
        self.taken = names_in(module.scope(loop))
        self.made: dict[str, str] = {}
        self.body, self.test = _guarded(loop)
        self._begin(self.test)

    def _begin(self, test: str) -> None:
        targets = [item.id for item in _targets(self.loop)]
        used = set().union(*(names_in(item) for item in self.body))
        iterated = self.loop.iter
        name = self.module.name_of(iterated.func) if isinstance(iterated, ast.Call) else ""
        zipped = list(iterated.args) if isinstance(iterated, ast.Call) and name == "zip" else []
        if zipped and len(zipped) == len(targets) and not test:
            for target, item in zip(targets, zipped, strict=True):
                self.lists[target] = self._named(target, item)
            return
        head = f"for {source(self.module, self.loop.target)} in {source(self.module, iterated)}{test}"
        wanted = [target for target in targets if target in used]
        if len(targets) == 1 and not test:
            self.lists[targets[0]] = self._named(targets[0], iterated)
        elif len(wanted) == 1:
            self.lists[wanted[0]] = self._new(_plural(wanted[0]), f"[{wanted[0]} {head}]")
        elif test:
            raise NotListsError  # of no pairs there are no two lists
        else:
            names = [self.free(_plural(target)) for target in wanted]
            pairs = source(self.module, iterated) if wanted == targets else f"[({', '.join(wanted)}) {head}]"
            self.rows.append(f"{', '.join(names)} = zip(*{pairs})")
            self.lists |= dict(zip(wanted, names, strict=True))

    def _named(self, target: str, node: ast.expr) -> str:
        """Return the name of a list: its own, or that of a new list of what is iterated."""
        text = source(self.module, node)
        if path_of(node) and self._is_list(node):
            return text
        if any(isinstance(part, ast.Yield | ast.Await) for part in ast.walk(node)) or "open(" in text:
            raise NotListsError
        return self._new(_plural(target), f"list({text})")

    def _is_list(self, node: ast.expr) -> bool:
        if self.module.value(node).kind == "list":
            return True
        path = path_of(node)
        for statement in ast.walk(self.module.tree):
            for item, value in assigned_pairs(statement) if isinstance(statement, ast.Assign) else ():
                if path_of(item) == path:
                    made = path_called(value)
                    return isinstance(value, ast.ListComp | ast.List) or made == "list"
        return False

    def free(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _new(self, name: str, text: str) -> str:
        if text not in self.made:
            self.made[text] = self.free(name)
            self.rows.append(f"{self.made[text]} = {text}")
        return self.made[text]

    def entries(self, node: ast.expr) -> str:
        """Return the list of an attribute, or an entry, of each tensor; ``.data`` and ``.detach()`` stay in it."""
        inside = [name for name in self.lists if name in names_in(node)]
        tensor = without_history(node) or node
        if len(inside) != 1 or not isinstance(tensor, ast.Name | ast.Attribute | ast.Subscript):
            raise NotListsError
        if isinstance(tensor, ast.Name):
            name = f"{_plural(tensor.id)}_data"
        elif isinstance(tensor, ast.Subscript):
            name = f"{path_of(tensor.value).rpartition('.')[2]}_values"
        elif tensor.attr == "grad" and path_of(tensor):
            name = "grads"
        else:
            raise NotListsError
        return self._new(name, f"[{ast.unparse(node)} for {inside[0]} in {self.lists[inside[0]]}]")


def _rows(known: _Loop) -> list[str]:
    """Return the rows of the arithmetic on each tensor, on lists."""
    module, loop, (torch, _) = known.module, known.loop, torch_in(known.module)
    if not any(_is_tensors(module, node) for node in ast.walk(loop)):
        raise NotListsError
    lists = Lists(torch, dict(known.lists), lambda node: source(module, node), known.entries, known.free)
    stored: list[str] = []
    for statement in known.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Name) and path_of(target.value):
            assert isinstance(statement, ast.Assign)
            key = known.lists.get(target.slice.id)
            if key is None or stored:
                raise NotListsError
            text = f"{source(module, target.value)}.update(zip({key}, {lists.expression(statement.value)}))"
            lists.rows.append(text)
            stored.append(text)
        else:
            lists.statement(statement)
    local = set(lists.names) - set(known.lists)
    inside = set(ast.walk(loop))
    if any(
        node.id in local for node in ast.walk(module.scope(loop)) if isinstance(node, ast.Name) and node not in inside
    ):
        raise NotListsError  # what the last turn left is used
    return lists.rows


def _sum_of_norms(known: _Loop) -> list[str] | None:
    """Return the rows of ``total += p.grad.norm().item() ** 2``, of all gradients or parameters at once."""
    module, loop, last = known.module, known.loop, known.body[-1]
    if not isinstance(last, ast.AugAssign) or not isinstance(last.op, ast.Add) or not isinstance(last.target, ast.Name):
        return None
    torch, _ = torch_in(module)
    value, first = last.value, known.body[0]
    if len(known.body) == 2 and isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.Name):
        uses = [item for item in ast.walk(value) if isinstance(item, ast.Name) and item.id == first.targets[0].id]
        named = module.names(first.targets[0].id, module.scope(loop))
        if len(uses) != 1 or len(named) != 2:
            return None
        value = ast.parse(replaced_in(module, value, (uses[0], f"({source(module, first.value)})")), mode="eval").body
    elif len(known.body) != 1:
        return None
    term = _term(value)
    if term is None:
        return None
    tensor, order, squared, was_read = term
    lists = Lists(torch, dict(known.lists), ast.unparse, known.entries, known.free)
    made = lists.expression(ast.parse(tensor, mode="eval").body)
    norms = f"{torch}.stack({torch}._foreach_norm({made}{order}))"
    return [*lists.rows, f"{last.target.id} += {norms}{'.square()' * squared}.sum(){'.item()' * was_read}"]


def _is_tensors(module: Module, node: ast.AST) -> bool:
    """Return whether an expression shows that the loop goes over parameters, gradients or a state."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("grad", "data", "state_dict", "parameters", "named_parameters")
    return isinstance(node, ast.expr) and module.value(node).of == "parameter"


def _targets(loop: ast.For) -> list[ast.Name]:
    items = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    names = [item for item in items if isinstance(item, ast.Name)]
    if len(names) != len(items):
        raise NotListsError
    return names


def _guarded(loop: ast.For) -> tuple[list[ast.stmt], str]:
    """Return the arithmetic of a body and the condition that it is behind, as part of a comprehension."""
    first = loop.body[0]
    if isinstance(first, ast.If) and not first.orelse:
        if len(loop.body) == 1:
            return first.body, f" if {ast.unparse(first.test)}"
        skips = len(first.body) == 1 and isinstance(first.body[0], ast.Continue)
        test = first.test
        if skips and isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is):
            return loop.body[1:], f" if {ast.unparse(test.left)} is not {ast.unparse(test.comparators[0])}"
        raise NotListsError
    return loop.body, ""


def _plural(name: str) -> str:
    return PLURALS.get(name, f"{name}s")


def _instead(module: Module, loop: ast.For, rows: list[str]) -> SourceEdit | None:
    """Return the edit that puts rows in the place of a loop, below the comments in it."""
    indent = indent_of(module, loop)
    last = loop.end_lineno or loop.lineno
    text = lines_of(module.text)[loop.lineno - 1 : last]
    if indent is None:
        return None
    tokens = tokenize.generate_tokens(io.StringIO(textwrap.dedent("".join(text))).readline)
    rows = [*(token.string for token in tokens if token.type == tokenize.COMMENT), *rows]
    return SourceEdit(loop.lineno, 0, last + 1, 0, "".join(f"{indent}{row}\n" for row in rows))
