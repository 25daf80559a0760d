"""``torchtriage``: the group of commands, exit codes, and failures as one clear message."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from torchtriage.cli.output import complain
from torchtriage.core.errors import TriageError
from torchtriage.core.version import __version__

EXIT_UNUSABLE = 2
EXIT_INFRASTRUCTURE = 3
"""Of the gate, whose 1 and 2 are verdicts."""
EXIT_INTERRUPTED = 130

# heading -> command -> folder of its module ("" : beside this one) and help; a module loads when its command runs
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Diagnose": {
        "run": ("diagnose", "Run a script, record its loop, and report what costs time."),
        "analyze": ("diagnose", "Find what costs time in a trace, and what each fix saves."),
        "attach": ("diagnose", "Record a running job, or say what a hung one waits for."),
        "compare": ("diagnose", "Explain what changed the step time between two runs."),
        "lint": ("diagnose", "Find slow PyTorch code in source files."),
        "explain": ("diagnose", "Explain a pattern, or list all patterns."),
        "review": ("learn", "Get a second opinion on suspicious parts of a trace."),
        "doctor": ("diagnose", "Check whether a trace can be trusted; how to record it better."),
        "query": ("diagnose", "Query a trace in SQL."),
        "export": ("diagnose", "Write a table of a trace as CSV, Parquet or Arrow."),
        "slim": ("diagnose", "Make a trace smaller or anonymous, to share it."),
        "show": ("", "Show a saved JSON result again."),
        "demo": ("diagnose", "Analyse a bundled trace: a first result in seconds."),
    },
    "Compile": {
        "compile": ("compile", "Find graph breaks and recompilations in torch.compile logs."),
        "xla": ("compile", "Count and explain a model's graphs on PyTorch/XLA."),
    },
    "Memory": {"memory": ("memory", "Analyse memory snapshots: peak by line, leaks, fragmentation.")},
    "Measure": {
        "fix": ("measure", "Try the fixes of a script's findings; print a proven patch."),
        "verify": ("measure", "Prove a fix: run two versions of a script in alternation."),
        "bench": ("measure", "Find the fastest way to run a model: eager or compiled."),
        "gate": ("measure", "Check a change for performance regressions in CI."),
    },
    "Operate": {
        "monitor": ("operate", "Set up dashboards and alerts of a service; replay recordings."),
        "rollout": ("operate", "Show staged rollouts; promote or roll back by hand."),
        "mcp": ("", "Serve agents over the Model Context Protocol."),
        "completion": ("", "Print a completion script for your shell."),
    },
    "Benchmark": {"benchmark": ("learn", "Record labelled programs, train the detector, score systems.")},
}
COMMANDS = {name: text for group in GROUPS.values() for name, (_, text) in group.items()}
MOVED = ("dataset", "learn")
"""Commands that are now below ``benchmark``."""


class _Program(click.Group):
    """Loads a command's module when it is needed; a path alone means ``analyze``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        folder = next(group[cmd_name][0] for group in GROUPS.values() if cmd_name in group)
        command = import_module(".".join(filter(None, ("torchtriage.cli", folder, cmd_name)))).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        room = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(room), text) for name, (_, text) in group.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in MOVED:
            ctx.fail(f"this command is now: torchtriage benchmark {args[0]}")
        return super().parse_args(ctx, ["analyze", *args] if _means_analyze(args) else args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            value = super().invoke(ctx)
            if sys.stdout is not None:  # closed by who started us
                sys.stdout.flush()
        except BrokenPipeError:
            # the reader of our output went away (| head): not our failure
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
            ctx.exit(0)
        except KeyboardInterrupt:
            complain("interrupted")
            ctx.exit(EXIT_INTERRUPTED)
        except MemoryError:
            _fail(ctx, "out of memory")
        except (TriageError, OSError) as error:
            _fail(ctx, str(error))
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if sys.flags.dev_mode:
                raise
            _fail(
                ctx,
                f"a bug in torchtriage: {type(error).__name__}: {error} - at {_origin(error)}\n"
                "  try: report it with the traceback of: python -X dev -m torchtriage …",
            )
        return value


def _fail(ctx: click.Context, message: str) -> NoReturn:
    complain(message)
    ctx.exit(EXIT_INFRASTRUCTURE if ctx.invoked_subcommand == "gate" else EXIT_UNUSABLE)


def _means_analyze(args: list[str]) -> bool:
    if not args or args[0] in COMMANDS or args[0] in ("-h", "--help", "-V", "--version"):
        return False
    if _is_option(args[0]):
        return any(_may_be_path(arg) for arg in args[1:])
    return _may_be_path(args[0])


def _is_option(text: str) -> bool:
    return text.startswith("-") and text != "-"


def _may_be_path(text: str) -> bool:
    if text == "-":
        return True
    if _is_option(text):
        return False
    return os.sep in text or "." in text or os.path.exists(text)  # noqa: PTH110


def _origin(error: BaseException) -> str:
    trail = error.__traceback__
    while trail is not None and trail.tb_next is not None:
        trail = trail.tb_next
    if trail is None:
        return "an unknown place"
    return f"{os.path.basename(trail.tb_frame.f_code.co_filename)}:{trail.tb_lineno}"  # noqa: PTH119


@click.group(
    "torchtriage",
    cls=_Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A path alone analyses it: torchtriage trace.json.gz",
)
@click.version_option(__version__, "-V", "--version", message="torchtriage %(version)s")
def cli() -> None:
    """Find what costs time in PyTorch programs, where, and how to fix it.

    Exit codes: 0 fine, 1 findings at --fail-on or worse, 2 unusable input or usage.
    """


def main() -> None:
    """Run the command line."""
    # looking for cycles in what goes with the process takes a twentieth of a small analysis
    atexit.register(gc.freeze)
    cli(prog_name="torchtriage")


if __name__ == "__main__":
    main()
