"""Lines of ``JsonLog`` and ``torchtriage monitor consume --log`` as columns."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.errors import SampleError
from torchtriage.core.units import format_count

NO_SIZE = -1


Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Line(msgspec.Struct):
    """What is read of a line; whatever else is in it is left."""

    model: str
    at_s: Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]
    duration_ns: Number
    version: str = ""
    size: Number | None = None
    error: str = ""
    nan: bool = False
    device: str = ""
    recompiles: Number = -1
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    fields: dict[str, Any] = {}


@dataclass
class Records:
    """Columns of all lines, in the order of time; names are numbers in ``models``, ``versions`` and ``devices``.

    ``stands_for`` : requests of which a line was written, on average.
    """

    models: list[str]
    versions: list[str]
    devices: list[str]
    model: NDArray[np.int32]
    version: NDArray[np.int32]
    device: NDArray[np.int32]
    at_s: NDArray[np.float64]
    took_ns: NDArray[np.int64]
    size: NDArray[np.int64]
    failed: NDArray[np.bool_]
    stands_for: NDArray[np.float64]
    recompiles: NDArray[np.int64]
    fields: list[dict[str, Any]]
    n_repeated: int = 0
    n_skipped: int = 0


def read_records(paths: Sequence[str | Path]) -> Records:
    """Return the records of some logs, each once; plain or compressed by gzip.

    Raises ``SampleError``: a file cannot be read, or none holds a record.
    """
    models: dict[str, int] = {}  # name -> number
    versions: dict[str, int] = {}
    devices: dict[str, int] = {}
    columns: list[tuple[int, int, int, float, int, int, bool, float, int]] = []
    fields: list[dict[str, Any]] = []
    decode = msgspec.json.Decoder(Line).decode
    n_skipped = 0
    for path in paths:
        for raw in _lines(Path(path)):
            try:
                line = decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                n_skipped += bool(raw.strip())
                continue
            failed = bool(line.error) or line.nan
            columns.append(
                (
                    models.setdefault(line.model, len(models)),
                    versions.setdefault(line.version, len(versions)),
                    devices.setdefault(line.device, len(devices)),
                    line.at_s,
                    line.duration_ns,
                    NO_SIZE if line.size is None else line.size,
                    failed,
                    1.0 if failed else 1 / max(line.sample, 1e-6),
                    line.recompiles,
                )
            )
            fields.append(line.fields)
    if not columns:
        raise SampleError(
            f"expected lines of requests, found none in {format_count(len(paths), 'file')}",
            hint="write them with JsonLog(...), or with torchtriage monitor consume --log FILE",
        )
    kinds = "model version device at_s took_ns size failed stands_for recompiles"
    table = np.array(
        columns, dtype=list(zip(kinds.split(), ("i4", "i4", "i4", "f8", "i8", "i8", "?", "f8", "i8"), strict=True))
    )
    # the same to the microsecond and the nanosecond: the same request, written again after a crash
    _, first = np.unique(table[["model", "version", "device", "at_s", "took_ns", "size", "failed"]], return_index=True)
    first = first[np.argsort(table["at_s"][first], kind="stable")]
    kept = table[first]
    kept_columns: dict[str, Any] = {kind: np.ascontiguousarray(kept[kind]) for kind in kinds.split()}
    return Records(
        models=list(models),
        versions=list(versions),
        devices=list(devices),
        fields=[fields[at] for at in first.tolist()],
        n_repeated=len(table) - len(kept),
        n_skipped=n_skipped,
        **kept_columns,
    )


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise SampleError(f"cannot be read: {error}", where=str(path)) from error
