"""Opening what a user points at as compile logs, one :class:`ProcessLog` each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchtriage.compile.logs.entries import Readable
from torchtriage.compile.logs.log_files import HEAD_BYTES, HOW, Form, find_logs, form_of, known_form, opened, rank_of
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.core.errors import LogError

__all__ = ["read_logs"]

Progress = Callable[[int, int], None]

BLOCK_BYTES = 1 << 20


def read_logs(
    paths: Sequence[str], progress: Callable[[str, int], Progress | None] | None = None
) -> tuple[list[ProcessLog], list[LogError]]:
    """Return the logs that the paths mean, and why files of a folder were left out.

    ``progress`` : is told each file and how many came before it; gives what is told the bytes read.

    Raises LogError: there is no log among them.
    """
    files = find_logs(paths)
    found: list[ProcessLog] = []
    refused: list[LogError] = []
    for number, path in enumerate(files):
        told = progress(path, number) if progress is not None else None
        try:
            found.append(_read(path, told))
        except LogError as error:
            refused.append(error)
    if not found:
        if len(refused) == 1:
            raise refused[0]
        raise LogError(
            f"expected compile logs, found none in {len(files)} files; the first: {refused[0].message}",
            where=", ".join(paths)[:200],
            hint=refused[0].hint,
        )
    return found, refused


def _read(path: str, progress: Progress | None) -> ProcessLog:
    with opened(path) as (stream, name, size_bytes):
        head = _head(stream, name)
        form = form_of(head, name)
        n_before = 0
        if form is None:  # the program may print much before the first record
            form, head, n_before = _begun(head, stream, name)
        # what explain says is what the text of graph_breaks says
        kept = "structured" if form == "structured" else "text"
        log = ProcessLog(name, size_bytes, kept, named_rank=rank_of(path))
        if n_before:
            reason = "line of the program" if form == "text" else "line that is no record"
            log.tally.n_read = log.tally.skipped[reason] = n_before
        read = _reader(form)
        told = None if progress is None else (lambda n_bytes: progress(n_bytes, size_bytes))
        return read(log, _Rewound(head, stream), told)


def _reader(form: Form) -> Callable[[ProcessLog, Readable, Callable[[int], None] | None], ProcessLog]:
    """Return what reads this kind, imported when it is needed: patterns take time to compile."""
    if form == "structured":
        from torchtriage.compile.logs.structured_log import read_structured

        return read_structured
    if form == "text":
        from torchtriage.compile.logs.text_log import read_text

        return read_text
    from torchtriage.compile.logs.explain_output import read_explain

    return read_explain


def _begun(data: bytes, stream: Readable, name: str) -> tuple[Form, bytes, int]:
    """Return what kind of log it is, the block in which that shows, and the lines before it."""
    n_before = 0
    while True:
        end = data.rfind(b"\n") + 1
        n_before += data.count(b"\n", 0, end)
        try:
            block = stream.read(BLOCK_BYTES)
        except EOFError:
            block = b""
        if not block:
            raise LogError(
                "expected a compile log, found other text",
                where=name,
                hint=f"{HOW}; or TORCH_LOGS=graph_breaks,recompiles,guards",
            )
        data = data[end:][-BLOCK_BYTES:] + block
        form = known_form(data)
        if form is not None:
            return form, data, n_before


def _head(stream: Readable, name: str) -> bytes:
    """Return the first bytes; of a gzip that is cut, as far as it goes."""
    data = b""
    try:
        while len(data) < HEAD_BYTES:
            more = stream.read(HEAD_BYTES - len(data))
            if not more:
                break
            data += more
    except EOFError as error:
        if not data:
            raise LogError(
                f"expected a whole gzip, found one that cannot be read: {error}",
                where=name,
                hint="copy the file again; it was cut or damaged on its way",
            ) from None
    return data


class _Rewound:
    """A stream whose first bytes were read already."""

    def __init__(self, head: bytes, rest: Readable) -> None:
        self.head = head
        self.rest = rest

    def read(self, size: int, /) -> bytes:
        if self.head:
            data, self.head = self.head[:size], self.head[size:]
            return data
        return self.rest.read(size)
