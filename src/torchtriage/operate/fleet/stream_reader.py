"""A consumer of a Redis stream's group: each entry at least once, and its effect on stored state once.

What was read stays pending in Redis until :meth:`StreamReader.commit` stores the reader's state and acknowledges the
entries in one transaction. After a crash the state of the last commit is read, and what was pending since comes again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

from torchtriage.core.database import connect_redis, without_password
from torchtriage.core.errors import MissingExtraError, StoreError

TIMEOUT_S = 5.0
BLOCK_S = 0.5
COUNT = 500  # entries that are read together
CLAIM_S = 60.0  # what another consumer has held for so long is taken over
MISSING = MissingExtraError(
    "reading a Redis stream needs redis, which is not installed", hint="pip install 'torchtriage[monitor]'"
)


class StreamEntry(NamedTuple):
    """An entry; ``at_s`` : when Redis got it, on its clock."""

    id: str
    at_s: float
    fields: dict[bytes, bytes]


class Lag(NamedTuple):
    """How far behind the group is. ``entries`` : not yet read, None where Redis cannot tell (trimmed before read)."""

    entries: int | None
    pending: int
    seconds: float


class StreamReader:
    """Reads one stream for one group. Of several readers with one ``name`` the newest goes on, the others end.

    Raises ``UsageError``: no URL of Redis; ``StoreError``: from ``open`` on, Redis is away or answers an error.
    """

    def __init__(self, url: str, *, stream: str, group: str, name: str) -> None:
        self._redis = connect_redis(url, timeout_s=TIMEOUT_S, missing=MISSING)
        self._where = without_password(url)
        self._stream, self._group, self._name = stream, group, name
        self._keys = {part: f"{stream}:{group}:{name}:{part}" for part in ("state", "term")}
        self._term = 0
        self._applied: set[str] = set()  # read, and not yet acknowledged
        self._from = ""  # "0" reads what is pending, ">" what is new
        self._claimed_s = 0.0

    @property
    def state_key(self) -> str:
        """Redis' key of the state."""
        return self._keys["state"]

    def open(self) -> bytes | None:
        """Begin; return the state that was stored last."""
        self._make_group()
        with self._errors():
            self._term = self._redis.incr(self._keys["term"])
            state: bytes | None = self._redis.get(self._keys["state"])
        self.again()
        return state

    def again(self) -> None:
        """Begin with what is pending, after an error: an answer may have been lost on its way."""
        self._from = ""

    def read(self, now_s: float) -> list[StreamEntry]:
        """Return the next entries, waiting up to half a second; ``now_s`` : of any clock that only grows."""
        if not self._from:
            self._make_group()  # a server without persistence may have begun anew
            self._from = "0"
        with self._errors():
            if now_s - self._claimed_s > CLAIM_S / 2:
                self._claimed_s = now_s
                self._redis.xautoclaim(
                    self._stream, self._group, self._name, min_idle_time=round(CLAIM_S * 1e3), count=COUNT, justid=True
                )
                self._from = "0"
            old = self._from != ">"
            answer = self._redis.xreadgroup(
                self._group,
                self._name,
                {self._stream: self._from},
                count=COUNT,
                block=None if old else round(BLOCK_S * 1e3),
            )
        found = _entries(answer)
        if old:
            self._from = found[-1][0].decode() if found else ">"
        entries = []
        for raw, fields in found:
            id = raw.decode()
            if id not in self._applied:
                self._applied.add(id)
                entries.append(StreamEntry(id, int(id.partition("-")[0]) * 1e-3, fields or {}))
        if old and not found:
            return self.read(now_s)
        return entries

    def _make_group(self) -> None:
        with self._errors():
            try:
                self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True)
            except Exception as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def commit(self, state: bytes) -> None:
        """Store the state, and acknowledge what was read, both or neither.

        Raises ``StoreError``: another reader of this name has begun since.
        """
        taken = StoreError(
            f"another consumer named {self._name!r} has taken over",
            where=self._where,
            hint="give each running consumer a name of its own",
        )
        with self._errors(), self._redis.pipeline() as pipe:
            try:
                pipe.watch(self._keys["term"])
                if int(pipe.get(self._keys["term"]) or self._term) != self._term:
                    raise taken
                pipe.multi()
                pipe.set(self._keys["term"], self._term)
                pipe.set(self._keys["state"], state)
                if self._applied:
                    pipe.xack(self._stream, self._group, *self._applied)
                pipe.execute()
            except import_module("redis").WatchError:
                raise taken from None
        self._applied.clear()

    def lag(self) -> Lag:
        """Return how far behind the group is."""
        with self._errors():
            groups = self._redis.xinfo_groups(self._stream)
            newest = self._redis.xinfo_stream(self._stream)["last-generated-id"]
        group = next(group for group in groups if _text(group["name"]) == self._group)
        behind_ms = _milliseconds(newest) - _milliseconds(group["last-delivered-id"])
        lag = group.get("lag")
        return Lag(None if lag is None else int(lag), int(group["pending"]), max(behind_ms, 0) * 1e-3)

    def now_s(self) -> float:
        """Return Redis' clock."""
        with self._errors():
            seconds, microseconds = self._redis.time()
        return float(seconds) + float(microseconds) * 1e-6

    def close(self) -> None:
        """Close the connections."""
        self._redis.connection_pool.disconnect()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (import_module("redis").RedisError, OSError) as error:
            raise StoreError(
                f"Redis: {error}", where=self._where, hint="is it running, and is the URL right?"
            ) from error


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes] | None]]:
    # of the one stream that was asked for: pairs in Redis' second protocol, a dictionary in its third
    if isinstance(answer, dict):
        batches = [batch for batches in answer.values() for batch in batches]
        return [entry for batch in batches for entry in (batch if isinstance(batch, list) else [batch])]
    return [entry for _, entries in answer or () for entry in entries]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _milliseconds(id: bytes | str) -> int:
    return int(_text(id).partition("-")[0])
