"""Options that several commands have, worded once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from torchtriage.core.finding import SEVERITIES
from torchtriage.core.selection import Selection
from torchtriage.core.units import DEFAULT_MAX_BYTES

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")
LEVELS = SEVERITIES[::-1]


class Finite(click.FloatRange):
    """A number: no comparison holds of NaN, so that every range has room for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; NaN and infinity are refused like text."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"expected a number, found {value!r}", param, ctx)
        return number


POSITIVE = Finite(0, min_open=True)


def value_option(
    name: str, kind: Any, metavar: str | None, default: Any, help: str, *, dest: str | None = None, **more: Any
) -> Callable[[Command], Command]:
    """Return an option of one value, whose default the help shows if it has one; ``dest`` : its parameter's name."""
    shown = default not in (None, "", ())
    names = (name,) if dest is None else (name, dest)
    return click.option(*names, type=kind, metavar=metavar, default=default, help=help, show_default=shown, **more)


def file_option(
    name: str, help: str, *, metavar: str = "FILE", dest: str | None = None
) -> Callable[[Command], Command]:
    """Return an option that names a file or folder; with ``dest`` it may be given several times."""
    default = None if dest is None else ()
    return value_option(
        name, click.Path(), metavar, default, help, dest=dest, multiple=dest is not None, callback=_a_path
    )


def _a_path(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
    if value == "" or (isinstance(value, tuple) and "" in value):
        raise click.BadParameter("expected a path, found an empty one")
    return value


json_option = click.option("--json", "form", flag_value="json", help="Print the versioned JSON document.")
markdown_option = click.option("--markdown", "form", flag_value="markdown", help="Print Markdown for a PR comment.")
sarif_option = click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0 for code scanning.")
output_option = click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), callback=_a_path, help="Write what would be printed to FILE."
)
html_option = file_option("--html", "Also write a self-contained page.")
top_option = value_option("--top", click.IntRange(1), "N", None, "Show the N findings that save most.")
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Print every finding and table in full.")
fail_on_option = value_option(
    "--fail-on", click.Choice([*LEVELS, "never"]), None, "never", "Exit with 1 on a finding this severe or worse."
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress line.")


def reading_options(function: Command) -> Command:
    """Add the options that say how traces are read."""
    for option in (
        value_option(
            "--max-memory",
            str,
            "SIZE",
            None,
            "Limit memory to this, with the rest in temporary files (at least 128M; Linux).",
            callback=_size,
        ),
        value_option(
            "--max-bytes",
            str,
            "SIZE",
            f"{DEFAULT_MAX_BYTES >> 30}G",
            "Refuse inputs that expand beyond this.",
            callback=_size,
        ),
        click.option("--cache", is_flag=True, help="Cache the parsed trace next to the file."),
    ):
        function = option(function)
    return function


def _size(_ctx: click.Context, _param: click.Parameter, value: Any) -> int | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", str(value).strip(), re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"expected a size such as 500M or 4G, found {value!r}")
    return int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


def selection_options(function: Command) -> Command:
    """Add the options that choose the part of a recording to judge: what ``selection_of`` reads."""
    for name, metavar, kind, text in _SELECTION[::-1]:
        function = click.option(f"--{name}", metavar=metavar, type=kind, help=text)(function)
    return function


_SELECTION = (
    ("steps", "N[-M]", str, "Judge only these steps, by the numbers in their names: 3-5."),
    ("window", "BEGIN-END", str, "Judge only this window, as one step: 1.2s-1.8s, from each file's first event."),
    ("annotation", "NAME", str, "Judge only the occurrences of this annotation, each as a step."),
    ("rank", "N", click.IntRange(0), "Judge only this rank of the job."),
    ("device", "N", click.IntRange(0), "Judge only this device."),
)


def selection_of(given: Mapping[str, Any]) -> Selection | None:
    """Return what the options choose; None for all.

    Raises UsageError: they cannot be read, or exclude each other.
    """
    asked = Selection(**{name: given[name] for name, *_ in _SELECTION})
    return asked if asked.narrows else None


def result_options(function: Command) -> Command:
    """Add the options of commands whose result has every form for people, and JSON: what ``present`` reads."""
    return json_option(markdown_option(output_option(html_option(function))))


def form_options(function: Command) -> Command:
    """Add the options that say in which form findings are printed."""
    return json_option(markdown_option(sarif_option(function)))


def made_of(kind: type[T], given: Mapping[str, Any], **own: Any) -> T:
    """Return a dataclass made of the options that are named like its fields, and of ``own`` values."""
    named = {field.name: given[field.name] for field in fields(kind) if field.name in given}  # type: ignore[arg-type]
    return kind(**{**named, **own})


def fails(findings: Iterable[Any], fail_on: str) -> bool:
    """Return whether a finding is as severe as ``--fail-on`` says, or worse."""
    if fail_on == "never":
        return False
    return not {finding.severity for finding in findings}.isdisjoint(LEVELS[LEVELS.index(fail_on) :])
