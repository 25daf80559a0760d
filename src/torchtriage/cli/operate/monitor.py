"""``torchtriage monitor``: a dashboard, alerting rules, and what recordings would have alarmed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchtriage.cli.options import POSITIVE, Finite, file_option, output_option, result_options, value_option
from torchtriage.cli.output import check_outputs, emit, present, save
from torchtriage.core.errors import UsageError
from torchtriage.core.names import visible
from torchtriage.core.units import format_count

if TYPE_CHECKING:
    from torchtriage.operate.detect.replay import StreamReplay
    from torchtriage.operate.detect.score import DetectionScore
    from torchtriage.operate.ladder.policy import Policy
    from torchtriage.operate.ladder.replay import AssumedMode, LadderReplay


@click.group("monitor")
def command() -> None:
    """Dashboard and alerting rules for a service; replay its recordings through the detectors."""


@command.command("replay")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=click.Path())
@file_option(
    "--labels",
    "Score the alarms against this file, or against the file of the log's name in this folder.",
    metavar="PATH",
)
@click.option(
    "--ladder",
    metavar="MODES",
    help="Run a ladder of these modes alongside the alarms: full,bf16=0.6,lite=0.2, each with its"
    " assumed time as a share of the full mode's.",
)
@click.option("--deadline-ms", type=POSITIVE, metavar="MS", help="Ladder: calls slower than this are late.")
@value_option("--enter", Finite(0), "SHARE", 0.05, "Ladder: switch down above this share of late calls.")
@value_option("--leave", Finite(0), "SHARE", 0.01, "Ladder: switch back up to this share of late trial calls.")
@value_option("--dwell-s", Finite(0), "S", 30.0, "Ladder: minimum time between two switches.")
@value_option(
    "--recover-s", Finite(0), "S", 30.0, "Ladder: how long calls must be on time before it tries the better mode."
)
@click.option("--json", "as_json", is_flag=True, help="Print the versioned JSON document.")
@output_option
def replay(
    logs: tuple[str, ...],
    labels: str | None,
    ladder: str | None,
    deadline_ms: float | None,
    as_json: bool,
    output: str | None,
    **limits: Any,
) -> None:
    """Run the detectors over recorded requests or metrics: which alarms would fire, and when.

    LOG is CSV with a header (a column duration_s, duration_ms, latency_us ... or value; optionally
    timestamp, size, ok, error, label) or the lines of JSON that monitor.JsonLog writes. Each value is
    compared only with those before it. With labels the result is scored: recall, false alarms per
    10,000 values, delays.

    With --ladder, a ladder of torchtriage.operate.ladder is simulated on the same requests: which
    mode it would choose when, how often it would switch, how long it would be degraded, and how
    many calls would be late with and without it. The time of each lower mode is an assumption.
    """
    import json
    from dataclasses import asdict

    from torchtriage.operate.detect.replay import document
    from torchtriage.operate.detect.replay import replay as run
    from torchtriage.operate.ladder.policy import Policy
    from torchtriage.operate.ladder.replay import read_modes

    check_outputs([output], logs)
    modes = None if ladder is None else read_modes(ladder)
    if modes is None and deadline_ms is not None:
        raise UsageError("expected --ladder with --deadline-ms", hint="--ladder full,lite=0.2")
    policy = Policy(
        deadline_s=None if deadline_ms is None else deadline_ms * 1e-3,
        longest_s=max(600.0, limits["recover_s"]),
        **limits,
    )
    streams = [stream for log in logs for stream in run(log, labels)]
    ladders = [] if modes is None else [_ladder(stream, modes, policy) for stream in streams]
    if as_json:
        content = document(streams)
        for entry, replayed in zip(content["streams"], ladders, strict=False):
            entry["ladder"] = asdict(replayed)
        text = json.dumps(content, indent=2) + "\n"
    else:
        text = "\n".join(_text(streams, ladders)) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        save(output, text.encode())


def _ladder(replayed: StreamReplay, modes: tuple[AssumedMode, ...], policy: Policy) -> LadderReplay:
    """Run a ladder over a stream; of one without times, its requests come one after the other."""
    import math

    from torchtriage.operate.ladder.replay import RecordedCall, replay_ladder
    from torchtriage.operate.monitor.alerts import ABSOLUTE, ActiveAlarm

    reasons = [""] * len(replayed.stream.samples)
    for alarm in replayed.alarms:
        if alarm.better:
            continue
        end = next(end for start, end in replayed.on if start <= alarm.row < end)
        why = ActiveAlarm(f"{alarm.kind}: {alarm.message}", relative=alarm.kind not in ABSOLUTE)
        reasons[alarm.row : end] = [why] * (end - alarm.row)
    timed = any(replayed.stream.stamps)
    calls, clock_s = [], 0.0
    for sample, alarm_ in zip(replayed.stream.samples, reasons, strict=True):
        answered = sample.ok and math.isfinite(sample.value)
        took_s = None if not answered else sample.value if replayed.stream.is_requests else 0.0
        clock_s += took_s or 0.0
        calls.append(RecordedCall(sample.at_s if timed else clock_s, took_s, alarm_))
    faults = None
    if replayed.score is not None:
        faults = [(row.fault.start, row.fault.end) for row in replayed.score.faults]
    return replay_ladder(calls, modes, policy, faults)


def _ladder_text(replayed: LadderReplay) -> list[str]:
    share = replayed.degraded_s / replayed.seconds if replayed.seconds else 0.0
    lines = [
        f"  ladder {', '.join(mode.name for mode in replayed.modes)}:"
        f" {format_count(replayed.n_switches, 'switch', 'switches')}, degraded for {replayed.degraded_s:,.0f} of"
        f" {replayed.seconds:,.0f} s ({share:.1%}); {replayed.n_late:,} calls late or failed,"
        f" {replayed.n_late_without:,} without the ladder"
    ]
    if replayed.outside_s is not None:
        answered = sum(row is not None for row in replayed.faults)
        lines.append(
            f"    answered by a lower mode in {answered} of {format_count(len(replayed.faults), 'fault')};"
            f" degraded for {replayed.outside_s:,.0f} s outside of faults"
        )
    for step in replayed.log:
        kind = "" if step.kind == "switch" else f"{step.kind} "
        lines.append(f"  {step.row:>7}  {kind}{step.before} -> {step.after}: {step.why}")
    return lines


@command.command("consume")
@value_option("--redis", str, "URL", "redis://127.0.0.1:6379", "The Redis server.", dest="url")
@value_option("--stream", str, "NAME", "torchtriage:requests", "The stream that devices write to.")
@value_option("--group", str, "NAME", "fleet", "The consumer group, which keeps its own place in the stream.")
@value_option("--name", str, "NAME", "consumer", "This consumer's name in the group, with its stored state.")
@value_option("--host", str, "HOST", "127.0.0.1", "Where --port and --live listen.")
@value_option("--port", int, "PORT", 9464, "Serve metrics for Prometheus here; 0 for any port.")
@value_option("--live", int, "PORT", None, "Also serve the live page, of all devices together.")
@file_option("--log", "Also write each record to this file, which rotates, for torchtriage monitor report.")
@value_option("--log-bytes", click.IntRange(1), "N", 1_000_000_000, "Size at which the log rotates.")
@value_option("--webhook", str, "URL", None, "Post each alert here as JSON.")
@value_option("--alertmanager", str, "URL", None, "Send alerts to this Alertmanager.")
@value_option("--slack", str, "URL", None, "Send alerts to this webhook of Slack.")
def consume(**given: Any) -> None:
    """Read the records of a fleet from a Redis stream: numbers, alarms of single devices, a log.

    Each record is read at least once and counted once, over crashes and restarts too. Beyond this
    machine, --host asks for the token in $TORCHTRIAGE_TOKEN. Ctrl-C or SIGTERM ends it.

    Exit codes: 0 ended, 2 no Redis, or another consumer of that name has taken over.
    """
    from torchtriage.cli.operate.monitor_consume import consume as run

    check_outputs([given["log"]])
    run(**given)


@command.command("report")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=click.Path())
@result_options
def report(logs: tuple[str, ...], **given: Any) -> None:
    """Analyse collected records: latency by version, device, size and hour, the slowest, drifts.

    LOG is what JsonLog or torchtriage monitor consume --log wrote, rotated files too, plain or
    compressed by gzip.

    Exit codes: 0 done, 2 a log cannot be read.
    """
    from torchtriage.operate.collected.analyze import report as analyze

    check_outputs([given["output"], given["html"]], logs)
    present(analyze(logs), given)


@command.command("dashboard")
@output_option
def dashboard(output: str | None) -> None:
    """Print a dashboard for Grafana (9 or newer), as JSON to import.

    It has a panel for each metric that torchtriage.operate.monitor exports. Choose the data source,
    the instance, the model and the version on the page.
    """
    from torchtriage.operate.monitor.dashboard import dashboard as document

    check_outputs([output])
    emit(document().encode(), output)


@command.command("rules")
@click.option(
    "--latency",
    multiple=True,
    metavar="[MODEL=]SECONDS",
    help="Alert when p99 is above this; without MODEL, for all models not named.",
)
@value_option("--errors", Finite(0), "SHARE", 0.05, "Alert when a larger share of a model's requests fails.")
@click.option(
    "--slo",
    multiple=True,
    metavar="OBJECTIVE",
    help='Alert when its budget burns too fast: "99.9%", "detector: 99% under 250ms over 28d".',
)
@value_option("--docs", str, "URL", "docs", "Base URL of runbook links, if these pages are served somewhere.")
@output_option
def rules(latency: tuple[str, ...], errors: float, slo: tuple[str, ...], docs: str, output: str | None) -> None:
    """Print recording and alerting rules for Prometheus, as YAML for its rule_files.

    Only the latency limit must be given; docs/monitor.md lists the alerts and what to do.

    \b
    torchtriage monitor rules --latency 0.2 --latency detector=0.05 -o torchtriage.rules.yml
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.operate.monitor.rules import rules as document

    check_outputs([output])
    emit(document(errors, dict(map(_objective, latency)), slo, docs=docs).encode(), output)


