"""Source files: what is read, what is not, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtriage.core.source.files import Sources, parse, read


def test_a_cookie_a_mark_and_line_ends_are_understood() -> None:
    latin = parse("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    assert latin.reason == ""
    assert latin.lines[1] == "name = 'é'"
    marked = parse(b"\xef\xbb\xbfx = 1\r\ny = 2\rz = 3\n")
    assert marked.reason == ""
    assert marked.lines[:3] == ["x = 1", "y = 2", "z = 3"]
    # a form feed ends no line of Python
    assert parse(b"a = '\x0c'\nb = 1\n").lines[1] == "b = 1"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"print 'python 2'\n", "not Python 3"),
        (b"def f(:\n", "line 1"),
        (b"x = '\xff'\n", "encoding"),
        (b"# coding: no-such-codec\n", "encoding"),
        (b"x = 1\0\n", ""),
        (b"x = " + b"(" * 5000 + b"\n", ""),
    ],
)
def test_what_is_no_python_of_today_says_why(data: bytes, why: str) -> None:
    source = parse(data)
    assert source.tree is None
    assert why in source.reason
    assert source.reason
    assert source.functions == ()


def test_cells_folders_and_huge_files_are_not_read(tmp_path: Path) -> None:
    assert "notebook" in read("/tmp/ipykernel_41/2718281828.py").reason
    assert "notebook" in Sources([tmp_path]).find("<ipython-input-3-ab12>")[0].reason
    assert read(tmp_path).reason == "not a file"
    large = tmp_path / "large.py"
    large.write_bytes(b"#" * (5 << 20))
    assert "larger than" in read(large).reason


def test_a_shortened_or_moved_path_is_found_below_a_root(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    file = tmp_path / "net" / "train.py"
    file.write_text("x = 1\n")
    sources = Sources([tmp_path])
    for recorded in ("net/train.py", "/workspace/net/train.py", r"C:\work\net\train.py"):
        assert [one.path for one in sources.find(recorded)] == [str(file)]
    assert [one.path for one in Sources([]).find(str(file))] == [str(file)]


@pytest.mark.parametrize("recorded", ["../secret.py", "/etc/passwd", "net.so", "a\0.py", "", "<string>"])
def test_a_recorded_path_opens_nothing_else(tmp_path: Path, recorded: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.py").write_text("x = 1\n")
    assert Sources([root]).find(recorded) == []


def test_confined_sources_open_no_recorded_place_and_no_link_outside(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        folder.mkdir()
    (root / "train.py").write_text("x = 1\n")
    (elsewhere / "other.py").write_text("y = 1\n")
    (root / "link.py").symlink_to(elsewhere / "other.py")
    outside = str(elsewhere / "other.py")
    assert [file.path for file in Sources([root]).find(outside)] == [outside]
    confined = Sources([root], confined=True)
    assert confined.find(outside) == []
    assert confined.find("link.py") == []
    assert [file.path for file in confined.find("train.py")] == [str(root / "train.py")]
    assert [file.path for file in confined.find(str(root / "train.py"))] == [str(root / "train.py")]


def test_functions_start_where_python_says_they_do() -> None:
    text = b"""import functools

@functools.cache
@functools.wraps(len)
def decorated(): pass

class Net:
    def forward(self, x):
        scale = lambda y: y
        return [scale(i) for i in x]

    async def later(self):
        yield 1
"""
    source = parse(text)
    found = {}
    for function in source.functions:
        found[function.name] = function.first_line
    codes = {}
    todo = [compile(text, "f", "exec")]
    while todo:
        code = todo.pop()
        codes[code.co_name] = code.co_firstlineno
        todo += [const for const in code.co_consts if hasattr(const, "co_name")]
    assert codes.items() <= found.items()
    assert source.starting("decorated", 3)
    assert not source.starting("decorated", 5)
    assert source.starting("forward", 8)[0].owner is not None
