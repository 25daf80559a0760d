"""Dynolog, the daemon that processes started with ``KINETO_USE_DAEMON=1`` register with.

Its protocol is what its ``dyno`` speaks: a length of four bytes in the machine's order, and JSON, both ways, one
question a connection. Each process writes ``NAME_PID.json``.
Source: facebookincubator/dynolog, dynolog/src/rpc/SimpleJsonServer.cpp and cli/src/commands/gputrace.rs.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from torchtriage.core.errors import AttachError
from torchtriage.core.units import format_count
from torchtriage.diagnose.attach.captured import Captured, traces_in, wait_for
from torchtriage.diagnose.attach.web import Address

PORT = 1778
ASK_S = 10.0
MAX_BYTES = 1 << 20
MOST_PROCESSES = 64


def status(address: Address, *, timeout_s: float = 2.0) -> bool:
    """Return whether a dynolog is there."""
    try:
        return "status" in _ask(address, {"fn": "getStatus"}, timeout_s)
    except AttachError:
        return False


def capture(
    address: Address,
    folder: Path,
    *,
    pids: Collection[int],
    seconds: float,
    steps: int | None,
    timeout_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Captured:
    """Have the processes that registered, or ``pids`` of them, profile themselves.

    Nothing can be taken back: Kineto ends by itself after ``seconds``, or ``steps``.

    Raises AttachError: no process is registered, all are busy, or no whole trace came in time.
    """
    before = traces_in(folder)
    log = folder.absolute() / f"torchtriage-{time.strftime('%H%M%S')}-{os.getpid()}.json"
    if "\n" in str(log):
        raise AttachError("expected a folder without a line break in its name", where=str(folder))
    when = (
        f"PROFILE_START_TIME=0\nACTIVITIES_DURATION_MSECS={round(seconds * 1000)}"
        if steps is None
        else f"PROFILE_START_ITERATION=0\nPROFILE_START_ITERATION_ROUNDUP=1\nACTIVITIES_ITERATIONS={steps}"
    )
    request = {
        "fn": "setKinetOnDemandRequest",
        "config": f"ACTIVITIES_LOG_FILE={log}\n{when}\nPROFILE_REPORT_INPUT_SHAPES=true\nPROFILE_WITH_STACK=false"
        "\nPROFILE_WITH_FLOPS=false\nPROFILE_WITH_MODULES=false",
        "job_id": 0,
        "pids": sorted(pids) or [0],
        "process_limit": MOST_PROCESSES,
    }
    answer = _ask(address, request, ASK_S)
    triggered = answer.get("activityProfilersTriggered") or []
    if not isinstance(triggered, list):
        raise AttachError("expected the recording pids from dynolog, found something else", where=str(address))
    if not answer.get("processesMatched"):
        raise AttachError(
            "dynolog knows no such process",
            where=str(address),
            hint="start the job with KINETO_USE_DAEMON=1, and dynolog with --enable_ipc_monitor before it",
        )
    if not triggered:
        raise AttachError("all processes are being profiled already", where=str(address))
    sleep(seconds if steps is None else 0)
    files = wait_for(folder, before, timeout_s, n_files=len(triggered), sleep=sleep)
    was_on = f"{seconds:g} s" if steps is None else format_count(steps, "step")
    return Captured(files, f"{format_count(len(triggered), 'process', 'processes')} profiled themselves for {was_on}")


def _ask(address: Address, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    data = json.dumps(request).encode()
    deadline = time.monotonic() + timeout_s
    where = f"{address.host}:{address.port}"
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as connection:
            connection.sendall(struct.pack("=i", len(data)) + data)
            (size,) = struct.unpack("=i", _read(connection, 4, deadline))
            if not 0 < size <= MAX_BYTES:
                raise ValueError(f"an answer of {size} bytes")
            answer = json.loads(_read(connection, size, deadline))
            if not isinstance(answer, dict):
                raise ValueError("an answer that is no object")
            return answer
    except TimeoutError:
        raise AttachError(f"dynolog does not answer within {timeout_s:g} s", where=where) from None
    except (OSError, ValueError, RecursionError) as error:
        raise AttachError(f"no answer from dynolog: {error}", where=where) from error


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    parts = b""
    while len(parts) < size:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        part = connection.recv(size - len(parts))
        if not part:
            raise ValueError(f"it ends after {len(parts)} of {size} bytes")
        parts += part
    return parts
