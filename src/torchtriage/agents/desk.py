"""What the tools share: roots that hold what may be read, progress and cancellation, the latest documents."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchtriage.agents.answers import DEFAULT_BYTES, Pages, shown
from torchtriage.core.errors import UsageError
from torchtriage.core.folders import SUFFIXES, is_inside

KEPT_RUNS = 16
KEPT_TRACES = 4
_EVERY_S = 0.2


class Roots:
    """The folders below which files are read and programs run."""

    def __init__(self, folders: Collection[str | os.PathLike[str]]) -> None:
        """Raise UsageError where one is no folder."""
        self.folders = tuple(dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders))
        for folder in self.folders:
            if not folder.is_dir():
                raise UsageError("expected a folder as root", where=str(folder))

    def find(self, path: str) -> Path:
        """Return the real path of a file or folder below a root; a relative one may be below any.

        Raises UsageError: there is none, links and ``..`` followed.
        """
        if "://" in path or path.startswith(("s3:", "gs:", "http:", "https:", "file:")):
            raise UsageError("expected a path, found a URL", where=path, hint="copy the file below a root first")
        if path and "\0" not in path:
            for folder in self.folders:
                real = os.path.realpath(folder / path)
                below = Path(real) in self.folders or self.root_of(Path(real))
                if below and (os.path.isfile(real) or os.path.isdir(real)):  # noqa: PTH112, PTH113 - no name raises
                    return Path(real)
        raise UsageError(
            "expected a file or folder below a root, found none",
            where=path,
            hint=f"the roots are {', '.join(map(str, self.folders))}",
        )

    def root_of(self, real: Path) -> Path | None:
        """Return the root that a real path lies below."""
        return next((folder for folder in self.folders if is_inside(real, folder)), None)

    def shown(self, text: str) -> str:
        """Return a text without the roots' own folders."""
        for folder in self.folders:
            if folder == folder.parent:
                continue  # of all files
            text = text.replace(os.path.join(folder, ""), "")  # noqa: PTH118 - with the separator
        return text


def links_outside(
    folder: Path, endings: tuple[str, ...], within: Collection[Path], skips: Callable[[str], bool] = lambda _name: False
) -> list[str]:
    """Return the links below a folder, to folders and files of such endings, that lead out of all of ``within``.

    ``within`` : real paths. ``skips`` : whether a file or folder of a name is left out.
    """
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not skips(name)]
        found += [
            os.path.relpath(file, folder)
            for name in (*folders, *names)
            if not skips(name)
            and (file := Path(place, name)).is_symlink()
            and (name.endswith(endings) or file.is_dir())
            and not (Path(os.path.realpath(file)) in within or any(is_inside(file, root) for root in within))
        ]
    return found


def not_read(links: Collection[str]) -> list[str]:
    """Return what to say of links that were left out."""
    return [f"{link}: not read, a link to a place outside" for link in sorted(links)]


class _CancelledError(Exception):
    """The call that a thread works for is gone."""


