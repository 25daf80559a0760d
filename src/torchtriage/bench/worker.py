"""A session seen from outside: a process that is asked, waited for, and ended when it hangs."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from torchtriage.errors import UsageError

__all__ = ["SessionError", "Worker"]


class SessionError(Exception):
    """A session did not answer as it should; ``kind`` is target, error, crash or timeout."""

    def __init__(self, kind: str, message: str, after_s: float, hint: str = "") -> None:
        self.kind = kind
        self.message = message
        self.after_s = after_s
        self.hint = hint
        super().__init__(message)


class Worker:
    """One fresh process with caches of its own.

    Parameters
    ----------
    cache : Path
        Where compiled code is kept; empty for a cold start.
    log : Path
        Takes what the process prints.
    threads : int, optional
        Of the processor; also the limit of libraries that read the environment when loaded.
    command : sequence of str
        What is started: a process that answers as ``child.py`` does.
    environment : mapping, optional
        Set for it besides this process' own.

    Raises
    ------
    UsageError
        The process cannot be started.
    """

    def __init__(
        self,
        cache: Path,
        log: Path,
        threads: int | None = None,
        *,
        command: Sequence[str] = (sys.executable, "-m", "torchtriage.bench.child"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        variables = {
            **os.environ,
            **(environment or {}),
            "TORCHINDUCTOR_CACHE_DIR": str(cache.resolve()),
            "TRITON_CACHE_DIR": str((cache / "triton").resolve()),
        }
        if threads is not None:
            variables |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            try:
                self.process = subprocess.Popen(
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

    def __enter__(self) -> Worker:
        """Return the running process."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End it."""
        self.close()

    def ask(self, name: str, timeout_s: float, **command: Any) -> Any:
        """Return the answer to a command.

        Raises
        ------
        SessionError
            It failed, its process ended, or there was no answer in time: the process is ended then.
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
            raise SessionError("crash", self._ending(), after_s) from None
        if "error" in answer:
            told = answer["error"]
            raise SessionError(told["kind"], told["message"], after_s, told["hint"])
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
        if hasattr(os, "killpg"):
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()

    def _listen(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._answers.put(line.decode("utf-8", "replace"))
        self._answers.put("")

    def _ending(self) -> str:
        """Return how the process ended, and its last words."""
        code = self.process.wait()
        how = f"exit code {code}"
        if code < 0:
            with suppress(ValueError):
                how = f"signal {signal.Signals(-code).name}"
        words = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"the process ended with {how}" + (f": {words[-1].strip()[:200]}" if words else "")
