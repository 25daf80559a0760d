"""Folders that people pass: what of them is read."""

from __future__ import annotations

import os

__all__ = ["is_inside"]


def is_inside(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Return whether what a path leads to lies in a folder: links may lead out of it.

    Whoever passes a folder that others write to has not chosen the files that its links name.
    """
    root = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118 - resolve() fails on loops
    return os.path.realpath(path).startswith(root)
