"""What runs for each sample: the code of data sets and collate functions, and what is the same for all samples there.

A value follows the sample when it comes from what a data set is asked for, and varies when it may also be drawn
at random. What does neither is the same for every sample, and could be made once.
"""

import ast
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

from torchtriage.diagnose.lint.facts import Module, SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import names_in, path_of, stored_names
from torchtriage.diagnose.lint.work_syntax import parameters
from torchtriage.diagnose.lint.work_words import CACHES

_RANDOM = re.compile(r"rand|choice|shuffle|sample|uniform|(^|[._])rng|next$|now$|time$|uuid|getpid|worker_info")
_GATHERS = re.compile(r"collat", re.IGNORECASE)
_DATA = re.compile(r"(^|\.)\w*(Dataset|ImageFolder|DatasetFolder)$")
_GETTERS = ("__getitem__", "__getitems__")
_MISSING = re.compile(r"\bis None\b|\bnot in\b|hasattr|\bnot self\.|\.get\(|exists|is_file|\bexcept\b")


def _asked(function: SourceFunction) -> bool:
    """Return whether a function makes the sample that a data set is asked for."""
    if function.owner is None or function.name not in _GETTERS:
        return False
    owner = function.owner
    return function.loads or any(_DATA.search(base) for base in (*owner.bases, owner.name))


def _gathers(function: SourceFunction) -> bool:
    """Return whether a function makes a batch of samples."""
    if _GATHERS.search(function.name) and not function.sets_up:
        return True
    owner = function.owner
    return owner is not None and function.name == "__call__" and _GATHERS.search(owner.name) is not None


class Samples:
    """The code of one file that runs for each sample or batch, in the order in which it is reached.

    ``functions`` : with the names in each that vary from sample to sample. ``follow`` : of these, the names that
    follow from which sample is asked for.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.functions: dict[SourceFunction, set[str]] = {}
        self.follow: dict[SourceFunction, set[str]] = {}
        named = "__getitem" in module.text or "ollat" in module.text
        self.roots = [item for item in module.functions if _asked(item) or _gathers(item)] if named else []
        pending = [(root, parameters(root.node) - {"self"}, parameters(root.node) - {"self"}) for root in self.roots]
        while pending:
            function, varying, following = pending.pop()
            before = self.functions.get(function, set())
            if function in self.functions and varying <= before and following <= self.follow[function]:
                continue
            self.functions[function] = self._spread(function, before | varying, random=True)
            self.follow[function] = self._spread(function, self.follow.get(function, set()) | following, random=False)
            pending += self._calls(function)

    def calls(self) -> Iterator[tuple[SourceFunction, SourceCall]]:
        """Yield the calls that run for each sample or batch with their functions, those of first uses left out."""
        for function in self.functions:
            spans = self._guards[function]
            for call in self.module.calls_by_function[function]:
                if not call.context.seldom and not _guarded(call.node, spans):
                    yield function, call

    def is_fixed(self, node: ast.AST, function: SourceFunction) -> bool:
        """Return whether an expression is the same for all samples."""
        varying = self.functions[function]
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in varying:
                return False
            if isinstance(part, ast.Attribute) and part.attr in self._stored:
                return False
            if isinstance(part, ast.Call):
                path = path_of(part.func)
                if _RANDOM.search(path) or (path.startswith("self.") and path.count(".") == 1):
                    return False
        return True

    def follows(self, node: ast.AST, function: SourceFunction) -> bool:
        """Return whether an expression follows from which sample is asked for."""
        return bool(names_in(node) & self.follow[function])

    @cached_property
    def _stored(self) -> set[str]:
        """Attributes that the code of samples gives values to."""
        return {
            assign.target.rpartition(".")[2]
            for assign in self.module.assigns
            if "." in assign.target and assign.context.function in self.functions
        }

    @cached_property
    def _guards(self) -> dict[SourceFunction, list[tuple[int, int]]]:
        return {function: _guards(function.node) for function in self.functions}

    def _calls(self, function: SourceFunction) -> list[tuple[SourceFunction, set[str], set[str]]]:
        found = []
        spans = _guards(function.node)
        for call in self.module.calls_by_function[function]:
            if _guarded(call.node, spans) or call.stored or call.context.rare:
                continue
            for callee in call.callees:
                if callee is function or callee.name == "__init__" or any(map(CACHES.search, callee.decorators)):
                    continue
                given = callee.given_by(call.node)
                varying = {name for name, node in given.items() if not self.is_fixed(node, function)}
                following = {name for name, node in given.items() if self.follows(node, function)}
                found.append((callee, varying, following))
        return found

    def _spread(self, function: SourceFunction, names: set[str], *, random: bool) -> set[str]:
        """Return the names of a function that come from others, or are drawn at random."""
        pairs = [(stored_names(target), source) for target, source in _bindings(function.node)]
        drawn = {id(source) for _, source in pairs if random and _RANDOM.search(ast.unparse(source))}
        while True:
            more = set(names)
            for targets, source in pairs:
                if id(source) in drawn or names_in(source) & more:
                    more |= targets
            if more == names:
                return names
            names = more


samples_of = lru_cache(maxsize=1)(Samples)
"""The code of a file that runs for each sample, made once: several rules ask for it."""


def _guarded(node: ast.AST, spans: list[tuple[int, int]]) -> bool:
    """Return whether a piece of code stands in one of these ranges of lines."""
    line: int = node.lineno  # type: ignore[attr-defined]
    return any(first <= line <= last for first, last in spans)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is bound in a function, and from what."""
    for part in ast.walk(node):
        if isinstance(part, ast.Assign):
            for target in part.targets:
                yield target, part.value
        elif isinstance(part, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and part.value is not None:
            yield part.target, part.value
        elif isinstance(part, ast.For | ast.AsyncFor | ast.comprehension):
            yield part.target, part.iter
        elif isinstance(part, ast.withitem) and part.optional_vars is not None:
            yield part.optional_vars, part.context_expr


def _guards(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[int, int]]:
    """Return the lines that run for the first sample only: ``if self.file is None``, ``if key not in cache``."""
    found = []
    for part in ast.walk(node):
        if not isinstance(part, ast.If):
            continue
        test = ast.unparse(part.test)
        if _MISSING.search(test):
            found.append((part.body[0].lineno, part.body[-1].end_lineno or 0))
        leaves = isinstance(part.body[-1], ast.Return) and not part.orelse
        if re.search(r"\bis not None\b|\bin self\.|\bin \w*cache|hasattr|exists|is_file", test):
            # what follows an answer from the cache, or stands in its else
            last = node.end_lineno or 0
            if leaves:
                found.append(((part.end_lineno or 0) + 1, last))
            elif part.orelse:
                found.append((part.orelse[0].lineno, part.orelse[-1].end_lineno or 0))
    return found
