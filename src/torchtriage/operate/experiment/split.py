"""Who is treated: a place on a line for each id, the same in every process, language and release.

The algorithm, for use from any language::

    place(salt, id) = first 4 bytes, big-endian, of SHA-256(utf8(salt) + 0x00 + utf8(id))
    treated         = place < floor(share * 4294967296)

An integer id is written as its decimal digits, bytes are taken as they are. Golden vectors are in
``docs/experiment.md``. A share that grows only ever adds ids: who is treated stays so. Experiments
of other salts split the same ids independently of each other.
"""

from __future__ import annotations

import hashlib
import struct

from torchtriage.core.errors import UsageError

N_PLACES = 1 << 32
_FIRST_FOUR = struct.Struct(">I").unpack_from


class Split:
    """Places ids, and says which are treated at a share.

    ``salt`` : what distinguishes this split from others; an experiment's name does. Without a NUL.
    Raises ``UsageError``: an empty salt, one with a NUL, or a share out of its range.
    """

    def __init__(self, salt: str, share: float) -> None:
        if not salt or "\0" in salt:
            raise UsageError(f"expected a salt without NUL characters, found {salt!r}")
        self.salt = salt
        self._salted = hashlib.sha256(salt.encode("utf-8", "surrogatepass") + b"\0")
        self.share = share

    @property
    def share(self) -> float:
        """Share of ids that are treated."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        if not 0 <= share <= 1:
            raise UsageError(f"expected a share of 0 to 1, found {share}")
        self._share = share
        limit = int(share * N_PLACES)
        # bytes compare like the numbers they begin with; 33 of them are above every digest
        self._limit = limit.to_bytes(4, "big") if limit < N_PLACES else b"\xff" * 33

    def place(self, id: str | int | bytes) -> int:
        """Return where an id stands, 0 to 2^32 - 1; ``UsageError`` for what is no text, integer or bytes."""
        digest = self._salted.copy()
        digest.update(_bytes(id))
        return _FIRST_FOUR(digest.digest())[0]

    def treats(self, id: str | int | bytes) -> bool:
        """Return whether an id is treated; ``UsageError`` as :meth:`place`."""
        digest = self._salted.copy()
        try:
            digest.update(id.encode())  # type: ignore[union-attr]
        except (AttributeError, UnicodeEncodeError):
            digest.update(_bytes(id))
        return digest.digest() < self._limit


def point(salt: str, id: str | int | bytes) -> int:
    """Return the place of an id, 0 to 2^32 - 1; ``Split`` is quicker for many."""
    return Split(salt, 1).place(id)


def _bytes(id: str | int | bytes) -> bytes:
    if isinstance(id, bytes):
        return id
    # True is no 1: other languages would write it as "true"
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise UsageError(
            f"expected an id as text, integer or bytes, found {type(id).__name__}",
            hint="give what names the unit, such as str(user_id)",
        )
    return str(id).encode("utf-8", "surrogatepass")
