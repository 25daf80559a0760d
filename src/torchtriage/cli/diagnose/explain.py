"""``torchtriage explain``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from torchtriage.api.catalogue import Page


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from torchtriage.api.catalogue import pages

    names = dict.fromkeys(item for page in pages() for item in (page.code, page.name))
    return [name for name in names if name.lower().startswith(incomplete.lower())]


@click.command("explain")
@click.argument("code", required=False, shell_complete=_complete)
def command(code: str | None) -> None:
    """Explain what a finding means, by code or name; without one, list them all.

    A code may have a page for what a trace shows, one for what the source shows, and one for what
    memory shows. What certain, likely, hint and the grades of a report mean is shown below.
    """
    from torchtriage.api.catalogue import NUMBERS, WORDS, count, lookup, pages

    if code is not None:
        for number, page in enumerate(lookup(code)):
            if number:
                click.echo()
            _page(page)
        click.echo(f"\n{WORDS}")
        return
    first = {page.code: page for page in reversed(pages())}
    room, family = max(len(page.name) for page in first.values()), ""
    for page in sorted(first.values(), key=lambda value: (value.family, value.code)):
        if page.family != family:
            family = page.family
            click.secho(f"\n{family}", bold=True)
        click.echo(f"  {page.name:{room}s}  {page.code}  {page.title}")
    click.echo(f"\n{count()}\n{NUMBERS}\n{WORDS}")


def _page(page: Page) -> None:
    click.secho(page.heading, bold=True)
    click.echo(inspect.cleandoc(page.text))
    if page.fix.code:
        click.echo("\nCode:")
        for line in page.fix.code.splitlines():
            click.echo(f"    {line}")
    if page.fix.link:
        click.echo(f"\nMore: {page.fix.link}")
