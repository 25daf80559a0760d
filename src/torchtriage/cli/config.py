"""Defaults of options from ``[tool.torchtriage]`` in the nearest ``pyproject.toml``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torchtriage.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["KEYS", "read_config"]

KEYS: dict[str, type | tuple[type, ...]] = {
    "fail-on": str,
    "max-bytes": (int, str),
    "min-share": (int, float),
    "only": list,
    "skip": list,
    "top": int,
}


def read_config(start: Path) -> dict[str, Any]:
    """Return the section's values by option name, empty without one.

    Raises
    ------
    UsageError
        The file is not TOML, or a key or type is unknown; the message names it.
    """
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"cannot be read as TOML: {error}", where=str(file)) from error
        section = document.get("tool", {}).get("torchtriage")
        if section is None:
            return {}
        for key, value in section.items():
            if key not in KEYS:
                raise UsageError(
                    f"unknown key {key!r} in [tool.torchtriage]",
                    where=str(file),
                    hint=f"known keys: {', '.join(sorted(KEYS))}",
                )
            if not isinstance(value, KEYS[key]) or isinstance(value, bool):
                raise UsageError(
                    f"odd value for {key!r} in [tool.torchtriage]: {value!r}", where=str(file)
                )
        return {key.replace("-", "_"): value for key, value in section.items()}
    return {}
