"""The corpus run on the installed torch: right cause, right line, and the cure works."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from compile.logs import corpus_tables

from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.read import read_logs
from torchtriage.compile.logs.result import CompileResult, Recompile

pytestmark = pytest.mark.torch

CORPUS = Path(__file__).with_name("corpus.py")
SHARE = 0.95


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    folder = tmp_path_factory.mktemp("log")
    environment = {**os.environ, "TORCH_TRACE": str(folder)}
    environment.pop("TORCH_LOGS", None)
    subprocess.run([sys.executable, str(CORPUS)], env=environment, check=True, timeout=300, capture_output=True)
    logs, refused = read_logs([str(folder)])
    assert refused == []
    return judge(logs)


def marked() -> dict[str, int]:
    """Return the line of each program's cause."""
    source = CORPUS.read_text("utf-8")
    rows = source.split("\n")
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            at = [line for line in lines if "# here" in rows[line - 1]]
            if at:
                found[node.name] = at[0]
    return found


def test_every_break_is_found_at_its_line(result: CompileResult) -> None:
    lines = marked()
    missed = []
    for name, told in corpus_tables.BREAKS.items():
        right = any(
            frame is not None
            and frame.line == lines[name]
            and re.search(told, f"{one.id} {one.type} {one.context} {one.explanation}")
            for one in result.breaks
            for frame in (one.frame, one.caller)
        )
        if not right:
            missed.append(name)
    assert len(missed) <= (1 - SHARE) * len(lines), missed


def test_the_cures_leave_no_break(result: CompileResult) -> None:
    left = {frame.function for one in result.breaks for frame in one.functions}
    assert {name for name in left if name.endswith("_cured")} == set()


def rows_of(name: str, result: CompileResult) -> list[Recompile]:
    """Return the recompilations of a program, whose function or class has this name."""
    owner = {"Switching": "forward", "Counting": "forward"}.get(name, name)
    lines = defined()[name]
    rows = [recompile for recompile in result.recompiles if recompile.function.function == owner]
    return [row for row in rows if row.function.line in lines]


def defined() -> dict[str, range]:
    """Return the lines of each function and class."""
    return {
        node.name: range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.parse(CORPUS.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_the_cure_that_is_shown_ends_a_recompilation(result: CompileResult) -> None:
    for name, told in corpus_tables.CURES.items():
        shown = [f"{one.fix.text} {one.fix.code}" for one in rows_of(name, result)]
        assert any(told in text for text in shown), (name, shown)
    for name in corpus_tables.DYNAMIC:
        assert [one.dynamic for one in rows_of(name, result)] == ["once"], name
    cured = defined()["CountingCured"]
    left = [
        (recompile.function.function, recompile.guard)
        for recompile in result.recompiles
        if "_cured" in recompile.function.function or recompile.function.line in cured
    ]
    assert left == []
    # and each cured program ran: it was compiled, once for each function
    ran = {function.frame.function: function.n_compiles for function in result.functions}
    wanted = {f"{name}_cured" for name in corpus_tables.CURES} - {"texts_cured", "Counting_cured"}
    wanted |= {"texts_cured_sine", "texts_cured_cosine"}
    wanted |= {f"{name}_cured_dynamic" for name in corpus_tables.DYNAMIC}
    assert {name: ran.get(name) for name in wanted} == dict.fromkeys(wanted, 1)
    assert [function.n_compiles for function in result.functions if function.frame.line in cured] == [1]


def test_what_has_no_cure_is_said_to_be_ordinary(result: CompileResult) -> None:
    assert {*corpus_tables.CURES, *corpus_tables.ORDINARY} == corpus_tables.GUARDS.keys()
    for name in corpus_tables.ORDINARY:
        rows = rows_of(name, result)
        assert rows, name
        for row in rows:
            assert "normal" in row.fix.text
            assert (row.mark_dynamic, row.dynamic, row.bucketing) == ("no", "no", "no")


def test_every_recompilation_has_its_cause(result: CompileResult) -> None:
    rows = [(recompile.function.function, recompile.cause, recompile.source) for recompile in result.recompiles]
    missed = [
        name
        for name, (causes, source) in corpus_tables.GUARDS.items()
        if not any(
            function in (name, "forward")
            and cause in causes.split("|")
            and (seen.startswith(source) or cause == "shape guard")
            for function, cause, seen in rows
        )
    ]
    assert len(missed) <= (1 - SHARE) * len(corpus_tables.GUARDS), missed
    # each program changes one thing; what is made a parameter wants gradients, too
    several = {
        recompile.function.function: [beside.cause for beside in recompile.also]
        for recompile in result.recompiles
        if recompile.also
    }
    assert several == {"subclasses": ["requires grad"]}


def test_the_books_balance(result: CompileResult) -> None:
    books = result.books
    assert books.n_read == books.n_used + books.n_skipped
    assert books.n_breaks == sum(one.count for one in result.breaks)
    assert books.n_recompiles == sum(recompile.count for recompile in result.recompiles)
    damaged = [one.name for one in books.skipped if not one.name.startswith("not part of")]
    assert damaged == []
    assert books.n_damaged == 0
