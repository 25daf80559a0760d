"""Imports torch once, then runs each recording in a fork of itself.

    python -m torchtriage_benchmark.recording.fork_server

Reads the path of an item's JSON a line, answers with one line of JSON each: why it failed, empty
when it did not. Importing takes longer than most recordings; a fork has it done. Each fork leads a
process group of its own, and the group is killed when it hangs: a loader's workers go with it. The
server runs nothing of torch itself, so a fork begins without its threads.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtriage_benchmark.recording.recording_worker import run

# what a first step would import
WARM = ("torch", "torch._dynamo", "torch.profiler", "torch.utils.data", "transformers", "diffusers")
WARM_COMPILED = ("torch._inductor.compile_fx", "torch._inductor.codegen.cpp")
POLL_S = 0.02


def main() -> int:
    """Serve until there are no more lines."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for name in WARM:
        importlib.import_module(name)
    for line in sys.stdin:
        item = json.loads(Path(line.strip()).read_text())
        for name in WARM_COMPILED if item["compiled"] else ():
            importlib.import_module(name)
        with contextlib.suppress(Exception):  # the script says it, where it is seen
            exec(item["imports"], {})
        answers.write(json.dumps(_forked(item)) + "\n")
    return 0


def _forked(item: dict[str, Any]) -> str:
    """Run an item in a fork; return why it failed."""
    said = Path(item["folder"], "said.txt")
    pid = os.fork()
    if not pid:
        _child(item, said)
    with contextlib.suppress(OSError):  # both do it: whoever comes first
        os.setpgid(pid, pid)
    until = time.monotonic() + item["timeout_s"]
    try:
        while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > until:
                return f"ran longer than {item['timeout_s']:g} s"
            time.sleep(POLL_S)
    finally:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(done[1])
    if not code:
        return ""
    lines = [line for line in said.read_text(errors="replace").splitlines() if line.strip()]
    return f"exit code {code}: {lines[-1] if lines else 'nothing said'}"


def _child(item: dict[str, Any], said: Path) -> None:
    """Run an item, each of its ranks in a process of its own, and end."""
    with _ending():
        os.setpgid(0, 0)
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if item["ranks"] == 1:
            run(item)
        else:
            _run_ranks(item)


def _run_ranks(item: dict[str, Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(item["ranks"])}
    for rank in range(item["ranks"]):
        if not os.fork():
            with _ending():
                os.environ["RANK"] = str(rank)
                run(item, rank)
    for _ in range(item["ranks"]):
        code = os.waitstatus_to_exitcode(os.wait()[1])
        if code:
            os._exit(code if code > 0 else 1)


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """End the process after this, whatever happens, and run nothing of the server's."""
    code = 1
    try:
        yield
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
