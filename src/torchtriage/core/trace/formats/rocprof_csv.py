"""Tables of rocprofv3 in CSV as the columns that Kineto's JSON gives.

Each of a run's tables is a file: ``PREFIX_kernel_trace.csv``, ``PREFIX_hip_api_trace.csv`` and so on. What a table is
shows in the names of its columns, which differ a little between versions. Texts are quoted, and quotes in them are not
marked: what is between the other fields is the text.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.names import visible
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.events import Loss
from torchtriage.core.trace.formats.rocm_rows import SIZES, RocmRows, category_of_domain, keys_of
from torchtriage.core.trace.formats.sqlite_rows import MISSING, whole_numbers
from torchtriage.core.trace.input import Source
from torchtriage.core.units import format_count

_BLOCK_BYTES = 1 << 20
_MOST_LINE_BYTES = 1 << 20
"""No real row comes near this; a longer one is lost."""
_LEAST_LINE, _MOST_QUOTED = 16, 1 << 16
"""Two times, or a GPU and its name, take so much; no row of agents comes near so much."""
_TABLES = (
    "agent_info",
    "hip_api_trace",
    "hsa_api_trace",
    "rccl_api_trace",
    "rocdecode_api_trace",
    "rocjpeg_api_trace",
    "marker_api_trace",
    "kernel_trace",
    "memory_copy_trace",
    "memory_allocation_trace",
    "scratch_memory_trace",
    "counter_collection",
)
"""In the order of their rows in a trace."""
_NAME = re.compile(rf"(?P<prefix>.*?)(?P<table>{'|'.join(_TABLES)})\.csv(?P<packed>\.gz)?", re.DOTALL)
_TIMES = "start_timestamp", "end_timestamp"
_AGENT = re.compile(r"(?P<label>[A-Za-z]+ )?(?P<number>\d{1,9})")


class _Table(NamedTuple):
    """What a table is, the columns that only it has, its text, and what it is called where it is only counted."""

    kind: str
    columns: frozenset[str]
    text: str = ""
    counted: str = ""


_KINDS = (
    _Table("", frozenset({"counter_name", "counter_value"}), "kernel_name", "values of counters"),
    _Table("kernels", frozenset({"kernel_name", "agent_id", *_TIMES}), "kernel_name"),
    _Table("copies", frozenset({"direction", *_TIMES})),
    _Table("", frozenset({"allocation_size", "address"}), "", "allocations of memory"),
    _Table("", frozenset({"alloc_flags", "queue_id"}), "", "allocations of scratch memory"),
    _Table("calls", frozenset({"domain", "function", *_TIMES}), "function"),
    _Table("agents", frozenset({"node_id", "logical_node_id", "agent_type"})),
)


def _digits(text: str) -> bool:
    """Return whether a text is a number as rocprofv3 writes it: ``int`` takes signs, underscores and other scripts."""
    return text.isascii() and text.isdigit()


class _Block:
    """Some rows of a table, by column."""

    def __init__(self, names: dict[str, int], columns: Sequence[Sequence[str]]) -> None:
        self._names = names
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def texts(self, name: str) -> list[str]:
        place = self._names.get(name)
        if place is None:
            return [""] * len(self)
        return [text[1:-1].replace('""', '"') if text[:1] == '"' else text for text in self._columns[place]]

    def numbers(self, name: str) -> Ints:
        place = self._names.get(name)
        if place is None:
            return np.full(len(self), MISSING)
        texts = self._columns[place]
        if "" in texts or not _digits("".join(texts)):  # one look at all of them is quick
            texts = [text if _digits(text) else "" for text in (text.strip('"') for text in texts)]
        return whole_numbers(texts)


def read_rocprof_csv(
    source: Source, path: object, builder: ColumnBuilder, progress: Callable[[int, int], None] | None
) -> tuple[dict[str, Any], Loss]:
    """Append the rows of an opened table, and of the others of its run; return what else they say, and what is lost.

    ``path`` : what was opened; where it is a file, the others lie beside it.

    Raises TraceFormatError: it holds sums, and not what happened when.
    """
    reader = _Reader(builder, progress)
    for name, opened in _in_order(source, path):
        if opened is None:
            with source.beside(name) as other:
                if other.rocprof == "csv":
                    reader.read(other)
        else:
            reader.read(opened)
    return {**reader.rows.facts(), "unread": reader.unread}, reader.loss


def _in_order(source: Source, path: object) -> Iterator[tuple[str, Source | None]]:
    """Yield the files of a run, and the source of the one that is open."""
    file = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    folder, name = os.path.split(file)
    found = _NAME.fullmatch(name)
    if found is None:
        yield file, source
        return
    for table in _TABLES:
        if table == found["table"]:
            yield file, source
            continue
        others = (Path(folder, f"{found['prefix']}{table}.csv{packed}") for packed in ("", ".gz"))
        other = next((other for other in others if other.is_file() and other.stat().st_size), None)
        if other is not None:
            yield os.fspath(other), None


class _Reader:
    def __init__(self, builder: ColumnBuilder, progress: Callable[[int, int], None] | None) -> None:
        self.rows = RocmRows(builder)
        self.loss = Loss()
        self.unread: dict[str, int] = {}
        self._progress = progress
        self._gpus: dict[str, int] = {}
        self._processes: dict[str, int] = {}

    def read(self, source: Source) -> None:
        """Take a table."""
        blocks = _lines(source)
        head, *lines = next(blocks, [""])
        names = [name.strip().strip('"').lower() for name in head.split(",")]
        table = next((table for table in _KINDS if table.columns.issubset(names)), None)
        if table is None:
            raise TraceFormatError(
                f"expected a table of rocprofv3's traces, found one with the columns {visible(', '.join(names[:8]))}",
                where=source.name,
                hint="pass PREFIX_kernel_trace.csv, or the folder it is in",
            )
        places = {name: place for place, name in enumerate(names)}
        take = {
            "agents": self._take_agents,
            "kernels": self._take_kernels,
            "copies": self._take_copies,
            "calls": self._take_calls,
        }.get(table.kind)
        n_rows = n_bad = 0
        for block in chain([lines], blocks):
            rows = _rows(block, len(names), places.get(table.text, -1))
            n_bad += sum(map(bool, block)) - len(rows)
            if rows and take is not None:
                take(_Block(places, list(zip(*rows, strict=True))))
            n_rows += len(rows)
            if self._progress is not None:
                self._progress(source.n_read, source.size_bytes)
        if table.counted and n_rows:
            self.unread[table.counted] = self.unread.get(table.counted, 0) + n_rows
        if n_bad:
            self.loss.n_lost += n_bad
            self.loss.say(f"{visible(source.name)}: {format_count(n_bad, 'row')} without the columns of its table")
        if source.truncated:
            self.loss.incomplete = True
            self.loss.say(f"{visible(source.name)}: {source.truncated}")

    # -- tables ----------------------------------------------------------------------------

    def _take_agents(self, block: _Block) -> None:
        agents = zip(
            *(block.numbers(name).tolist() for name in ("node_id", "logical_node_id")),
            *(block.texts(name) for name in ("agent_type", "product_name", "name")),
            strict=True,
        )
        gpus = sorted({agent for agent in agents if agent[2] == "GPU"})  # each process lists them
        for number, (node, logical, _, product, name) in enumerate(gpus):
            # older versions write the number of the node alone
            self._gpus[str(node)] = self._gpus[f"Agent {logical}"] = self._gpus[f"GPU {number}"] = number
            self.rows.name_device(number, product or name)

    def _take_kernels(self, block: _Block) -> None:
        start, end, key = self._times(block)
        self.rows.take_kernels(
            start,
            end,
            names=block.texts("kernel_name"),
            lane=self.rows.streams(
                self._devices(block.texts("agent_id")), block.numbers("stream_id"), block.numbers("queue_id")
            ),
            key=key,
            sizes={size: block.numbers(size) for size in SIZES},
        )

    def _take_copies(self, block: _Block) -> None:
        start, end, key = self._times(block)
        kinds = block.texts("direction")
        ends = [block.texts(f"{end}_agent_id") for end in ("destination", "source")]
        if self._gpus:
            target, source = map(self._devices, ends)
        else:
            # which end is the host's is known by the direction alone
            to_host = np.array([kind.endswith("TO_HOST") for kind in kinds], bool)
            target, source = (np.where(to_host, -1, self._devices(ends[0])), self._devices(ends[1]))
        self.rows.take_copies(
            start,
            end,
            kinds=kinds,
            lane=self.rows.streams(
                np.where(target >= 0, target, source), block.numbers("stream_id"), np.zeros(len(block), np.int64)
            ),
            key=key,
            n_bytes=np.full(len(block), -1),
        )

    def _take_calls(self, block: _Block) -> None:
        start, end, key = self._times(block)
        self.rows.take_calls(
            start,
            end,
            lane=self.rows.lanes(block.numbers("process_id"), block.numbers("thread_id")),
            texts=block.texts("function"),
            cat=self.rows.each(block.texts("domain"), category_of_domain),
            key=key,
        )

    def _times(self, block: _Block) -> tuple[Ints, Ints, Ints]:
        """Return start, end and the key that pairs a call with its work."""
        guids = block.texts("guid")
        known = {guid: self._processes.setdefault(guid, len(self._processes)) for guid in dict.fromkeys(guids)}
        process = np.fromiter(map(known.__getitem__, guids), np.int64, len(guids))
        start, end = map(block.numbers, _TIMES)
        return start, end, keys_of(block.numbers("correlation_id"), process)

    def _devices(self, agents: Sequence[str]) -> Ints:
        """Return the number among the GPUs of each agent; without a table of agents, that of the agent."""
        known = {agent: self._device(agent) for agent in dict.fromkeys(agents)}
        return np.fromiter(map(known.__getitem__, agents), np.int64, len(agents))

    def _device(self, agent: str) -> int:
        if self._gpus:
            return self._gpus.get(agent, -1)
        found = _AGENT.fullmatch(agent)
        return int(found["number"]) if found is not None and found["label"] != "CPU " else -1


def _lines(source: Source) -> Iterator[list[str]]:
    """Yield the lines of a file, many at a time."""
    rest = b""
    while block := source.read(_BLOCK_BYTES):
        whole, newline, after = block.rpartition(b"\n")
        if newline:
            yield _decoded(rest + whole)
            rest = after
        elif len(rest) < _MOST_LINE_BYTES:
            rest += block
    if rest:
        yield _decoded(rest)


def _decoded(text: bytes) -> list[str]:
    return text.decode("utf-8", "replace").replace("\0", "").replace("\r", "").split("\n")


def _rows(lines: Sequence[str], n: int, text: int) -> list[list[str]]:
    """Return the fields of the lines that have ``n``; the text is all between the others: they hold no commas."""
    rows = []
    for line in lines:
        if len(line) < _LEAST_LINE:
            continue
        row = line.split(",", text)
        if text >= 0:
            row += row.pop().rsplit(",", n - 1 - text)
        elif len(row) != n and len(line) < _MOST_QUOTED:
            row = next(csv.reader([line]), [])  # the name of a CPU may have one
        if len(row) == n:
            rows.append(row)
    return rows
