"""Dumps of PyTorch's flight recorder: which collective does not end, and which rank is missing in it.

Each process keeps its last collectives in a ring: NCCL's watchdog writes it as a pickle when one times out
(``TORCH_FR_DUMP_TEMP_FILE`` or ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``, and the rank), other ways give the same as JSON.
The pickle is read by an interpreter of plain data, so that no dump runs anything.

What may be said is what the records hold. gloo's have no list of a group's members and leave ``state`` at scheduled
for ever (``retired`` says it); a full ring has lost its oldest records.
Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, and dumps of torch 2.13.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtriage.core.errors import AttachError, SnapshotError
from torchtriage.core.units import format_bytes
from torchtriage.diagnose.attach.processes import user_call
from torchtriage.diagnose.attach.result import Call, CollectiveWait, at_words, ranks_words
from torchtriage.memory.snapshot.unpickle import unpickle

MAX_BYTES = 512 << 20
"""A ring of 20,000 collectives with Python stacks takes 40 MB."""
MAX_NAME = 500
_RANK = re.compile(r"(?<!\d)(\d+)(?:\.(?:json|pickle|pkl))?$")
_TRY = "torchtriage attach --dumps FOLDER reads files that TORCH_FR_DUMP_TEMP_FILE or torch's _dump_fr_trace wrote"
_SAME_SIZES = frozenset(("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "barrier"))
"""Collectives into which every rank must give as much."""


@dataclass(frozen=True)
class Record:
    """One collective, or one send or receive, of one rank."""

    group: str
    label: str
    number: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    finished: bool
    is_p2p: bool
    at: Call | None


@dataclass(frozen=True)
class Dump:
    """The ring of one rank. ``members`` : of its groups, as far as it has them; ``whole`` : nothing was lost."""

    records: tuple[Record, ...]
    members: Mapping[str, frozenset[int]]
    whole: bool


class _Plain:
    """Keeps what is in a pickle as it is."""

    n_items = 0

    def take_dict(self, value: dict[Any, Any]) -> Any:
        return value

    def take_list(self, value: list[Any]) -> Any:
        return value

    def count(self, what: str) -> None:
        """Nothing in these pickles is long enough to be cut."""

    def taker(self, names: tuple[Any, ...]) -> Callable[[list[Any]], Any] | None:
        return None


def find_dumps(path: Path) -> dict[int, Path]:
    """Return the dumps of a folder, or those whose names begin like ``path``, by the rank their names end with.

    Raises AttachError: there are none, or two of one rank.
    """
    begin = "" if path.is_dir() else path.name
    folder = path if path.is_dir() else path.parent
    found: dict[int, Path] = {}
    try:
        names = sorted(name.name for name in folder.iterdir() if name.name.startswith(begin) and name.is_file())
    except OSError as error:
        raise AttachError(f"cannot be read: {error.strerror}", where=str(folder)) from error
    for name in names:
        match = _RANK.search(name)
        if match is None:
            continue
        rank = int(match[1])
        if rank in found:
            raise AttachError(
                f"expected one dump of each rank, found {found[rank].name} and {name}",
                where=str(folder),
                hint="give the prefix of those from one time: --dumps FOLDER/nccl_trace_rank_",
            )
        found[rank] = folder / name
    if not found:
        raise AttachError("expected dumps whose names end with the rank, found none", where=str(path), hint=_TRY)
    return found


def read(path: Path) -> Dump:
    """Return what is in one file.

    Raises AttachError: it is no dump.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise AttachError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return parse(data, str(path))


def parse(data: bytes, where: str) -> Dump:
    """Return what a dump of either form holds.

    Raises AttachError: it is no dump, or a pickle of anything but plain data.
    """
    if len(data) > MAX_BYTES:
        raise AttachError(f"expected a dump, found more than {format_bytes(MAX_BYTES)}", where=where, hint=_TRY)
    try:
        if data[:1] == b"{":
            document = json.loads(data)
        else:
            parts = iter((data,))
            document = unpickle(lambda _: next(parts, b""), _Plain(), name=where)
    except SnapshotError as error:
        raise AttachError(f"not a flight recorder dump: {error.message}", where=where, hint=_TRY) from error
    except (ValueError, RecursionError) as error:
        raise AttachError(f"not a flight recorder dump: {error}", where=where, hint=_TRY) from error
    if not isinstance(document, dict) or "version" not in document:
        raise AttachError("expected a dump of a flight recorder, found other data", where=where, hint=_TRY)
    try:
        return _dump(document)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        words = f"{type(error).__name__}: {error}"
        raise AttachError(f"a dump with a record of another shape ({words})", where=where, hint=_TRY) from error


