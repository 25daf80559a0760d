"""Run what nobody differentiates without autograd: a decorator on its function, or a block around its loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import decorate
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import import_edit, source, wrap

CODES = frozenset({"CFG043", "MEM029"})
USES_GRADIENTS = re.compile(r"\.backward\(|autograd\.grad|requires_grad|\.grad\b")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield a decorator for the function around the line, else a block around the loop that it stands in."""
    torch = next((name for name, full in site.module.aliases.items() if full == "torch"), "")
    imports = () if torch else (import_edit(site.module, "import torch"),)
    function, loop = site.function, site.step_loop
    name = torch or "torch"
    if function is not None and not USES_GRADIENTS.search(source(site.module, function)):
        is_generator = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
        if not is_generator and isinstance(function, ast.FunctionDef):
            edits = [decorate(site.module.text, function, f"{name}.no_grad()"), *imports]
            yield Proposal(tuple(filter(None, edits)), f"run {function.name}() without autograd")
    if loop is not None and not USES_GRADIENTS.search(source(site.module, loop)):
        edits = [*wrap(site.module, [loop], f"with {name}.no_grad():"), *imports]
        yield Proposal(tuple(filter(None, edits)), f"run the loop in line {loop.lineno} without autograd")
