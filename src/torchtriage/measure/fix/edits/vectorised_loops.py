"""Write a loop over the elements of an array as an expression of the whole array."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._elementwise import NotElementwiseError, nest_of
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import indent_of

CODES = words("HST020 HST110 HST114 LCH014 LCH015 LCH017 LCH108 LCH109 SYN001 DAT018 DAT019 DAT114 CPY102 HST055")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the outermost loop around the line, or that begins at it, whose turns can be done at once."""
    for loop in reversed(site.loops):
        if not isinstance(loop, ast.For):
            continue
        nest, indent = nest_of(site.module, loop), indent_of(site.module, loop)
        if nest is None or indent is None:
            continue
        try:
            rows = nest.rows()
        except NotElementwiseError:
            continue
        text = f"\n{indent}".join(rows)
        edit = replace_node(loop, text)
        yield Proposal((edit,), f"compute all elements of the loop in line {loop.lineno} at once")
        return
