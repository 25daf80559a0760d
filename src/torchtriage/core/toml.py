"""TOML files, read by the standard library where it can."""

from __future__ import annotations

import sys
from typing import Any, Protocol

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOMLDecodeError = tomllib.TOMLDecodeError


class TextFile(Protocol):
    """A path, or a resource of a package."""

    def read_text(self, encoding: str) -> str:
        """Return all of it."""


def read_toml(file: TextFile) -> dict[str, Any]:
    """Return what a TOML file says.

    Raises OSError, UnicodeDecodeError or TOMLDecodeError: it cannot be read.
    """
    return tomllib.loads(file.read_text(encoding="utf-8"))
