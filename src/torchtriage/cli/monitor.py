"""``torchtriage monitor``: what a monitored service's recordings would have alarmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from torchtriage.cli.options import output_option
from torchtriage.cli.output import check_outputs, save
from torchtriage.names import visible

if TYPE_CHECKING:
    from torchtriage.monitor.detect.replay import Replayed
    from torchtriage.monitor.detect.score import Score

__all__ = ["command"]


@click.group("monitor")
def command() -> None:
    """Watch a model in production: replay recordings through the detectors."""


@command.command("replay")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--labels",
    metavar="PATH",
    type=click.Path(),
    help="Score the alarms against this file, or the one of the log's name in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the versioned JSON document.")
@output_option
def replay(logs: tuple[str, ...], labels: str | None, as_json: bool, output: str | None) -> None:
    """Run the detectors over recorded requests or metrics: what would have alarmed, and when.

    LOG is CSV with a header (a column duration_s, duration_ms, latency_us ... or value; where there
    are, timestamp, size, ok, label) or the lines of JSON that monitor.JsonLog writes. Each value is
    judged by those before it alone. With labels the result is scored: recall, false alarms per
    10,000 values, delays.
    """
    import json

    from torchtriage.monitor.detect.replay import document
    from torchtriage.monitor.detect.replay import replay as run

    check_outputs([output], logs)
    streams = [one for log in logs for one in run(log, labels)]
    if as_json:
        text = json.dumps(document(streams), indent=2) + "\n"
    else:
        text = "\n".join(_text(streams)) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        save(output, text.encode())


def _text(streams: list[Replayed]) -> list[str]:
    from torchtriage.monitor.detect.score import Score

    lines = []
    for one in streams:
        n = len(one.stream.samples)
        what = "requests" if one.stream.is_requests else "values"
        title = f"{visible(one.stream.name)}: {n:,} {what}, {_count(len(one.alarms), 'alarm')}"
        if one.stream.n_skipped:
            title += f" ({one.stream.n_skipped:,} lines could not be read)"
        lines.append(title)
        wrong = set(one.score.false_alarms) if one.score else set()
        for alarm in one.alarms:
            cause = f" ({alarm.cause})" if alarm.cause else ""
            mark = "  FALSE" if alarm.row in wrong else ""
            lines.append(f"  {alarm.row:>7}  {alarm.kind:<9}  {alarm.message}{cause}{mark}")
        if one.score:
            missed = [found.fault for found in one.score.found if found.delay is None]
            for fault in missed:
                detail = f" ({fault.detail})" if fault.detail else ""
                lines.append(f"  {fault.start:>7}  missed     {visible(fault.kind)}{detail}")
    scores = [one.score for one in streams if one.score is not None]
    if scores:
        metrics = not any(one.stream.is_requests for one in streams)
        lines += ["", *_verdict(Score.of(scores), metrics=metrics)]
    return lines


def _verdict(score: Score, *, metrics: bool) -> list[str]:
    hits = score.delays()
    lines = [
        f"{len(hits)} of {_count(len(score.found), 'fault')} found,"
        f" {_count(len(score.false_alarms), 'false alarm')} in {score.n_clean:,} clean rows"
        f" ({score.per_10k:.2f} per 10,000)"
    ]
    if score.found:
        lines[0] += f"; random alarms of that rate would find {score.chance():.0%}"
    if hits:
        late = f"{hits[len(hits) // 2]} rows, 90 % within {hits[int(0.9 * len(hits))]}"
        nab = f"; NAB score {score.nab_score:.1f}" if metrics else ""
        lines.append(f"found after a median of {late}{nab}")
    if score.benign_alarms:
        lines.append(f"{_count(len(score.benign_alarms), 'alarm')} on changes that must not alarm")
    return lines


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")
