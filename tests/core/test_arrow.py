"""Tables in the data frames of others: the same values, and nothing that is freed too early or never."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtriage.core import arrow
from torchtriage.core.arrow import Values
from torchtriage.core.table import Table, union

KINDS = {"at_ns": "int64", "share": "float64", "on": "bool", "name": "text"}
TEXTS = ("x", "é", "")


def table(n: int, *, find: Callable[[str], Values] | None = None) -> Table:
    at = np.arange(n)
    columns = {
        "at_ns": Values(at.astype(np.int64) - 1),
        "share": Values(at / 4.0, at % 3 != 0),
        "on": Values(at % 2 == 0, at % 5 != 0),
        "name": Values((at % 3).astype(np.int32), at % 7 != 0, TEXTS),
    }
    return Table(KINDS, n, find or columns.__getitem__)


def expected(n: int) -> list[dict[str, Any]]:
    return [
        {
            "at_ns": i - 1,
            "share": i / 4.0 if i % 3 else None,
            "on": i % 2 == 0 if i % 5 else None,
            "name": TEXTS[i % 3] if i % 7 else None,
        }
        for i in range(n)
    ]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    gc.collect()
    arrow.sweep()
    assert not arrow._HELD
    assert not arrow._CAPSULES


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000])
def test_pyarrow_reads_every_kind_of_column_and_null(n: int) -> None:
    pa = pytest.importorskip("pyarrow")
    read = pa.table(table(n))
    read.validate(full=True)
    assert read.to_pylist() == expected(n)
    assert pa.schema(table(n)) == read.schema


@pytest.mark.parametrize("n", [0, 1, 9, 1000])
def test_polars_reads_the_same(n: int) -> None:
    pl = pytest.importorskip("polars")
    assert pl.DataFrame(table(n)).rows(named=True) == expected(n)


def test_pandas_reads_the_same() -> None:
    pd = pytest.importorskip("pandas", minversion="3")
    read = pd.DataFrame.from_arrow(table(100)).astype(object)
    assert read.where(read.notna(), None).to_dict("records") == expected(100)


def test_duckdb_reads_the_same_and_again() -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("one", table(1000))
        for _ in range(2):
            rows = connection.execute('select at_ns, share, "on", name from one').fetchall()
            assert rows == [tuple(row.values()) for row in expected(1000)]


def test_batches_join_where_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(arrow, "BATCH_ROWS", 16)
    read = pa.table(table(41))
    assert read["at_ns"].num_chunks == 3
    assert read.to_pylist() == expected(41)


def test_what_a_consumer_keeps_outlives_the_table() -> None:
    pa = pytest.importorskip("pyarrow")
    column = pa.table(table(1000))["name"]
    gc.collect()
    assert column.to_pylist() == [row["name"] for row in expected(1000)]
    del column


def test_another_thread_may_let_go() -> None:
    pa = pytest.importorskip("pyarrow")
    held = [pa.table(table(1000))]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


def test_a_stream_that_is_left_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(arrow, "BATCH_ROWS", 16)
    reader = pa.RecordBatchReader.from_stream(table(41))
    assert reader.read_next_batch().num_rows == 16
    del reader


def test_capsules_that_nobody_takes() -> None:
    table(9).__arrow_c_stream__()
    table(9).__arrow_c_schema__()


def test_a_column_that_fails_is_the_callers_error() -> None:
    pa = pytest.importorskip("pyarrow")

    def find(name: str) -> Values:
        raise ValueError(f"no {name} today")

    with pytest.raises(ValueError, match="no at_ns today"):
        pa.table(table(9, find=find))


def test_a_stream_that_fails_is_the_consumers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(arrow._Source, "send_batch", lambda source, address: {}["no batch today"])
    reader = pa.RecordBatchReader.from_stream(table(9))
    with pytest.raises(OSError, match="KeyError: 'no batch today'"):
        reader.read_next_batch()
    del reader


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_consumer_that_lets_go_while_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(arrow._Source, "send_batch", lambda source, address: {}["no batch today"])
    with pytest.raises((OSError, SystemError)):
        pa.table(table(9))


def test_a_consumer_that_refuses_keeps_its_own_error() -> None:
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="'names' and 'metadata'"):
        pa.table(table(9), names=["a", "b"])


@pytest.mark.parametrize("keep", ["held", "sys.held", "test_arrow.held", "pyarrow.held"])
def test_a_program_may_end_while_it_holds_one(keep: str) -> None:
    pytest.importorskip("pyarrow")
    code = f"import pyarrow, sys, test_arrow; {keep} = pyarrow.table(test_arrow.table(9))"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_several_tables_as_one() -> None:
    parts = [table(3), table(0), table(9)]
    rows = [row for batch in union(parts).batches(5) for row in zip(*batch, strict=True)]
    assert rows == [tuple(row.values()) for part in (3, 0, 9) for row in expected(part)]


def test_columns_as_arrays() -> None:
    one = table(15)
    assert one["at_ns"].tolist() == list(range(-1, 14))
    assert one["share"].tolist() == [row["share"] for row in expected(15)]
    assert one["name"].tolist() == [row["name"] for row in expected(15)]
