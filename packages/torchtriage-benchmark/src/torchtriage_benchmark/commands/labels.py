"""``torchtriage benchmark learn iterate``, ``audit`` and ``veto``: labels that are put right, and by whom."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.learn.reviewing import llm_options, make_reviewer, review_with_progress
from torchtriage.cli.options import Finite, value_option
from torchtriage.cli.output import check_outputs
from torchtriage.cli.progress import counting
from torchtriage.core.errors import UsageError

if TYPE_CHECKING:
    from torchtriage.learn.review.evidence import Evidence
    from torchtriage.learn.review.reviewer import Outcome, Reviewer
    from torchtriage_benchmark.training.active_learning import Round
    from torchtriage_benchmark.training.labels import Change, History

_folder = click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))


@click.command("iterate")
@_folder
@value_option(
    "--reviewer",
    click.Choice(["offline", "llm", "person"]),
    None,
    "offline",
    "Who reviews; with llm evidence leaves this machine.",
)
@click.option("--who", metavar="NAME", help="The person who reviews.")
@value_option("--rounds", click.IntRange(1), None, 4, "Rounds at most.")
@value_option(
    "--windows",
    click.IntRange(1),
    "N",
    200,
    "Review N windows per round: those where label and detector disagree most.",
)
@value_option(
    "--trust",
    Finite(0, 1, max_open=True),
    "SHARE",
    0.9,
    "Assumed probability that a label is right; a reviewer must be surer to change it.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Train the detector on the final labels, and write its weights.",
)
@value_option("--seed", int, None, 0, "Seed of all random choices.")
@llm_options
@click.option("-q", "--quiet", is_flag=True, help="No progress line.")
@click.pass_context
def iterate(ctx: click.Context, /, folder: Path, **given: Any) -> None:
    """Find wrong labels of FOLDER's recordings, have them reviewed, and retrain, in rounds.

    The detector proposes windows where it disagrees with the label; it has not learned from their
    model family. The reviewer gets their evidence, without the label or what the detector says. A
    label changes when both say the same; a person's word is enough. A round that makes validation
    worse is taken back. Every change is appended to FOLDER/labels.jsonl: who, when, evidence,
    before and after. Ends when the score on the validation split settles. Needs scikit-learn.

    Exit codes: 0 done, 1 some windows could not be reviewed, 2 unusable recordings or usage.
    """
    from torchtriage_benchmark.training.active_learning import Findings, Settings, boosted_trees, relabelled
    from torchtriage_benchmark.training.active_learning import iterate as run
    from torchtriage_benchmark.training.boosting import fit, needs_sklearn
    from torchtriage_benchmark.training.labels import HISTORY, History, recorded_labels
    from torchtriage_benchmark.training.training_set import examples

    needs_sklearn()
    check_outputs([given["out"] and str(given["out"])], [folder / HISTORY])
    reviewer = _reviewer(given)
    history = History.read(folder / HISTORY)
    _tell_damage(history)
    with counting("recordings read", quiet=given["quiet"]) as progress:
        found = examples(folder, report=progress)

    def review(evidence: Sequence[Evidence]) -> tuple[Outcome, ...]:
        return review_with_progress(reviewer, evidence, quiet=given["quiet"])

    report = run(
        found,
        recorded_labels(found),
        reviewer,
        boosted_trees(given["seed"]),
        history,
        settings=Settings(given["rounds"], given["windows"], given["trust"]),
        review=review,
        evidence=Findings(redact=not given["no_redact"]),
        report=_tell,
    )
    click.echo(f"ended: {report.ended}")
    if report.interrupted:
        raise KeyboardInterrupt  # what was reviewed is in the history; the rest as for any command
    if given["out"]:
        learn, tune = relabelled(found, report.labels)
        given["out"].write_bytes(fit(learn, tune, seed=given["seed"]).to_bytes())
        click.echo(f"written to {given['out']}", err=True)
    if any(item.not_reviewed for item in report.rounds):
        ctx.exit(1)


def _reviewer(given: dict[str, Any]) -> Reviewer:
    if given["reviewer"] != "person":
        if given["who"]:
            raise UsageError("--who is of --reviewer person")
        return make_reviewer(given["reviewer"], given)
    from torchtriage_benchmark.training.human_reviewer import Person

    if not given["who"]:
        raise UsageError("--reviewer person needs --who", hint="--who NAME goes into the history")
    return Person(given["who"], _ask, click.echo)


def _ask(question: str) -> str:
    click.echo(f"{question}: ", nl=False)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _tell(round_: Round) -> None:
    if round_.number == 0:
        click.echo(f"before: validation AUROC {round_.validation:.4f}")
        return
    changed = "changed and, validation being worse, taken back" if round_.undone else "changed"
    click.echo(
        f"round {round_.number}: {round_.proposed:,} windows proposed, {round_.changed:,} labels {changed}, "
        f"{round_.kept:,} kept; validation AUROC {round_.validation:.4f}"
    )
    for reason, n in round_.not_reviewed.items():
        click.echo(f"  not reviewed, {n:,}: {reason}")


@click.command("audit")
@_folder
@click.option("--who", metavar="NAME", help="Only changes of this reviewer or person.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON, one a line.")
def audit(folder: Path, who: str | None, as_json: bool) -> None:
    """List who changed which labels of FOLDER's recordings, when, and on what evidence.

    Exit codes: 0 listed, 2 unusable history.
    """
    from torchtriage.core.names import visible
    from torchtriage_benchmark.training.labels import HISTORY, History

    history = History.read(folder / HISTORY)
    _tell_damage(history)
    shown = [change for change in history.changes if who in (None, change.who)]
    if as_json:
        for entry in shown:
            click.echo(json.dumps({"action": entry.action, **asdict(entry)}))
        return
    standing = {item.number for item in history.standing}
    counts = Counter((item.who, item.action) for item in shown)
    for (name, action), n in sorted(counts.items()):
        click.echo(f"{visible(name)}: {n:,} {'vetoes' if action == 'veto' else 'changes'}")
    for entry in shown:
        click.echo(_line(entry, entry.number in standing or bool(entry.vetoes)))
    if not shown:
        click.echo("no label was changed")


def _line(change: Change, stands: bool) -> str:
    from torchtriage.core.names import visible

    what = f"takes back {change.vetoes}" if change.vetoes else f"confidence {change.confidence:.2f}"
    gone = "" if stands else ", taken back"
    why = " ".join(f"{it.text} [{', '.join(it.evidence)}]".removesuffix(" []").strip() for it in change.why)
    return visible(
        f"{change.number} {change.at} {change.who}: item {change.item} window {change.window}: "
        f"{change.before} -> {change.after} ({what}{gone}): {why}"
    )


@click.command("veto")
@_folder
@click.argument("number", type=click.IntRange(1))
@click.option("--who", required=True, metavar="NAME", help="The person who vetoes.")
@click.option("--why", required=True, metavar="TEXT", help="The reason, for the audit.")
def veto(folder: Path, number: int, who: str, why: str) -> None:
    """Revert change NUMBER of FOLDER's labels; no reviewer changes that window again.

    Exit codes: 0 reverted, 2 no such change, or it is already reverted or replaced.
    """
    from torchtriage.core.names import visible
    from torchtriage_benchmark.training.labels import HISTORY, History

    history = History.read(folder / HISTORY)
    change = history.veto(number, who=who, why=why)
    told = f"item {change.item} window {change.window} is {change.after} again"
    click.echo(visible(f"change {number} is taken back: {told}"))


def _tell_damage(history: History) -> None:
    if history.damaged:
        lines = ", ".join(map(str, history.damaged))
        click.echo(f"{history.path}: cut off and left out: line {lines}", err=True)