def _objective(text: str) -> tuple[str, float]:
    model, _, seconds = text.rpartition("=")
    try:
        return model, float(seconds)
    except ValueError:
        raise UsageError(
            f"expected seconds, or a model's name and seconds, found {visible(text)!r}",
            where="--latency",
            hint="--latency 0.2 or --latency detector=0.05",
        ) from None


def _text(streams: list[StreamReplay], ladders: list[LadderReplay]) -> list[str]:
    from torchtriage.operate.detect import latency_detector, metric
    from torchtriage.operate.detect.score import DetectionScore

    lines = []
    for at, replayed in enumerate(streams):
        n = len(replayed.stream.samples)
        what = "requests" if replayed.stream.is_requests else "values"
        title = f"{visible(replayed.stream.name)}: {n:,} {what}, {format_count(len(replayed.alarms), 'alarm')}"
        if replayed.stream.n_skipped:
            title += f" ({replayed.stream.n_skipped:,} lines could not be read in full)"
        lines.append(title)
        if replayed.stream.is_sampled:
            lines.append("  it holds a sample of the successful requests: failure rates are too high")
        if not replayed.n_judged:
            first = latency_detector.WARM_UP if replayed.stream.is_requests else metric.WARM_UP
            value = "duration" if replayed.stream.is_requests else "value"
            lines.append(f"  no {value} was judged: the first {first} {what} are only learned from")
        wrong = set(replayed.score.false_alarms) if replayed.score else set()
        for alarm in replayed.alarms:
            cause = f" ({alarm.cause})" if alarm.cause else ""
            mark = "  FALSE" if alarm.row in wrong else ""
            lines.append(f"  {alarm.row:>7}  {alarm.kind:<9}  {alarm.message}{cause}{mark}")
        if replayed.score:
            missed = [entry.fault for entry in replayed.score.faults if entry.delay is None]
            for fault in missed:
                detail = f" ({fault.detail})" if fault.detail else ""
                lines.append(f"  {fault.start:>7}  missed     {visible(fault.kind)}{detail}")
        if ladders:
            lines += _ladder_text(ladders[at])
    scores = [replayed.score for replayed in streams if replayed.score is not None]
    if scores:
        metrics = not any(replayed.stream.is_requests for replayed in streams)
        lines += ["", *_verdict(DetectionScore.of(scores), metrics=metrics)]
    return lines


def _verdict(score: DetectionScore, *, metrics: bool) -> list[str]:
    hits = score.delays()
    lines = [
        f"{len(hits)} of {format_count(len(score.faults), 'fault')} found,"
        f" {format_count(len(score.false_alarms), 'false alarm')} in {score.n_clean:,} clean rows"
        f" ({score.per_10k:.2f} per 10,000)"
    ]
    if score.faults:
        lines[0] += f"; random alarms of that rate would find {score.chance():.0%}"
    if hits:
        late = f"{hits[len(hits) // 2]} rows, 90 % within {hits[int(0.9 * len(hits))]}"
        nab = f"; NAB score {score.nab_score:.1f}" if metrics else ""
        lines.append(f"found after a median of {late}{nab}")
    if score.benign_alarms:
        lines.append(f"{format_count(len(score.benign_alarms), 'alarm')} on changes that must not alarm")
    return lines