class Call:
    """One request: where its progress goes."""

    def __init__(self, report: Callable[[float, float | None, str], Awaitable[None]]) -> None:
        """``report`` : takes how much is done, of how much if that is known, and a line of text."""
        self._report = report
        self._done = self._told_s = 0.0

    async def tell(self, done: float, total: float | None, text: str) -> None:
        """Send a notification of progress, of many in a row the first."""
        if done > self._done and time.monotonic() - self._told_s >= _EVERY_S:
            self._done, self._told_s = done, time.monotonic()
            await self._report(done, total, shown(text))

    async def work(self, function: Callable[[Callable[[float, float | None, str], None]], Any]) -> Any:
        """Return what a function returns in a thread; it gets a callback for progress, which ends it once cancelled."""
        import anyio
        from anyio import from_thread, to_thread

        gone = threading.Event()

        def progress(done: float, total: float | None, text: str) -> None:
            if gone.is_set():
                raise _CancelledError
            if time.monotonic() - self._told_s >= _EVERY_S:
                from_thread.run(self.tell, done, total, text)

        try:
            return await to_thread.run_sync(function, progress, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            gone.set()
            raise


@dataclass(frozen=True)
class Limits:
    """What the server was allowed. ``python`` : runs the programs."""

    allow_run: bool = False
    max_bytes: int = DEFAULT_BYTES
    python: str = sys.executable


class Desk:
    """What the tools of one server share: roots, pages, and the latest documents."""

    def __init__(self, roots: Roots, limits: Limits) -> None:
        """Nothing is read before a tool is called."""
        self.roots, self.limits = roots, limits
        self.pages = Pages(limits.max_bytes)
        self._runs: OrderedDict[str, Any] = OrderedDict()
        self._n_runs = 0
        self._traces: OrderedDict[Any, Any] = OrderedDict()

    def keep_run(self, document: Any) -> str:
        """Return the name by which the document of a run can be asked for."""
        self._n_runs += 1
        name = f"run:{self._n_runs}"
        self._runs[name] = document
        while len(self._runs) > KEPT_RUNS:
            self._runs.popitem(last=False)
        return name

    async def document(self, path: str, call: Call, **options: Any) -> Any:
        """Return the ``--json`` document about a trace, a folder of ranks, or a run by its name."""
        if path.startswith("run:") and path[4:].isdecimal():
            if path not in self._runs:
                raise UsageError(f"expected one of the last {KEPT_RUNS} runs, found {path!r}", hint="run it again")
            if options:
                raise UsageError("the recordings of a run are not kept: nothing else can be asked about it", where=path)
            return self._runs[path]
        from torchtriage.api import traces

        real = self.roots.find(path)
        files = traces.find_traces([real])
        unread = not_read(links_outside(real, SUFFIXES, [real]))
        stats = [(str(file), Path(file).stat()) for file in files]
        key = repr((options, unread)), *((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
        if key not in self._traces:
            sources = self.roots.folders
            document = await call.work(
                lambda progress: _judged(files, progress, sources=sources, confined=True, **options)
            )
            document["unreadable"] += unread
            self._traces[key] = reduced(document, self.roots.shown)
        self._traces.move_to_end(key)
        while len(self._traces) > KEPT_TRACES:
            self._traces.popitem(last=False)
        return self._traces[key]

    def script(self, path: str) -> tuple[Path, str]:
        """Return the folder to start a script in, which is its root, and its name there.

        Raises UsageError: it is no Python file below a root.
        """
        real = self.roots.find(path)
        if real.suffix != ".py" or not real.is_file():
            raise UsageError("expected a Python script", where=path, hint="launchers and modules are not started here")
        root = self.roots.root_of(real) or real.parent
        return root, os.path.join(".", os.path.relpath(real, root))  # noqa: PTH118 - a name may begin with a dash

    def words(self, script: str, arguments: Sequence[str]) -> list[str]:
        """Return the words that start a script."""
        program = [] if self.limits.python == sys.executable else [self.limits.python]
        return [*program, script, *arguments]


def _judged(files: list[Any], progress: Callable[[float, float | None, str], None], **options: Any) -> Any:
    """Return the document of files, as ``torchtriage analyze --json`` makes it."""
    from torchtriage.api import traces
    from torchtriage.report.json_report import JsonReport, encode

    def starting(path: str, done: int) -> Callable[[int, int], None]:
        text = f"reading {Path(path).name}, {done + 1} of {len(files)}"
        progress(done, len(files), text)
        # how far a compressed file expands is not known before its end
        return lambda n_read, size: progress(done + n_read / (n_read + 10 * size + 1), len(files), text)

    report: Any = None
    if len(files) == 1:
        result = traces.analyze(files[0], progress=starting(str(files[0]), 0), **options)
        report = None if result.holds_ranks else JsonReport.of([result])
    report = report or traces.analyze_ranks(files, starting=starting, **options)
    document = msgspec.json.decode(encode(report.results, report.jobs))
    document["unreadable"] = [str(error) for error in getattr(report, "unreadable", ())]
    return document


def reduced(document: Any, shown: Callable[[str], str]) -> Any:
    """Return a document with paths as ``shown``, and without what is only drawn, which is most of it."""
    for result in document["results"]:
        result["trace"]["path"] = shown(result["trace"]["path"])
        if result["summary"]:
            del result["summary"]["timeline"]
        if result["recorded"] and result["recorded"]["account"]:
            del result["recorded"]["account"]["flame"]
    for rank in [rank for job in document["jobs"] for rank in job["ranks"]]:
        rank["path"] = shown(rank["path"])
    document["unreadable"] = [shown(text) for text in document.get("unreadable", ())]
    return document
