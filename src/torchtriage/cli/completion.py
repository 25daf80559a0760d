"""``torchtriage completion``."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    In your shell's start-up file: eval "$(torchtriage completion bash)".
    """
    from click.shell_completion import get_completion_class

    from torchtriage.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "torchtriage", "_TORCHTRIAGE_COMPLETE").source())
