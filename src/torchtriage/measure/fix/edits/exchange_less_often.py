"""Exchange gradients with the last micro-batch only, and numbers of a log not in every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import keyword, literal, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import path_called, path_of
from torchtriage.diagnose.lint.walk import is_optimizer_step
from torchtriage.measure.fix.edits._flow import flow_of, loads, meets
from torchtriage.measure.fix.edits._torch import calls_at
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, import_edit, remove, source, wrap

CODES = frozenset({"COM038", "COM101"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``no_sync()`` around the backward pass of all micro-batches but the last; a barrier or exchange less."""
    module = site.module
    if site.finding.code == "COM101":
        for call in calls_at(site):
            flag = keyword(call.node, "sync_dist")
            if flag is not None and literal(flag) is True:
                what = "each rank logs its own number"
                yield Proposal((replace_node(flag, "False"),), what, changes="the log shows one rank's numbers")
            statement = module.parents.get(call.node)
            if call.attr == "barrier" and isinstance(statement, ast.Expr):
                changes = "ranks no longer wait for each other here"
                yield Proposal(complete((remove(module, statement),)), "no barrier in each step", changes=changes)
    elif "no_sync" not in module.text:
        yield from _accumulating(site)


def _accumulating(site: Site) -> Iterator[Proposal]:
    module, loop = site.module, site.step_loop
    model = _parallel(module)
    if loop is None or not model:
        return
    inside = set(ast.walk(loop))
    steps = [call for call in module.sent("step") if call.node in inside and is_optimizer_step(call)]
    passes = [call for call in module.sent("backward") if call.node in inside and not call.context.rare]
    tests = [around.test for call in steps if isinstance(around := module.around(call.node, ast.If), ast.If)]
    if len(tests) != 1 or len(passes) != 1:
        return
    first = _first_use(loop, model)
    last = next((item for item in loop.body if passes[0].node in ast.walk(item)), None)
    if first is None or last is None or loop.body.index(first) > loop.body.index(last):
        return
    flow = flow_of(module)
    decides = next(index for index, item in enumerate(loop.body) if steps[0].node in ast.walk(item))
    end = decides if getattr(loop.body[decides], "test", None) is tests[0] else decides + 1
    varying = flow.changes(loop.body[loop.body.index(first) : end])
    if not flow.repeats(tests[0]) or any(meets(path, varying) for path in loads(tests[0])):
        return
    span = loop.body[loop.body.index(first) : loop.body.index(last) + 1]
    header = f"with nullcontext() if {source(module, tests[0])} else {model}.no_sync():"
    edits = wrap(module, span, header)
    known = module.aliases.get("nullcontext") == "contextlib.nullcontext"
    imports = [] if known else [import_edit(module, "from contextlib import nullcontext")]
    if edits:
        yield Proposal(complete((*edits, *imports)), "exchange gradients with the last micro-batch")


def _parallel(module: Module) -> str:
    """Return the path of the one model in DistributedDataParallel."""
    made = [call for call in module.calls if call.name.endswith("DistributedDataParallel")]
    names = {path_of(node.targets[0]) for call in made if isinstance(node := module.parents.get(call.node), ast.Assign)}
    return names.pop() if len(names) == 1 else ""


def _first_use(loop: ast.For | ast.AsyncFor | ast.While, model: str) -> ast.stmt | None:
    """Return the statement of a loop's body that runs the model: its forward pass decides as well."""
    for item in loop.body:
        if any(path_called(node) == model for node in ast.walk(item)):
            return item
    return None
