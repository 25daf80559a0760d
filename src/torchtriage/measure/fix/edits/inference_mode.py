"""Run what nobody differentiates without autograd: a decorator on its function, or a block around its loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from torchtriage.diagnose.lint.base import decorate
from torchtriage.diagnose.lint.facts import Module, SourceFunction
from torchtriage.diagnose.lint.rules._trained import GRADIENTS, takes_gradients
from torchtriage.measure.fix.edits._torch import called_by_training, calls_at, torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import wrap

CODES = frozenset({"CFG043", "MEM029"})

TRAINS = re.compile(rf"{GRADIENTS.pattern}|\.fit\(")
IN_PLACE = re.compile(r"\.[a-z]\w*[a-z0-9]_\(")
Generator = ast.Yield | ast.YieldFrom


def propose(site: Site) -> Iterator[Proposal]:
    """Yield a decorator for the function around the line, a block around its loop, or around the one statement.

    A caller is asked only where the finding's own line has none.
    """
    frame = site.finding.place.frame
    same_file = frame is not None and Path(frame.file).name == Path(site.module.path).name
    if frame is None or _is_own(site) or not same_file or not any(_at(Site(site.module, frame.line, site.finding))):
        yield from _at(site)


def _at(site: Site) -> Iterator[Proposal]:
    calls = calls_at(site)
    function = site.known_function
    if any(call.context.no_grad for call in calls) or (function is not None and _is_off(function)):
        return
    if function is not None and not takes_gradients(site.module, function.node, TRAINS):
        if function.in_module and function.name == "forward":
            return  # whoever calls a module says whether it is differentiated
        if not _is_own(site) and called_by_training(site.module, function):
            return
        builds = any(
            call.value.kind == "module" and call.receiver.kind != "module" and call.context.function is function
            for call in site.module.calls
        )
        proposals = [*_around_loop(site), *_decorated(site, function)]
        yield from proposals[:1] if builds else proposals[-1:]
        return
    block = list(_around_loop(site))
    if not block and site.finding.code == "CFG043" and _is_own(site):
        block = list(_around_statement(site))
    yield from block
    yield from _callees(site)


def _is_own(site: Site) -> bool:
    """Whether the line is the finding's, not that of a caller."""
    frame = site.finding.place.frame
    return frame is None or site.line in (frame.line, *frame.lines)


def _is_off(function: SourceFunction) -> bool:
    return function.no_grad or function.called_without_grad


def _mode(module: Module) -> str:
    """Return the way to switch autograd off: tensors of inference mode can be neither trained with nor changed."""
    text = module.text
    trains = module.trains or "requires_grad" in text or "backward(" in text or ".fit(" in text
    return "no_grad" if trains or IN_PLACE.search(text) else "inference_mode"


def _decorated(site: Site, function: SourceFunction) -> Iterator[Proposal]:
    """Yield a decorator, which works for generators as well; coroutines would leave it before they run."""
    if isinstance(function.node, ast.FunctionDef):
        torch, imports = torch_in(site.module)
        edit = decorate(site.module.text, function.node, f"{torch}.{_mode(site.module)}()")
        yield Proposal((edit, *imports), f"run {function.name}() without autograd")


def _callees(site: Site) -> Iterator[Proposal]:
    """Yield decorators for what a training loop calls only to keep its result."""
    statement = site.statement
    if not isinstance(statement, ast.Expr | ast.AugAssign):
        return
    for call in calls_at(site):
        callee = call.callee
        plain = callee is not None and not callee.in_module and callee.runs_module
        if callee is None or not plain or _is_off(callee) or takes_gradients(site.module, callee.node, TRAINS):
            continue
        if sum(edge is callee for _, edge in site.module.edges) == 1:
            yield from _decorated(site, callee)


def _around_loop(site: Site) -> Iterator[Proposal]:
    loop = site.step_loop
    if loop is None or any(isinstance(node, Generator) for node in ast.walk(site.function or loop)):
        return  # whoever asks for the next item would run without autograd
    yield from _block(site, loop, _mode(site.module), f"run the loop on line {loop.lineno} without autograd")


def _around_statement(site: Site) -> Iterator[Proposal]:
    statement = site.statement
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
        yield from _block(site, statement, "no_grad", f"compute line {statement.lineno} without autograd")


def _block(site: Site, statement: ast.stmt, mode: str, what: str) -> Iterator[Proposal]:
    torch, imports = torch_in(site.module)
    edits = wrap(site.module, [statement], f"with {torch}.{mode}():")
    if edits and not takes_gradients(site.module, statement, TRAINS):
        yield Proposal((*edits, *imports), what)
