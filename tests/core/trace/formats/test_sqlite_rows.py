"""Databases of other profilers: typed columns, and no harm from hostile ones."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace.formats import sqlite_rows
from torchtriage.core.trace.formats.sqlite_rows import MISSING, Database, open_database


def write(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    with open_database(path, "x.db") as database:
        yield database


def test_numbers_and_texts(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.db",
        "CREATE TABLE t (a INTEGER, b TEXT)",
        "INSERT INTO t VALUES (1, 'é'), (NULL, NULL), ('text', x'ff00'), ('7', 5), (1.5, '')",
        "INSERT INTO t VALUES (9223372036854775807, 'z')",
    )
    with opened(path) as database:
        (block,) = database.read("t", ["a", "none", "a+1"], ["b", "none"])
    assert len(block) == 6
    assert block.numbers[0].tolist() == [1, MISSING, MISSING, 7, 1, MISSING]
    assert block.numbers[1].tolist() == [MISSING] * 6
    assert block.numbers[2].tolist()[:2] == [2, MISSING]
    assert list(block.texts[0]) == ["é".encode(), b"", b"\xff\0", b"5", b"", b"z"]
    assert list(block.texts[1]) == [b""] * 6


def test_a_long_text_is_cut_and_a_table_of_many_rows_comes_in_blocks(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.db",
        "CREATE TABLE t (a INTEGER, b TEXT)",
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i < 39999)"
        " INSERT INTO t SELECT i, '' FROM n",
        "UPDATE t SET b = printf('%.*c', 100000, 'x') WHERE a = 7",
    )
    with opened(path) as database:
        blocks = list(database.read("t", ["a"], ["b"], where="a % 2 = 1"))
        assert database.count("t") == 40_000
        assert database.count("t", "a < 10") == 10
        assert database.row("t", 3, where="a % 2 = 1")["a"] == 7
    assert len(blocks) == 2
    assert np.array_equal(np.concatenate([block.numbers[0] for block in blocks]), np.arange(1, 40_000, 2))
    assert max(map(len, blocks[0].texts[0])) == sqlite_rows.LONGEST + 1


def test_only_what_a_real_table_stores_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.db",
        "CREATE TABLE t (a INTEGER, b INTEGER AS (length(hex(zeroblob(1000)))), c INTEGER DEFAULT 5)",
        "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n) SELECT i AS a FROM n",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END",
    )
    write(path, "DROP TRIGGER g", "INSERT INTO t (a) VALUES (1)")
    with opened(path) as database:
        assert database.tables["t"] == {"a", "c"}
        assert not {"v", "f"} & set(database.tables)
        assert not list(database.read("v", ["a"]))
        assert database.has("t", "a", "c")
        assert not database.has("t", "b")
        (block,) = database.read("t", ["a", "b", "c"])
        assert [values.tolist() for values in block.numbers] == [[1], [MISSING], [5]]


def test_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (a INTEGER)")
        connection.commit()
    before = path.read_bytes()
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        with opened(path) as database:
            assert not list(database.read("t", ["a"]))
    finally:
        tmp_path.chmod(0o700)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["x.db"]


def large(path: Path) -> bytearray:
    write(
        path,
        "CREATE TABLE t (a INTEGER)",
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i < 99999) INSERT INTO t SELECT i FROM n",
    )
    return bytearray(path.read_bytes())


def test_a_damaged_page_costs_the_rest_of_its_table(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    data = large(path)
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with opened(path) as database:
        n_rows = sum(map(len, database.read("t", ["a"])))
        assert 0 < n_rows < 100_000
        assert database.loss.n_lost == 1
        assert "the table t cannot be read beyond" in database.loss.messages[0]


def test_pages_that_are_children_of_several(tmp_path: Path) -> None:
    """A table whose every branch leads to the same leaf claims rows without end."""
    path = tmp_path / "x.db"
    data = large(path)
    page, first = 4096, 4096
    # the root of the table: an inner page whose cells hold the numbers of its children
    assert data[first] == 5
    n_cells = int.from_bytes(data[first + 3 : first + 5], "big")
    places = [int.from_bytes(data[first + 12 + 2 * i : first + 14 + 2 * i], "big") for i in range(n_cells)]
    children = [int.from_bytes(data[first + at : first + at + 4], "big") for at in places]
    # every other page becomes a copy of the root, down to a leaf
    root, leaf = bytes(data[first : first + page]), children[-1]
    for depth, number in enumerate(children[:6]):
        copy = bytearray(root)
        for at in places:
            copy[at : at + 4] = (children[depth + 1] if depth < 5 else leaf).to_bytes(4, "big")
        data[(number - 1) * page : number * page] = copy
    for at in places:
        data[first + at : first + at + 4] = children[0].to_bytes(4, "big")
    path.write_bytes(data)
    with opened(path) as database:
        n_rows = sum(map(len, database.read("t", ["a"])))
        assert n_rows * 6 <= len(data)
        assert "more than the file has room for" in database.loss.messages[0]


def test_texts_that_share_their_pages(tmp_path: Path) -> None:
    """A text's pages are a chain that any row may point to: each claims the whole of it."""
    path = write(
        tmp_path / "x.db",
        "PRAGMA page_size=512",
        "CREATE TABLE t (a INTEGER, b TEXT)",
        "INSERT INTO t VALUES (1, printf('%.*c', 40000, 'x'))",
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i < 3000)"
        " INSERT INTO t SELECT i, printf('%.*c', 600, 'y') FROM n",
    )
    data = path.read_bytes()
    # what its own page holds of the long text, then the first page of the rest
    (chain,) = re.findall(rb"(?<!x)x{300,400}([^x]...)", data, re.DOTALL)
    # a row of 600 characters, 92 of them in its own page, becomes one of 7,712 whose others are those of the long text
    row = re.compile(
        re.escape(_varint(606)) + rb"(..)\x04\x02" + re.escape(_varint(1213)) + rb"(..)(y{92})....", re.DOTALL
    )
    size, text = _varint(7718), _varint(2 * 7712 + 13)
    data, n_rows = row.subn(lambda found: size + found[1] + b"\x04\x02" + text + found[2] + found[3] + chain, data)
    assert n_rows > 2000
    path.write_bytes(data)
    with opened(path) as database:
        n_bytes = sum(sum(map(len, block.texts[0])) for block in database.read("t", ["a"], ["b"]))
        assert "more than the file has room for" in database.loss.messages[0]
        assert n_bytes <= 2 * len(data)


def _varint(number: int) -> bytes:
    return bytes([0x80 | number >> 7, number & 0x7F])


def test_what_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    large(path)
    monkeypatch.setattr(sqlite_rows, "_SECONDS", -10.0)
    with pytest.raises(TraceFormatError, match="take too long"), opened(path) as database:
        list(database.read("t", ["a"], where="a < 0"))


@pytest.mark.parametrize("cut", [50, 100, 3000, 4096, 5000, 3 * 4096])
def test_cut_files_are_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(bytes(large(path)[:cut]))
    with pytest.raises(TraceFormatError, match="expected a database that can be read") as caught, opened(path):
        pass
    assert str(caught.value).count("\n") == 1
