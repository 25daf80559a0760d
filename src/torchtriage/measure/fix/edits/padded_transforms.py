"""Convolutions by way of Fourier transforms, padded to a length that a fast algorithm fits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import literal, path_of
from torchtriage.measure.fix.edits._flow import flow_of, meets
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, insert_after, source

CODES = frozenset({"KRN070"})
FORWARD = {"torch.fft.irfft": "torch.fft.rfft", "torch.fft.ifft": "torch.fft.fft"}
LENGTHS = ("{}.shape[-1]", "{}.size(-1)")


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``n += -n % step`` below ``n = x.shape[-1] + h.shape[-1] - 1``, where the result is cut anyway."""
    if "torch.jit" in site.module.text:
        return  # a script's numbers have no bit_length()
    for node in ast.walk(site.scope):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.BinOp):
            continue
        length = node.targets[0]
        if not isinstance(length, ast.Name):
            continue
        # 5 leading bits: no factor above 31, and 6 % more at most
        text = f"{length.id} += -{length.id} % (1 << max({length.id}.bit_length() - 5, 0))"
        if _only_pads(site.module, node, length):
            what = f"pad the transforms of line {node.lineno} to a length with small factors"
            yield Proposal(complete((insert_after(site.module, node, text),)), what)


def _only_pads(module: Module, made: ast.Assign, length: ast.Name) -> bool:
    """Return whether a number is the full length of a convolution, and only says how long its transforms are.

    Its result must be cut to one of the two lengths that it is the sum of: what is behind that is padding.
    """
    scope = module.scope(length)
    # functions inside may read it as well
    names = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == length.id]
    named = [node for node in names if node is not length]
    if any(isinstance(node, ast.Global) and length.id in node.names for node in ast.walk(scope)):
        return False
    given = [module.parents[node] for node in named]
    calls = [module.parents[item] if isinstance(item, ast.keyword) else item for item in given]
    back = [call for call in calls if isinstance(call, ast.Call) and module.name_of(call.func) in FORWARD]
    signals = _signals(module, back[0], length.id) if len(back) == 1 else []
    if len(signals) != 2 or len(calls) != 3 or _length(back[0]) != length.id:
        return False
    full = made.value.left if isinstance(made.value, ast.BinOp) and literal(made.value.right) == 1 else None
    added = [full.left, full.right] if isinstance(full, ast.BinOp) and isinstance(full.op, ast.Add) else []
    lengths = {form.format(item): item for item in signals for form in LENGTHS}
    if [lengths.get(source(module, part)) for part in added] not in (signals, signals[::-1]):
        return False
    later = [node for node in ast.walk(scope) if isinstance(node, ast.stmt) and node.lineno > made.lineno]
    if any(meets(item, flow_of(module).changes(later)) for item in signals):
        return False
    return all(_cut(module, use) in lengths for use in module.uses(back[0]))


def _length(call: ast.Call) -> str:
    """Return the length that a transform is given; none where it is along another dimension than the last."""
    given = [*call.args[1:], *(item.value for item in call.keywords if item.arg == "n")]
    return path_of(given[0]) if len(given) == 1 and len(call.args) + len(call.keywords) == 2 else ""


def _signals(module: Module, back: ast.Call, length: str) -> list[str]:
    """Return the two signals whose transforms of a length are multiplied and transformed back."""
    node = back.args[0]
    made = module.made_of(node)
    if not isinstance(made, ast.BinOp) or not isinstance(made.op, ast.Mult) or _is_shared(module, node):
        return []
    forward, factors = FORWARD[module.name_of(back.func)], [module.made_of(item) for item in (made.left, made.right)]
    calls = [item for item in factors if isinstance(item, ast.Call) and module.name_of(item.func) == forward]
    return [path_of(item.args[0]) for item in calls if _length(item) == length]


def _is_shared(module: Module, node: ast.expr) -> bool:
    """Return whether a spectrum is used for something else, too."""
    return isinstance(node, ast.Name) and len(module.names(node.id, module.scope(node))) != 2


def _cut(module: Module, node: ast.expr) -> str:
    """Return the end in ``x[..., :end]``, of the last dimension."""
    around = module.parents[node]
    places = around.slice if isinstance(around, ast.Subscript) and around.value is node else None
    last = places.elts[-1] if isinstance(places, ast.Tuple) else None
    if not isinstance(last, ast.Slice) or last.lower or last.step or last.upper is None:
        return ""
    return source(module, last.upper)
