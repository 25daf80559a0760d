"""``torchtriage explain``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from torchtriage import lint
    from torchtriage.patterns import Entry

__all__ = ["command"]


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from torchtriage import lint, patterns

    known = [(entry.pattern.code, entry.pattern.name) for entry in patterns.catalogue()]
    known += [(entry.rule.code, entry.rule.name) for entry in lint.catalogue()]
    names = dict.fromkeys(one for pair in known for one in pair)
    return [one for one in names if one.lower().startswith(incomplete.lower())]


@click.command("explain")
@click.argument("code", required=False, shell_complete=_complete)
def command(code: str | None) -> None:
    """Explain a pattern by code or name; without one, list them all."""
    from torchtriage import lint, patterns

    rules = {key: one for one in lint.catalogue() for key in (one.rule.code, one.rule.name)}
    if code is not None:
        rule = rules.get(code.strip().upper()) or rules.get(code.strip().lower())
        if rule is None or any(one.pattern.code == rule.rule.code for one in patterns.catalogue()):
            _page(patterns.lookup(code))
            if rule is not None:
                click.echo()
        if rule is not None:
            _source_page(rule)
        return
    rows = {one.rule.code: (one.rule.family, one.rule.name, one.rule.title)
            for one in lint.catalogue()}  # fmt: skip
    for entry in patterns.catalogue():
        pattern = entry.pattern
        rows[pattern.code] = (pattern.family, pattern.name, pattern.title)
    family = ""
    for known, (its_family, name, title) in sorted(
        rows.items(), key=lambda row: (row[1][0], row[0])
    ):
        if its_family != family:
            family = its_family
            click.secho(f"\n{family}", bold=True)
        click.echo(f"  {known}  {name:24s} {title}")


def _page(entry: Entry) -> None:
    click.secho(f"{entry.pattern.code} {entry.pattern.name}", bold=True)
    click.echo(inspect.cleandoc(entry.page))
    if entry.fix.code:
        click.echo("\nCode:")
        for line in entry.fix.code.splitlines():
            click.echo(f"    {line}")
    if entry.fix.link:
        click.echo(f"\nMore: {entry.fix.link}")


def _source_page(entry: lint.Entry) -> None:
    """Print what torchtriage lint looks for under this code."""
    click.secho(f"{entry.rule.code} {entry.rule.name}, in source", bold=True)
    click.echo(inspect.cleandoc(entry.page))
