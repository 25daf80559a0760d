"""From findings to changes that may mend them: every edit that knows a finding's code is asked at its places."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from torchtriage.core.errors import PatternError
from torchtriage.core.finding import Finding, Frame
from torchtriage.diagnose.lint import base
from torchtriage.diagnose.lint.edits import Autofix, SourceEdit, apply
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.sources import LintSource, python_source
from torchtriage.diagnose.lint.walk import walk
from torchtriage.measure.fix.proposal import Proposal, Site

MOST_PER_FINDING = 4
NEAR = 3
"""Lines between a hit of lint and a finding of the run that are one place."""

MOST_FILES = 60
HOT_LINE = "HST114"
"""The code of a line that takes much of the time: where a finding's own edits know nothing, those of its line may."""


@dataclass(frozen=True)
class Edit:
    """A module of ``edits/``: its name, the codes of findings it may mend, and what it proposes.

    ``elsewhere`` : codes of what may be made in a file that the finding does not point at; it is asked at line 0 of
    each that those import. ``last`` : it pays only in long runs, and is tried after the others.
    """

    name: str
    codes: frozenset[str]
    elsewhere: frozenset[str]
    propose: Callable[[Site], Iterator[Proposal]]
    last: bool = False


@dataclass(frozen=True, eq=False)
class Candidate:
    """A change on trial.

    ``edits`` : by file, relative to the project. ``edit`` : the name of what proposed it.
    """

    finding: Finding
    edit: str
    what: str
    edits: Mapping[str, tuple[SourceEdit, ...]]
    changes: str = ""
    per_run: bool = False
    last: bool = False


@dataclass
class Files:
    """The source files of a project, read and walked once each; ``script`` : what is run, relative to ``root``."""

    root: Path
    script: frozenset[str] = frozenset()
    _known: dict[str, tuple[LintSource, Module] | None] = field(default_factory=dict)

    def path_of(self, frame: Frame) -> str | None:
        """Return the file of a frame, relative to the project; None outside of it.

        Reports may name a file by the last parts of its path: the one file of the project that ends so is meant, of
        several the one that lies there as seen from the script.
        """
        path = Path(frame.file)
        if path.suffix not in (".py", ".pyw"):
            return None
        if path.is_absolute():
            inside = path.is_relative_to(self.root) and path.is_file()
            return path.relative_to(self.root).as_posix() if inside else None
        found = {name for name in self._names if f"/{name}".endswith(f"/{path.as_posix()}")}
        if len(found) > 1:
            found &= {(Path(script).parent / path).as_posix() for script in self.script}
        return found.pop() if len(found) == 1 else None

    def paths_of(self, finding: Finding) -> set[str]:
        """Return the files of the project that a finding's own line and the lines that lead there are in."""
        return {path for _, path in self.frames_of(finding)}

    def frames_of(self, finding: Finding) -> Iterator[tuple[Frame, str]]:
        """Yield a finding's own line and the lines that lead there, those in the project, each with its file."""
        for frame in (finding.place.frame, *finding.place.stack):
            path = self.path_of(frame) if frame is not None else None
            if frame is not None and path is not None:
                yield frame, path

    @cached_property
    def _names(self) -> list[str]:
        return [path.relative_to(self.root).as_posix() for path in self.root.rglob("*.py*") if path.is_file()]

    def others(self, known: Collection[str]) -> list[str]:
        """Return the files of the project that these import, at any depth."""
        todo, reached = list(known), set(known)
        modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in self._names}
        while todo and len(reached) < MOST_FILES:
            looked = self._look(todo.pop())
            wanted = _imports(looked[1].tree) if looked is not None else set()
            for dotted, name in modules.items():
                if name not in reached and any(f".{dotted}".endswith(f".{item}") for item in wanted):
                    reached.add(name)
                    todo.append(name)
        return sorted(reached - set(known))

    def text(self, path: str) -> str:
        """Return the text of a file as it was when it was first asked for."""
        known = self._look(path)
        return known[0].text if known is not None else ""

    def encoded(self, path: str, text: str) -> bytes:
        """Return a new text of a file in the file's own encoding."""
        known = self._look(path)
        return known[0].encoded(text) if known is not None else text.encode()

    def decoded(self, path: str, data: bytes) -> str:
        """Return a file's bytes as text, with its mark if it has one."""
        known = self._look(path)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.decode(known[0].encoding if known is not None else "utf-8", "replace")

    def module(self, path: str) -> Module | None:
        """Return what lint knows of a file and, in ``others``, of those of its program; None: it cannot be parsed."""
        known = self._look(path)
        if known is None:
            return None
        known[1].others = tuple(
            looked[1] for name in self._program if name != path and (looked := self._look(name)) is not None
        )
        return known[1]

    @cached_property
    def _program(self) -> list[str]:
        """The files of what is run; those of the project, outermost first, where that is a module or not known."""
        if self.script:
            return sorted({*self.script, *self.others(self.script)})
        return sorted(self._names, key=lambda name: (name.count("/"), name))[:MOST_FILES]

    def _look(self, path: str) -> tuple[LintSource, Module] | None:
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def _read(self, path: str) -> tuple[LintSource, Module] | None:
        try:
            source = python_source(path, (self.root / path).read_bytes())
            return source, walk(source.tree, source.text, path, whole=True)
        except (OSError, SyntaxError, ValueError, LookupError, RecursionError, MemoryError):
            return None


