"""Trace files to a :class:`Trace`: the one door for every input."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from torchtriage.core.anonymous import current
from torchtriage.core.engine import Engine, find_engine
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.columns import ReadReport, Trace
from torchtriage.core.trace.events import CHUNK_BYTES, EventReader, Loss
from torchtriage.core.trace.input import Input, Source, open_source, reopenable
from torchtriage.core.trace.native import THREADS_WORTH_IT_BYTES, read_native
from torchtriage.core.trace.parallel import count_workers, read_parallel
from torchtriage.core.trace.recorders import ROCPROF, WAYS, XPLANE, XPLANE_JSON
from torchtriage.core.units import DEFAULT_MAX_BYTES


def read_trace(
    path: Input,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
    processes: int | None = None,
    cache: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> Trace:
    """Read a recording into columns.

    Parameters
    ----------
    path : path, ``-`` or binary stream
        Plain, gzip or zip JSON of the PyTorch profiler; a dict with ``traceEvents`` or a bare list of events.
        Or a database of Nsight Systems or ROCm, an XPlane or the JSON beside it, or JSON or CSV of rocprofv3, plain
        or gzip. Of a CSV all tables of the run are read that lie beside it.
    max_bytes : int
        Refuse inputs that expand beyond this many bytes.
    progress : callable, optional
        Called with (uncompressed bytes read, size on disk) about every megabyte.
    processes : int, optional
        Worker processes for large inputs: 1 for none; by default as many as pay, or what
        ``$TORCHTRIAGE_PROCESSES`` says. The result does not depend on it.
    cache : bool
        Keep the columns in a file beside the trace, ``FILE.torchtriage-cache``, and take them
        from there while the trace stays the same. Only for files.
    chunk_bytes : int
        How much text to decode at a time; the columns do not depend on it.

    Raises TraceFormatError: the input cannot be read, is something else, or holds no event.
    """
    trace = _read(path, max_bytes, progress, processes, chunk_bytes, cache=cache)
    names = current()
    return trace if names is None else names.trace(trace)


def _read(
    path: Input,
    max_bytes: int,
    progress: Callable[[int, int], None] | None,
    processes: int | None,
    chunk_bytes: int,
    *,
    cache: bool,
) -> Trace:
    opened, name = reopenable(path)
    file = opened if cache and isinstance(opened, str) and Path(opened).is_file() else None
    if file is not None:
        from torchtriage.core.trace.cache import digest_of, load, store

        digest = digest_of(file)
        trace = load(file, digest, name)
        if trace is not None and trace.report.text_bytes <= max_bytes:
            return trace
    engine = find_engine()
    builder = ColumnBuilder()
    with open_source(opened, max_bytes=max_bytes, name=name, others=True) as source:
        if source.is_database:
            from torchtriage.core.trace.formats.databases import read_database

            recorder, meta, loss = read_database(source, opened, builder)
        elif source.is_xplane:
            from torchtriage.core.trace.formats.xplane import read_xplane

            meta, loss = read_xplane(bytes(_whole(source, progress)), builder)
            recorder = XPLANE
            if source.truncated:
                loss.say(source.truncated)
        elif source.is_xplane_json:
            from torchtriage.core.trace.formats.xplane_json import read_xplane_json

            meta, loss = read_xplane_json(source, chunk_bytes, builder, progress)
            recorder = XPLANE_JSON
        elif source.rocprof:
            recorder = ROCPROF[source.rocprof]
            meta, loss = _read_rocprof(source, opened, builder, progress)
        else:
            reader = EventReader(source, chunk_bytes)
            reader.open()
            # closed at once when it is left early: its workers must not outlive the call
            with closing(_read_blocks(reader, source, builder, engine, processes)) as blocks:
                for _ in blocks:
                    if progress is not None:
                        progress(source.n_read, source.size_bytes)
            reader.close()
            recorder, meta, loss = "", reader.meta, reader.loss
        report = ReadReport(
            path=source.name,
            size_bytes=source.size_bytes,
            text_bytes=source.n_read,
            tier=loss.tier,
            n_lost=loss.n_lost,
            n_repaired=loss.n_repaired,
            loss=loss.summary(),
            recorder=recorder,
        )
    trace = builder.finish(meta, report, opened)
    if not trace.report.n_events:
        nothing = f"no event of {recorder}" if recorder else "an empty list"
        found = "none that can be read" if loss.n_lost or loss.incomplete else nothing
        raise TraceFormatError(
            f"expected profiler events, found {found}",
            where=source.name,
            hint=WAYS.get(recorder)
            or "call prof.step() in the loop and export inside on_trace_ready: after the last cycle of a schedule the"
            " buffer is empty",
        )
    # a table's digest says nothing of the others beside it
    if file is not None and source.rocprof != "csv":
        store(trace, file, digest)
    return trace


def _read_rocprof(
    source: Source, opened: Input, builder: ColumnBuilder, progress: Callable[[int, int], None] | None
) -> tuple[dict[str, Any], Loss]:
    if source.rocprof == "csv":
        from torchtriage.core.trace.formats.rocprof_csv import read_rocprof_csv

        return read_rocprof_csv(source, opened, builder, progress)
    from torchtriage.core.trace.formats.rocprof_json import read_rocprof_json

    return read_rocprof_json(_whole(source, progress), source.name, builder)


def _whole(source: Source, progress: Callable[[int, int], None] | None) -> bytearray:
    text = bytearray()
    while block := source.read(1 << 20):
        text += block
        if progress is not None:
            progress(source.n_read, source.size_bytes)
    return text


def _read_blocks(
    reader: EventReader, source: Source, builder: ColumnBuilder, engine: Engine, processes: int | None
) -> Generator[None, None, None]:
    """Read as much as goes faster than chunk by chunk, then chunk by chunk; yields after each piece."""
    if engine.library is not None:
        n_threads = count_workers(source.likely_text_bytes, processes, worth_it_bytes=THREADS_WORTH_IT_BYTES)
        yield from read_native(reader, source, builder, engine.library, n_threads)
    elif (n_workers := count_workers(source.likely_text_bytes, processes)) > 1:
        yield from read_parallel(reader, builder, n_workers)
    for chunk in reader.chunks():
        builder.add(chunk)
        yield
