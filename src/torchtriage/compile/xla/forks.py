"""Sessions forked from one process that has imported torch and torch_xla, which takes longer than a tiny model.

No device is open yet when it forks: each session begins as a fresh process does after its imports. What torch_xla
dumps is read from the environment when it is first used, hence in the session.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from torchtriage.compile.xla.child import XlaSession
from torchtriage.core.isolate import session_main
from torchtriage.core.isolate.processes import describe_exit, last_line

MESSAGE = 1 << 17
"""Bytes at most: the variables of a session that are not those of everyone."""
EVERY_S = 0.01


class ForkServer:
    """The process that forks; ``start`` stands for ``subprocess.Popen``."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self.environment = {**os.environ, **environment}
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=file, stderr=file, env=self.environment, start_new_session=True
            )

    def __enter__(self) -> ForkServer:
        """Return the running server; it ends with the block, and its sessions with it."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End it."""
        self.ours.close()
        self.process.wait()

    def start(self, _command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_: Any) -> ForkedProcess:
        """Return a fork that answers on its standard output.

        Raises OSError: the server has ended, as where torch_xla cannot be imported.
        """
        own = {name: value for name, value in env.items() if self.environment.get(name) != value}
        with ExitStack() as theirs:
            commands, stdin = os.pipe()
            theirs.callback(os.close, commands)
            stdout, answers = os.pipe()
            theirs.callback(os.close, answers)
            with suppress(OSError):  # it has ended: the answer says how
                message = json.dumps({"do": "fork", "environment": own}).encode()
                socket.send_fds(self.ours, [message], [commands, answers, stderr.fileno()])
        with ExitStack() as ours:
            process = ForkedProcess(
                self, ours.enter_context(os.fdopen(stdin, "wb", 0)), ours.enter_context(os.fdopen(stdout, "rb"))
            )
            process.pid = int(self._answer()["pid"])
            ours.pop_all()
        return process

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Return how a session ended, None where it has not after so long; it ends with the server, and as that did."""
        try:
            self.ours.send(json.dumps({"do": "wait", "pid": pid, "timeout_s": timeout_s}).encode())
            code: int | None = self._answer()["code"]
        except OSError:
            return self.process.wait()
        return code

    def _answer(self) -> dict[str, Any]:
        data = b""
        with suppress(OSError):
            data = self.ours.recv(MESSAGE)
        if not data:
            raise OSError(f"the process {describe_exit(self.process.wait())}{last_line(self.log)}")
        return json.loads(data)


class ForkedProcess:
    """What a session's client uses of ``subprocess.Popen``."""

    def __init__(self, server: ForkServer, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.server, self.stdin, self.stdout = server, stdin, stdout
        self.pid = 0
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises TimeoutExpired: it goes on.
        """
        if self.returncode is None:
            self.returncode = self.server.wait(self.pid, 3600.0 if timeout is None else timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired([], timeout or 0)
        return self.returncode


def main() -> None:
    """Fork a session for each message on standard input, until it closes."""
    session_main.end_with_parent()
    messages = socket.socket(fileno=os.dup(0))
    import torch_xla  # noqa: F401 - what takes so long; it imports torch and dynamo

    while True:
        data, files, _, _ = socket.recv_fds(messages, MESSAGE, 3)
        if not data:
            os._exit(0)
        command = json.loads(data)
        if command["do"] == "wait":
            answer = {"code": _ended(command["pid"], command["timeout_s"])}
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads: torch's, which wait for nothing
                pid = os.fork()
            if not pid:
                messages.close()
                _become_session(files, command["environment"])
            answer = {"pid": pid}
        for file in files:
            os.close(file)
        messages.send(json.dumps(answer).encode())


def _ended(pid: int, timeout_s: float) -> int | None:
    until = time.monotonic() + timeout_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(EVERY_S)


def _become_session(files: Sequence[int], environment: Mapping[str, str]) -> None:
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.update(environment)
    if "TORCH_TRACE" in environment:
        from torch._logging import _internal

        _internal.LOG_TRACE_HANDLER = None  # made when torch was imported
        _internal._init_logs()
    session_main.main(XlaSession())


if __name__ == "__main__":
    main()
