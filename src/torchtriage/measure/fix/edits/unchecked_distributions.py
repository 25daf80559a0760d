"""Distributions that do not check their arguments, in a program that relies on no error of theirs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, imported, insert_after_imports

CODES = frozenset({"HST125"})
CHECKED = frozenset({"cdf", "icdf", "log_prob", "rsample", "sample"})
CAUGHT = frozenset({"BaseException", "Exception", "ValueError"})
PACKAGE = "torch.distributions"


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the switch for all distributions, after the imports."""
    module = site.module
    if "validate_args" in module.text or _relies_on_errors(module):
        return
    for node in module.tree.body:
        name = _bound_by(node)
        if name is None:
            continue
        edits: tuple[SourceEdit, ...] = ()
        if not name:
            if re.search(r"\bDistribution\b", module.text):
                continue
            name, edits = imported(module, f"{PACKAGE}.Distribution")
        edit = insert_after_imports(module, node, f"{name}.set_default_validate_args(False)")
        yield Proposal(complete((*edits, edit)), "skip the validation of distributions' arguments")
        return


def _bound_by(node: ast.stmt) -> str | None:
    """Return how the class of all distributions is called after an import, empty where it only could be imported."""
    if isinstance(node, ast.Import):
        for item in node.names:
            if item.name in ("torch", PACKAGE):
                package = item.name if item.asname is None else item.asname
                return f"{package}.Distribution" if item.name == PACKAGE else f"{package}.distributions.Distribution"
    if isinstance(node, ast.ImportFrom) and not node.level:
        bound = {item.name: item.asname or item.name for item in node.names}
        if node.module == "torch" and "distributions" in bound:
            return f"{bound['distributions']}.Distribution"
        if node.module == PACKAGE:
            return "Distribution" if "*" in bound else bound.get("Distribution", "")
    return None


def _relies_on_errors(module: Module) -> bool:
    """Return whether an error of a distribution may be caught."""
    own = {function.name for function in module.functions}
    return any(
        isinstance(block, ast.Try | ast.With)
        and _catches(module, block)
        and any(_may_check(module, node, own) for statement in block.body for node in ast.walk(statement))
        for block in ast.walk(module.tree)
    )


def _catches(module: Module, block: ast.Try | ast.With) -> bool:
    if isinstance(block, ast.Try):
        return any(item.type is None or names_in(item.type) & CAUGHT for item in block.handlers)
    calls = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
    return any(module.name_of(call.func) == "contextlib.suppress" and names_in(call) & CAUGHT for call in calls)


def _may_check(module: Module, node: ast.AST, own: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = path_of(node.func).rpartition(".")[2] or getattr(node.func, "attr", "")
    return name in CHECKED or name in own or module.name_of(node.func).startswith(PACKAGE)
