"""Let a profiler record a few steps instead of the whole run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import add_keyword
from torchtriage.diagnose.lint.syntax import keyword
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.proposal import Loop, Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, insert_after, insert_before, module_in, source

CODES = words("MSR045 HST020 HST114")
PROFILERS = words("torch.profiler.profile torch.profiler.profiler.profile")


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield a schedule for ``torch.profiler.profile``, and its ``step()`` at the end of the loop that it is around."""
    module = site.module
    node: ast.AST | None = site.statement
    while node is not None and not isinstance(node, ast.With):
        node = module.parents.get(node)
    if node is None:
        return
    for item in node.items:
        call = item.context_expr
        if not isinstance(call, ast.Call) or module.name_of(call.func) not in PROFILERS:
            continue
        if keyword(call, "schedule") is not None or not isinstance(item.optional_vars, ast.Name):
            continue
        loop = _innermost(site, node)
        if loop is None or f"{item.optional_vars.id}.step" in source(module, loop):
            continue
        torch, imports = module_in(module, "torch")
        schedule = f"{torch}.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)"
        given = add_keyword(module.text, call, "schedule", "few_steps")
        step = insert_after(module, loop.body[-1], f"{item.optional_vars.id}.step()")
        edits = [insert_before(module, node, f"few_steps = {schedule}"), given, step, *imports]
        yield Proposal(complete(edits), "profile a few steps only", "the profile covers three steps")


def _innermost(site: Site, block: ast.With) -> Loop | None:
    """Return the loop of steps in a block, or the one loop that stands in it."""
    steps = {loop.node for loop in site.module.loops if loop.steps}
    loops = [node for node in ast.walk(block) if isinstance(node, ast.For | ast.While)]
    known = [loop for loop in loops if loop in steps]
    return known[-1] if known else loops[0] if len(loops) == 1 else None
