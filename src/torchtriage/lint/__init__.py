"""Performance anti-patterns that source code alone shows, with exact lines; needs no torch.

``sources`` reads files, ``walk`` turns each into ``facts``, the ``rules`` find hits in them,
``check`` makes findings of those, and ``join`` compares them with a trace. ``edits`` mends the safe
set.
"""

from torchtriage.lint.base import Entry, Rule, catalogue, lookup
from torchtriage.lint.check import lint, lint_text
from torchtriage.lint.result import LintResult

__all__ = ["Entry", "LintResult", "Rule", "catalogue", "lint", "lint_text", "lookup"]
