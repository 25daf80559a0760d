"""The models that a finding on gradients for another model's step names, as the file calls them."""

from __future__ import annotations

import ast

from torchtriage.diagnose.lint.syntax import path_of, walk
from torchtriage.measure.fix.proposal import Site


def other_models(site: Site, *, needless: bool) -> set[str]:
    """Return the last names of their variables: ``G`` of ``self.G``, by name or as ``self.G = Generator()`` makes it.

    Empty unless the way back through them is needless, or needed, as asked.
    """
    evidence = site.finding.evidence
    names = set(evidence.get("models", ())) if evidence.get("needless") is needless else set()
    for node in walk(site.module.tree) if names else ():
        made = node.value if isinstance(node, ast.Assign) else None
        made_of = path_of(made.func).rpartition(".")[2] if isinstance(made, ast.Call) else ""
        if made_of in names and made_of[:1].isupper():  # a class; a model's result is none
            assert isinstance(node, ast.Assign)
            names |= {path_of(target).rpartition(".")[2] for target in node.targets}
    return names - {""}
