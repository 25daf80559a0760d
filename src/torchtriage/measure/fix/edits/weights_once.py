"""Weights summed up once: draws by ``searchsorted`` in their running sum, as NumPy itself does in each call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import argument, keyword, literal, path_of
from torchtriage.diagnose.lint.work_words import PURE_BUILTINS, PURE_METHODS
from torchtriage.measure.fix.edits._flow import FORM, flow_of, loads, meets
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import end_of, imported, insert_after, source

CODES = frozenset({"HST020", "HST114", "LCH105"})
NUMBER = re.compile(r"(^|[._])(n|num|len|size|count|total|vocab\w*)(_|$)|(^|_)n[A-Z]|_size$|_count$|^len\(")


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the draw at the line from sums that are made where the weights are."""
    module = site.module
    for node in (call.node for call in site.calls):
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method == "choice" and (weights := keyword(node, "p")) is not None:
            edits = _of_choice(module, node, weights)
        elif method == "choices" and (weights := keyword(node, "weights")) is not None:
            edits = _of_choices(module, node, weights)
        else:
            continue
        yield Proposal(edits, f"sum up {source(module, weights)} once for all draws")


def _of_choice(module: Module, node: ast.Call, weights: ast.expr) -> tuple[SourceEdit, ...]:
    """Return the edits for ``rng.choice(n, size=k, p=weights)``: what it does, without the sum."""
    if keyword(node, "replace") is not None and literal(keyword(node, "replace")) is not True:
        return ()
    if not node.args or len(node.args) > 2 or any(item.arg not in ("size", "p", "replace") for item in node.keywords):
        return ()
    name, made = _kept(module, weights, "cdf")
    size = argument(node, "size", 1)
    numpy, imports = imported(module, "numpy.cumsum")
    after = insert_after(module, made, f"{name} = {numpy}({path_of(weights)})\n{name} /= {name}[-1]") if made else None
    if after is None or not isinstance(node.func, ast.Attribute):
        return ()
    drawn = f"{source(module, node.func.value)}.random({source(module, size) if size is not None else ''})"
    picked = f'{name}.searchsorted({drawn}, side="right")'
    number = isinstance(node.args[0], ast.Constant) or NUMBER.search(source(module, node.args[0]))
    if not number:
        picked = f"{source(module, node.args[0])}[{picked}]"
    return (*imports, after, replace_node(node, picked))


def _of_choices(module: Module, node: ast.Call, weights: ast.expr) -> tuple[SourceEdit, ...]:
    """Return the edits for ``random.choices(items, weights=weights)``."""
    name, made = _kept(module, weights, "cum_weights")
    accumulate, imports = imported(module, "itertools.accumulate")
    after = insert_after(module, made, f"{name} = list({accumulate}({path_of(weights)}))") if made else None
    given = next(item for item in node.keywords if item.value is weights)
    if after is None:
        return ()
    new = SourceEdit(given.lineno, given.col_offset, *end_of(given), f"cum_weights={name}")
    return (*imports, after, new)


def _kept(module: Module, weights: ast.expr, name: str) -> tuple[str, ast.stmt | None]:
    """Return what the sums are to be called, and the one statement that gives the weights their value."""
    path = path_of(weights)
    owner, dot, _ = path.rpartition(".")
    made = [item for item in module.assigns if item.target == path]
    if not path or len(made) != 1 or made[0].how != "=" or not isinstance(made[0].node, ast.Assign):
        return "", None
    statement, flow = made[0].node, flow_of(module)
    around = module.tree if dot else module.scope(statement)
    rest = [node for node in ast.walk(around) if isinstance(node, ast.stmt) and node is not statement]
    parts = [part for node in rest for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    changed = flow.changes(part for part in parts if meets(path, loads(part)))
    own = set(ast.walk(statement))
    uses = [node for node in ast.walk(around) if isinstance(node, ast.expr) and path_of(node) == path]
    if (
        meets(path, changed)
        or not all(node in own or _only_reads(module, node) for node in uses)
        or (dot and path.rpartition(".")[2] in flow.set_by_others)
    ):
        return "", None  # entries that change, or may
    if not dot and module.scope(statement) not in (module.scope(weights), module.tree):
        return "", None
    used = f"{owner}{dot}{name}"
    if re.search(rf"(?<![\w.]){re.escape(used)}\b", module.text):
        used = f"{path}_{name}"
    loop = module.around(weights, ast.For, ast.While)
    same = module.around(statement, ast.For, ast.While)
    again = module.scope(statement) is module.scope(weights) and loop is same
    return ("", None) if again else (used, statement)


def _only_reads(module: Module, node: ast.expr) -> bool:
    """Return whether a use of weights draws by them or computes with them, and gives them to nobody else."""
    use = module.parents.get(node)
    if isinstance(use, ast.keyword):
        call = module.parents.get(use)
        return isinstance(call, ast.Call) and path_of(call.func).endswith((".choice", ".choices"))
    if isinstance(use, ast.Call):
        return module.name_of(use.func) in PURE_BUILTINS
    if isinstance(use, ast.Attribute):
        return use.attr in PURE_METHODS or use.attr in FORM
    return isinstance(use, ast.Subscript | ast.BinOp | ast.Compare | ast.For | ast.comprehension)
