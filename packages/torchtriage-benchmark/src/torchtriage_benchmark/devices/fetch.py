"""Recordings of the device part: downloaded from where they were published, or taken from a folder, checked, kept.

Checksums decide, not names: a folder may call its files as it likes. A download that breaks off goes on where it
stopped. What is kept is packed with gzip, one file a recording; a job's ranks are in a folder beside it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from torchtriage.core.errors import UsageError
from torchtriage.learn.dataset.recordings import RECORDING
from torchtriage_benchmark.devices.index import Entry, Source, about, rank

HOST = "https://raw.githubusercontent.com"
TIMEOUT_S = 60.0
_PIECE = 1 << 20
_GZIP = b"\x1f\x8b"
_DRAFTS = "fetching"
"""Where downloads are until they are whole."""


@dataclass(frozen=True)
class Outcome:
    """What became of one recording. ``failure`` : why it cannot be had. ``kept`` : it was there."""

    id: str
    kept: bool = False
    failure: str = ""


def fetch(
    entries: Sequence[Entry],
    labels: Mapping[str, Mapping[str, Any]],
    folder: Path,
    *,
    local: Path | None = None,
    host: str = HOST,
    report: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Make a benchmark recording of each entry in ``folder``.

    From ``local`` when it is given, and then from there alone; else from ``host``.

    Raises UsageError: ``local`` is no folder.
    """
    if local is not None and not local.is_dir():
        raise UsageError(f"expected a folder of recordings, found none at {local}")
    folder.mkdir(parents=True, exist_ok=True)
    drafts = folder / _DRAFTS
    have = _found(local, entries) if local is not None else None
    outcomes = []
    for entry in entries:
        outcome = _one(entry, labels.get(entry.id, {}), folder, have, host)
        outcomes.append(outcome)
        report(outcome)
    if not any(outcome.failure for outcome in outcomes) and drafts.exists():
        shutil.rmtree(drafts)
    return outcomes


def _one(entry: Entry, label: Mapping[str, Any], folder: Path, have: Mapping[str, Path] | None, host: str) -> Outcome:
    """Keep the recording of an entry, or say why not."""
    kept = True
    many = len(entry.files) > 1
    for number, file in enumerate(entry.files):
        path = folder / entry.id / f"rank{number}.json.gz" if many else folder / f"{entry.id}{RECORDING}"
        try:
            if path.exists() and _matches(_unpacked(path.read_bytes(), file), file):
                continue
            kept = False
            stored = _local(have, file) if have is not None else _download(entry, file, folder / _DRAFTS, host)
            raw = _unpacked(_member(stored, file), file)
            if not _matches(raw, file):
                raise _UnusableError("another content than the index has: its checksum differs")
        except (_UnusableError, OSError, EOFError, zlib.error, HTTPException, tarfile.TarError, KeyError) as error:
            where = f"{entry.repository} {file.path}{f' ({file.member})' if file.member else ''} {file.commit[:12]}"
            return Outcome(entry.id, failure=f"{where}: {error}")
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f"{path.name}.draft")
        draft.write_bytes(stored if stored.startswith(_GZIP) and not file.member else gzip.compress(raw, 6, mtime=0))
        draft.replace(path)
    recording = folder / f"{entry.id}{RECORDING}"
    if many:
        # one rank is judged: the one where the label's fault is at work
        shutil.copyfile(folder / entry.id / f"rank{rank(label)}.json.gz", recording)
    known = about(entry, label, hashlib.sha256(recording.read_bytes()).hexdigest())
    recording.with_suffix(".json").write_text(json.dumps(known), encoding="utf-8")
    return Outcome(entry.id, kept)


class _UnusableError(Exception):
    """Why a file cannot be used, for people."""


def _matches(raw: bytes, file: Source) -> bool:
    return hashlib.sha256(raw).hexdigest() == file.sha256


