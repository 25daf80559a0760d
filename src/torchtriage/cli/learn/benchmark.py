"""``torchtriage benchmark``: the open benchmark, and the detector that is trained on it."""

from __future__ import annotations

from importlib import import_module

import click

_PARTS = {
    "dataset": "Record programs with known faults, export recordings, score systems.",
    "learn": "Train the learned detector, and compare it with other systems.",
}


class _Benchmark(click.Group):
    """Loads the part that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PARTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _PARTS:
            return None
        command = import_module(f"torchtriage.cli.learn.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_PARTS.items()))


@click.group("benchmark", cls=_Benchmark)
def command() -> None:
    """Record labelled programs, train the learned detector on them, and score systems."""
