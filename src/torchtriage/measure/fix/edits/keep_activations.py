"""Keep what the backward pass needs in place of computing it again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.rules.recompute_in_backward import find
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.edits._switches import flag_off, taken_out
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import operand, source, without_keyword

CODES = frozenset({"MEM122"})
CHECKPOINT = frozenset(["use_reentrant", "preserve_rng_state", "determinism_check", "debug", "context_fn"])


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the edits that switch recomputation off, all of the file at once."""
    edits = tuple(edit for hit in find(site.module) for edit in _off(site.module, hit.node))
    if edits:
        changes = "activations are kept, which takes more memory"
        yield Proposal(edits, "keep activations for the backward pass", changes)


def _off(module: Module, node: ast.AST) -> tuple[SourceEdit, ...]:
    item = module.parents.get(node)
    if isinstance(item, ast.keyword) and item.arg and isinstance(node, ast.expr):
        call = module.parents.get(item)
        out = without_keyword(call, item.arg) if isinstance(call, ast.Call) and isinstance(node, ast.Constant) else None
        return (out,) if out is not None else _first(flag_off(module, node, item.arg))
    if not isinstance(node, ast.Call):
        return ()
    if path_of(node.func).rpartition(".")[2] == "checkpoint" and node.args:
        rest = [item for item in node.keywords if item.arg not in CHECKPOINT]
        given = ", ".join(source(module, part) for part in (*node.args[1:], *rest))
        return (replace_node(node, f"{operand(module, node.args[0])}({given})"),)
    return _first(taken_out(module, node, "recomputation"))


def _first(proposals: Iterator[Proposal]) -> tuple[SourceEdit, ...]:
    return next((proposal.edits for proposal in proposals), ())
