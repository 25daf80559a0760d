"""Options that several commands have, worded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from torchtriage.core.finding import SEVERITIES

__all__ = [
    "fail_on_option",
    "fails",
    "html_option",
    "json_option",
    "markdown_option",
    "output_option",
    "quiet_option",
    "sarif_option",
    "top_option",
    "value_option",
]

Command = TypeVar("Command", bound=Callable[..., Any])
LEVELS = SEVERITIES[::-1]

json_option = click.option("--json", "form", flag_value="json", help="Print the versioned JSON document.")
markdown_option = click.option("--markdown", "form", flag_value="markdown", help="Print Markdown for a PR comment.")
sarif_option = click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0 for code scanning.")
output_option = click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), help="Write what would be printed to FILE."
)
html_option = click.option("--html", metavar="FILE", type=click.Path(), help="Also write a self-contained page.")
top_option = click.option("--top", type=click.IntRange(1), metavar="N", help="Show the N findings that save most.")
fail_on_option = click.option(
    "--fail-on",
    type=click.Choice([*LEVELS, "never"]),
    default="never",
    show_default=True,
    help="Exit with 1 on a finding this severe or worse.",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress line.")


def value_option(name: str, kind: Any, metavar: str | None, default: Any, help: str) -> Callable[[Command], Command]:
    """Return an option of one value, whose default the help shows if it has one."""
    return click.option(
        name, type=kind, metavar=metavar, default=default, help=help, show_default=default not in (None, "", ())
    )


def fails(findings: Iterable[Any], fail_on: str) -> bool:
    """Return whether a finding is as severe as ``--fail-on`` says, or worse."""
    if fail_on == "never":
        return False
    return not {finding.severity for finding in findings}.isdisjoint(LEVELS[LEVELS.index(fail_on) :])
