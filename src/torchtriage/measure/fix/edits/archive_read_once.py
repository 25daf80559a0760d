"""The arrays of an ``.npz`` read when it is opened, in place of each time that one is asked for by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.facts import Class, Module
from torchtriage.diagnose.lint.syntax import literal, path_of
from torchtriage.measure.fix.edits._escapes import escapes
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.edits._loaders import sample_function
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, insert_after

CODES = frozenset({"DAT103", "DAT105", "HST101", "HST110", "HST111", "HST114", "HST020", "DAT018"})
MAYBE = (ast.If, ast.IfExp, ast.Try, ast.BoolOp)


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the arrays as a dictionary for the archives that what runs for each sample asks at the line."""
    module, function = site.module, sample_function(site)
    owner = function.owner if function is not None else None
    for node in ast.walk(site.statement) if site.statement is not None and owner is not None else ():
        name = path_of(node.value) if isinstance(node, ast.Subscript) and isinstance(literal(node.slice), str) else ""
        opened = _opened(module, owner, name) if owner is not None and name.startswith("self.") else None
        asked = _asked(module, name.removeprefix("self.")) if opened is not None else []
        if opened is None or not asked or escapes(flow_of(module), asked, follow=True):
            continue
        keys = dict.fromkeys(str(literal(item.slice)) for item in asked)
        among = ", ".join(f'"{key}"' for key in keys)
        edit = insert_after(module, opened, f"{name} = {{name: {name}[name] for name in [{among}]}}")
        yield Proposal(complete((edit,)), f"read the arrays of {name} once, and keep them in memory")


def _opened(module: Module, owner: Class, name: str) -> ast.Assign | None:
    """Return where an attribute is set, once: to a file of NumPy's."""
    nodes = [node for node in ast.walk(owner.node) if isinstance(node, ast.Assign)]
    made = [node for node in nodes if name in map(path_of, node.targets)]
    value = made[0].value if len(made) == 1 else None
    is_file = module.name_called(value) == "numpy.load"
    return made[0] if is_file and len(made[0].targets) == 1 else None


def _asked(module: Module, name: str) -> list[ast.Subscript]:
    """Return where an archive is asked for arrays; none where it may not have one of them, or is used otherwise."""
    found: list[ast.Subscript] = []
    for node in module.parents:
        if not isinstance(node, ast.Attribute) or node.attr != name or not isinstance(node.ctx, ast.Load):
            continue
        around = module.parents[node]
        if not isinstance(around, ast.Subscript) or around.value is not node or type(literal(around.slice)) is not str:
            return []
        if module.around(around, *MAYBE) in set(ast.walk(module.scope(around))):
            return []
        found.append(around)
    return found
