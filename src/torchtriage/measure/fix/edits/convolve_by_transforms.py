"""A convolution of each channel with a long kernel by way of Fourier transforms."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.syntax import keyword, literal
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import (
    complete,
    free_name,
    insert_before,
    module_in,
    replaced_in,
    source,
    statement_edit,
)

CODES = frozenset({"KRN074"})
FUNCTION = "torch.nn.functional.conv1d"
KNOWN = frozenset({"groups", "padding"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``irfft(rfft(signal) * rfft(kernel))`` for a ``conv1d`` without bias, stride and dilation."""
    module, statement, seen = site.module, site.statement, site.finding.evidence
    if not seen.get("n_channels") == seen.get("n_groups") == seen.get("n_out") or statement is None:
        return
    calls = [
        node for node in ast.walk(statement) if isinstance(node, ast.Call) and module.name_of(node.func) == FUNCTION
    ]
    if len(calls) != 1 or not isinstance(statement, ast.Assign | ast.Return | ast.Expr):
        return
    (call,) = calls
    if not _is_first(site, call, statement):
        return
    padding = literal(keyword(call, "padding") or ast.Constant(0))
    if len(call.args) != 2 or {item.arg for item in call.keywords} - KNOWN or type(padding) is not int:
        return
    signal, kernel = (free_name(module, name, f"{name}_given") for name in ("signal", "kernel"))
    length, spectrum = free_name(module, "n_padded", "n_transform"), free_name(module, "spectrum", "product")
    torch, imports = module_in(module, "torch")
    given = [source(module, item) for item in call.args]
    if padding:
        given[0] = f"{torch}.nn.functional.pad({given[0]}, ({padding}, {padding}))"
    before = (
        f"{signal}, {kernel} = {given[0]}, {given[1]}\n"
        f"{length} = {signal}.shape[-1] + {kernel}.shape[-1] - 1\n"
        f"{length} += -{length} % (1 << max({length}.bit_length() - 5, 0))  # small factors\n"
        f"{spectrum} = {torch}.fft.rfft({signal}, {length}) * {torch}.fft.rfft({kernel}.flip(-1), {length})[:, 0]"
    )
    new = f"{torch}.fft.irfft({spectrum}, {length})[..., {kernel}.shape[-1] - 1 : {signal}.shape[-1]]"
    changed = statement_edit(module, statement, replaced_in(module, statement, (call, new)))
    edits = complete((insert_before(module, statement, before), changed, *imports))
    if signal and kernel and length and spectrum and edits:
        yield Proposal(edits, "convolve by way of Fourier transforms")


def _is_first(site: Site, call: ast.Call, statement: ast.stmt) -> bool:
    """Return whether a statement does nothing before a call, and goes on with its result: ``y = f(x).squeeze(0)``."""
    node: ast.AST = call
    while (outer := site.module.parents.get(node)) is not statement:
        goes_on = isinstance(outer, ast.Attribute | ast.Subscript) and outer.value is node
        goes_on |= isinstance(outer, ast.Call) and outer.func is node
        if outer is None or not goes_on:
            return False
        node = outer
    return True
