"""Stable pseudonyms for private words, and the key file that translates them back.

A pseudonym is ``xq``, twelve characters of an HMAC of the word, and ``z``: without the key nobody can say which word it
stands for, or test a guess. Its characters spell no word that a rule looks for.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from torchtriage.core.errors import UsageError
from torchtriage.core.trace.schema import PSEUDONYM

_FORMAT = "torchtriage/pseudonyms-1"
_SPELLED = str.maketrans("abcdef", "jkqwyz")


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    key: str
    names: dict[str, str]


class Pseudonyms:
    """Gives each word its pseudonym and remembers which it gave."""

    def __init__(self, key: bytes | None = None, names: dict[str, str] | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        self.names = names if names is not None else {}
        """Pseudonym to word."""

    def of(self, word: str) -> str:
        """Return a word's pseudonym, with a capital where the word has one."""
        digest = hmac.new(self._key, word.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        name = f"{'X' if word[:1].isupper() else 'x'}q{digest[:12].translate(_SPELLED)}z"
        self.names[name] = word
        return name

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Pseudonyms:
        """Return those of a key file.

        Raises UsageError: it cannot be read, or is no key file.
        """
        try:
            found = msgspec.json.decode(Path(path).read_bytes(), type=_KeyFile)
            key = bytes.fromhex(found.key)
            if found.format != _FORMAT or len(key) < 16:
                raise ValueError(f"the format {found.format!r}")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"expected a key file that torchtriage slim --anonymise wrote, found: {reason}",
                where=os.fspath(path),
                hint="name the file that was given as --key",
            ) from error
        return cls(key, found.names)

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Pseudonyms:
        """Return those of a key file; it is made where there is none, so that nothing is written without one.

        Raises UsageError: it is no key file, or cannot be written.
        """
        with _in_turn(path):
            if os.path.lexists(path):
                return cls.load(path)
            made = cls()
            made._write(Path(path))
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key file, readable by its owner alone, with what others have written to it meanwhile.

        Raises UsageError: it cannot be written, is no key file, or is that of another key.
        """
        with _in_turn(path):
            if os.path.lexists(path):
                there = self.load(path)
                if there._key != self._key:
                    raise UsageError(
                        "expected the key file that was there at the beginning, found another",
                        where=os.fspath(path),
                        hint="another command has made it meanwhile: run this one again",
                    )
                self.names = {**there.names, **self.names}
            self._write(Path(path))

    def take_away(self, path: str | os.PathLike[str]) -> None:
        """Delete the key file, unless others have written theirs to it meanwhile."""
        with _in_turn(path), suppress(UsageError, OSError):  # it is gone, or no key file
            there = self.load(path)
            if there._key == self._key and not there.names:
                Path(path).unlink(missing_ok=True)

    def _write(self, target: Path) -> None:
        document = _KeyFile(_FORMAT, self._key.hex(), dict(sorted(self.names.items())))
        text = msgspec.json.format(msgspec.json.encode(document), indent=1)
        # a whole file or none: it is the only way back
        part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
        try:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as stream:
                stream.write(text)
            part.replace(target)
        except OSError as error:
            raise UsageError(
                f"the key file cannot be written: {error.strerror}",
                where=str(target),
                hint="name another file with --key",
            ) from error


@contextmanager
def _in_turn(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have commands that use one key file wait for each other; the lock is its folder's, for the file is replaced."""
    with ExitStack() as stack:
        with suppress(ImportError, OSError):  # a system without such locks, or no such folder, which writing will tell
            import fcntl

            folder = os.open(Path(path).parent, os.O_RDONLY)
            stack.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def restore(text: str, names: dict[str, str]) -> str:
    """Return a text with the words that its pseudonyms stand for; unknown ones stay."""
    return PSEUDONYM.sub(lambda match: names.get(match[0], match[0]), text)
