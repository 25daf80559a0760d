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

from torchtriage.monitor.monitor import Accounts, Monitor, Sink, Snapshot
from torchtriage.monitor.observe import Model, Request

if TYPE_CHECKING:
    from torchtriage.monitor.alerts import Alert, Alertmanager, Detection, Slack, Webhook, log
    from torchtriage.monitor.json_log import JsonLog
    from torchtriage.monitor.prometheus import Collector, Prometheus
    from torchtriage.monitor.redis_stream import RedisStream

__all__ = [
    "Accounts",
    "Alert",
    "Alertmanager",
    "Collector",
    "Detection",
    "JsonLog",
    "Model",
    "Monitor",
    "Prometheus",
    "RedisStream",
    "Request",
    "Sink",
    "Slack",
    "Snapshot",
    "Webhook",
    "close",
    "log",
    "observe",
    "snapshot",
    "start",
]

_LATER = {
    "Alert": "alerts",
    "Alertmanager": "alerts",
    "Collector": "prometheus",
    "Detection": "alerts",
    "JsonLog": "json_log",
    "Prometheus": "prometheus",
    "RedisStream": "redis_stream",
    "Slack": "alerts",
    "Webhook": "alerts",
    "log": "alerts",
}
_default = Monitor()


def __getattr__(name: str) -> Any:
    """Load what needs more than the standard library's lightest parts when it is asked for."""
    if name in _LATER:
        return getattr(import_module(f"torchtriage.monitor.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def start(*sinks: Sink) -> Monitor:
    """Give the process' monitor its sinks: listeners, logs, streams. Returns the monitor."""
    _default.add(*sinks)
    return _default


def observe(name: str, *, version: str = "", size: Callable[..., int] | None = None) -> Model:
    """Observe a model with the process' monitor: a decorator, and a context manager.

    ``size`` : for decorated functions, gives a call's size from its arguments.
    """
    return _default.observe(name, version=version, size=size)


def snapshot() -> tuple[Snapshot, ...]:
    """Return the numbers of every model observed so far."""
    return _default.snapshot()


def close() -> None:
    """Hand over what is pending and stop; happens by itself when the interpreter ends."""
    _default.close()
