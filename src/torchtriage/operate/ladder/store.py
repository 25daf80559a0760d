"""Where the level of a ladder is kept: in this process, or in Redis for all workers.

A switch is one step that compares and sets: it is refused where another worker has switched, where
the last switch is not a dwell ago, and where the budget is used up. In Redis a script does it, by
Redis' own clock, so workers' clocks do not matter. What is stored is JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from torchtriage.core.database import connect_redis, undamaged
from torchtriage.core.errors import MissingExtraError, StoreError, UsageError

DRY = ":dry"  # ends the names that dry runs have in a store: they take no part of the budget
TROUBLE_S = 1.0  # how long a worker's trouble keeps all of them from trying a better mode


@dataclass(frozen=True)
class Shared:
    """What workers share of a ladder.

    ``held`` : a person holds it there. ``share`` : of calls that the better mode answers on the way back. ``wait_s`` :
    how long all must be well before it is tried; 0 for the policy's. ``since_s`` : since the level or the share last
    changed, and ``rose_s`` since the level last rose, by the store's clock. ``trouble`` : one of the workers has seen
    some a moment ago. ``back`` : the level that a dry run goes back to when it releases a hold.
    """

    level: int = 0
    epoch: int = 0
    why: str = ""
    actor: str = ""
    held: bool = False
    share: float = 0.0
    wait_s: float = 0.0
    back: int = 0
    since_s: float = field(default=math.inf, compare=False)
    rose_s: float = field(default=math.inf, compare=False)
    trouble: bool = field(default=False, compare=False)


class Switched(NamedTuple):
    """The state after an attempt, and why it was refused; empty where it was not."""

    state: Shared
    refused: str = ""


class LadderStore(Protocol):
    """What both stores do; all of it may raise ``StoreError``."""

    def read(self, ladder: str) -> Shared:
        """Return the state of a ladder, the first one where there is none."""

    def switch(self, ladder: str, before: Shared, after: Shared, *, dwell_s: float, budget: int | None) -> Switched:
        """Set another state; a person's is not bound by dwell and budget, nor is another share of the same level."""

    def mark(self, ladder: str) -> None:
        """Tell all workers that one of them is in trouble, for ``TROUBLE_S``."""


class LocalStore:
    """Ladders of one process share it: levels, dwell and budget."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, Shared] = {}
        self._switched_s: dict[str, float] = {}
        self._moved_s: dict[str, float] = {}
        self._rose_s: dict[str, float] = {}
        self._marked_s: dict[str, float] = {}

    def read(self, ladder: str) -> Shared:
        """Return the state of a ladder, the first one where there is none."""
        now_s = self._clock()
        return replace(
            self._states.get(ladder, Shared()),
            since_s=now_s - self._moved_s.get(ladder, -math.inf),
            rose_s=now_s - self._rose_s.get(ladder, -math.inf),
            trouble=0 <= now_s - self._marked_s.get(ladder, -math.inf) < TROUBLE_S,
        )

    def mark(self, ladder: str) -> None:
        """Tell all workers that one of them is in trouble."""
        self._marked_s[ladder] = self._clock()

    def switch(self, ladder: str, before: Shared, after: Shared, *, dwell_s: float, budget: int | None) -> Switched:
        """Set another state."""
        with self._lock:
            now_s = self._clock()
            current = self.read(ladder)
            if current.epoch != before.epoch:
                return Switched(current, "another worker has switched")
            if after.level != current.level and not (after.held or before.held):
                since_s = now_s - self._switched_s.get(ladder, -math.inf)
                if since_s < 0:
                    self._switched_s[ladder] = now_s  # the clock went back
                if since_s < dwell_s:
                    return Switched(current, f"the last switch was less than {dwell_s:g} s ago")
                others = sum(
                    state.level > 0 for name, state in self._states.items() if name != ladder and not name.endswith(DRY)
                )
                if budget is not None and after.level > 0 and others + 1 > budget:
                    return Switched(current, f"{others} other ladders are below their first mode, {budget} may be")
            self._states[ladder] = replace(after, epoch=current.epoch + 1)
            self._moved_s[ladder] = now_s
            if after.level != current.level:
                self._switched_s[ladder] = now_s
            if after.level < current.level:
                self._rose_s[ladder] = now_s
            return Switched(self.read(ladder))


# The times that a state keeps are those of Redis' clock; a reader gets them as ages.
# KEYS: state, all levels, log. ARGV: ladder, epoch expected, state as JSON, level, by hand, dwell in ms, budget or -1
_SWITCH = """
local stored = redis.call('GET', KEYS[1])
local epoch, switched, rose, level = 0, nil, nil, 0
if stored then
  local state = cjson.decode(stored)
  epoch, switched, rose, level = state.epoch, state.switched_ms, state.rose_ms, state.level
