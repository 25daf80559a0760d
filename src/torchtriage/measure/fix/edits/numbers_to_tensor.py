"""Tensors of Python numbers and lists of arrays made by way of one NumPy array."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.syntax import keyword
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, imported, source

CODES = frozenset({"CPY102", "CPY007", "HST020", "HST114", "LCH105"})
FACTORIES = frozenset({"torch.tensor", "torch.as_tensor", "torch.FloatTensor", "torch.LongTensor", "torch.Tensor"})
WHOLE = re.compile(r"action|label|target|class|index|idx|ids?\b|count|token|length|\bint\(|\blen\(")
ROWS = re.compile(r"batch|state|obs|action|reward|window|hist|\ws$|(^|_)(s2?|done)$")
"""Names of columns, lists of rows or numbers."""


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the statements at the line, and those like it in the same body, with an array in between."""
    module, statement = site.module, site.statement
    body = body_of(module, statement) if statement is not None else None
    calls = [call for call in module.calls if call.name in FACTORIES and _is_made_of_python(module, call)]
    here = [call for call in calls if site.holds(call.node)]
    if not here or body is None or isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield from _stacked(site)
        return
    inside = [call for call in calls if any(item.lineno <= call.node.lineno <= (item.end_lineno or 0) for item in body)]
    name, imports = imported(module, "numpy.array")
    float32 = name.replace("array", "float32")
    guessed = [_said(module, call, name, float32, guess=True) for call in inside]
    plain = [_said(module, call, name, float32, guess=False) for call in inside]
    for edits in (guessed, plain) if guessed != plain else (plain,):
        yield Proposal((*imports, *edits), "make the tensors from arrays, not from Python numbers one by one")


def _is_made_of_python(module: Module, call: SourceCall) -> bool:
    """Return whether a tensor is made of a list of rows or numbers, which no array holds yet."""
    given = call.node.args[0] if len(call.node.args) == 1 else None
    if isinstance(given, ast.ListComp):
        return True
    if not isinstance(given, ast.Name | ast.Attribute) or module.value(given).kind in ("tensor", "numpy"):
        return False
    text = source(module, given)
    assigned = [item for item in module.assigns if item.target == text and item.expression is not call.node]
    made = [item for item in assigned if item.context.function is call.context.function]
    if made and all(assign.how == "=" for assign in made):
        return all(isinstance(assign.expression, ast.ListComp | ast.List) for assign in made)
    appended = [assign for assign in made if assign.how == "append"]
    return bool(appended) or (
        bool(ROWS.search(text.rpartition(".")[2]))
        and not any("numpy" in module.name_of(item.expression) for item in made)
    )


def _said(module: Module, call: SourceCall, array: str, float32: str, *, guess: bool) -> SourceEdit:
    given = call.node.args[0]
    text = source(module, given)
    typed = keyword(call.node, "dtype") is not None or call.name not in ("torch.tensor", "torch.as_tensor")
    kind = f", dtype={float32}" if guess and not typed and not WHOLE.search(text.lower()) else ""
    return replace_node(given, f"{array}({text}{kind})")


def _stacked(site: Site) -> Iterator[Proposal]:
    """Yield ``torch.from_numpy(np.stack(arrays))`` for a stack of tensors that are made of arrays one by one."""
    module = site.module
    for call in module.called("torch.stack"):
        node = call.node
        made = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if not site.holds(node) or not isinstance(made, ast.ListComp | ast.GeneratorExp):
            continue
        inner = made.elt
        if not isinstance(inner, ast.Call) or module.name_of(inner.func) not in ("torch.from_numpy", "torch.tensor"):
            continue
        if len(inner.args) == 1 and not inner.keywords:
            stack, imports = imported(module, "numpy.stack")
            array = source(module, inner.args[0])
            loops = source(module, made)[len(source(module, inner)) + 1 : -1].strip()
            plain = len(made.generators) == 1 and not made.generators[0].ifs
            same = plain and array == source(module, made.generators[0].target)
            arrays = source(module, made.generators[0].iter) if same else f"[{array} {loops}]"
            new = f"{source(module, inner.func)}({stack}({arrays}))"
            yield Proposal((*imports, replace_node(node, new)), "stack the arrays, and make one tensor from them")
