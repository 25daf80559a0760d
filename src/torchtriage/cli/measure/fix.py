"""``torchtriage fix``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.diagnose.run import ScriptCommand
from torchtriage.cli.learn.reviewing import llm_options, make_llm, refuse_llm_options
from torchtriage.cli.options import POSITIVE, file_option, result_options, value_option
from torchtriage.cli.output import check_outputs, present, save
from torchtriage.core.errors import UsageError

if TYPE_CHECKING:
    from torchtriage.measure.fix.model import ModelProposer, Question

NO_PATCH = 3
MAX_REPLY_TOKENS = 4000


@click.command("fix", cls=ScriptCommand)
@click.argument("words", nargs=-1, metavar="SCRIPT.py | -m MODULE | LAUNCHER …  [ARGS]…")
@click.option("--apply", is_flag=True, help="Write the proven changes into the project.")
@file_option("--patch", "Write the patch to FILE, for git apply.")
@click.option("--only", metavar="CODE", multiple=True, help="Fix only this finding (repeatable).")
@value_option("--budget", POSITIVE, "MINUTES", 10.0, "Try nothing new after this time.")
@click.option(
    "--allow",
    is_flag=True,
    help="Accept changes that are meant to alter results (evaluation mode, precision), and results that"
    " cannot be compared.",
)
@click.option("--project", metavar="DIR", type=click.Path(), help="The folder to copy  [default: the script's project]")
@click.option("--out", metavar="DIR", type=click.Path(), help="Keep recordings and measurements here.")
@value_option(
    "--proposer",
    click.Choice(["none", "llm"]),
    None,
    "none",
    "Who is asked for findings that no known change helps; with llm source leaves this machine.",
)
@click.option("--evidence", is_flag=True, help="Print what the model would be sent, without asking it.")
@llm_options
@result_options
@click.option("-q", "--quiet", is_flag=True, help="No progress output.")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    """Make a script faster, and prove it: try the fixes of its findings, and print those that hold as a patch.

    The project is copied, and the script runs in the copy only: once recorded, then as it is and
    with each change, alternately. A change is in the patch when the script is certainly faster with it and
    the gradients, updates or outputs of its first steps are the same. Nothing is written into the project without
    --apply. Files that the script writes in its project stay in the copy; files elsewhere, network
    access and programs that it starts are not prevented, but listed before it runs again.

    \b
    torchtriage fix train.py --epochs 1
    torchtriage fix --patch faster.diff --budget 5 train.py
    torchtriage fix --only dataloader-main-process --apply -m package.train

    --proposer llm asks a language model through any endpoint that speaks OpenAI's protocol, with the
    key in OPENAI_API_KEY: it is shown the finding and the functions at its place, with names that are
    not public redacted, and its diff runs on this machine, in the copy, like any other change.

    Exit codes: 0 a patch, 2 the script failed, 3 nothing is proved, 130 interrupted: what was known by then is shown.
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.api import fixes
    from torchtriage.measure.fix.fix import FixInterrupted

    model = _model(given)
    check_outputs([given["output"], given["html"], given["patch"]])
    try:
        result = fixes.fix(
            words,
            project=given["project"],
            only=given["only"],
            allow=given["allow"],
            budget_s=60 * given["budget"],
            apply=given["apply"],
            out=given["out"],
            model=model,
            progress=None if given["quiet"] else lambda text: click.echo(text, err=True),
        )
    except FixInterrupted as interrupted:
        present(interrupted.result, given)
        raise
    present(result, given)
    if given["patch"] and result.patch:
        save(given["patch"], result.patch.encode())
    ctx.exit(0 if result.patch else NO_PATCH)


def _model(given: dict[str, Any]) -> ModelProposer | None:
    from torchtriage.learn.review.asking import AskingLlm
    from torchtriage.measure.fix.model import ModelProposer
    from torchtriage.measure.fix.source_redaction import public_names

    redact = not given["no_redact"]
    if given["proposer"] != "llm":
        if given["evidence"]:
            raise UsageError("--evidence needs --proposer llm")
        refuse_llm_options("--proposer llm")
        return None
    if redact:
        public_names()  # before minutes are spent
    if given["evidence"]:
        return ModelProposer(_show, redact)
    llm = make_llm(AskingLlm, given, "--proposer llm", MAX_REPLY_TOKENS)

    def ask(questions: Sequence[Question]) -> Sequence[tuple[Any, str]]:
        click.echo(f"torchtriage: {llm.notice(questions)}", err=True)
        answers = llm.ask(questions)
        if llm.spent is not None:
            click.echo(f"torchtriage: the model cost {llm.spent:.4f}", err=True)
        return answers

    return ModelProposer(ask, redact)


def _show(questions: Sequence[Question]) -> Sequence[tuple[Any, str]]:
    for question in questions:
        click.echo(f"{question.text}\n", err=True)
    return [(None, "only shown what would be sent")] * len(questions)
