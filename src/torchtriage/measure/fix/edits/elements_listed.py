"""Numbers of a tensor taken out at once, in place of one by one: ``x.tolist()`` before the loop that reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import takewhile
from types import UnionType

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, literal, method_of, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_words import PURE_METHODS
from torchtriage.measure.fix.edits._flow import flow_of, meets
from torchtriage.measure.fix.edits._meanwhile import changed_in_place, is_seen_elsewhere, shared, takes_steps
from torchtriage.measure.fix.edits._torch import CASTS, numbers_read
from torchtriage.measure.fix.edits._turns import is_tensor
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, free_name, insert_before, source

CODES = words("""
    LCH017 LCH105 LCH108 LCH109 LCH014 HST020 HST106 HST110 HST111 HST114 SYN001 SYN004 CPY102 DAT018 DAT114
""")
EAGER = words("all any dict frozenset list max min set sorted sum tuple")
COMPUTES = PURE_METHODS - words("split rsplit unique items keys values chunk copy get join format tolist")
Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
Conditional = ast.Lambda | ast.IfExp | ast.BoolOp | Comprehension
"""What computes parts of an expression not at all, later, or for other values of the same names."""
Elsewhere = ast.Yield | ast.YieldFrom | ast.Await | ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
"""What lets other code run between turns, or reads after them."""
Block = ast.For | ast.AsyncFor | ast.While | ast.Try | ast.TryStar | ast.Match
Single = ast.Assign | ast.AugAssign | ast.Return | ast.Expr
Reads = list[tuple[ast.Call, ast.expr]]


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the loops and comprehensions at the line that read numbers of a tensor, with a list in its place."""
    for loop in site.for_loops:
        what = f"read all numbers of the loop on line {loop.lineno} at once"
        yield Proposal(_of_loop(site, loop), what)
    for node in ast.walk(site.statement) if site.statement is not None else ():
        if isinstance(node, Comprehension) and site.module.around(node, ast.stmt) is site.statement:
            yield Proposal(_of_comprehension(site, node), "read all numbers at once")


def _of_loop(site: Site, loop: ast.For) -> tuple[SourceEdit, ...]:
    reads = _reads(loop.body)
    if any(isinstance(item, Elsewhere) for item in ast.walk(loop)):
        return ()
    always = set(_always(site.module, loop.body))
    rows = _of_rows(site, loop, loop.target, loop.iter, reads)
    return complete(
        (*rows, *_of_places(site, loop, loop.target, [read for read in reads if read[0] in always], reads, loop))
    )


def _of_comprehension(site: Site, node: Comprehension) -> tuple[SourceEdit, ...]:
    around, over = site.module.parents[node], node.generators[0]
    eager = isinstance(around, ast.Call) and (
        site.module.name_of(around.func) in EAGER
        or (isinstance(around.func, ast.Attribute) and around.func.attr == "join")
    )
    if len(node.generators) > 1 or (isinstance(node, ast.GeneratorExp) and not eager):
        return ()
    if any(isinstance(item, Elsewhere) for item in ast.walk(node)):
        return ()
    given = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    reads = _reads([*given, *over.ifs])
    edits = _of_rows(site, node, over.target, over.iter, reads)
    statement = site.statement
    if isinstance(statement, Single) and not _is_within(site.module, node, statement, Conditional):
        always = {
            call for call, _ in _reads(over.ifs[:1] or given) if not _is_within(site.module, call, node, Conditional)
        }
        first = [read for read in reads if read[0] in always]
        edits += _of_places(site, node, over.target, first, reads, statement)
    return complete(edits)


def _of_rows(
    site: Site, node: ast.For | Comprehension, target: ast.expr, over: ast.expr, reads: Reads
) -> list[SourceEdit | None]:
    """Return the edits that go through numbers in place of elements."""
    edits: list[SourceEdit | None] = []
    for name, tensor in _rows(target, over):
        if _only_read(site.module, name, node, target, reads) and _stays(site, path_of(tensor), node):
            # reading a number takes it out of a tensor of one element, whatever its dimensions
            edits.append(replace_node(tensor, f"{source(site.module, tensor)}.flatten().tolist()"))
            edits += [_without(read, name) for read, value in reads if path_of(value) == name]
    return edits


def _of_places(
    site: Site, turns: ast.For | Comprehension, target: ast.expr, always: Reads, reads: Reads, outer: ast.stmt
) -> list[SourceEdit | None]:
    """Return the edits that take a list before ``outer``; ``always`` : the reads of each turn, whatever it does."""
    node = outer.value if isinstance(outer, Single) and outer.value is not None else outer
    module, numbers = site.module, names_in(target)
    edits: list[SourceEdit | None] = []
    for path in dict.fromkeys(path for _, value in always if (path := _indexed(value, numbers))):
        name = free_name(module, f"{path.rpartition('.')[2]}_list", f"{path.rpartition('.')[2]}_numbers")
        taken = [(read, value) for read, value in reads if _indexed(value, numbers) == path]
        places = {len(_places(value)) for _, value in taken}
        hidden = any(_is_within(module, read, turns, Comprehension) for read, _ in taken)
        if not name or len(places) != 1 or hidden or not _stays(site, path, node):
            continue
        whole = f"{path}.flatten({places.pop() - 1 or ''})"
        edits.append(insert_before(module, outer, f"{name} = {whole}.tolist()"))
        edits += [_without(read, _entry(module, value, name)) for read, value in taken]
    return edits


