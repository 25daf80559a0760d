"""Only positions that have a label go through the layer before the loss."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.syntax import keyword, path_of, walk, whole_number
from torchtriage.measure.fix.edits._settings import origin_of
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import body_of, complete, free_name, insert_before, source

CODES = frozenset({"KRN105"})
FUNCTION = "torch.nn.functional.cross_entropy"
FLAT = frozenset({"view", "reshape", "flatten"})
IGNORED = -100  # where nothing else is given
MIXES = re.compile(
    r"[Dd]ropout|(Batch|Instance|Group)Norm|LSTM|GRU|RNN|[Aa]ttention|Transformer|Conv|Pool|Embedding\(|cumsum|softmax"
    r"|matmul|einsum|bmm|@|\.(mean|sum|max|roll)\(|\.(shape|size|view|reshape|transpose)\b"
)
"""What works on several positions, or draws random numbers."""
KNOWN = frozenset({"ignore_index", "weight", "label_smoothing"})


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``cross_entropy(head(h[picked]), labels[picked])`` with ``picked = labels != -100`` before it."""
    module, scope = site.module, site.scope
    for call in walk(scope):
        if not isinstance(call, ast.Call) or not site.holds(call):
            continue
        if module.name_of(call.func) != FUNCTION or len(call.args) != 2:
            continue
        if {item.arg for item in call.keywords} - KNOWN:
            continue
        logits, labels = map(_unflattened, call.args)
        ignored = whole_number(keyword(call, "ignore_index") or ast.Constant(IGNORED))
        made = _made(site, scope, logits, call) if isinstance(logits, ast.Name) else None
        if made is None or not isinstance(labels, ast.Name) or ignored is None or not _is_known(scope, labels, made):
            continue
        if not _works_by_position(site, made.value):
            continue
        assert isinstance(logits, ast.Name)
        assert isinstance(made.value, ast.Call)
        hidden, picked = made.value.args[0], free_name(module, "picked", "labelled")
        edits = complete(
            (
                insert_before(module, made, f"{picked} = {labels.id} != {ignored}"),
                replace_node(hidden, f"{source(module, hidden)}[{picked}]"),
                replace_node(call.args[0], logits.id),
                replace_node(call.args[1], f"{labels.id}[{picked}]"),
            )
        )
        if picked:
            yield Proposal(edits, "compute the logits only for positions with a label")


def _unflattened(node: ast.expr) -> ast.expr:
    """Return ``x`` of ``x.view(-1, x.size(-1))``, ``x.view(-1)`` and ``x.flatten(0, 1)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in FLAT:
        return node
    whole = node.func.attr == "flatten" or (node.args and whole_number(node.args[0]) == -1)
    return node.func.value if whole and len(node.args) <= 2 else node


def _made(site: Site, scope: ast.AST, logits: ast.Name, loss: ast.Call) -> ast.Assign | None:
    """Return ``logits = head(hidden)`` in the statements around the loss, where nothing else uses them."""
    statement = site.statement
    body = body_of(site.module, statement) if statement is not None else None
    assigned = [node for node in body or () if isinstance(node, ast.Assign)]
    made = [node for node in assigned if [path_of(target) for target in node.targets] == [logits.id]]
    named = [node for node in walk(scope) if isinstance(node, ast.Name) and node.id == logits.id]
    inside = set(walk(loss.args[0]))
    if len(made) != 1 or any(node not in inside and node is not made[0].targets[0] for node in named):
        return None
    call = made[0].value
    if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords:
        return None
    return made[0] if isinstance(call.args[0], ast.Name) else None


def _works_by_position(site: Site, call: ast.expr) -> bool:
    """Return whether a layer is known to compute each position by itself, without random numbers."""
    assert isinstance(call, ast.Call)
    layer = origin_of(site.module, call.func)
    if not isinstance(layer, ast.Call):
        return False
    known = site.module.classes.get(path_of(layer.func))
    text = source(site.module, layer if known is None else known.node)
    whole = known is not None or site.module.name_of(layer.func) in ("torch.nn.Linear", "torch.nn.Sequential")
    return whole and MIXES.search(text) is None


def _is_known(scope: ast.AST, labels: ast.Name, made: ast.Assign) -> bool:
    """Return whether the labels are what they are in the loss before the logits are made."""
    stores = [node for node in walk(scope) if isinstance(node, ast.Name) and node.id == labels.id]
    written = [node.lineno for node in stores if isinstance(node.ctx, ast.Store)]
    given = isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) and any(
        node.arg == labels.id for node in walk(scope.args) if isinstance(node, ast.arg)
    )
    return all(line < made.lineno for line in written) and (given or bool(written))
