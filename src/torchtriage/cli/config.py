"""Defaults of options from ``[tool.torchtriage]`` in the nearest ``pyproject.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from torchtriage.core.errors import UsageError

KEYS = ("fail-on", "max-bytes", "min-share", "only", "peak", "skip", "top")
TABLES = ("lint",)
"""Tables inside the section, each for the command of its name."""


def with_config(
    ctx: click.Context, options: dict[str, Any], start: Path, *, table: str = "", keys: tuple[str, ...] = KEYS
) -> dict[str, Any]:
    """Return the options with the section's values where the command line gave none.

    ``table`` names a table inside the section instead, ``keys`` what it may hold. A value is
    checked by the very option it stands for.

    Raises UsageError: the file is not TOML, or a key or value is not one the options know; the
    message names it.
    """
    file, section = _section(start)
    where = f"[tool.torchtriage{'.' * bool(table)}{table}]"
    section = section.get(table, {}) if table else {key: value for key, value in section.items() if key not in TABLES}
    if not isinstance(section, dict):
        raise UsageError(f"expected a table {where}", where=str(file))
    out = dict(options)
    params = {param.name: param for param in ctx.command.params}
    for key, value in section.items():
        if key not in keys:
            raise UsageError(f"unknown key {key!r} in {where}", where=str(file), hint=f"known keys: {', '.join(keys)}")
        name = key.replace("-", "_")
        try:
            checked = _checked(ctx, params[name], value)
        except click.BadParameter as error:
            raise UsageError(f"invalid value for {key!r} in {where}: {error.message}", where=str(file)) from None
        if ctx.get_parameter_source(name) is ParameterSource.DEFAULT:
            out[name] = checked
    return out


def _checked(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if param.multiple != isinstance(value, list):
        raise click.BadParameter(f"expected {'a list' if param.multiple else 'one value'}, found {value!r}")
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise click.BadParameter(f"expected text or a number, found {item!r}")
    # as text, as on the command line: a whole number would be cut out of 1.5
    return param.process_value(ctx, [*map(str, value)] if isinstance(value, list) else str(value))


def _section(start: Path) -> tuple[Path, dict[str, Any]]:
    """Return the nearest ``pyproject.toml`` upwards, and its section (empty without one)."""
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        from torchtriage.core.toml import TOMLDecodeError, read_toml

        try:
            document = read_toml(file)
        except (OSError, UnicodeDecodeError, TOMLDecodeError) as error:
            raise UsageError(f"cannot be read as TOML: {error}", where=str(file)) from error
        tools = document.get("tool")
        section = tools.get("torchtriage", {}) if isinstance(tools, dict) else {}
        if not isinstance(section, dict):
            raise UsageError("expected a table [tool.torchtriage]", where=str(file))
        return file, section
    return start, {}
