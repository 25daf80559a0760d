"""Requests to a Redis stream: batched, trimmed, and never in the request's way."""

from __future__ import annotations

import os
import socket
import time

import msgspec

from torchtriage.core.database import connect_redis
from torchtriage.core.errors import MissingExtraError
from torchtriage.operate.monitor.aggregate import well_formed
from torchtriage.operate.monitor.batch_sink import MAX_PENDING, BatchSink, RequestRecord
from torchtriage.operate.monitor.json_log import compile_status

STREAM = "torchtriage:requests"

TIMEOUT_S = 1.0


class RedisStream(BatchSink):
    """Adds one entry per batch to a stream: field ``requests``, a JSON list of records, and whose they are.

    ``device`` : names the machine or unit in the fleet; its host name without one. ``wait_s`` : how long the first
    record of a batch waits for company. ``max_entries`` : the stream is trimmed to about so many. While Redis is away
    the records wait, up to ``max_pending``; then the oldest are dropped, and counted. A batch whose answer was lost
    may come twice: ``first`` numbers its records within ``source``, this process, so that a reader can tell.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        stream: str = STREAM,
        device: str = "",
        wait_s: float = BatchSink.wait_s,
        max_entries: int = 10_000,
        max_pending: int = MAX_PENDING,
    ) -> None:
        missing = MissingExtraError(
            "a Redis stream needs redis, which is not installed", hint="pip install 'torchtriage[monitor]'"
        )
        # this thread tries again by itself, with the records safe in its queue
        self._redis = connect_redis(url, timeout_s=TIMEOUT_S, missing=missing)
        self._stream = stream
        self._device = well_formed(str(device or socket.gethostname()))
        self.wait_s = wait_s
        self._max_entries = max_entries
        super().__init__(max_pending=max_pending)

    def _reset(self) -> None:
        super()._reset()  # numbers begin again, in a forked child too
        self._source = f"{os.getpid()}-{time.time_ns():x}"

    def send(self, records: list[RequestRecord]) -> None:
        """Add one entry."""
        entry = {
            "device": self._device,
            "source": self._source,
            "first": self.first,
            "requests": msgspec.json.encode(records),
            "common": msgspec.json.encode(compile_status()),
        }
        self._redis.xadd(self._stream, entry, maxlen=self._max_entries, approximate=True)

    def release(self) -> None:
        """Close the connections."""
        self._redis.connection_pool.disconnect()
