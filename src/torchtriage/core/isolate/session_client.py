"""A session seen from outside: a process that is asked, waited for, and ended when it hangs."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from torchtriage.core.errors import UsageError
from torchtriage.core.isolate.processes import describe_exit, last_line, signal_group


class SessionError(Exception):
    """A session did not answer as it should; ``kind`` is target, error, crash or timeout."""

    def __init__(self, kind: str, message: str, after_s: float, hint: str = "") -> None:
        self.kind = kind
        self.message = message
        self.after_s = after_s
        self.hint = hint
        super().__init__(message)


def thread_limits(threads: int | None) -> dict[str, str]:
    """Return the variables that limit libraries which read them when loaded."""
    return {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class SessionClient:
    """One fresh process with caches of its own.

    ``cache`` : where compiled code is kept; empty for a cold start. ``log`` : takes what the process prints.
    ``threads`` : of the processor; also the limit of libraries that read the environment when loaded. ``command`` :
    what is started: a process that answers as ``session_main.py`` does. ``environment`` : set for it besides this
    process' own. ``start`` : what starts it, called as ``subprocess.Popen`` is.

    Raises UsageError: the process cannot be started.
    """

    def __init__(
        self,
        cache: Path,
        log: Path,
        threads: int | None = None,
        *,
        command: Sequence[str] = (sys.executable, "-m", "torchtriage.core.isolate.session_main"),
        environment: Mapping[str, str] | None = None,
        start: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        self.log = log
        variables = {
            **os.environ,
            **(environment or {}),
            "TORCHINDUCTOR_CACHE_DIR": str(cache.resolve()),
            "TRITON_CACHE_DIR": str((cache / "triton").resolve()),
            **thread_limits(threads),
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            try:
                self.process = start(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=variables,
                    start_new_session=True,  # a compiler's own processes end with it
                )
            except OSError as error:
                raise UsageError(f"cannot be started: {error}", where=command[0]) from error
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert self.process.stdout is not None
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def __enter__(self) -> SessionClient:
        """Return the running process; it ends with the block."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End it."""
        self.close()

    def ask(self, name: str, timeout_s: float, **command: Any) -> Any:
        """Return the answer to a command.

        Raises SessionError: it failed, its process ended, or there was no answer in time: the process is ended then.
        """
        begun = time.monotonic()
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended: the answer says how
            self.process.stdin.write(json.dumps({"do": name, **command}).encode() + b"\n")
            self.process.stdin.flush()
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            after_s = time.monotonic() - begun
            raise SessionError("timeout", f"no answer after {timeout_s:.0f} s", after_s) from None
        after_s = time.monotonic() - begun
        if not line:
            self._answers.put("")  # it stays ended
        try:
            answer = json.loads(line)
        except ValueError:
            how = f"the process {describe_exit(self.process.wait())}{last_line(self.log)}"
            raise SessionError("crash", how, after_s) from None
        if "error" in answer:
            raise SessionError(after_s=after_s, **answer["error"])
        return answer["ok"]

    def close(self) -> None:
        """Let the process end, and end it if it does not."""
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        self.kill()

    def kill(self) -> None:
        """End the process and those that it started."""
        signal_group(self.process)
        self.process.wait()

    def _listen(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._answers.put(line.decode("utf-8", "replace"))
        self._answers.put("")
