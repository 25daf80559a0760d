"""Watch a model in production: measured on every request, off the request's path.

>>> from torchtriage import monitor
>>> monitor.start(monitor.Prometheus(port=9464))  # doctest: +SKIP
>>> @monitor.observe("detector", version="2.1")
... def detect(image): ...
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchtriage.operate.monitor.instrument import Model, Request
from torchtriage.operate.monitor.monitor import Accounts, Monitor, MonitorSnapshot, Sink

if TYPE_CHECKING:
    from torchtriage.operate.monitor.alert import Alert
    from torchtriage.operate.monitor.alerts import Alertmanager, Detection, Slack, Webhook, log
    from torchtriage.operate.monitor.asgi import Health
    from torchtriage.operate.monitor.json_log import JsonLog
    from torchtriage.operate.monitor.otel import OpenTelemetry
    from torchtriage.operate.monitor.prometheus import Collector, Prometheus
    from torchtriage.operate.monitor.redis_stream import RedisStream

__all__ = [
    "Accounts",
    "Alert",
    "Alertmanager",
    "Collector",
    "Detection",
    "Health",
    "JsonLog",
    "Model",
    "Monitor",
    "MonitorSnapshot",
    "OpenTelemetry",
    "Prometheus",
    "RedisStream",
    "Request",
    "Sink",
    "Slack",
    "Webhook",
    "close",
    "log",
    "observe",
    "ready",
    "snapshot",
    "start",
]

_default = Monitor()


_HOMES = {
    "Alert": "alert",
    "Alertmanager": "alerts",
    "Collector": "prometheus",
    "Detection": "alerts",
    "Health": "asgi",
    "JsonLog": "json_log",
    "OpenTelemetry": "otel",
    "Prometheus": "prometheus",
    "RedisStream": "redis_stream",
    "Slack": "alerts",
    "Webhook": "alerts",
    "log": "alerts",
}


def __getattr__(name: str) -> Any:
    """Import what needs more than the standard library's lightest parts when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def start(*sinks: Sink) -> Monitor:
    """Give the process' monitor its sinks: listeners, logs, streams. Returns the monitor."""
    _default.add(*sinks)
    return _default


def observe(name: str, *, version: str = "", size: Callable[..., int] | None = None) -> Model:
    """Observe a model with the process' monitor; as :meth:`Monitor.observe`."""
    return _default.observe(name, version=version, size=size)


def ready(is_ready: bool = True) -> None:
    """Say whether requests may come; as :meth:`Monitor.ready`."""
    _default.ready(is_ready)


def snapshot() -> tuple[MonitorSnapshot, ...]:
    """Return the numbers of every model observed so far."""
    return _default.snapshot()


def close() -> None:
    """Hand over what is pending and stop; happens by itself when the interpreter ends."""
    _default.close()
