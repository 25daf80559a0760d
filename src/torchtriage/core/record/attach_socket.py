"""The door of a sampler: ``torchtriage attach PID`` asks for a capture, for stacks, for the flight recorder.

A unix socket in a folder that its user alone may enter, so that whoever gets in could as well attach a debugger.
A request is one line of JSON, its answer another. Nothing here raises into the process, and nothing runs until
somebody asks.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import itertools
import json
import os
import socket
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.core.record.stacks import callers, current_frames

if TYPE_CHECKING:
    from torchtriage.core.record.sample import Sampler

MAX_LINE_BYTES = 4096
TIMEOUT_S = 10.0
"""So long a client may take to ask, or to read."""
LOOK_S = 0.2
PAUSE_S = 0.1
MAX_CLIENTS = 4
MAX_STEPS = 1000
OWN = "torchtriage-"
"""So begin the names of our threads."""
_numbers = itertools.count()


def socket_folder(uid: int) -> Path:
    """Return where the sockets of a user's processes are, whatever folder for temporary files each is given."""
    return Path(f"/tmp/torchtriage-{uid}")


def socket_prefix(pid: int) -> str:
    """Return what the names of a process' sockets begin with: two containers may share the folder, and have one pid."""
    try:
        return f"{pid}-{os.stat(f'/proc/{pid}/ns/pid').st_ino}-"  # noqa: PTH116
    except OSError:
        return f"{pid}-"


@dataclass
class Ask:
    """A capture that was asked for; ``done`` is set when it has ended, in a file or with an error.

    ``request`` : it came to be one request, which has no steps.
    ``begun_s``, ``own_s`` : when it began, by the sampler's clock, and the sampler's own time then.
    ``cost_s`` : the sampler's own time for it; ``wall_s`` : how long it recorded.
    """

    steps: int
    done: threading.Event = field(default_factory=threading.Event)
    begun: bool = False
    request: bool = False
    exporting: bool = False
    cancelled: bool = False
    begun_s: float = 0.0
    own_s: float = 0.0
    cost_s: float = 0.0
    wall_s: float = 0.0
    path: Path | None = None
    error: str = ""

    def end(self, *, path: Path | None = None, error: str = "") -> None:
        """Say what came of it."""
        self.path, self.error = path, error
        self.done.set()


class AttachSocket:
    """Listens for one sampler of this process, in a thread of its own, until it is closed.

    Raises OSError: there can be no such socket.
    """

    def __init__(self, sampler: Sampler) -> None:
        folder = socket_folder(os.geteuid())
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise OSError(f"{folder} is open to others")
        self._sampler = weakref.ref(sampler)
        self.path = folder / f"{socket_prefix(os.getpid())}{next(_numbers)}.sock"
        _remove_stale(folder)
        silent = self.path.with_suffix(".new")  # until it listens it looks like one of the dead
        silent.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._pid = os.getpid()
        self._room = threading.BoundedSemaphore(MAX_CLIENTS)
        try:
            self._socket.bind(str(silent))
            self._socket.listen(MAX_CLIENTS)
            silent.rename(self.path)
        except OSError:
            self._socket.close()
            raise
        # the thread holds no more of this than it needs: a sampler that is dropped takes the socket along
        weakref.finalize(sampler, _remove, self._socket, self.path, self._pid)
        threading.Thread(
            target=_serve, args=(self._socket, self._sampler, self._room), name="torchtriage-attach", daemon=True
        ).start()

    def close(self) -> None:
        """End; in a forked child let go of what is the parent's."""
        _remove(self._socket, self.path, self._pid)


def _remove(listener: socket.socket, path: Path, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # the thread waits in it
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        listener.close()


def _remove_stale(folder: Path) -> None:
    """Remove the sockets at which nobody listens: their processes were killed.

    Pids do not tell, those of another container that shares the folder are not seen here.
    """
    for path in folder.glob("*.sock"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(0)  # one whose queue is full listens, too
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)


def _serve(listener: socket.socket, sampler: weakref.ref[Sampler], room: threading.BoundedSemaphore) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError as error:
            if listener.fileno() < 0 or error.errno in (errno.EINVAL, errno.EBADF):
                return  # it was closed
            time.sleep(PAUSE_S)  # a file too many, for example, and soon one less
            continue
        if not room.acquire(blocking=False):
            client.close()
            continue
        try:
            threading.Thread(
                target=_answer, args=(client, sampler, room), name="torchtriage-attach-client", daemon=True
            ).start()
        except RuntimeError:  # no further thread can be had
            client.close()
            room.release()


def _answer(client: socket.socket, sampler: weakref.ref[Sampler], room: threading.BoundedSemaphore) -> None:
    try:
        with client:
            client.settimeout(TIMEOUT_S)
            line = b""
            while b"\n" not in line and len(line) < MAX_LINE_BYTES:
                if not (part := client.recv(MAX_LINE_BYTES)):
                    return
                line += part
            try:
                request = json.loads(line)
                do = _DO[request["do"]]
            except (ValueError, KeyError, TypeError, RecursionError):
                answer = {"error": f"expected one of {', '.join(_DO)}"}
            else:
                try:
                    answer = do(request, client, sampler)
                except Exception as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
            client.settimeout(TIMEOUT_S)
            client.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # the client went away
    finally:
        room.release()


Answer = dict[str, Any]


def _capture(request: Mapping[str, Any], client: socket.socket, sampler: weakref.ref[Sampler]) -> Answer:
    steps = request.get("steps")
    if not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        return {"error": f"expected 1 to {MAX_STEPS} steps"}
    owner = sampler()
    ask = None if owner is None else owner.ask(steps)
    if owner is None or ask is None:
        return {"error": "another capture was asked for and has not ended"}
    try:
        client.settimeout(0)
        while not ask.done.wait(LOOK_S):
            # a client that leaves, or is interrupted, wants it no more
            with contextlib.suppress(BlockingIOError):
                client.recv(1)
                owner.withdraw(ask)
                return {}
    except OSError:
        owner.withdraw(ask)
        raise
    if ask.path is None:
        return {"error": ask.error}
    steps = None if ask.request else ask.steps
    return {"file": str(ask.path), "steps": steps, "cost_s": ask.cost_s, "wall_s": ask.wall_s}


def _stacks(*_: Any) -> Answer:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = []
    for ident, frame in current_frames().items():
        name = names.get(ident, "")
        if not name.startswith(OWN):
            frames = [
                {"name": caller.f_code.co_name, "filename": caller.f_code.co_filename, "line": caller.f_lineno or 0}
                for caller in callers(frame)
            ]
            threads.append({"thread_name": name, "frames": frames})
    return {"threads": threads}


def _flight(*_: Any) -> Answer:
    """Return the flight recorders of gloo and NCCL, each of which has its own, without stacks.

    Symbols for the first stack take 11 s (torch 2.13), with the lock held that the job needs to go on.
    """
    module = sys.modules.get("torch._C._distributed_c10d")
    dumps = []
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        dump = getattr(module, name, None)
        if dump is not None:
            dumps.append(base64.b64encode(dump(includeStackTraces=False)).decode())
    return {"dumps": dumps}


_DO: dict[str, Callable[[Any, socket.socket, Any], Answer]] = {
    "capture": _capture,
    "stacks": _stacks,
    "flight": _flight,
}
