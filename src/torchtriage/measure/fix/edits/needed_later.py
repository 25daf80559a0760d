"""Compute a value where it is needed: in the one condition that uses it, or after the loop whose last turn it is of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.syntax import names_in
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import Flow, flow_of, loads, meets
from torchtriage.measure.fix.edits._lasting import is_work
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import body_of, bound, complete, insert_after, move_before, remove, source

CODES = words("""
    SYN001 SYN004 LCH014 LCH105 LCH017 HST020 HST106 HST114 HST126 HST135 HST101 KRN101 KRN102 KRN104 CPY010 CPY013
    MEM029
""")
LEARNED = re.compile(r"\.(grad|data|weight|bias)\b|parameters\(|state_dict")
"""What an optimizer changes, or drops, between here and there."""


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the statement at the line moved, with those before it that nothing else needs."""
    flow, body = flow_of(site.module), body_of(site.module, site.statement) if site.statement is not None else None
    if site.statement is None or body is None or not site.loops or not is_work(flow, site.statement):
        return
    for moved in (_together(site, flow, body), [site.statement]):
        edits = _into_condition(site, flow, body, moved) or _after_loop(site, flow, body, moved)
        yield Proposal(edits, f"compute line {site.statement.lineno}'s value only where it is needed")


def _target(flow: Flow, statement: ast.stmt) -> set[str]:
    """Return the variables that a statement does nothing but compute; empty where it does more."""
    if not isinstance(statement, ast.Assign) or not flow.repeats(statement.value):
        return set()
    targets = [item for target in statement.targets for item in getattr(target, "elts", [target])]
    return bound([statement]) if all(isinstance(item, ast.Name) for item in targets) else set()


def _together(site: Site, flow: Flow, body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statement with those right above it whose values only these use."""
    assert site.statement is not None
    moved: list[ast.stmt] = [site.statement]
    for above in reversed(body[: body.index(site.statement)]):
        names = _target(flow, above)
        inside = {node for item in (above, *moved) for node in ast.walk(item)}
        if not names or any(node not in inside for name in names for node in site.module.names(name, site.scope)):
            break
        moved.insert(0, above)
    return moved


def _users(site: Site, flow: Flow, moved: list[ast.stmt]) -> list[ast.Name] | None:
    """Return where the values are used by others; None where they cannot be moved."""
    names: set[str] = set()
    for item in moved:
        target = _target(flow, item)
        if not target:
            return None
        names |= target
    inside = {node for item in moved for node in ast.walk(item)}
    scope = site.scope
    named = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id in names]
    others = [node for node in named if node not in inside]
    # a closure may read them as well
    alone = all(isinstance(node.ctx, ast.Load) and site.module.scope(node) is scope for node in others)
    return others if alone else None


def _stays_meanwhile(flow: Flow, moved: list[ast.stmt], between: list[ast.stmt]) -> bool:
    """Return whether nothing between here and there changes what the values are made of."""
    if any(LEARNED.search(source(flow.module, item)) for item in moved):
        return False
    needed = set().union(*(loads(item) for item in moved)) - set().union(*(bound([item]) for item in moved))
    changed = flow.changes(between) | flow.handed(between)
    return not flow.learns(needed) and not any(meets(path, changed) for path in needed)


def _into_condition(site: Site, flow: Flow, body: list[ast.stmt], moved: list[ast.stmt]) -> tuple[SourceEdit, ...]:
    users = _users(site, flow, moved)
    rest = body[body.index(moved[-1]) + 1 :]
    holders = [item for item in rest if users and any(node in users for node in ast.walk(item))]
    if not users or len(holders) != 1 or not isinstance(holder := holders[0], ast.If):
        return ()
    inside = {node for item in holder.body for node in ast.walk(item)}
    names = set().union(*(_target(flow, item) for item in moved))
    if any(node not in inside for node in users) or names & names_in(holder.test):
        return ()
    if not _stays_meanwhile(flow, moved, rest[: rest.index(holder)]):
        return ()
    edits = [edit for item in moved for edit in move_before(site.module, item, holder.body[0])]
    return tuple(edits) if len(edits) == 2 * len(moved) else ()


def _after_loop(site: Site, flow: Flow, body: list[ast.stmt], moved: list[ast.stmt]) -> tuple[SourceEdit, ...]:
    users, loop = _users(site, flow, moved), site.loops[0]
    leaves = any(isinstance(node, ast.Break | ast.Continue | ast.Return) for node in ast.walk(loop))
    inside = set(ast.walk(loop))
    if not users or body is not loop.body or leaves or loop.orelse or any(node in inside for node in users):
        return ()
    if min(node.lineno for node in users) < (loop.end_lineno or 0):
        return ()
    if not _stays_meanwhile(flow, moved, body[body.index(moved[-1]) + 1 :]):
        return ()
    if isinstance(loop, ast.While) and set().union(*(loads(item) for item in moved)) & loads(loop.test):
        return ()
    text = "\n".join(source(site.module, item) for item in moved)
    if any(item.lineno != item.end_lineno for item in moved):
        return ()
    return complete([insert_after(site.module, loop, text), *(remove(site.module, item) for item in moved)])