end
if epoch ~= tonumber(ARGV[2]) then return {stored or '', 'another worker has switched'} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[5] == '0' and tonumber(ARGV[4]) ~= level then
  if switched and now < switched then
    local state = cjson.decode(stored)
    state.switched_ms = now
    stored = cjson.encode(state)
    redis.call('SET', KEYS[1], stored)
    return {stored, 'the clock of Redis was set back'}
  end
  if switched and now - switched < tonumber(ARGV[6]) then
    return {stored, 'the last switch was less than ' .. tonumber(ARGV[6]) / 1000 .. ' s ago'}
  end
  local budget = tonumber(ARGV[7])
  if budget >= 0 and tonumber(ARGV[4]) > 0 then
    local others = 0
    local levels = redis.call('HGETALL', KEYS[2])
    for i = 1, #levels, 2 do
      local counts = levels[i] ~= ARGV[1] and string.sub(levels[i], -4) ~= ':dry'
      if counts and tonumber(levels[i + 1]) > 0 then others = others + 1 end
    end
    if others + 1 > budget then
      return {stored or '', others .. ' other ladders are below their first mode, ' .. budget .. ' may be'}
    end
  end
end
local state = cjson.decode(ARGV[3])
state.epoch = epoch + 1
state.switched_ms = switched
state.rose_ms = rose
state.moved_ms = now
if state.level ~= level then state.switched_ms = now end
if state.level < level then state.rose_ms = now end
local text = cjson.encode(state)
redis.call('SET', KEYS[1], text)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
if ARGV[5] == '1' or state.level ~= level then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', '10000', '*', 'ladder', ARGV[1], 'state', text)
end
return {text, ''}
"""


class RedisStore:
    """Workers of any machine share their ladders over Redis.

    ``url`` : ``redis://…``, ``rediss://…`` or ``unix://…``.
    ``prefix`` : of all keys: ``PREFIX:ladder:NAME``, ``PREFIX:ladders`` and the stream ``PREFIX:log``.
    ``timeout_s`` : after which Redis counts as lost. Nothing is tried twice: the next look does.
    Raises ``MissingExtraError``: without the extra ``redis``;
    ``StoreError``: a URL that is none. A server that is not there is no failure: workers keep their state.
    """

    def __init__(self, url: str, *, prefix: str = "torchtriage", timeout_s: float = 0.2) -> None:
        missing = MissingExtraError(
            "ladders over Redis need redis-py, which is not installed", hint="pip install 'torchtriage[redis]'"
        )
        try:
            self._redis = connect_redis(url, timeout_s=timeout_s, missing=missing, decode=True)
        except UsageError as error:
            raise StoreError(f"expected a redis:// URL: {error.__cause__}") from error
        # what is no UTF-8 is no JSON either
        self._errors = (import_module("redis").RedisError, OSError, UnicodeDecodeError)
        self._prefix = prefix
        self._switch = self._redis.register_script(_SWITCH)

    def read(self, ladder: str) -> Shared:
        """Return the state of a ladder; ``StoreError`` where Redis does not answer, as below."""
        with self._answers():
            pipe = self._redis.pipeline(transaction=False)
            pipe.mget(self._key(ladder), f"{self._key(ladder)}:trouble")
            pipe.time()
            (text, marked), (seconds, micro) = pipe.execute()
        return replace(_state(text, seconds * 1e3 + micro * 1e-3), trouble=marked is not None)

    def mark(self, ladder: str) -> None:
        """Tell all workers that one of them is in trouble."""
        with self._answers():
            self._redis.set(f"{self._key(ladder)}:trouble", "1", px=round(TROUBLE_S * 1000))

    def switch(self, ladder: str, before: Shared, after: Shared, *, dwell_s: float, budget: int | None) -> Switched:
        """Set another state."""
        by_hand = int(after.held or before.held)
        names = ("level", "why", "actor", "held", "share", "wait_s", "back")
        state = json.dumps({name: getattr(after, name) for name in names})
        limits = (by_hand, round(dwell_s * 1000), -1 if budget is None else budget)
        keys = [self._key(ladder), f"{self._prefix}:ladders", f"{self._prefix}:log"]
        with self._answers():
            _, refused = self._switch(keys=keys, args=[ladder, before.epoch, state, after.level, *limits])
        return Switched(self.read(ladder), refused)

    def log(self, n: int = 100) -> list[dict[str, Any]]:
        """Return the newest switches of all ladders, newest first."""
        with self._answers():
            rows = self._redis.xrevrange(f"{self._prefix}:log", count=n)
        return [{"id": id, "ladder": row["ladder"], **json.loads(row["state"])} for id, row in rows]

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _key(self, ladder: str) -> str:
        return f"{self._prefix}:ladder:{ladder}"

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise StoreError(f"Redis: {error}") from error


def _state(text: str | None, now_ms: float) -> Shared:
    if not text:
        return Shared()
    with undamaged("", "what Redis holds of the ladder"):
        state = json.loads(text)
        level, share, wait_s = int(state["level"]), float(state.get("share", 0)), float(state.get("wait_s", 0))
        back = int(state.get("back", 0))
        if level < 0 or back < 0 or not 0 <= share <= 1 or not 0 <= wait_s < math.inf:
            raise ValueError(f"level {level}, share {share}, wait {wait_s}")
        # absent: it never happened, or a version before wrote it
        since_s, rose_s = (
            (now_ms - float(state[name])) * 1e-3 if state.get(name) is not None else math.inf
            for name in ("moved_ms", "rose_ms")
        )
        texts = str(state["why"]), str(state["actor"])
        return Shared(level, int(state["epoch"]), *texts, bool(state["held"]), share, wait_s, back, since_s, rose_s)