def _dump(document: dict[str, Any]) -> Dump:
    entries = document.get("entries") or []
    members: dict[str, frozenset[int]] = {}
    for name, config in (document.get("pg_config") or {}).items():
        ranks = frozenset(map(int, re.findall(r"\d+", _text(config.get("ranks", "")))))
        if name and ranks:
            members[str(name)] = ranks
    records = tuple(map(_record, entries))
    return Dump(records, members, not entries or int(entries[0].get("record_id", 1)) == 0)


def _record(entry: dict[str, Any]) -> Record:
    name, label = (_text(part)[:MAX_NAME] for part in entry["process_group"])
    op = _text(entry["profiling_name"])[:MAX_NAME]
    is_p2p = bool(entry.get("is_p2p"))
    calls = [
        Call(_text(row["filename"]), int(row["line"]), _text(row["name"])[:MAX_NAME])
        for row in entry.get("frames") or ()
    ]
    return Record(
        group=name,
        label=label if label not in ("", "undefined") else f"group {name}",
        number=int(entry["p2p_seq_id" if is_p2p else "collective_seq_id"]),
        op=op.partition(":")[2] or op,
        sizes=tuple(tuple(map(int, sizes)) for sizes in entry.get("input_sizes") or ()),
        dtypes=tuple(_text(part)[:MAX_NAME] for part in entry.get("input_dtypes") or ()),
        finished=entry.get("state") == "completed" or bool(entry.get("retired")),
        is_p2p=is_p2p,
        at=user_call(calls),
    )


def _text(value: Any) -> str:
    """Return what is text: a few bytes can be a list of lists whose words have no end."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def waits(dumps: Mapping[int, Dump], ranks: Iterable[int] = ()) -> tuple[CollectiveWait, ...]:
    """Return the first unfinished collective of each process group, those with missing ranks first.

    ``ranks`` : that the job has, with a dump or without.
    """
    world = frozenset(ranks) | dumps.keys()
    groups = dict.fromkeys(record.group for dump in dumps.values() for record in dump.records)
    found = [wait for group in groups for wait in _of_group(group, dumps, world)]
    order = ("missing", "mismatch", "unfinished", "p2p")
    return tuple(sorted(found, key=lambda wait: order.index(wait.kind)))


def _of_group(group: str, dumps: Mapping[int, Dump], world: frozenset[int]) -> Iterator[CollectiveWait]:
    named = {rank: [row for row in dump.records if row.group == group] for rank, dump in dumps.items()}
    for rank, rows in named.items():
        for row in rows:
            if row.is_p2p and not row.finished:
                yield CollectiveWait("p2p", row.label, row.number, row.op, (rank,), at=row.at)
    own = {rank: [row for row in rows if not row.is_p2p] for rank, rows in named.items()}
    pending = [row for rows in own.values() for row in rows if not row.finished]
    if not pending:
        return
    number = min(row.number for row in pending)
    last = {rank: max(row.number for row in rows) for rank, rows in own.items() if rows}
    recorded = frozenset[int]().union(*(dump.members.get(group, frozenset()) for dump in dumps.values()))
    # all ranks are in the default group; those of others gloo does not record
    members = recorded or world
    known = bool(recorded) or group == "0"
    at_it = {rank: [row for row in rows if row.number == number] for rank, rows in own.items()}
    in_it = {rank: rows for rank, rows in at_it.items() if rows}
    behind = {rank for rank in members if rank in dumps and last.get(rank, 0) < number}
    # a ring that has lost records may have lost all of a group's
    unseen = {rank for rank in behind if rank not in last and not (known and dumps[rank].whole)}
    unknown = unseen | (members - dumps.keys())
    first = next(row for row in pending if row.number == number)
    calls = {rank: _words(rows) for rank, rows in in_it.items()}
    differ = len({_must_agree(rows) for rows in in_it.values()}) > 1
    yield CollectiveWait(
        kind="mismatch" if differ else "missing" if behind - unknown else "unfinished",
        group=first.label,
        number=number,
        op=first.op,
        arrived=tuple(sorted(in_it)),
        missing=tuple(sorted(behind - unknown)),
        unknown=tuple(sorted(unknown)),
        at=first.at,
        calls=tuple(f"{ranks_words(ranks)}: {words}" for words, ranks in _grouped(calls)) if differ else (),
    )


def _must_agree(rows: list[Record]) -> tuple[Any, ...]:
    # coalesced collectives share a number
    return tuple((row.op, (row.sizes, row.dtypes) if row.op in _SAME_SIZES else None) for row in rows)


def _words(rows: list[Record]) -> str:
    texts = []
    for row in rows:
        tensors = (f"{dtype}{list(sizes)}" for sizes, dtype in zip(row.sizes, row.dtypes, strict=False))
        texts.append(f"{row.op}({', '.join(tensors)}){at_words(row.at)}")
    return ", ".join(texts)


def _grouped(calls: Mapping[int, str]) -> Iterator[tuple[str, list[int]]]:
    for words in dict.fromkeys(calls.values()):
        yield words, [rank for rank, other in calls.items() if other == words]
