"""The code objects of a file, by the name and first line that Python gives them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

Body = (
    ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.Lambda
    | ast.ClassDef
    | ast.Module
    | ast.ListComp
    | ast.SetComp
    | ast.DictComp
    | ast.GeneratorExp
)

COMPREHENSIONS: dict[type[ast.AST], str] = {
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}


@dataclass(frozen=True, eq=False)
class Function:
    """One code object: ``name`` and ``first_line`` are its ``co_name`` and ``co_firstlineno``.

    ``owner`` is the class whose body it stands in, if any. A decorated function starts at its first decorator.
    """

    name: str
    first_line: int
    last_line: int
    node: Body
    owner: ast.ClassDef | None = None


def find_functions(tree: ast.Module) -> tuple[Function, ...]:
    """Return every code object of a module in the order of its text, the module itself first."""
    last = max((node.end_lineno or 0 for node in tree.body), default=1)
    found = [Function("<module>", 1, max(last, 1), tree)]
    stack: list[tuple[ast.AST, ast.ClassDef | None]] = [(tree, None)]
    while stack:
        node, owner = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.append(Function(node.name, first, node.end_lineno or first, node, owner))
            owner = node if isinstance(node, ast.ClassDef) else None
        elif isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            name = COMPREHENSIONS.get(type(node), "<lambda>")
            found.append(Function(name, node.lineno, node.end_lineno or node.lineno, node, owner))
        stack += [(child, owner) for child in reversed(list(ast.iter_child_nodes(node)))]
    return tuple(found)


def own_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of a body without those of functions and classes defined in it."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp)
    out: list[ast.AST] = []
    stack = list(ast.iter_child_nodes(node))
    while stack:
        child = stack.pop()
        out.append(child)
        if not isinstance(child, inner):
            stack += ast.iter_child_nodes(child)
    return out
