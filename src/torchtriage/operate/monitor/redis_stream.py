"""Requests to a Redis stream: batched, trimmed, and never in the request's way."""

from __future__ import annotations

import json

import msgspec

from torchtriage.core.database import connect_redis
from torchtriage.core.errors import MissingExtraError, UsageError
from torchtriage.operate.monitor.batch_sink import MAX_PENDING, BatchSink, RequestRecord

__all__ = ["RedisStream"]

TIMEOUT_S = 1.0


class RedisStream(BatchSink):
    """Adds one entry per batch to a stream: field ``requests``, a JSON list of records.

    ``max_entries`` : the stream is trimmed to about so many. While Redis is away the records wait, up to
    ``max_pending``; then the oldest are dropped, and counted. A batch whose answer was lost may come twice.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        stream: str = "torchtriage:requests",
        max_entries: int = 10_000,
        max_pending: int = MAX_PENDING,
    ) -> None:
        missing = MissingExtraError(
            "a Redis stream needs redis, which is not installed", hint="pip install 'torchtriage[monitor]'"
        )
        try:
            # this thread tries again by itself, with the records safe in its queue
            self._redis = connect_redis(url, timeout_s=TIMEOUT_S, missing=missing)
        except ValueError as error:
            raise UsageError(f"not a Redis URL: {error}", hint="redis://host:6379/0") from error
        self._stream = stream
        self._max_entries = max_entries
        super().__init__(max_pending=max_pending)

    def send(self, records: list[RequestRecord]) -> None:
        """Add one entry."""
        text = json.dumps([msgspec.to_builtins(record) for record in records])
        self._redis.xadd(self._stream, {"requests": text}, maxlen=self._max_entries, approximate=True)

    def release(self) -> None:
        """Close the connections."""
        self._redis.connection_pool.disconnect()
