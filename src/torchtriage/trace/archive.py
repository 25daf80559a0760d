"""Zip archives: the one file in them that is meant."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO

from torchtriage.errors import TriageError
from torchtriage.names import elide, visible

__all__ = ["Checked", "open_member"]

MAX_NAME = 300


class Checked:
    """A member that tells of its damage as other streams do, by an ``OSError``."""

    def __init__(self, member: IO[bytes]) -> None:
        self._member = member

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes."""
        try:
            return self._member.read(size)
        except (zipfile.BadZipFile, zlib.error) as error:
            raise OSError(str(error)) from error


@contextmanager
def open_member(
    raw: BinaryIO,
    what: str,
    endings: tuple[str, ...],
    name: str,
    error: type[TriageError],
    hint: str,
) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name of the one file of these endings in an archive, and the file.

    Raises
    ------
    TriageError
        Of the type ``error``: the archive cannot be read, there are none or several such files, or
        it is a checkpoint of torch.
    """
    try:
        with zipfile.ZipFile(raw) as archive:
            item = _only(archive.namelist(), what, endings, name, error, hint)
            with archive.open(item) as member:
                yield item, member
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        io.UnsupportedOperation,
    ) as trouble:
        raise error(
            f"expected a zip archive with a {what}, found one that cannot be read: {trouble}",
            where=name,
            hint=f"unpack it by hand and pass the {endings[0]} inside",
        ) from trouble


def _only(
    names: list[str],
    what: str,
    endings: tuple[str, ...],
    name: str,
    error: type[TriageError],
    hint: str,
) -> str:
    if any(item.endswith(("data.pkl", "/version")) for item in names):
        found = f"expected a zip with a {what}, found a torch.save checkpoint"
        raise error(found, where=name, hint=hint)
    wanted = [item for item in names if item.endswith(endings)]
    if len(wanted) == 1:
        return wanted[0]
    found = ", ".join(elide(visible(item), MAX_NAME) for item in (wanted or names)[:3])
    raise error(
        f"expected one {endings[0]} in the zip, found {len(wanted)}"
        + (f" ({found}…)" if found else ""),
        where=name,
        hint=f"unpack it and pass the {what} you mean",
    )
