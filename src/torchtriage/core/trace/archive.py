"""Zip archives: the one file in them that is meant."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, BinaryIO

from torchtriage.core.errors import TriageError
from torchtriage.core.names import elide, visible

MAX_NAME = 300


class Member(io.RawIOBase):
    """A file in an archive that reports its damage as other streams do, by an ``OSError``."""

    def __init__(self, member: IO[bytes]) -> None:
        self._member: Any = member

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, room: Any, /) -> int:
        """Read into ``room`` what one call to the inflater gives; return how much, 0 at the end."""
        try:
            data = self._member.read1(len(room))
        except (OSError, EOFError, MemoryError):
            raise
        except Exception as error:  # each method of compression has an error of its own
            raise OSError(str(error)) from error
        room[: len(data)] = data
        return len(data)


@contextmanager
def open_member(
    raw: BinaryIO, what: str, endings: tuple[str, ...], name: str, error: type[TriageError], hint: str
) -> Iterator[tuple[str, Member]]:
    """Yield the name of the one file of these endings in an archive, and the file.

    Raises TriageError: of the type ``error``: the archive cannot be read, there are none or several such files, or it
    is a checkpoint of torch.
    """
    try:
        archive = zipfile.ZipFile(raw)
        item = _only(archive.namelist(), what, endings, name, error, hint)
        member = archive.open(item)
    # what a damaged directory leads to: odd places, sizes, methods and passwords
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
        struct.error,
    ) as trouble:
        raise error(
            f"expected a zip archive with a {what}, found one that cannot be read: {trouble}",
            where=name,
            hint=f"unpack it by hand and pass the {endings[0]} inside",
        ) from trouble
    with archive, member:
        yield item, Member(member)


def _only(names: list[str], what: str, endings: tuple[str, ...], name: str, error: type[TriageError], hint: str) -> str:
    if any(item.endswith(("data.pkl", "/version")) for item in names):
        found = f"expected a zip with a {what}, found a torch.save checkpoint"
        raise error(found, where=name, hint=hint)
    # macOS packs what it knows of a file as another one
    own = [item for item in names if not item.rpartition("/")[2].startswith("._")]
    wanted = [item for item in own if item.endswith(endings)]
    if len(wanted) == 1:
        return wanted[0]
    found = ", ".join(elide(visible(item), MAX_NAME) for item in wanted[:3])
    raise error(
        f"expected one {endings[0]} in the zip, found {len(wanted)}" + (f" ({found}…)" if found else ""),
        where=name,
        hint=f"unpack it and pass the {what} you mean",
    )
