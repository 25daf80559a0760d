"""The server of ``torch.distributed.debug``: traces, stacks and flight recorders of all ranks in one place.

``start_debug_server(port=25999)`` on every rank; rank 0 serves pages that hold what each rank answered, raw. They are
read as torch 2.13 makes them; addresses in them are never followed.
Source: torch/distributed/debug/_frontend.py and _debug_handlers.py.
"""

from __future__ import annotations

import html
import json
import mmap
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtriage.core.errors import AttachError
from torchtriage.diagnose.attach.captured import Captured
from torchtriage.diagnose.attach.processes import Thread
from torchtriage.diagnose.attach.result import Call, ranks_words
from torchtriage.diagnose.attach.web import Address, Reply, ask

PROBE_S = 5.0
FETCH_S = 75.0
"""The server itself gives its ranks 60 s."""
MAX_TRACES_BYTES = 2 << 30
MAX_PAGE_BYTES = 256 << 20
_TITLE = b"Torch Distributed Debug Server"
_RANK = re.compile(rb"<h2>Rank (\d{1,6}): ([^<]{0,300})</h2>")
_FAILED = re.compile(rb"\s*<p>Failed to fetch: status=(\d+)</p>\s*<pre>(.{0,200})", re.DOTALL)
_PRE = re.compile(rb"\s*<pre>(.*)</pre>", re.DOTALL)
_DATA = re.compile(rb"function run\d+\(\) \{\s*var data = ")
# in linear time: no two parts that match the same
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$', re.MULTILINE)


def answers(address: Address) -> bool:
    """Return whether such a server is there.

    Raises AttachError: nothing answers.
    """
    reply = ask(address, "GET", "/", timeout_s=PROBE_S)
    return reply.status == 200 and _TITLE in reply.body


def capture(address: Address, folder: Path, *, seconds: float, ranks: frozenset[int] | None) -> Captured:
    """Have all ranks profile all their threads for so long; write the traces of ``ranks`` into a new folder.

    Raises AttachError: the server does not answer, or names no such rank.
    """
    with tempfile.TemporaryFile(dir=folder) as page:
        reply = ask(
            address,
            "GET",
            f"/profile?duration={seconds:g}",
            timeout_s=FETCH_S + seconds,
            into=page,
            max_bytes=MAX_TRACES_BYTES,
        )
        _expect(reply, "profile")
        page.seek(0, 2)
        if not page.tell():
            raise AttachError("the debug server answers with an empty page", where=str(address))
        files: dict[int, Path] = {}
        failed, moves = [], False
        with mmap.mmap(page.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            for rank, part in _parts(whole):
                if rank in files or (ranks is not None and rank not in ranks):
                    continue
                data = _trace(part)
                if not data:
                    failed.append(f"rank {rank}: {_why(part)}")
                    continue
                path = folder / f"rank{rank}.json"
                with path.open("xb") as file:
                    file.write(data)
                files[rank] = path
                moves |= b'"cpu_op"' in data or b'"kernel"' in data
    if not files and not failed:
        raise AttachError("the page of traces names no rank that was asked for", where=str(address))
    if not files:
        return Captured((), still=f"no rank gave a trace: {'; '.join(failed[:4])}")
    if not moves:
        for path in files.values():
            path.unlink()
        return Captured((), still=f"no rank ran an operator within {seconds:g} s")
    lost = f"; without {', '.join(failed[:4])}" if failed else ""
    return Captured(tuple(files.values()), f"{ranks_words(list(files))} profiled all threads for {seconds:g} s{lost}")


def stacks_of(address: Address) -> tuple[dict[int, list[Thread]], list[str]]:
    """Return what the threads of each rank do, and which ranks do not say.

    Raises AttachError: the server does not answer.
    """
    parts = _page(address, "/stacks")
    silent = [f"rank {rank} does not answer: {_why(part)}" for rank, part in parts.items() if _FAILED.match(part)]
    texts = {rank: html.unescape(_pre(part).decode("utf-8", "replace")) for rank, part in parts.items()}
    return {rank: _threads(text) for rank, text in texts.items()}, silent


def dumps_of(address: Address) -> dict[int, bytes]:
    """Return the flight recorder of each rank as JSON: NCCL's where that holds anything, else gloo's.

    Raises AttachError: the server does not say.
    """
    found = {}
    for path in ("/fr_trace_json", "/fr_trace_nccl_json"):
        try:
            parts = _page(address, path)
        except AttachError:
            if path == "/fr_trace_json":
                raise
            break  # a torch without NCCL
        for rank, part in parts.items():
            data = _pre(part)
            if _entries(data) or (rank not in found and data.startswith(b"{")):
                found[rank] = data
    return found


def _entries(data: bytes) -> Any:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document.get("entries") if isinstance(document, dict) else None


def _page(address: Address, path: str) -> dict[int, bytes]:
    reply = ask(address, "GET", path, timeout_s=FETCH_S, max_bytes=MAX_PAGE_BYTES)
    _expect(reply, path[1:])
    return dict(_parts(reply.body))


def _expect(reply: Reply, what: str) -> None:
    if reply.status != 200:
        raise AttachError(
            f"the debug server answers HTTP {reply.status} to /{what}",
            hint="supported are the pages of torch 2.13, with requests or aiohttp installed where rank 0 runs",
        )


def _parts(page: bytes | mmap.mmap) -> Iterator[tuple[int, bytes]]:
    """Yield what a page says of each rank."""
    heads = [(int(head[1]), head.start(), head.end()) for head in _RANK.finditer(page)]
    ends = [*(start for _, start, _ in heads[1:]), len(page)]
    for (rank, _, start), end in zip(heads, ends, strict=False):
        yield rank, page[start:end]


def _trace(part: bytes) -> bytes:
    match = _DATA.search(part)
    end = part.rfind(b"openPerfetto(data);")
    data = part[match.end() : end].strip().removesuffix(b";") if match and end > 0 else b""
    return data if data.startswith(b"{") else b""


def _why(part: bytes) -> str:
    match = _FAILED.match(part)
    if match is None:
        return "it answered with no trace"
    return f"HTTP {match[1].decode()}, {' '.join(match[2].decode('utf-8', 'replace').split('<')[0].split())[:120]}"


def _pre(part: bytes) -> bytes:
    match = None if _FAILED.match(part) else _PRE.match(part)
    return match[1].strip() if match else b""


def _threads(text: str) -> list[Thread]:
    """Return the threads of a dump by ``faulthandler``."""
    heads = list(_THREAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    threads = []
    for head, end in zip(heads, ends, strict=False):
        calls = tuple(Call(file, int(line), name) for file, line, name in _FRAME.findall(text, head.end(), end))
        if calls:
            threads.append(Thread(head[1] or "", calls))
    if threads and not any(thread.name for thread in threads):
        threads[-1] = Thread("MainThread", threads[-1].calls)  # the oldest one comes last
    return threads
