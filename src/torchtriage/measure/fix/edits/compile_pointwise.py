"""Compile a function that is a chain of pointwise operators, or the model that a loop launches operator by operator."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import compiled, decorate
from torchtriage.diagnose.lint.facts import Module, SourceFunction
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._torch import calls_at, torch_in
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, insert_after, source

LAST = True
CODES = frozenset({"HST020", "HST114", "LCH014", "LCH015"})

SHORTEST = 5
"""Operators in a chain that compilation is tried for."""
POINTWISE = words("""
    abs add addcdiv addcmul clamp clamp_max clamp_min clip cos cosh div erf exp exp2 expm1 floor fmod gelu hypot lerp
    log log10 log1p log2 maximum minimum mul neg pow reciprocal relu remainder round rsqrt sigmoid sign silu sin sinh
    softplus sqrt square sub tan tanh where atan2 roll logaddexp softmax
""")
# what breaks the graph, or gives other random numbers when compiled
UNFIT = re.compile(
    r"\.(item|tolist|numpy|cpu|append|nonzero|tobytes)\(|\b(print|open|float|int|input|np\.|numpy\.)\(?|\blog(ger|ging)?\."
    r"|rand|ropout|bernoulli|normal_|uniform_|multinomial|generator|backward\(|\.grad\b|\byield\b|\bawait\b|time\."
)


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the decorator for the chain that the line is part of, or ``compile()`` of the model that it calls."""
    module, function = site.module, site.known_function
    if any(compiled(call.context) for call in calls_at(site)):
        return
    if function is not None and _is_chain(module, function):
        torch, imports = torch_in(module)
        edit = decorate(module.text, function.node, f"{torch}.compile")
        yield Proposal((edit, *imports), f"compile {function.name}() into fused kernels")
    elif site.finding.code in ("LCH014", "LCH015", "HST020"):
        yield from _model(site)


def _is_chain(module: Module, function: SourceFunction) -> bool:
    node = function.node
    if function.compiled or function.compiled_by_caller or not isinstance(node, ast.FunctionDef):
        return False
    if any(UNFIT.search(source(module, part)) for part in node.body) or _keeps_state(function):
        return False
    inside = set(ast.walk(node))
    if any(isinstance(part, ast.For | ast.While | ast.Try | ast.With) for part in inside):
        return False
    calls = [call for call in module.calls if call.node in inside]
    if any(call.receiver.kind == "module" or call.callees for call in calls):
        return False
    n_calls = sum(call.attr.removesuffix("_") in POINTWISE for call in calls)
    n_operators = sum(isinstance(part, ast.BinOp | ast.Compare) for part in inside)
    return n_calls + n_operators >= SHORTEST and any(module.value(part).kind == "tensor" for part in _results(node))


def _results(node: ast.FunctionDef) -> Iterator[ast.expr]:
    for part in ast.walk(node):
        if isinstance(part, ast.Return | ast.Assign | ast.AugAssign | ast.Expr) and part.value is not None:
            yield part.value


def _keeps_state(function: SourceFunction) -> bool:
    """Return whether it counts on its object: another number each time would be compiled each time."""
    return any(
        isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Attribute) for part in ast.walk(function.node)
    )


def _model(site: Site) -> Iterator[Proposal]:
    module = site.module
    layers = [known.node for known in module.classes.values() if known.is_module]
    if "ropout" in module.text or ".compile(" in module.text or any(UNFIT.search(source(module, x)) for x in layers):
        return
    for call in calls_at(site):
        path = path_of(call.node.func)
        if call.receiver.kind != "module" or not path or call.context.in_module or call.receiver.of.endswith("Loss"):
            continue
        made = [item for item in module.assigns if item.target == path and item.how == "="]
        if len(made) == 1 and isinstance(made[0].node, ast.stmt) and made[0].value.kind == "module":
            yield Proposal(complete((insert_after(module, made[0].node, f"{path}.compile()"),)), f"compile {path}")
