"""What is read picked before it is computed: crops before other transforms, positions before the last layer."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import keyword, path_called, path_of, walk, whole_number
from torchtriage.measure.fix.edits._settings import origin_of
from torchtriage.measure.fix.edits._torch import operands
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, operand, replaced_in, source

CODES = frozenset({"KRN105", "KRN075"})
ALONG_LAST = frozenset({"softmax", "log_softmax"})
"""What works on each position alone, where it is told to go along the last dimension."""


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the pipeline of the transform at the line with crops in front, and a layer given what is read of it."""
    frame = site.finding.place.frame
    lines = {site.line, *(frame.lines if frame is not None and site.line in frame.lines else ())}
    edits = _cropped(site.module, lines)
    if edits:
        yield Proposal(edits, "crop and sample before the other transforms")
    for edits in _layers(site):
        yield Proposal(edits, "compute the layer only for the positions that are read")
        return


def _cropped(module: Module, lines: set[int]) -> tuple[SourceEdit, ...]:
    """Return the edits that move transforms that pick before the first that works at one of the lines."""
    works = {name for name, kind in module.classes.items() if any(_holds(item, lines) for item in _calls(kind.node))}
    picks = {name for name, kind in module.classes.items() if _picks(kind.node)} - works
    for elements in map(_elements, walk(module.tree)):
        kinds = [path_called(item) for item in elements]
        first = next((at for at, kind in enumerate(kinds) if kind in works), None)
        later = [at for at, kind in enumerate(kinds) if kind in picks and first is not None and at > first]
        if first is None or not later or any(isinstance(item, ast.Starred) for item in elements):
            continue
        order = [*later, *(at for at in range(first, later[-1]) if at not in later)]
        texts = [source(module, elements[at]) for at in order]
        return tuple(
            replace_node(elements[at], text) for at, text in zip(range(first, later[-1] + 1), texts, strict=True)
        )
    return ()


def _elements(node: ast.AST) -> Sequence[ast.expr]:
    if isinstance(node, ast.List | ast.Tuple):
        return node.elts
    return node.args if isinstance(node, ast.Call) else ()


def _calls(kind: ast.ClassDef) -> list[ast.FunctionDef]:
    methods = [item for item in kind.body if isinstance(item, ast.FunctionDef)]
    return [item for item in methods if item.name in ("__call__", "forward")]


def _holds(method: ast.FunctionDef, lines: set[int]) -> bool:
    return any(method.lineno <= line <= (method.end_lineno or 0) for line in lines)


def _picks(kind: ast.ClassDef) -> bool:
    """Return whether all that a transform returns are parts of what it is given."""
    for method in _calls(kind):
        given = {item.arg for item in method.args.args[1:]}
        returned = [item.value for item in walk(method) if isinstance(item, ast.Return) and item.value is not None]
        values = [value for item in returned for value in (item.elts if isinstance(item, ast.Tuple) else [item])]
        parts = [value for value in values if isinstance(value, ast.Subscript) and path_of(value.value) in given]
        if returned and len(parts) == len(values):
            return True
    return False


def _layers(site: Site) -> Iterator[tuple[SourceEdit, ...]]:
    """Yield ``head(hidden[:, -1])`` for ``head(hidden)[:, -1]``, where the parts stand behind it or in its variable."""
    module, statement = site.module, site.statement
    for node in walk(statement) if isinstance(statement, ast.Assign | ast.Return | ast.Expr) else ():
        if isinstance(node, ast.Subscript) and (call := _layer_in(module, node.value)) is not None:
            given = replaced_in(
                module, node.value, (call.args[0], f"{operand(module, call.args[0])}[{_index(module, node)}]")
            )
            yield (replace_node(node, given),)
    if not isinstance(statement, ast.Assign) or not isinstance(target := statement.targets[0], ast.Name):
        return
    call = _layer_in(module, statement.value)
    reads = [name for name in module.names(target.id, module.scope(statement)) if name is not target]
    parts = [module.parents.get(name) for name in reads]
    subscripts = [part for part in parts if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load)]
    texts = {_index(module, part) for part in subscripts if part.value in reads and _is_constant(part.slice)}
    if call is None or len(statement.targets) != 1 or not reads or len(subscripts) != len(reads) or len(texts) != 1:
        return
    index = texts.pop()
    yield complete(
        (
            replace_node(call.args[0], f"{operand(module, call.args[0])}[{index}]"),
            *(replace_node(part, target.id) for part in subscripts),
        )
    )


def _layer_in(module: Module, node: ast.expr) -> ast.Call | None:
    """Return the call of a linear layer that a value is, also behind a softmax over its outputs."""
    if not isinstance(node, ast.Call) or len(node.args) + isinstance(node.func, ast.Attribute) < 1:
        return None
    name = module.name_of(node.func).rpartition(".")[2] or path_of(node.func).rpartition(".")[2]
    if name in ALONG_LAST:
        given = operands(module, node)
        dim = keyword(node, "dim") or next(iter(given[1:]), None)
        return _layer_in(module, given[0]) if given and whole_number(dim) == -1 else None
    made = origin_of(module, node.func)
    is_layer = module.name_called(made) == "torch.nn.Linear"
    return node if is_layer and len(node.args) == 1 and not node.keywords else None


def _index(module: Module, node: ast.Subscript) -> str:
    text = source(module, node.slice)
    return text[1:-1] if isinstance(node.slice, ast.Tuple) and text.startswith("(") else text


def _is_constant(node: ast.expr) -> bool:
    return not any(isinstance(item, ast.Name | ast.Call | ast.Attribute) for item in walk(node))
