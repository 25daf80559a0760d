"""Odd sources give one line each, never an error; what is left out is counted."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from pathlib import Path

import pytest
from diagnose.lint.corpus_reader import snippets

from torchtriage.core.errors import UsageError
from torchtriage.diagnose.lint import lint, lint_text
from torchtriage.diagnose.lint.result import LintResult
from torchtriage.diagnose.lint.sources import MAX_BYTES

LOOP = """import torch
for batch in train_loader:
    loss = model(batch.cuda(non_blocking=True)).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"import torch\nprint 'x'\n", "looks like Python 2"),
        (b"import torch\nraise ValueError, 'x'\n", "looks like Python 2"),
        (b"import torch\ndef f(:\n", "does not parse"),
        (b"import torch\nx = \0\n", "null bytes"),
        (b"\x7fELF\2\1\1\0", "null bytes"),
        (b"import torch\nx = '\xff\xfe'\n", "does not parse|cannot be decoded"),
        (b"# -*- coding: nonsense -*-\nimport torch\n", "unknown encoding"),
        (b"import torch\nx = " + b"(" * 5000 + b")" * 5000, "parse|nested"),
        (b"import torch\nx = " + b"-" * 200_000 + b"1", "nested|parse"),
        (b"import torch\n" + b"#" * MAX_BYTES, "MiB"),
        (b"\xef\xbb\xbf# -*- coding: latin-1 -*-\nimport torch\n", "parse|encoding"),
    ],
    ids=["print", "raise", "syntax", "null", "binary", "bytes", "coding", "deep", "unary", "huge", "bom"],
)
def test_one_line_each(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "odd.py"
    file.write_bytes(data)
    result = lint([str(file)])
    assert len(result.odd) == 1
    assert result.findings == ()
    assert "\n" not in result.odd[0].message
    assert re.search(message, result.odd[0].message), result.odd[0].message


def test_the_other_files_still_count(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import torch\ndef f(:\n", encoding="utf-8")
    (tmp_path / "good.py").write_text(LOOP, encoding="utf-8")
    result = lint([str(tmp_path)])
    assert (len(result.odd), len(result.findings), result.n_files) == (1, 1, 2)


def test_tests_hidden_folders_and_excluded_paths_are_left_out(tmp_path: Path) -> None:
    for name in ("a.py", "test_a.py", "tests/b.py", ".venv/c.py", "venv/d.py", "old/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LOOP, encoding="utf-8")
    result = lint([str(tmp_path)], exclude=["old"])
    assert (result.n_files, result.n_tests) == (1, 2)
    assert lint([str(tmp_path / "test_a.py")]).n_files == 1


@pytest.mark.parametrize("pattern", ["src/old", "src/old/", "old", "./src/old", "src/*/old.py"])
def test_what_is_excluded_does_not_depend_on_the_folder_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for name in ("src/a.py", "src/old/old.py", "docs/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(LOOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert [lint([folder], exclude=[pattern]).n_files for folder in (".", "src", "docs/../src")] == [2, 1, 1]
    monkeypatch.chdir(tmp_path / "docs")
    assert lint(["../src"], exclude=[pattern, "", ".", "./"]).n_files == 1
    assert lint([str(tmp_path / "src" / "old" / "old.py")], exclude=[pattern]).n_files == 1


def test_patterns_know_nothing_above_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("app/train.py", "app/app/pkg/model.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(LOOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "app")
    assert [lint([folder], exclude=["app/*"]).n_files for folder in (".", "app", "app/pkg")] == [1, 0, 0]
    (tmp_path / "app" / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "app" / "app")
    assert [lint([folder], exclude=["app/*"]).n_files for folder in (".", "..")] == [0, 1]


def test_files_without_torch_are_counted_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("torch_dtype = 1; print loss\n", encoding="utf-8")
    result = lint([str(tmp_path)])
    assert (result.n_files, result.n_without_torch, result.odd) == (2, 2, ())


def test_torch_counts_wherever_an_import_names_it(tmp_path: Path) -> None:
    for at, text in enumerate(
        ("import json, torch", "import numpy as np, torch.nn as nn", "from net import (\n    torch)")
    ):
        (tmp_path / f"{at}.py").write_text(text)
    (tmp_path / "config.py").write_text("import json\ntorch_dtype = 1")
    assert lint([str(tmp_path)]).n_without_torch == 1


def test_links_in_a_circle_and_the_same_file_twice(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(LOOP, encoding="utf-8")
    (tmp_path / "round").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again.py").symlink_to(tmp_path / "a.py")
    (tmp_path / "dead.py").symlink_to(tmp_path / "nothing.py")
    result = lint([str(tmp_path), str(tmp_path / "a.py")])
    assert (len(result.findings), len(result.odd)) == (1, 1)


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "no regular file" in lint([str(tmp_path)]).odd[0].message


def test_a_path_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="found nothing"):
        lint(["nowhere.py"])


def notebook(*cells: str) -> LintResult:
    document = {"cells": [{"cell_type": "code", "source": cell} for cell in cells]}
    return lint_text(json.dumps(document), "demo.ipynb")


def test_notebooks_say_cell_and_line() -> None:
    result = notebook("%matplotlib inline\nimport torch\n!pip list", LOOP)
    (finding,) = result.findings
    assert finding.place.frame is not None
    assert (finding.evidence["cell"], finding.place.frame.line) == (2, 6)


@pytest.mark.parametrize(
    "cell",
    [
        "x = (7\n    % 3)",
        "x = 7 \\\n    % 3",
        'text = """\n%s\n!ls"""',
        'text = "a\u2028%b"',
        "text = 'a\x0c%b'",
        "files = !ls",
        "took = %timeit -o f(1)",
        "if True:\n    !ls # it's (\n    y = 1",
        "!pip install a \\\n    b",
        "torch.nn?\nx = {  # }\n    1}\n%cd ('",
    ],
)
def test_magics_count_only_where_a_statement_begins(cell: str) -> None:
    result = notebook(f"import torch\n{cell}\n{LOOP}")
    assert result.odd == ()
    (finding,) = result.findings
    assert finding.place.frame is not None
    assert finding.place.frame.line == cell.count("\n") + 8


@pytest.mark.parametrize("first", ["%%time", "%%capture out", "%%timeit -n 3", "\n%%prun"])
def test_a_timed_cell_is_part_of_the_program(first: str) -> None:
    (finding,) = notebook("import torch", f"{first}\n{LOOP}").findings
    assert finding.place.frame is not None
    assert finding.place.frame.line == 7 + first.count("\n")
    assert notebook("import torch", f"%%bash\n{LOOP}").findings == ()


@pytest.mark.parametrize("timed", ["%time", "x = %time"])
def test_a_timed_statement_is_part_of_the_program(timed: str) -> None:
    result = notebook("import torch\n%time !ls\n" + LOOP.replace("    print(", f"    {timed} print("))
    assert result.odd == ()
    (finding,) = result.findings
    assert (finding.code, finding.evidence["column"]) == ("SYN004", 4 + len(timed) + 1 + 1)


@pytest.mark.parametrize("line", ["%time for x in y: print(x)", "if True:\n    %time  ", "if True:\n    %time # it"])
def test_timed_blocks_and_nothing_to_time(line: str) -> None:
    assert notebook(f"import torch\n{line}\n{LOOP}").odd == ()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="parses there")
@pytest.mark.parametrize("line", ["type X = int", "def f[T](x: T) -> T: return x", "class A[T]: pass", 'f"{x["a"]}"'])
def test_newer_syntax_says_what_it_needs(line: str) -> None:
    (odd,) = lint_text(f"import torch\n{line}\n").odd
    assert odd.message.endswith("run lint with Python 3.12 or newer")
    assert notebook(f"import torch\n{line}").odd[0].message.endswith("run lint with Python 3.12 or newer")


def test_a_broken_cell_leaves_the_others(tmp_path: Path) -> None:
    result = notebook("import torch\ndef f(:", LOOP)
    assert len(result.findings) == 1
    assert result.odd[0].message.startswith("cell 1 does not parse")


@pytest.mark.parametrize("text", ["import torch {", '["import torch"]', '{"cells": "import torch"}'])
def test_a_broken_notebook_is_odd(text: str) -> None:
    assert len(lint_text(text, "demo.ipynb").odd) == 1


def test_columns_after_a_form_feed_count_the_right_line() -> None:
    (finding,) = lint_text("\x0cx = 1\n" + LOOP.replace("print(loss.item())", 'x["\u00e4"] = loss.item()')).findings
    assert finding.place.frame is not None
    assert (finding.place.frame.line, finding.evidence["column"]) == (7, 14)


def test_cut_and_shuffled_sources_never_fail() -> None:
    chance = random.Random(0)
    for snippet in snippets():
        lines = snippet.text.splitlines(keepends=True)
        for _ in range(4):
            begin = chance.randrange(len(lines))
            lint_text("import torch\n" + "".join(lines[begin:]))
            lint_text(snippet.text[: chance.randrange(len(snippet.text))])
            moved = lines[:]
            chance.shuffle(moved)
            lint_text("import torch\n" + "".join(line.lstrip() for line in moved))


def test_equal_sources_give_equal_results() -> None:
    assert lint_text(LOOP) == lint_text(LOOP)