def _reads(parts: Sequence[ast.AST]) -> Reads:
    """Return the reads of numbers, in the order of the text."""
    reads = [(call, value) for value, call in numbers_read(parts).items()]
    return sorted(reads, key=lambda read: (read[0].lineno, read[0].col_offset))


def _always(module: Module, body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Yield the calls of each turn, whatever the conditions in it say."""
    for item in body:
        if isinstance(item, ast.With):
            yield from _always(module, item.body)
        elif not isinstance(item, Block):
            for call in ast.walk(item.test if isinstance(item, ast.If) else item):
                if isinstance(call, ast.Call) and not _is_within(module, call, item, Conditional):
                    yield call
        if any(isinstance(part, ast.Break | ast.Continue | ast.Return | ast.Raise) for part in ast.walk(item)):
            return


def _is_within(module: Module, node: ast.AST, outer: ast.AST, kinds: UnionType) -> bool:
    """Return whether between a node and one around it there is one of these kinds."""
    between = takewhile(lambda node: node is not outer, module.outward(node))
    return any(isinstance(node, kinds) for node in between)


def _stays(site: Site, path: str, node: ast.AST) -> bool:
    """Return whether what is read is a tensor that nothing changes meanwhile."""
    module, flow = site.module, flow_of(site.module)
    if not _is_array(site, path) or takes_steps(node) or meets(path, flow.changes([node])):
        return False
    changed = changed_in_place(module, node) | flow.handed([node])
    return not any(meets(item, changed) for item in shared(module, site.scope, [path]))


def _is_array(site: Site, path: str) -> bool:
    """Return whether what is read is a tensor, as far as its function shows, and no list or array of numpy."""
    scope = site.scope
    known = is_tensor(site.module, path, scope)
    assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    made = [node.value for node in assigned if path in map(path_of, node.targets)]
    computed = [method_of(value) in COMPUTES for value in made]
    if any(isinstance(part, ast.Attribute) and part.attr == "numpy" for value in made for part in ast.walk(value)):
        return False
    return known or (known is None and bool(made) and all(computed))


def _rows(target: ast.expr, over: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables that are elements of what is gone through."""
    called = path_of(over.func) if isinstance(over, ast.Call) else ""
    if isinstance(over, ast.Call) and called in ("enumerate", "zip") and isinstance(target, ast.Tuple):
        targets = target.elts[1:] if called == "enumerate" else target.elts
        for item, given in zip(targets, over.args, strict=False):
            yield from _rows(item, given)
    elif isinstance(target, ast.Name) and path_of(over):
        yield target.id, over


def _only_read(module: Module, name: str, node: ast.For | ast.expr, target: ast.expr, reads: Reads) -> bool:
    """Return whether a variable is used for nothing but its number, after the loop as well."""
    used = {item for _, value in reads if path_of(value) == name for item in ast.walk(value)}
    own, inside, scope = set(ast.walk(target)), set(ast.walk(node)), module.scope(node)
    named = [item for item in module.names(name, scope) if item not in own]
    after = [item for item in named if item not in inside and isinstance(item.ctx, ast.Load)]
    seen = any(not _is_bound_around(module, item) for item in after) or is_seen_elsewhere(module, name, scope)
    alone = not isinstance(node, ast.For) or not seen
    return bool(used) and alone and all(item in used for item in named if item in inside)


def _is_bound_around(module: Module, node: ast.Name) -> bool:
    """Return whether a loop or a comprehension around a name gives it another value."""
    for outer in module.outward(node):
        targets = [item.target for item in outer.generators] if isinstance(outer, Comprehension) else []
        targets += [outer.target] if isinstance(outer, ast.For) else []
        if any(node.id in names_in(target) for target in targets):
            return True
    return False


def _indexed(value: ast.expr, numbers: set[str]) -> str:
    """Return the tensor of ``x[i]`` or ``x[i, j]``, of which a variable of the loop is one place."""
    if not isinstance(value, ast.Subscript) or not names_in(value.slice) & numbers:
        return ""
    plain = all(isinstance(item, ast.Name | ast.BinOp) or type(literal(item)) is int for item in _places(value))
    return path_of(value.value) if plain else ""


def _places(value: ast.expr) -> list[ast.expr]:
    assert isinstance(value, ast.Subscript)
    return indices(value)


def _entry(module: Module, value: ast.expr, name: str) -> str:
    return name + "".join(f"[{source(module, item)}]" for item in _places(value))


def _without(read: ast.Call, text: str) -> SourceEdit:
    """Return the edit that leaves the number itself; a cast that may round or tell stays."""
    cast = path_of(read.func)
    return replace_node(read, f"{cast}({text})" if cast in CASTS else text)
