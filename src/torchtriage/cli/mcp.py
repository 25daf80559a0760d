"""``torchtriage mcp``."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import click

from torchtriage.cli.options import file_option, value_option
from torchtriage.core.errors import UsageError


@click.command("mcp")
@file_option(
    "--root", "Read below this folder (repeatable)  [default: the current folder]", metavar="DIR", dest="roots"
)
@click.option(
    "--allow-run", is_flag=True, help="Also offer the tools that run programs below a root: run, verify, fix."
)
@value_option("--max-bytes", click.IntRange(1024), "N", 4096, "Largest answer, in bytes of UTF-8; more is paged.")
@value_option(
    "--python", click.Path(), "PYTHON", None, "Interpreter of the programs that are run, such as .venv/bin/python."
)
@click.option("--skill", is_flag=True, help="Print the guide for agents (SKILL.md) instead.")
def command(roots: tuple[str, ...], skill: bool, **given: Any) -> None:
    """Serve agents over the Model Context Protocol, on standard input and output.

    Tools: doctor, analyze, tables, explain, compare, what_if, lint and, with --allow-run, run, verify and fix.
    Answers are JSON with the numbers of --json, in pages. Nothing outside the roots is read, links followed; text of
    recordings and programs is escaped, and marked as data.

    \b
    torchtriage mcp --root . --allow-run
    torchtriage mcp --skill > SKILL.md
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.agents.desk import Desk, Limits, Roots
    from torchtriage.agents.server import SKILL, serve

    if skill:
        click.echo(SKILL.read_text(encoding="utf-8"), nl=False)
        return
    python = shutil.which(given["python"] or sys.executable)
    if python is None:
        raise UsageError("expected a Python interpreter, found no such program", where=given["python"])
    given["python"] = os.path.abspath(python)  # noqa: PTH100 - an environment's is a link, which says which one it is
    serve(Desk(Roots(roots or (".",)), Limits(**given)))
