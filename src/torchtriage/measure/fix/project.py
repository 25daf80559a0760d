"""A copy of the user's project that programs on trial run in, and that is put back after each of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchtriage.core.errors import UsageError
from torchtriage.core.record.launch import Command, find_command
from torchtriage.core.units import format_bytes

MOST_BYTES = 2 << 30
MARKERS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
LEFT_OUT = frozenset(
    {".git", ".hg", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox"}
)


def project_of(words: Sequence[str], given: str | None = None) -> Path:
    """Return the folder that belongs together with a script: that of its repository or package, else its own.

    Where the script lies below the current folder and nothing marks a project, that folder is meant.

    Raises UsageError: the folder that was given does not hold the script.
    """
    place = _script(words)
    start = (_folder_of(words) if place is None else Path(words[place]).absolute().parent).resolve()
    if given is not None:
        project = Path(given).resolve()
        if not start.is_relative_to(project):
            raise UsageError("expected a folder that holds the script", where=given)
        return project
    home = Path.home().resolve()
    for folder in (start, *start.parents):
        if folder == home or folder == Path(folder.anchor):
            break
        if any((folder / marker).exists() for marker in MARKERS):
            return folder
    here = Path.cwd().resolve()
    return here if start.is_relative_to(here) and here != home and here != Path(here.anchor) else start


def _script(words: Sequence[str]) -> int | None:
    """Return the place of the script in a command, also behind an interpreter or a launcher; None for a module."""
    for place, word in enumerate(words):
        path = Path(word)
        if word == "-m":
            return None
        if (path.suffix in (".py", ".pyw") and path.is_file()) or (not place and path.is_dir()):
            return place
    return None


def _folder_of(words: Sequence[str]) -> Path:
    """Return the folder of a program such as ``../proj/train.sh``; the current one for a module or a launcher."""
    folder = Path(words[0]).absolute().parent
    # interpreters and launchers lie where programs are installed, whichever project they start
    installed = any((folder.parent / marker).exists() for marker in ("pyvenv.cfg", "conda-meta"))
    return Path.cwd() if "-m" in words or installed or str(folder) in os.get_exec_path() else folder


@dataclass(frozen=True)
class ProjectCopy:
    """The copy ``root`` of ``project``, and how a command runs in it.

    ``apart`` : a folder of the project that is ours, not the project's. ``original`` : what it is put back to, a
    copy as well: the project may be edited meanwhile.
    """

    project: Path
    root: Path
    words: tuple[str, ...]
    original: Path
    apart: Path | None = None

    @staticmethod
    def make(project: Path, into: Path, words: Sequence[str], apart: Path | None = None) -> ProjectCopy:
        """Copy a project, without repositories, environments, caches and earlier recordings.

        Raises UsageError: it is larger than ``MOST_BYTES``, or cannot be read.
        """
        files = list(_files(project, apart))
        size = sum(path.lstat().st_size for path in files)
        if size > MOST_BYTES:
            raise UsageError(
                f"expected a project of at most {format_bytes(MOST_BYTES)} to copy, found {format_bytes(size)}",
                where=str(project),
                hint="use --project with the folder that the script needs; data may lie outside of it",
            )
        name, into = project.name or "project", into.resolve()
        original = ProjectCopy(project, into / "original" / name, tuple(words), project, apart)
        copy = ProjectCopy(project, into / name, tuple(words), original.root)
        for made in (original, copy):
            made.root.mkdir(parents=True)
            made.restore()
        return copy

    @cached_property
    def cwd(self) -> Path:
        """The folder to run in: the copy of the current one, or the current one itself outside of the project."""
        here = Path.cwd().resolve()
        return self._mirrored(here) if here.is_relative_to(self.project) else here

    @cached_property
    def command(self) -> Command:
        """The command with absolute names in the project replaced by those in the copy."""
        found = find_command(self.words)
        place = _script(self.words)
        arguments = [
            str(self._mirrored(Path(word).resolve()))
            if (number == place or Path(word).is_absolute()) and Path(word).resolve().is_relative_to(self.project)
            else word
            for number, word in enumerate(self.words)
        ]
        ours = found.arguments[: -len(self.words)]
        if not ours:
            program = Path(found.arguments[0]).absolute()
            where = program.parent.resolve() / program.name  # a link, such as an environment's Python, is what it is
            inside = where.is_relative_to(self.project) and self._mirrored(where).is_file()
            arguments[0] = str(self._mirrored(where) if inside else program)  # environments are not copied
        return Command((*ours, *arguments), found.is_script)

    @cached_property
    def script(self) -> frozenset[str]:
        """The files of the project that the command names, relative to it."""
        named = (Path(word).resolve() for word in self.words if word.endswith(".py"))
        return frozenset(
            path.relative_to(self.project).as_posix()
            for path in named
            if path.is_relative_to(self.project) and path.is_file()
        )

    @cached_property
    def extra_paths(self) -> tuple[str, ...]:
        """Copies of the folders of the project that modules are imported from, editable installs among them."""
        inside = [Path(path).resolve() for path in sys.path[1:] if path]  # the first is our own
        return tuple(str(self._mirrored(path)) for path in inside if path.is_relative_to(self.project))

    def restore(self) -> list[str]:
        """Put the copy back as the project was, and return what had been changed, made or deleted, by relative name."""
        originals, found = (
            {path.relative_to(root): path for path in _files(root, self.apart)} for root in (self.original, self.root)
        )
        touched = [name for name in found if name not in originals]
        for name in touched:
            found[name].unlink()
        for name, original in originals.items():
            if name not in found or not self._same(original, found[name]):
                self._copy(original, self.root / name)
                touched.append(name)
        folders, made = (set(_folders(root, self.apart)) for root in (self.original, self.root))
        for folder in sorted(made - folders, reverse=True):
            shutil.rmtree(self.root / folder, ignore_errors=True)
        for folder in sorted(folders - made):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        return sorted(path.as_posix() for path in touched)

    @contextlib.contextmanager
    def changed(self, files: dict[str, bytes]) -> Iterator[None]:
        """Have files of the copy hold something else for a while; the copy is restored after it."""
        try:
            for name, data in files.items():
                if (self.root / name).is_symlink():
                    (self.root / name).unlink()  # never through it
                (self.root / name).write_bytes(data)
            yield
        finally:
            self.restore()

    def _mirrored(self, path: Path) -> Path:
        return self.root / path.relative_to(self.project)

    def _target(self, link: Path) -> str:
        """Return what the copy of a link points at: the copy of what is in the project, the same outside of it."""
        target = str(link.readlink())
        full = Path(os.path.normpath(link.parent / target))
        if full.is_relative_to(self.original):
            return str(self.root / full.relative_to(self.original)) if Path(target).is_absolute() else target
        return str(full)

    def _copy(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            if path.is_symlink():
                target.symlink_to(self._target(path))
            else:
                shutil.copy2(path, target)
        except OSError as error:
            raise UsageError(f"cannot be copied: {error.strerror}", where=str(path)) from error

    def _same(self, original: Path, copy: Path) -> bool:
        if original.is_symlink():
            return copy.is_symlink() and str(copy.readlink()) == self._target(original)
        old, new = original.lstat(), copy.lstat()
        return (old.st_size, old.st_mtime_ns, old.st_mode) == (new.st_size, new.st_mtime_ns, new.st_mode)


def _files(folder: Path, apart: Path | None) -> Iterator[Path]:
    """Yield the files and links below a folder that belong to a project."""
    for here, _, names in _walk(folder, apart):
        yield from (here / name for name in names)


def _folders(folder: Path, apart: Path | None) -> Iterator[Path]:
    for here, names, _ in _walk(folder, apart):
        yield from ((here / name).relative_to(folder) for name in names)


def _walk(folder: Path, apart: Path | None) -> Iterator[tuple[Path, list[str], list[str]]]:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in LEFT_OUT
            and name not in links
            and not name.startswith(("torchtriage-run-", "torchtriage-fix-"))
            and here / name != apart
            and not (here / name / "pyvenv.cfg").exists()
        ]
        kept = [name for name in (*files, *links) if (here / name).is_symlink() or (here / name).is_file()]
        yield here, folders, kept
