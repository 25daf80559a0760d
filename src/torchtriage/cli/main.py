"""``torchtriage``: the group of commands, exit codes, and errors as one clear line."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from torchtriage.errors import TriageError
from torchtriage.version import __version__

__all__ = ["cli", "main"]

EXIT_UNUSABLE = 2

# name -> (module, help in the overview); modules load only when their command runs
COMMANDS: dict[str, tuple[str, str]] = {
    "analyze": ("analyze", "Judge traces: ranked findings with what fixing each gives back."),
    "doctor": ("doctor", "Can this trace be trusted, and how to record a better one?"),
    "explain": ("explain", "A pattern's page, or the list of all patterns."),
    "demo": ("demo", "A first result in a minute, from a bundled recording."),
    "show": ("show", "Render a saved JSON result again."),
    "completion": ("completion", "Print the completion script of your shell."),
}


class _Lazy(click.Group):
    """Loads a command's module when it is needed; a path alone means ``analyze``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"torchtriage.cli.{COMMANDS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((one for one in args if not one.startswith("-") or one == "-"), None)
        looks_like_path = first is not None and (
            first == "-" or os.sep in first or "." in first or os.path.exists(first)  # noqa: PTH110
        )
        if first is not None and first not in COMMANDS and looks_like_path:
            args = ["analyze", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A path alone analyses it: torchtriage trace.json.gz",
)
@click.version_option(__version__, "-V", "--version", message="torchtriage %(version)s")
def cli() -> None:
    """Read PyTorch profiler traces and say what costs time, where, and what to change.

    Exit codes: 0 fine, 1 findings at --fail-on or worse, 2 unusable input or usage.
    """


def main(argv: list[str] | None = None) -> Any:
    """Run the command line; every expected failure is one clear message and exit code 2."""
    try:
        return cli.main(argv, prog_name="torchtriage", standalone_mode=True)
    except TriageError as error:
        from torchtriage.names import visible

        lines = "\n".join(visible(line) for line in str(error).split("\n"))
        click.echo(f"torchtriage: {lines}", err=True)
        sys.exit(EXIT_UNUSABLE)
    except BrokenPipeError:
        # the reader of our output went away (| head): not our failure
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
        sys.exit(0)


if __name__ == "__main__":
    main()
