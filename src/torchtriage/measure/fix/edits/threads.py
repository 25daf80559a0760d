"""Leave the number of threads to the machine where the program asks for more than it has, or for one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import remove, source

CODES = words("CFG101 CFG102")
SETS = re.compile(r"^torch\.set_num_(interop_)?threads$")
VARIABLE = re.compile(r"^(OMP|MKL|OPENBLAS|NUMEXPR|VECLIB)_(NUM|MAXIMUM|MAX)_THREADS$")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the file without the statements that set a number of threads."""
    module = site.module
    found = [call.node for call in module.calls if SETS.match(call.name)]
    statements: list[ast.stmt] = [item for call in found if isinstance(item := module.parents.get(call), ast.Expr)]
    for node in module.tree.body:
        texts = [str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)]
        sets = isinstance(node, ast.Assign | ast.Expr) and "environ" in source(module, node)
        if sets and any(map(VARIABLE.match, texts)):
            statements.append(node)
    lines = {line for item in statements for line in range(item.lineno, (item.end_lineno or item.lineno) + 1)}
    if site.line not in lines:
        return
    edits = tuple(edit for item in statements if (edit := remove(module, item)) is not None)
    yield Proposal(edits, "leave the number of threads at its default")