def _imports(tree: ast.Module) -> set[str]:
    """Return the dotted names that a file imports, of packages and of what may be a module in them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names}
            names |= {node.module} if node.module else set()
    return names


@lru_cache(maxsize=1)
def known_edits() -> tuple[Edit, ...]:
    """Return every edit in the folder ``edits``, in order of name.

    Raises PatternError: a module has no ``CODES`` or no ``propose``.
    """
    from torchtriage.measure.fix import edits

    found: list[Edit] = []
    for info in pkgutil.iter_modules(edits.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{edits.__name__}.{info.name}")
        codes, propose = getattr(module, "CODES", None), getattr(module, "propose", None)
        if not isinstance(codes, frozenset) or not callable(propose):
            raise PatternError("expected CODES = frozenset(...) and def propose(site)", where=module.__name__)
        elsewhere: frozenset[str] = getattr(module, "CODES_ELSEWHERE", frozenset())
        last = getattr(module, "LAST", False)
        found.append(Edit(info.name.replace("_", "-"), codes, elsewhere, propose, last))
    return tuple(found)


def candidates_of(findings: Iterable[Finding], files: Files) -> tuple[list[Candidate], list[Finding]]:
    """Return what may mend the findings, in their order, and the findings that nothing is known for.

    The same change is proposed once, for the first finding that it may mend.
    """
    out: list[Candidate] = []
    without: list[Finding] = []
    seen: set[str] = set()
    for finding in findings:
        codes = (finding.code, HOT_LINE) if finding.saves else (finding.code,)
        by_code = ([item for item in _proposed(finding, code, files) if _changes(item, files)] for code in codes)
        proposed = next(filter(None, by_code), [])
        proposed.sort(key=lambda candidate: (candidate.last, not _is_near(candidate, files)))
        if not proposed:
            without.append(finding)
        fresh = []
        for candidate in proposed:
            identity = repr({path: changed(files.text(path), [edits]) for path, edits in candidate.edits.items()})
            if identity not in seen:
                seen.add(identity)
                fresh.append(candidate)
        out += fresh[:MOST_PER_FINDING]
    return out, without


def changed(text: str, edits: Sequence[tuple[SourceEdit, ...]]) -> str:
    """Return a text after edits; those that do not fit with an earlier one, or break the syntax, are left out."""
    return apply(text, [Autofix(group, "") for group in edits])[0]


def _changes(candidate: Candidate, files: Files) -> bool:
    return all(changed(files.text(path), [edits]) != files.text(path) for path, edits in candidate.edits.items())


def _is_near(candidate: Candidate, files: Files) -> bool:
    """Whether a change is at a line of its finding: it is likelier to be meant than one elsewhere in the function."""
    return any(
        edit.line - NEAR <= line <= edit.end_line + NEAR
        for path, _, line in _places(candidate.finding, files)
        for edit in candidate.edits.get(path, ())
    )


def _proposed(finding: Finding, code: str, files: Files) -> Iterator[Candidate]:
    asked = set()
    for path, module, line in _places(finding, files):
        asked.add(path)
        for autofix in _of_lint(finding, module, line):
            what = finding.fix.text.rstrip(".")
            yield Candidate(finding, "lint", what[:1].lower() + what[1:], {path: autofix.edits})
        for edit in known_edits():
            if code in edit.codes:
                yield from _asked(edit, finding, path, Site(module, line, finding))
    elsewhere = [edit for edit in known_edits() if code in edit.elsewhere]
    for path in files.others(asked | files.script) if elsewhere else ():
        other = files.module(path)
        for edit in elsewhere:
            if other is not None:
                yield from _asked(edit, finding, path, Site(other, 0, finding))


def _asked(edit: Edit, finding: Finding, path: str, site: Site) -> Iterator[Candidate]:
    for proposal in edit.propose(site):
        if proposal.edits:
            per_run = proposal.per_run or (finding.cost is not None and finding.cost.per == "run")
            edits = {path: proposal.edits}
            yield Candidate(finding, edit.name, proposal.what, edits, proposal.changes, per_run, edit.last)


def _places(finding: Finding, files: Files) -> Iterator[tuple[str, Module, int]]:
    """Yield where a finding is: its own line or lines, then the lines of the user's that lead there."""
    seen: set[tuple[str, int]] = set()
    for frame, path in files.frames_of(finding):
        module = files.module(path)
        if module is None:
            continue
        for line in (frame.line, *frame.lines):
            if (path, line) not in seen:
                seen.add((path, line))
                yield path, module, line


def _of_lint(finding: Finding, module: Module, line: int) -> Iterator[Autofix]:
    """Yield the autofixes of the rule with the finding's code near its line."""
    for entry in base.catalogue():
        if entry.rule.code == finding.code:
            for hit in entry.find(module):
                if hit.autofix is not None and abs(hit.node.lineno - line) <= NEAR:
                    yield hit.autofix
