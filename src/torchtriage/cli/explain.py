"""``torchtriage explain``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from torchtriage.patterns import Entry

__all__ = ["command"]


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from torchtriage.patterns import catalogue

    return [
        one
        for entry in catalogue()
        for one in (entry.pattern.code, entry.pattern.name)
        if one.lower().startswith(incomplete.lower())
    ]


@click.command("explain")
@click.argument("code", required=False, shell_complete=_complete)
def command(code: str | None) -> None:
    """Explain a pattern by code or name; without one, list them all."""
    from torchtriage.patterns import catalogue, lookup

    if code is not None:
        _page(lookup(code))
        return
    family = ""
    for entry in sorted(catalogue(), key=lambda one: (one.pattern.family, one.pattern.code)):
        if entry.pattern.family != family:
            family = entry.pattern.family
            click.secho(f"\n{family}", bold=True)
        click.echo(f"  {entry.pattern.code}  {entry.pattern.name:24s} {entry.pattern.title}")


def _page(entry: Entry) -> None:
    click.secho(f"{entry.pattern.code} {entry.pattern.name}", bold=True)
    click.echo(inspect.cleandoc(entry.page))
    if entry.fix.code:
        click.echo("\nCode:")
        for line in entry.fix.code.splitlines():
            click.echo(f"    {line}")
    if entry.fix.link:
        click.echo(f"\nMore: {entry.fix.link}")
