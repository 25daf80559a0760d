"""Requests as lines of JSON: sampled, rotating, off the request path."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.aggregate import RequestRow, well_formed
from torchtriage.operate.monitor.batch_sink import MAX_PENDING, BatchSink, RequestRecord

# fields of each line about torch.compile, by the metric's name
STATUS = {"compile_recompiles_total": "recompiles", "compile_graph_breaks_total": "graph_breaks"}
MAX_FIELD = 2_000  # characters a text may have in a line: an exception's name is unbounded


def compile_status() -> dict[str, int]:
    """Return how often torch.compile has recompiled and broken graphs in this process, as far as it is known."""
    return {STATUS[name]: int(value) for name, _, value in process_metrics.read() if name in STATUS}


class JsonLog(BatchSink):
    """Writes a share of the requests, and all that failed, to a file that rotates.

    Each line carries how often torch.compile had recompiled and broken graphs by then. ``sample`` : share of the
    requests without error or NaN that is written, which each line names. ``device`` : names the machine or unit in
    each line.
    A file of ``max_bytes`` is renamed, and ``n_files`` old ones are kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sample: float = 1.0,
        device: str = "",
        max_bytes: int = 50_000_000,
        n_files: int = 3,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._path = Path(path)
        self._sample = sample
        self._common: dict[str, Any] = {"device": well_formed(str(device))} if device else {}
        if sample < 1:
            self._common["sample"] = max(sample, 0.0)
        self._max_bytes = max_bytes
        self._n_files = n_files
        self._draw = random.Random().random  # one of its own: the service's seed stays untouched
        self._file: FileIO | None = None
        super().__init__(max_pending=max_pending)

    def keeps(self, row: RequestRow) -> bool:
        """Return True for failures and for a share of the others."""
        note = row[3]
        failed = note is not None and note.failed
        return failed or self._sample >= 1 or self._draw() < self._sample

    def send(self, records: list[RequestRecord]) -> None:
        """Write the lines and flush them."""
        self.write(records, {**self._common, **compile_status()})

    def write(self, records: list[RequestRecord], common: Mapping[str, Any]) -> None:
        """Write lines that also hold ``common``: all of them, or none and raise ``OSError``."""
        lines = []
        for record in records:
            fields = {
                name: value[:MAX_FIELD] if isinstance(value, str) else value
                for name, value in msgspec.to_builtins(record).items()
            }
            level = "warning" if record.error or record.nan else "info"
            lines.append(json.dumps({**common, **fields, "event": "request", "level": level}) + "\n")
        self._write("".join(lines).encode())

    def _write(self, data: bytes) -> None:
        # all or nothing: half a batch would come twice when it is tried again
        if self._file is not None:
            try:
                moved = not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
            except FileNotFoundError:
                moved = True
            if moved:
                self.release()
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
        size = self._file.seek(0, os.SEEK_END)
        if size and size + len(data) > self._max_bytes > 0:
            self._rotate()
            self._file, size = self._path.open("ab", buffering=0), 0
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError:
            if written:
                self._file.truncate(size)
            raise

    def _rotate(self) -> None:
        # to .1, that to .2; the oldest goes
        self.release()
        names = [self._path, *(Path(f"{self._path}.{n}") for n in range(1, self._n_files + 1))]
        for older, newer in reversed([*zip(names[1:], names, strict=False)]):
            if newer.exists():
                newer.replace(older)
        if not self._n_files:
            self._path.unlink()

    def release(self) -> None:
        """Close the file; the next line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
