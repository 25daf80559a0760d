"""What ``torchtriage monitor consume`` starts, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import click

from torchtriage.operate import monitor
from torchtriage.operate.fleet.consumer import FleetConsumer
from torchtriage.operate.fleet.stream_reader import StreamReader
from torchtriage.operate.live import LivePage
from torchtriage.operate.monitor import process_metrics


def consume(
    *,
    url: str,
    stream: str,
    group: str,
    name: str,
    host: str,
    port: int,
    live: int | None,
    log: str | None,
    log_bytes: int,
    webhook: str | None,
    alertmanager: str | None,
    slack: str | None,
) -> None:
    """Consume until a signal; parameters as the options of the command."""
    token = os.environ.get("TORCHTRIAGE_TOKEN", "")
    reader = StreamReader(url, stream=stream, group=group, name=name)
    channels: list[Callable[[monitor.Alert], object]] = [monitor.log]
    for place, channel in ((webhook, monitor.Webhook), (alertmanager, monitor.Alertmanager), (slack, monitor.Slack)):
        if place:
            channels.append(channel(place))
    page = LivePage(live, host=host, token=token) if live is not None else None
    if page is not None:
        channels.append(page.show)
    listener = monitor.Prometheus(port, host=host, token=token)
    sinks: list[monitor.Sink] = [listener] if page is None else [listener, page]
    with monitor.Monitor(*sinks) as watch:
        consumer = FleetConsumer(
            reader,
            watch,
            channels=channels,
            log=monitor.JsonLog(log, max_bytes=log_bytes, n_files=100) if log else None,
        )
        process_metrics.register(consumer)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: consumer.stop())
        if not listener.n_failures:  # a port that is taken is logged, and tried again
            click.echo(f"metrics at http://{host}:{listener.port}/metrics", err=True)
        if page is not None:
            click.echo(f"live page at http://{host}:{page.port}", err=True)
        try:
            consumer.run()
        finally:
            consumer.close()
