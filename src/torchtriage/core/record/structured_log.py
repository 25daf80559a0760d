"""In the user's process: what torch.compile logs, into files of ours beside whoever else listens.

Standard library and torch alone: a script's interpreter may lack what we need to read it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.core.record.environment import process_rank

if TYPE_CHECKING:
    from typing import TextIO

COMPILE_FOLDER = "compile"
"""Of the logs, in the folder of a run."""


class StructuredLog(logging.Handler):
    """The structured log of torch.compile from ``start`` to ``stop``, as ``TORCH_TRACE`` writes it.

    Each process writes a file of its own into ``folder``, made with its first record and named as
    torch names them, so that ranks stay separate. What fails is kept in ``problem`` and ends the
    log: nothing of it reaches the program.
    """

    def __init__(self, folder: Path) -> None:
        from torch._logging import _internal

        super().__init__()
        self.folder = folder
        self.problem = ""
        self.setFormatter(_internal.TorchLogsFormatter(trace=True))
        self._logger: logging.Logger = _internal.trace_log
        self._file: TextIO | None = None
        self._pid = 0

    def start(self) -> None:
        """Begin to listen; others of this logger, such as the user's ``TORCH_TRACE``, go on."""
        # torch's own, without a folder, takes itself off: who stands behind it misses that record
        self._logger.handlers.insert(0, self)

    def stop(self) -> None:
        """Listen no more."""
        self._logger.removeHandler(self)
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        if self.problem:
            return
        try:
            if self._file is None or self._pid != os.getpid():
                self._file, self._pid = self._begun(), os.getpid()
            self._file.write(f"{self.format(record)}\n")
            self._file.flush()  # the program may end by a signal, or fork
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _begun(self) -> TextIO:
        """Return this process' file, which begins with what torch logs only once."""
        from torch._logging import structured

        self.folder.mkdir(parents=True, exist_ok=True)
        rank = process_rank()
        middle = "" if rank is None else f"rank_{rank}_"
        path = self.folder / f"dedicated_log_torch_trace_{middle}{os.getpid()}.log"
        file = path.open("a", encoding="utf-8")
        torch = sys.modules["torch"]
        version = json.dumps({"pytorch_version": torch.__version__})
        about = {
            "artifact": {"name": "torch_version", "encoding": "json"},
            "has_payload": hashlib.md5(version.encode(), usedforsecurity=False).hexdigest(),
        }
        file.write(f"{self.format(_record(about, version))}\n")
        # the name of a source file is logged once in a process, and by its number from then on
        for name, number in list(structured.INTERN_TABLE.items()):
            file.write(f"{self.format(_record({'str': (name, number)}))}\n")
        return file


def log_of(out: Path, pid: int) -> Path | None:
    """Return the log that a process of a run has written, None without one."""
    files = (out / COMPILE_FOLDER).glob(f"dedicated_log_torch_trace_*{pid}.log")
    return next((file for file in files if file.stem.rpartition("_")[2] == str(pid)), None)


def _record(metadata: dict[str, Any], payload: str | None = None) -> logging.LogRecord:
    record = logging.LogRecord("torch.__trace", logging.DEBUG, __file__, 1, "", None, None)
    record.metadata = metadata
    record.payload = payload
    return record
