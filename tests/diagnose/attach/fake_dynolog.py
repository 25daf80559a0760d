"""A dynolog: registers processes over Kineto's IPC fabric, and answers ``dyno``'s questions over TCP.

As dynolog/src/tracing/IPCMonitor.cpp, ipcfabric/*.h, LibkinetoConfigManager.cpp and rpc/SimpleJsonServer.cpp do it.
With ``KINETO_IPC_SOCKET_DIR`` the fabric's datagram sockets are files in that folder.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

METADATA = struct.Struct("=Q32s")  # size of what follows, type
CONTEXT = struct.Struct("=iiq")  # gpu, pid, job id
REQUEST = struct.Struct("=iiq")  # config type, number of pids, job id; the pids follow, that of the process first
ACTIVITIES = 2


class FakeDynolog:
    """``configs`` : what was asked for, in order; ``registered`` : processes by pid, with what waits for them."""

    def __init__(self, folder: Path | None = None) -> None:
        self.configs: list[str] = []
        self.registered: dict[int, str] = {}
        self.requests: list[dict[str, Any]] = []
        self.busy = False
        self._lock = threading.Lock()
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        self._fabric: socket.socket | None = None
        if folder is not None:
            self._folder = folder
            self._fabric = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._fabric.bind(str(folder / "dynolog"))
            threading.Thread(target=self._monitor, daemon=True).start()

    def close(self) -> None:
        self._tcp.close()
        if self._fabric is not None:
            self._fabric.close()

    def _monitor(self) -> None:
        assert self._fabric is not None
        while True:
            try:
                message, source = self._fabric.recvfrom(1 << 16)
            except OSError:
                return
            _, kind = METADATA.unpack_from(message)
            kind = kind.rstrip(b"\0")
            body = message[METADATA.size :]
            if kind.startswith(b"ctxt"):
                _, pid, _ = CONTEXT.unpack_from(body)
                with self._lock:
                    self.registered.setdefault(pid, "")
                    answer = struct.pack("=i", len(self.registered))
            else:
                wanted, n, _ = REQUEST.unpack_from(body)
                pid = struct.unpack_from("=i", body, REQUEST.size)[0] if n else 0
                with self._lock:
                    config = self.registered.setdefault(pid, "") if wanted & ACTIVITIES else ""
                    if config:
                        self.registered[pid] = ""
                        config += "\n"
                answer = config.encode()
            try:
                self._fabric.sendto(METADATA.pack(len(answer), kind) + answer, source)
            except OSError:
                continue

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._tcp.accept()
            except OSError:
                return
            with client:
                (size,) = struct.unpack("=i", client.recv(4, socket.MSG_WAITALL))
                request = json.loads(client.recv(size, socket.MSG_WAITALL))
                self.requests.append(request)
                answer = json.dumps(self._answer(request)).encode()
                client.sendall(struct.pack("=i", len(answer)) + answer)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["fn"] == "getStatus":
            return {"status": 1}
        asked = set(request["pids"])
        with self._lock:
            matched = [pid for pid in self.registered if asked == {0} or pid in asked]
            free = [pid for pid in matched if not self.busy][: request["process_limit"]]
            for pid in free:
                self.registered[pid] = request["config"]
            self.configs += [request["config"]] * bool(free)
        return {
            "processesMatched": matched,
            "activityProfilersTriggered": free,
            "activityProfilersBusy": len(matched) - len(free),
            "eventProfilersTriggered": [],
            "eventProfilersBusy": 0,
        }