def _unpacked(data: bytes, file: Source) -> bytes:
    """Return the recording of a file's bytes; a byte more than it may have, when there are more."""
    if not data.startswith(_GZIP):
        return data
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return stream.read(file.bytes + 1)


def _member(stored: bytes, file: Source) -> bytes:
    """Return the bytes that an archive has under a name; nothing of it is written anywhere."""
    if not file.member or hashlib.sha256(stored).hexdigest() != file.stored_sha256:
        return stored
    with tarfile.open(fileobj=io.BytesIO(stored)) as archive:
        inside = archive.extractfile(file.member)
        if inside is None:
            raise _UnusableError(f"{file.member} is no file in the archive")
        return inside.read(file.bytes + 1)


# -- a folder ------------------------------------------------------------------------------------


def _found(local: Path, entries: Sequence[Entry]) -> dict[str, Path]:
    """Return files of a folder by the checksum of what is wanted of them."""
    files = [file for entry in entries for file in entry.files]
    sizes = {file.bytes for file in files} | {file.stored_bytes for file in files}
    longest = max(files, key=lambda file: file.bytes)
    archives = {file.stored_sha256 for file in files if file.member}
    found: dict[str, Path] = {}
    for path in sorted(local.rglob("*")):
        if path.is_file() and sizes & _sizes(path):
            data = path.read_bytes()
            stored = hashlib.sha256(data).hexdigest()
            if stored in archives:
                found[stored] = path
                continue
            with contextlib.suppress(OSError, EOFError, zlib.error):
                found.setdefault(hashlib.sha256(_unpacked(data, longest)).hexdigest(), path)
    return found


def _sizes(path: Path) -> set[int]:
    """Return how long a file is, and how long unpacked, as its gzip trailer has it: what need not be read at all."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        if size < 18 or stream.read(2) != _GZIP:
            return {size}
        stream.seek(-4, io.SEEK_END)
        return {size, int.from_bytes(stream.read(4), "little")}


def _local(have: Mapping[str, Path], file: Source) -> bytes:
    path = have.get(file.sha256) or have.get(file.stored_sha256)
    if path is None:
        raise _UnusableError("not in the folder")
    return path.read_bytes()


# -- downloads -----------------------------------------------------------------------------------


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to where the request went: no other host, no weaker scheme."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            raise _UnusableError(f"redirected to another host: {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(entry: Entry, file: Source, drafts: Path, host: str) -> bytes:
    """Return a file as its repository has it; what is there of an earlier try is not loaded again."""
    drafts.mkdir(exist_ok=True)
    draft = drafts / file.stored_sha256
    if not draft.exists() or draft.stat().st_size < file.stored_bytes:
        url = f"{host}/{entry.repository}/{file.commit}/{quote(file.path)}"
        with draft.open("ab") as out:
            for piece in _pieces(url, out):
                if out.tell() + len(piece) > file.stored_bytes:
                    out.truncate(0)
                    raise _UnusableError(f"more than the {file.stored_bytes:,} bytes the index has")
                out.write(piece)
    data = draft.read_bytes()
    if len(data) < file.stored_bytes:
        raise _UnusableError(f"{len(data):,} of {file.stored_bytes:,} bytes came; run it again to go on")
    if hashlib.sha256(data).hexdigest() != file.stored_sha256:
        draft.unlink()
        raise _UnusableError("another content than the index has: its checksum differs")
    return data


def _pieces(url: str, out: IO[bytes]) -> Iterator[bytes]:
    """Yield what comes after what ``out`` has; it is emptied where the server sends all again."""
    opener = urllib.request.build_opener(_SameHost)
    begin = out.tell()
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            if begin and answer.status != 206:
                out.truncate(0)
                out.seek(0)
            while piece := answer.read1(_PIECE):
                yield piece
    except urllib.error.HTTPError as error:
        raise _UnusableError(f"HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _UnusableError(f"no answer: {error.reason}") from error
