"""From paths to a :class:`~torchtriage.diagnose.lint.result.LintResult`."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from torchtriage.core.finding import Finding, Frame, Place
from torchtriage.core.version import __version__
from torchtriage.diagnose.lint.base import Hit, RuleEntry, catalogue, lookup
from torchtriage.diagnose.lint.comments import Allowance, allowances
from torchtriage.diagnose.lint.conditions import host_lines
from torchtriage.diagnose.lint.edits import apply, diff, lines_of
from torchtriage.diagnose.lint.facts import SourceFunction
from torchtriage.diagnose.lint.result import SCHEMA, LintResult, Odd, SourcePatch, Unused
from torchtriage.diagnose.lint.sources import LintSource, Tally, find, python_source, read, source_of
from torchtriage.diagnose.lint.walk import walk


def lint(
    paths: Iterable[str],
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    exclude: Collection[str] = (),
    notes: bool = False,
    fix: bool = False,
    named: Callable[[str], str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> LintResult:
    """Look at Python files, notebooks and folders of them.

    Parameters
    ----------
    paths : iterable of str
        Files and folders.
    only, skip : collection of str
        Codes or names of rules: run only these, leave these out.
    exclude : collection of str
        Patterns of paths below the given folders to leave out.
    notes : bool
        Keep findings of severity ``note``, which are counted otherwise.
    fix : bool
        Write the autofixes into the files; the findings are those of what is written.
    named : callable, optional
        Returns what a path is called in the result; as it lies below the working folder by default.
    progress : callable, optional
        Called with the number of files looked at so far.

    Raises UsageError: a path does not exist, or a code is unknown.
    """
    run = _Run(only, skip, notes=notes, fix=fix, named=named or _shown)
    # millions of nodes that all live until the file is done: collecting finds nothing
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number, path in enumerate(find(paths, exclude, run.tally)):
            source = read(path, run.tally)
            if source is not None:
                run.look(source)
            if number % 1024 == 1023:
                gc.collect()
            if progress is not None:
                progress(number + 1)
    finally:
        if collecting:
            gc.enable()
    return run.result()


def lint_text(
    text: str | bytes,
    path: str = "<stdin>",
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    notes: bool = False,
) -> LintResult:
    """Look at one source that is given as text."""
    run = _Run(only, skip, notes=notes, fix=False, named=_shown)
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    source = source_of(path, data, run.tally)
    if source is not None:
        run.look(source)
    return run.result()


class _Run:
    def __init__(
        self, only: Collection[str], skip: Collection[str], *, notes: bool, fix: bool, named: Callable[[str], str]
    ) -> None:
        wanted = {lookup(item).rule.code for item in only}
        unwanted = {lookup(item).rule.code for item in skip}
        self.entries = [
            entry
            for entry in catalogue()
            if (not wanted or entry.rule.code in wanted) and entry.rule.code not in unwanted
        ]
        self.notes, self.fix, self.named = notes, fix, named
        self.tally = Tally()
        self.findings: list[Finding] = []
        self.unused: list[Unused] = []
        self.patches: list[SourcePatch] = []
        self.n_suppressed = self.n_notes = 0

    def look(self, source: LintSource, *, mended: bool = False) -> None:
        """Find what one file holds, or still holds once it is ``mended``."""
        shown = self.named(source.path)
        try:
            module = walk(source.tree, source.text, shown)
            found = [
                (entry, hit)
                for entry in self.entries
                if not (entry.rule.device and module.on_cpu)
                for hit in entry.find(module)
            ]
        except RecursionError:
            self.tally.odd.append(Odd(source.path, 0, "nested too deeply to be analysed"))
            return
        hosts = [span for function in module.functions for span in host_lines(function.node)]
        found = [
            (entry, hit)
            for entry, hit in _specific(found)
            if not (entry.rule.device and any(first <= hit.node.lineno <= last for first, last in hosts))
        ]
        found.sort(key=lambda item: (item[1].node.lineno, item[1].node.col_offset, item[0].rule.code))
        allowed = allowances(source.text, source.tree)
        kept = [(entry, hit) for entry, hit in found if not _allow(entry, hit, allowed)]
        reported = [
            (entry, hit) for entry, hit in kept if self.notes or (hit.severity or entry.rule.severity) != "note"
        ]
        functions = module.functions
        module.release()
        if not mended and (new := self._patch(source, shown, reported)) is not None:
            self.look(new, mended=True)
            return
        self.n_suppressed += len(found) - len(kept)
        self.n_notes += len(kept) - len(reported)
        starts = [(function.node.lineno, function.node.end_lineno or 0, function) for function in functions]
        self.findings += [_finding(entry, hit, source, shown, starts) for entry, hit in reported]
        self._unused(shown, allowed)

    def _unused(self, shown: str, allowed: list[Allowance]) -> None:
        known = {key for entry in catalogue() for key in (entry.rule.code, entry.rule.name)}
        running = {key for entry in self.entries for key in (entry.rule.code, entry.rule.name)}
        for item in allowed:
            strange = tuple(code for code in item.codes if _key(code) not in known)
            idle = tuple(code for code in item.codes if _key(code) in running and code not in item.used)
            said = (
                (not item.codes, (), "expected codes after 'allow', found none"),
                (strange, strange, f"no rule is called {', '.join(strange)}"),
                (idle, idle, f"allows {', '.join(idle)}, which is not found here"),
            )
            self.unused += [Unused(shown, item.line, codes, message) for holds, codes, message in said if holds]

    def _patch(self, source: LintSource, shown: str, reported: list[tuple[RuleEntry, Hit]]) -> LintSource | None:
        """Note what autofix changes in a file; return the file as it is then, None where it is not written."""
        offered = [(entry.rule.code, hit.autofix) for entry, hit in reported if hit.autofix is not None]
        if not offered or source.cells:
            return None
        after, done = apply(source.text, [fix for _, fix in offered])
        codes = {code: fix.safe_because for code, fix in offered if fix in done}
        if after == source.text:
            return None
        new = None
        if self.fix:
            try:
                new = _written(source, after)
            except (OSError, UnicodeEncodeError) as error:
                self.tally.odd.append(Odd(source.path, 0, f"cannot be written: {error}"))
        text = diff(source.text, after, shown)
        self.patches.append(SourcePatch(shown, text, tuple(sorted(codes)), codes, new is not None))
        return new

    def result(self) -> LintResult:
        """Return everything that was found."""
        return LintResult(
            schema=SCHEMA,
            version=__version__,
            findings=tuple(self.findings),
            odd=tuple(Odd(self.named(item.file), item.line, item.message) for item in self.tally.odd),
            unused=tuple(self.unused),
            patches=tuple(self.patches),
            n_files=self.tally.n_files,
            n_without_torch=self.tally.n_without_torch,
            n_tests=self.tally.n_tests,
            n_suppressed=self.n_suppressed,
            n_notes=self.n_notes,
            checked=tuple(entry.rule.code for entry in self.entries),
        )


def _key(code: str) -> str:
    return code.upper() if code[-1:].isdigit() and "-" not in code else code


def _shown(path: str) -> str:
    """Return a path relative to the working folder where it lies below it."""
    if not Path(path).is_absolute():
        return os.path.normpath(path) if path not in ("-", "<stdin>") else path
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


def _specific(found: list[tuple[RuleEntry, Hit]]) -> list[tuple[RuleEntry, Hit]]:
    """Drop hits that another rule reports in more detail, and repetitions."""
    spans: dict[str, list[tuple[tuple[int, int], tuple[int, int]]]] = {}
    for entry, hit in found:
        for code in entry.rule.over:
            spans.setdefault(code, []).append(_extent(hit.span or hit.node))
    reported, seen = [], set()
    for entry, hit in found:
        begin, end = _extent(hit.node)
        if any(first <= begin and end <= last for first, last in spans.get(entry.rule.code, ())):
            continue
        identity = (entry.rule.code, begin)
        if identity not in seen:
            seen.add(identity)
            reported.append((entry, hit))
    return reported


def _extent(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    statement: ast.stmt = node  # type: ignore[assignment]
    return (statement.lineno, statement.col_offset), (statement.end_lineno or 0, statement.end_col_offset or 0)


def _allow(entry: RuleEntry, hit: Hit, allowed: list[Allowance]) -> bool:
    silenced = False
    for item in allowed:
        line, last = hit.node.lineno, hit.node.lineno
        if isinstance(hit.node, ast.expr):
            last = hit.node.end_lineno or line
        if not (item.first <= line <= item.last or item.first <= last <= item.last):
            continue
        for code in item.codes:
            if _key(code) in (entry.rule.code, entry.rule.name):
                item.used.add(code)
                silenced = True
    return silenced


def _finding(
    entry: RuleEntry, hit: Hit, source: LintSource, shown: str, functions: list[tuple[int, int, SourceFunction]]
) -> Finding:
    rule, node = entry.rule, hit.node
    line = node.lineno
    evidence: dict[str, Any] = {"column": _column(source, node), "end_line": node.end_lineno}
    around = [item for first, last, item in functions if first <= line <= last]
    function = around[-1].qualname if around else "<module>"
    if source.cells:
        cell, line = source.cells[min(line, len(source.cells)) - 1]
        evidence["cell"] = cell
        evidence["end_line"] = line
    if hit.autofix is not None and not source.cells:
        evidence["autofix"] = hit.autofix.safe_because
    lines = tuple(sorted({line, *hit.also}))
    frame = Frame(file=shown, line=line, function=function, exact=True, called=hit.called, lines=lines)
    return rule.finding(
        severity=hit.severity or rule.severity,
        certainty="hint",
        message=hit.message,
        place=Place(frame=frame),
        cost=None,
        evidence=evidence,
        fix=hit.fix or entry.fix,
    )


def _column(source: LintSource, node: ast.expr | ast.stmt) -> int:
    """Return the column from 1 in characters, as editors count."""
    rows = lines_of(source.text) if not source.text.isascii() else None
    if rows is None or node.lineno > len(rows):
        return node.col_offset + 1
    before = rows[node.lineno - 1].encode("utf-8", "surrogatepass")[: node.col_offset]
    return len(before.decode("utf-8", "replace")) + 1


def _written(source: LintSource, text: str) -> LintSource:
    """Write a file's new text, as its old one was encoded."""
    data = source.encoded(text)
    Path(source.path).write_bytes(data)
    return python_source(source.path, data)
