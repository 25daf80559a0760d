"""Subnormal numbers taken for zero by the CPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, insert_after_imports

CODES = frozenset({"CFG105"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the switch behind the imports."""
    module = site.module
    for node in module.tree.body if "set_flush_denormal" not in module.text else ():
        names = [item.asname or item.name for item in getattr(node, "names", ()) if item.name == "torch"]
        if not isinstance(node, ast.Import) or not names:
            continue
        edit = insert_after_imports(module, node, f"{names[0]}.set_flush_denormal(True)")
        yield Proposal(complete((edit,)), "let the CPU treat subnormal numbers as zero")
        return
