"""Processes that made a :func:`torchtriage.sample`: their socket takes captures, and gives stacks."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchtriage.core.errors import AttachError
from torchtriage.core.record.attach_socket import socket_folder, socket_prefix
from torchtriage.core.units import format_count
from torchtriage.diagnose.attach.captured import Captured
from torchtriage.diagnose.attach.processes import Process, Thread, threads_of
from torchtriage.diagnose.attach.result import ranks_words

ASK_S = 10.0
"""So long a process may take for what needs no step."""
MAX_BYTES = 64 << 20


def sockets_of(pid: int) -> list[Path]:
    """Return the sockets that samplers of a process listen at."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        uid = os.getuid()
    folder = socket_folder(uid)
    try:
        if folder.lstat().st_uid != uid:
            return []
        return sorted(folder.glob(f"{socket_prefix(pid)}*.sock"))
    except OSError:
        return []


class _Client:
    """One question to one process."""

    def __init__(self, path: Path, request: Mapping[str, Any], timeout_s: float) -> None:
        self.path = path
        self.answer: dict[str, Any] = {}
        self._deadline = time.monotonic() + timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.request = request

    def run(self) -> None:
        """Ask, and wait for the answer; what goes wrong is the answer, too."""
        try:
            self._socket.settimeout(max(0.01, self._deadline - time.monotonic()))
            self._socket.connect(str(self.path))
            self._socket.sendall(json.dumps(self.request).encode() + b"\n")
            parts, size = [], 0
            while size <= MAX_BYTES:
                self._socket.settimeout(max(0.01, self._deadline - time.monotonic()))
                part = self._socket.recv(1 << 16)
                if not part:
                    break
                size += len(part)
                parts.append(part)
            answer = json.loads(b"".join(parts))
            self.answer = answer if isinstance(answer, dict) else {"error": "it answers with no object"}
        except TimeoutError:
            self.answer = {"timeout": True}
        except (OSError, ValueError) as error:
            self.answer = {"error": f"its socket does not answer: {error}"}
        finally:
            self.close()

    def close(self) -> None:
        """Hang up: what was asked for is taken back."""
        self._socket.close()


def _ask(pid: int, what: str) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for path in sockets_of(pid):
        client = _Client(path, {"do": what}, ASK_S)
        client.run()
        answer = client.answer
        if "error" not in answer and "timeout" not in answer:
            return answer
    words = "no answer" if answer.get("timeout") else str(answer.get("error", "no socket"))
    raise AttachError(f"its sampler gives no {what}: {words[:200]}", where=f"pid {pid}")


def stacks_of(pid: int) -> list[Thread]:
    """Return what the threads of a process do, as it says itself.

    Raises AttachError: it does not answer; a thread may hold the interpreter's lock.
    """
    try:
        return threads_of(_ask(pid, "stacks")["threads"])
    except (KeyError, TypeError, ValueError) as error:
        raise AttachError(f"its sampler answers with other data: {error}", where=f"pid {pid}") from error


def dumps_of(pid: int) -> list[bytes]:
    """Return what the flight recorders of a process hold.

    Raises AttachError: it does not answer.
    """
    try:
        return [base64.b64decode(text) for text in _ask(pid, "flight")["dumps"]]
    except (KeyError, TypeError, ValueError) as error:
        raise AttachError(f"its sampler answers with other data: {error}", where=f"pid {pid}") from error


def capture(processes: Sequence[Process], steps: int, timeout_s: float) -> Captured:
    """Have each process record so many steps, all at once.

    Raises AttachError: none did, and not for want of a step. KeyboardInterrupt: after all was taken back.
    """
    clients = [
        (process, _Client(path, {"do": "capture", "steps": steps}, timeout_s))
        for process in processes
        for path in sockets_of(process.pid)
    ]
    threads = [threading.Thread(target=client.run, daemon=True) for _, client in clients]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    finally:
        for _, client in clients:
            client.close()
    done = [(process, client.answer) for process, client in clients if "file" in client.answer]
    late = [process for process, client in clients if client.answer.get("timeout")]
    if not done and not late:
        words = "; ".join(f"{process.name}: {str(client.answer.get('error'))[:200]}" for process, client in clients[:4])
        raise AttachError(f"no process recorded: {words}", hint="is another profiler at work in it?")
    recorded = [process.name for process, _ in done]
    missing = list(dict.fromkeys(process.name for process in late if process.name not in recorded))
    lost = "; ".join(
        f"without {process.name}: {str(client.answer.get('error'))[:200]}"
        for process, client in clients
        if process.name not in (*recorded, *missing)
    )
    still = f"no step or request ended within {timeout_s:g} s in {', '.join(missing[:8])}" if missing else ""
    said = "; ".join(filter(None, (still or _cost(done, steps), lost)))
    files = tuple(Path(str(answer["file"])) for _, answer in done)
    return Captured(files, still=said) if still else Captured(files, said)


def _cost(done: Sequence[tuple[Process, Mapping[str, Any]]], steps: int) -> str:
    if not done:
        return ""
    try:
        cost_s = max(float(answer["cost_s"]) for _, answer in done)
        wall_s = max(float(answer["wall_s"]) for _, answer in done)
    except (KeyError, TypeError, ValueError):
        return ""
    requests = {answer.get("steps", steps) is None for _, answer in done}
    what = " or ".join("one request" if request else format_count(steps, "step") for request in sorted(requests))
    ranks = [process.rank for process, _ in done if process.rank is not None]
    who = ranks_words(ranks) if len(ranks) == len(done) else format_count(len(done), "process", "processes")
    return (
        f"{what} of {who}, recorded in {wall_s:.2f} s;"
        f" the profiler and its export took at most {cost_s:.2f} s of a process' time"
    )
