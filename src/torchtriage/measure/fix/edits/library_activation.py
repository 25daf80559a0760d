"""PyTorch's own activation in the place of its formula: one operator, and one kernel, instead of five to eight.

A formula of one variable is known by its values: it is evaluated at some points, and compared with what the activations
of ``torch.nn.functional`` give there.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator

from torchtriage.diagnose.lint.base import replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import names_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import imported, source

CODES = frozenset({"LCH014", "LCH015", "HST020", "HST114", "HST054"})
FEWEST_OPERATORS = 2
POINTS = (-3.1, -1.7, -0.6, -0.2, 0.1, 0.7, 1.3, 2.9)
CLOSE = 1e-6

Number = Callable[..., float]
OPERATORS: dict[type[ast.AST], Number] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x))


FUNCTIONS: dict[str, Number] = {
    "abs": abs,
    "erf": math.erf,
    "exp": math.exp,
    "log": math.log,
    "log1p": math.log1p,
    "pow": math.pow,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "sqrt": math.sqrt,
    "square": lambda x: x * x,
    "tanh": math.tanh,
}
ACTIVATIONS: dict[str, Number] = {
    "gelu({})": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    'gelu({}, approximate="tanh")': lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "mish({})": lambda x: x * math.tanh(_softplus(x)),
    "silu({})": lambda x: x * _sigmoid(x),
    "softplus({})": _softplus,
    "softsign({})": lambda x: x / (1 + abs(x)),
    "tanh({})": math.tanh,
    "sigmoid({})": _sigmoid,
}


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the activations for all formulas of the function around the line, or of its statement."""
    module = site.module
    found: list[tuple[ast.expr, str]] = []
    todo: list[ast.AST] = [part for part in (site.function or site.statement,) if part is not None]
    while todo:
        node = todo.pop()
        known = _activation(module, node) if isinstance(node, ast.expr) else None
        if known is not None and isinstance(node, ast.expr):
            found.append((node, known))
        else:
            todo += ast.iter_child_nodes(node)
    if found:
        functional, imports = imported(module, "torch.nn.functional")
        edits = tuple(replace_node(node, f"{functional}.{text}") for node, text in found)
        names = ", ".join(sorted({text.partition("(")[0] for _, text in found}))
        yield Proposal((*edits, *imports), f"PyTorch's own {names} instead of its formula")


def _activation(module: Module, node: ast.expr) -> str | None:
    """Return the call that an expression stands for."""
    if not isinstance(node, ast.BinOp | ast.Call):
        return None
    parts = list(ast.walk(node))
    if sum(isinstance(part, ast.BinOp | ast.Call | ast.UnaryOp) for part in parts) < FEWEST_OPERATORS:
        return None
    called = {part.func for part in parts if isinstance(part, ast.Call)}
    heads = {part.value for part in parts if isinstance(part, ast.Attribute)}
    names = {
        source(module, part)
        for part in parts
        if isinstance(part, ast.Name) and part not in called and not (part in heads and part.id in module.aliases)
    }
    if len(names) != 1:
        return None
    (name,) = names
    try:
        values = [_value(module, node, name, x) for x in POINTS]
    except (ValueError, ArithmeticError, KeyError, TypeError):
        return None
    for text, function in ACTIVATIONS.items():
        if all(abs(value - function(x)) < CLOSE for value, x in zip(values, POINTS, strict=True)):
            return text.format(name)
    return None


def _value(module: Module, node: ast.expr, name: str, x: float) -> float:
    """Return what an expression is at a point.

    Raises ValueError, ArithmeticError, KeyError, TypeError: it is no formula of numbers, or has no value there.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name) and node.id == name:
        return x
    if isinstance(node, ast.Attribute) and module.name_of(node) in ("math.pi", "numpy.pi", "torch.pi"):
        return math.pi
    if isinstance(node, ast.BinOp):
        left, right = (_value(module, part, name, x) for part in (node.left, node.right))
        return _real(OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](_value(module, node.operand, name, x))
    if isinstance(node, ast.Call) and not node.keywords:
        holder, _, function = module.name_of(node.func).rpartition(".")
        given = list(node.args)
        if isinstance(node.func, ast.Attribute) and holder not in ("torch", "math", "numpy", "torch.nn.functional"):
            given, function = [node.func.value, *given], node.func.attr
        elif holder in ("math", "numpy") and any(name in names_in(part) for part in given):
            raise ValueError("no tensor")
        return _real(FUNCTIONS[function](*(_value(module, part, name, x) for part in given)))
    raise ValueError("no formula")


def _real(value: object) -> float:
    if not isinstance(value, int | float):
        raise ValueError("no real number")
    return float(value)
