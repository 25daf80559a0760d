"""Compute what does not depend on the turn once, before the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import Flow, flow_of
from torchtriage.measure.fix.edits._lasting import connected, lasting, name_for, outdented, parts_of, replaced
from torchtriage.measure.fix.proposal import Loop, Proposal, Site, first_only
from torchtriage.measure.fix.statements import insert_before, move_before

CODES = words("""
    HST020 HST055 HST101 HST103 HST105 HST106 HST110 HST111 HST113 HST114 HST124 HST134 LCH014 LCH015 LCH017 LCH105
    LCH109 SYN005 CPY010 CPY102 CPY103 KRN101 KRN102 KRN103 DAT018 DAT019 DAT105 DAT107 DAT110 DAT113 DAT114
    CMP031 CMP032
""")


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield the move of the statement at the line, or of a part of it, before the outermost loop it does not need."""
    statement, flow = site.statement, flow_of(site.module)
    if statement is None or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for loop in reversed(site.loops):
        if loop is not statement:
            yield _before(site, flow, loop, statement)


def _before(site: Site, flow: Flow, loop: Loop, statement: ast.stmt) -> Proposal | None:
    module, varying = site.module, flow.changes([loop]) | flow.handed_over([loop])
    moved = lasting(flow, loop, loop.body, varying)
    if statement in moved:
        group = connected(module, moved, statement)
        edits = [edit for item in group for edit in move_before(module, item, loop)]
        names = ", ".join(moved[item] for item in group)
        return Proposal(tuple(edits), f"compute {names} once, before the loop on line {loop.lineno}")
    for part in parts_of(flow, statement, varying, loop):
        name = name_for(module, part)
        before = insert_before(module, loop, f"{name} = {outdented(module, part, statement)}")
        if before is not None:
            what = f"compute {name} once, before the loop on line {loop.lineno}"
            return Proposal((before, *replaced(loop.body, part, name)), what)
    return None
