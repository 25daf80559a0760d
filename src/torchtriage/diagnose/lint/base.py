"""What a rule is: a pure function from one file's facts to hits, and the list of all of them.

A rule imports from here the facts, the edits, and what is asked most of syntax; ``syntax`` has the other questions.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from torchtriage.core.docpages import section
from torchtriage.core.errors import PatternError, UsageError
from torchtriage.core.finding import Finding, Fix, Severity
from torchtriage.diagnose.lint.edits import Autofix, add_keyword, decorate, replace_node
from torchtriage.diagnose.lint.facts import (
    Assign,
    Context,
    Module,
    SourceCall,
    SourceEvent,
    SourceFunction,
    SourceLoop,
    is_step,
)
from torchtriage.diagnose.lint.reads import compiled, delivers, logging_calls, reads, text_of
from torchtriage.diagnose.lint.syntax import arguments, keyword, literal, names_in, unpacks

__all__ = [
    "SECTIONS",
    "Assign",
    "Autofix",
    "Context",
    "Fix",
    "Hit",
    "Module",
    "Rule",
    "RuleEntry",
    "Severity",
    "SourceCall",
    "SourceEvent",
    "SourceFunction",
    "SourceLoop",
    "add_keyword",
    "arguments",
    "catalogue",
    "compiled",
    "decorate",
    "delivers",
    "is_step",
    "keyword",
    "literal",
    "logging_calls",
    "lookup",
    "names_in",
    "reads",
    "replace_node",
    "text_of",
    "unpacks",
]

SECTIONS = ("Looks like", "Slow because", "Fix", "Quiet when", "Source")


@dataclass(frozen=True)
class Rule:
    """A rule's identity.

    ``code`` : that of the trace pattern whose source side it is (up to 099), or one of its own
    (101 and up) where a trace cannot show it. ``over`` : codes that say less about the same lines;
    their hits inside a hit of this rule are dropped. ``device`` : it is about work on a device, and
    has nothing to say of a program that runs on the CPU.
    """

    code: str
    name: str
    family: str
    title: str
    severity: Severity
    over: tuple[str, ...] = ()
    device: bool = False

    def finding(self, **seen: Any) -> Finding:
        """Return a finding of this rule; ``seen`` : what :class:`Finding` holds beside code and words."""
        return Finding(code=self.code, name=self.name, family=self.family, title=self.title, **seen)


@dataclass(frozen=True)
class Hit:
    """One place in a file.

    ``node`` : what to point at. ``span`` : what the hit speaks about, for ``Rule.over`` (the node
    unless given). ``called`` : what is called there, for the join with a trace. ``also`` : other lines of the problem.
    """

    node: ast.expr | ast.stmt
    message: str
    called: str = ""
    severity: Severity | None = None
    fix: Fix | None = None
    autofix: Autofix | None = None
    span: ast.AST | None = None
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class RuleEntry:
    """A rule, its function, its fix and its page."""

    rule: Rule
    find: Callable[[Module], Iterator[Hit]]
    fix: Fix
    page: str


@lru_cache(maxsize=1)
def catalogue() -> tuple[RuleEntry, ...]:
    """Return every rule in the folder ``rules``, in order of code.

    Raises PatternError: a module is not of the shape every rule has; the message names it and what is off.
    """
    from torchtriage.diagnose.lint import rules as package

    entries = [
        _entry(importlib.import_module(f"{package.__name__}.{info.name}"))
        for info in pkgutil.iter_modules(package.__path__)
        if not info.name.startswith("_")
    ]
    entries.sort(key=lambda entry: entry.rule.code)
    codes = [entry.rule.code for entry in entries]
    for code in codes:
        if codes.count(code) > 1:
            raise PatternError(f"two rules share the code {code}")
    return tuple(entries)


def lookup(code_or_name: str) -> RuleEntry:
    """Return the rule with this code or name.

    Raises UsageError: there is none; the message suggests near ones.
    """
    wanted = code_or_name.strip().lower()
    known = {key: entry for entry in catalogue() for key in (entry.rule.code.lower(), entry.rule.name)}
    if wanted in known:
        return known[wanted]
    raise UsageError.unknown("rule", code_or_name.strip(), known)


def _entry(module: ModuleType) -> RuleEntry:
    where = module.__name__

    def demand(condition: object, message: str) -> None:
        if not condition:
            raise PatternError(message, where=where, hint="see CONTRIBUTING.md, adding a rule")

    rule, fix = getattr(module, "RULE", None), getattr(module, "FIX", None)
    demand(isinstance(rule, Rule), "expected RULE = Rule(...)")
    demand(isinstance(fix, Fix), "expected FIX = Fix(...)")
    demand(callable(getattr(module, "find", None)), "expected def find(module)")
    assert isinstance(rule, Rule)
    assert isinstance(fix, Fix)
    stem = where.rpartition(".")[2]
    demand(rule.name.replace("-", "_") == stem, f"expected the name of the file, {stem!r}, found {rule.name!r}")
    demand(re.fullmatch(r"[A-Z]{3}\d{3}", rule.code), f"odd code {rule.code!r}")
    entry = RuleEntry(rule, module.find, fix, module.__doc__ or "")
    for title in SECTIONS:
        demand(section(entry.page, title), f"the docstring has no section {title!r}")
    return entry
