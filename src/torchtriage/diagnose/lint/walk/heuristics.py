"""What people mean by a name or say in an annotation."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import (
    A_LOADER,
    A_MODULE,
    AN_OPTIMIZER,
    HOST,
    MAYBE_TENSOR,
    NUMPY,
    UNKNOWN,
    Value,
)
from torchtriage.diagnose.lint.syntax import literal, path_of


def annotated(node: ast.expr | None) -> Value | None:
    """Return what an annotation says, None where there is none."""
    if node is None:
        return None
    if isinstance(node, ast.BinOp):  # Tensor | None, but not Tensor | list[Tensor]
        if literal(node.left) is None:
            return annotated(node.right)
        return annotated(node.left) if literal(node.right) is None else UNKNOWN
    if isinstance(node, ast.Subscript):  # Optional[Tensor]
        optional = path_of(node.value).rpartition(".")[2] == "Optional"
        return annotated(node.slice) if optional else UNKNOWN
    name = literal(node) if isinstance(node, ast.Constant) else path_of(node)
    return _typed(name) if isinstance(name, str) else UNKNOWN


@lru_cache(maxsize=1 << 14)
def _typed(name: str) -> Value:
    """Return what the name of a type says."""
    name = re.sub(r"\b(Optional\[|None\s*\|\s*|\|\s*None)", "", name).strip("[] ")
    if re.fullmatch(r"(\w+\.)*(Tensor|FloatTensor|LongTensor|BoolTensor|IntTensor)", name):
        return MAYBE_TENSOR
    if re.fullmatch(r"int|float|bool|str|bytes|complex", name):
        return HOST
    if name.endswith("ndarray"):
        return NUMPY
    if name.endswith("DataLoader"):
        return A_LOADER
    if re.fullmatch(r"(torch\.)?(nn|optim)?\.?(Module|\w+Model)", name):
        return A_MODULE
    if name.endswith("Optimizer"):
        return AN_OPTIMIZER
    return UNKNOWN


@lru_cache(maxsize=1 << 14)
def named(name: str) -> Value | None:
    """Return what people mean by a name."""
    if torch_names.BUILDER.match(name) or torch_names.VERB.match(name):
        return None
    if torch_names.LOADER.match(name):
        return A_LOADER
    if torch_names.MODULE.match(name) and name != "generator":
        return A_MODULE
    if name in ("optimizer", "optim"):
        return AN_OPTIMIZER
    return None


def named_callee(name: str) -> Value:
    """Return what people mean by the name of something they call."""
    meant = named(name)
    return meant if meant is A_MODULE else UNKNOWN
