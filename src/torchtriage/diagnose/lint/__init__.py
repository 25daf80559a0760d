"""Performance anti-patterns that source code alone shows, with exact lines; needs no torch.

``sources`` reads files, ``walk`` turns each into ``facts``, the ``rules`` find hits in them,
``check`` makes findings of those, and ``join`` compares them with a trace. ``edits`` mends the safe
set.
"""

from torchtriage.diagnose.lint.base import Rule, RuleEntry, catalogue, lookup
from torchtriage.diagnose.lint.check import lint, lint_text
from torchtriage.diagnose.lint.result import LintResult

__all__ = ["LintResult", "Rule", "RuleEntry", "catalogue", "lint", "lint_text", "lookup"]
