"""``torchtriage rollout``: the state and history of rollouts, and changes by hand."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.options import file_option, result_options
from torchtriage.cli.output import check_outputs, present
from torchtriage.core.errors import TriageError, UsageError

if TYPE_CHECKING:
    from torchtriage.operate.rollout.store import RolloutStore

_name = click.argument("name", required=False)
_store = file_option(
    "--store", "Where rollouts are stored. [default: $TORCHTRIAGE_ROLLOUTS, else .torchtriage/rollouts.db]"
)
_reason = click.option("--reason", metavar="TEXT", required=True, help="The reason, for the history.")


@click.group("rollout")
def command() -> None:
    """Show staged rollouts and their history; promote or roll back by hand.

    Rollouts are started and watched in Python (docs/rollout.md); every change is recorded.
    """


@command.command("status")
@_store
def status(store: str | None) -> None:
    """Show every rollout in one line.

    Exit codes: 0 none is rolled back, 1 one is, 2 no store, or one is damaged.
    """
    from torchtriage.core.names import visible
    from torchtriage.operate.rollout.summary import summary

    code = 0
    with _opened(store) as rollouts:
        names = rollouts.names()
        for name in names:
            try:
                result = summary(rollouts, name)
                text = "; ".join(filter(None, result.verdict))
                code = max(code, int(result.status == "rolled back"))
            except TriageError as error:  # one that is damaged hides no other
                text, code = error.message, 2
            click.echo(f"{visible(name)}  {visible(text)}")
    if not names:
        click.echo("no rollouts")
    click.get_current_context().exit(code)


@command.command("report")
@_name
@_store
@result_options
def report(name: str | None, store: str | None, **given: Any) -> None:
    """Show the state of a rollout, how its versions compare, and its full history.

    NAME may be omitted if there is only one rollout.

    Exit codes: 0 done, 2 no such rollout.
    """
    from torchtriage.operate.rollout.summary import summary

    check_outputs([given["output"], given["html"]])
    with _opened(store) as rollouts:
        result = summary(rollouts, _one(rollouts, name))
    present(result, given)


@command.command("rollback")
@_name
@_store
@_reason
def rollback(name: str | None, store: str | None, reason: str) -> None:
    """Stop sending requests to the candidate, at once.

    Exit codes: 0 rolled back, 2 no such rollout.
    """
    _move(name, store, reason, lambda rollouts: rollouts.roll_back)


@command.command("promote")
@_name
@_store
@_reason
def promote(name: str | None, store: str | None, reason: str) -> None:
    """Promote a rollout by one step, whatever the evidence.

    Exit codes: 0 moved, 2 no such rollout, or it has ended.
    """
    _move(name, store, reason, lambda rollouts: rollouts.promote)


@command.command("restart")
@_name
@_store
@_reason
def restart(name: str | None, store: str | None, reason: str) -> None:
    """Restart an ended rollout from its first step.

    Exit codes: 0 restarted, 2 no such rollout, or it is running.
    """
    _move(name, store, reason, lambda rollouts: rollouts.restart)


def _opened(store: str | None) -> RolloutStore:
    from torchtriage.operate.rollout.store import open_rollouts

    return open_rollouts(store, create=False)


def _one(store: RolloutStore, name: str | None) -> str:
    if name is not None:
        return name
    names = store.names()
    if len(names) != 1:
        known = f"there are {', '.join(names[:8])}" if names else "none was started here"
        raise UsageError("expected the name of a rollout", where=store.name, hint=known)
    return names[0]


def _move(
    name: str | None, store: str | None, reason: str, how: Callable[[RolloutStore], Callable[..., object]]
) -> None:
    from torchtriage.core.names import visible
    from torchtriage.operate.rollout.summary import summary

    with _opened(store) as rollouts:
        known = _one(rollouts, name)
        try:
            actor = getpass.getuser()
        except (KeyError, OSError, ImportError):
            actor = "a person"
        how(rollouts)(known, reason=reason, actor=actor, at_s=time.time())
        click.echo(visible(summary(rollouts, known).verdict[0]))
