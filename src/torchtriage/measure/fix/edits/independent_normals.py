"""Normal distributions of each number by itself, in place of one over all with a diagonal matrix."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import imported, remove, source

CODES = frozenset({"HST125", "KRN103"})
PACKAGE = "torch.distributions"
_DIAGONALS = frozenset({"torch.diag", "torch.diag_embed"})
_OF_A_MATRIX = re.compile(r"\.(covariance_matrix|scale_tril|precision_matrix)\b|kl_divergence|MultivariateNormal\)")
"""What only the other class has, or tells the two apart."""


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``Independent(Normal(loc, scale), 1)`` for each ``MultivariateNormal(loc, torch.diag_embed(v))``."""
    module = site.module
    if _OF_A_MATRIX.search(module.text):
        return
    edits: dict[tuple[int, int], SourceEdit] = {}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or not module.name_of(node.func).endswith("distributions.MultivariateNormal"):
            continue
        scale, gone = _scale(module, node)
        if not scale:
            return  # of two kinds in one program, which one a place meets is not known
        names, added = zip(*(imported(module, f"{PACKAGE}.{name}") for name in ("Independent", "Normal")), strict=True)
        new = replace_node(node, f"{names[0]}({names[1]}({source(module, node.args[0])}, {scale}), 1)")
        edits |= {(edit.line, edit.column): edit for edit in (new, *gone, *added[0], *added[1])}
    yield Proposal(tuple(edits.values()), "one normal distribution per number, without a matrix")


def _scale(module: Module, node: ast.Call) -> tuple[str, tuple[SourceEdit, ...]]:
    """Return the standard deviations that a distribution has, empty where its matrix may be any.

    And the edits that remove what made the matrix.
    """
    given = {item.arg: item.value for item in node.keywords}
    if len(node.args) == 2 and not given:
        given = {"covariance_matrix": node.args[1]}
    elif len(node.args) != 1 or len(given) != 1:
        return "", ()
    ((name, matrix),) = given.items()
    made = module.made_of(matrix)
    if not isinstance(made, ast.Call) or module.name_of(made.func) not in _DIAGONALS or len(made.args) != 1:
        return "", ()
    vector = made.args[0]
    if made.keywords or not isinstance(vector, ast.Name | ast.Attribute | ast.Call):
        return "", ()
    text = {"covariance_matrix": f"{source(module, vector)}.sqrt()", "scale_tril": source(module, vector)}.get(
        name or ""
    )
    if text is None or made is matrix:
        return text or "", ()
    # of what is made somewhere before, the vector must still be what it was
    statement = module.parents.get(made)
    stores = isinstance(vector, ast.Name) and module.stores(vector.id, module.scope(vector))
    if not isinstance(statement, ast.Assign) or stores is False or len(stores) > 1 or len(module.uses(made)) != 1:
        return "", ()
    gone = remove(module, statement)
    return (text, (gone,)) if gone is not None else ("", ())
