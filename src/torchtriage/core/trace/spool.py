"""A stream that cannot seek, copied: in memory while it is small, else in a temporary file."""

from __future__ import annotations

import tempfile
from typing import BinaryIO, cast

MAX_IN_MEMORY_BYTES = 16 << 20


class Spool(tempfile.SpooledTemporaryFile[bytes]):
    """A copy of a stream that lives as long as somebody may read it again."""

    @classmethod
    def copy(cls, stream: BinaryIO) -> BinaryIO:
        """Return what is left of a stream, as one that can be read again and again."""
        spool = cls(max_size=MAX_IN_MEMORY_BYTES)
        while block := stream.read(1 << 20):
            spool.write(block)
        return cast(BinaryIO, spool)

    def seekable(self) -> bool:
        """Return True (Python 3.10 does not say)."""
        return True

    def __del__(self) -> None:
        """Close without a warning."""
        self.close()
