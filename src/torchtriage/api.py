"""The names we promise: ``load``, ``analyze``, ``explain`` and what they return."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

from torchtriage.diagnose import diagnose
from torchtriage.diagnose.verdict import DEFAULT_MIN_SHARE
from torchtriage.errors import TraceFormatError
from torchtriage.finding import Result
from torchtriage.patterns import Entry, catalogue, lookup
from torchtriage.trace import Trace, read_trace
from torchtriage.trace.overlay import write_overlay
from torchtriage.trace.source import DEFAULT_MAX_BYTES

__all__ = ["Report", "analyze", "explain", "find_traces", "load", "overlay", "sample_path"]

TracePath = str | os.PathLike[str]
SUFFIXES = (".json", ".json.gz", ".zip")


@dataclass(frozen=True)
class Report(Result):
    """A :class:`~torchtriage.finding.Result` that shows itself, in notebooks too."""

    def __str__(self) -> str:
        """Return the terminal report as plain text."""
        from torchtriage.report import terminal

        return terminal.render([self]).plain

    def _repr_html_(self) -> str:
        """Return the page for a notebook cell, in a frame of its own."""
        import html

        # a frame keeps the page's styles and scripts away from the notebook's
        page = html.escape(self.to_html(), quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="torchtriage report"'
            ' style="width:100%;height:720px;border:0"></iframe>'
        )

    def to_html(self) -> str:
        """Return one self-contained HTML page."""
        from torchtriage.report import html_page

        return html_page.render([self])

    def to_json(self) -> bytes:
        """Return the versioned JSON document (``docs/json.md``)."""
        from torchtriage.report import json_report

        return json_report.encode([self])

    def to_markdown(self) -> str:
        """Return Markdown for a pull-request comment."""
        from torchtriage.report import markdown

        return markdown.render([self])


def load(
    path: TracePath | BinaryIO,
    *,
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read a profiler trace into columns.

    Parameters
    ----------
    path : path, ``-`` for standard input, or binary stream
        ``.json``, ``.json.gz`` or ``.zip``.
    cache : bool
        Keep the columns beside the file, and use them next time while the file is the same.
    max_bytes : int
        Refuse inputs that expand beyond this.
    progress : callable, optional
        Called with (uncompressed bytes read, size on disk).

    Raises
    ------
    TraceFormatError
        The input is not a readable profiler trace.
    """
    return read_trace(path, cache=cache, max_bytes=max_bytes, progress=progress)


def analyze(
    source: TracePath | BinaryIO | Trace,
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    min_share: float = DEFAULT_MIN_SHARE,
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Judge one trace: a ranked list of findings with what fixing each gives back.

    Parameters
    ----------
    source : path, stream or Trace
        What to judge; see :func:`load`.
    only, skip : collections of codes or names
        Restrict the patterns.
    min_share : float
        Leave out findings whose high end is below this share of a step (0-1).
    cache, max_bytes, progress
        As in :func:`load`.

    Raises
    ------
    TraceFormatError
        The input is not a readable profiler trace.
    UsageError
        A code does not exist.
    """
    for code in (*only, *skip):
        lookup(code)  # before minutes of reading
    trace = (
        source
        if isinstance(source, Trace)
        else load(source, cache=cache, max_bytes=max_bytes, progress=progress)
    )
    result = diagnose(trace, only=only, skip=skip, min_share=min_share)
    return Report(**{field.name: getattr(result, field.name) for field in fields(result)})


def overlay(
    path: TracePath, result: Result, out: TracePath, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> None:
    """Write the trace at ``path`` to ``out`` with a track per finding, for ui.perfetto.dev.

    Compressed when ``out`` ends in ``.gz``.

    Raises
    ------
    TraceFormatError
        The trace cannot be read, or expands beyond ``max_bytes``.
    UsageError
        ``out`` cannot be written, or is the input.
    """
    from torchtriage.report import perfetto

    write_overlay(path, out, perfetto.events(result), max_bytes=max_bytes)


def explain(code_or_name: str | None = None) -> Entry | tuple[Entry, ...]:
    """Return a pattern's page, or all patterns without an argument.

    Raises
    ------
    UsageError
        No pattern has this code or name.
    """
    return catalogue() if code_or_name is None else lookup(code_or_name)


def find_traces(paths: Iterable[TracePath]) -> list[Path]:
    """Return the trace files that paths stand for: files as they are, folders searched below.

    Raises
    ------
    TraceFormatError
        A path does not exist, or a folder holds no candidate.
    """
    found: list[Path] = []
    for item in paths:
        path = Path(item)
        try:
            if not path.is_dir():
                found.append(path)
                continue
            inside = sorted(
                one for one in path.rglob("*") if one.name.endswith(SUFFIXES) and one.is_file()
            )
        except (OSError, ValueError) as error:
            raise TraceFormatError(f"cannot be read: {error}", where=repr(str(path))) from error
        if not inside:
            raise TraceFormatError(
                "expected traces in this folder, found no .json, .json.gz or .zip file",
                where=str(path),
                hint="export with prof.export_chrome_trace('trace.json.gz')",
            )
        found += inside
    return list(dict.fromkeys(found))


def sample_path() -> Path:
    """Return the bundled sample: our own recording of a small training script on the CPU."""
    return Path(__file__).parent / "data" / "sample_cpu_training.json.gz"
