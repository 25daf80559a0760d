"""``torchtriage explain``."""

from __future__ import annotations

import inspect
from typing import Any

import click

from torchtriage.patterns import Entry, catalogue, lookup

__all__ = ["command"]


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
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
    if code is None:
        family = ""
        for entry in sorted(catalogue(), key=lambda one: (one.pattern.family, one.pattern.code)):
            if entry.pattern.family != family:
                family = entry.pattern.family
                click.secho(f"\n{family}", bold=True)
            click.echo(f"  {entry.pattern.code}  {entry.pattern.name:24s} {entry.pattern.title}")
        return
    _page(lookup(code))


def _page(entry: Entry) -> None:
    click.secho(f"{entry.pattern.code} {entry.pattern.name}", bold=True)
    click.echo(inspect.cleandoc(entry.page))
    if entry.fix.code:
        click.echo("\nCode:")
        for line in entry.fix.code.splitlines():
            click.echo(f"    {line}")
    if entry.fix.link:
        click.echo(f"\nMore: {entry.fix.link}")
