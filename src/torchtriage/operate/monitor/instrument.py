"""What runs on the request path: two clock reads and a hand-off, nothing else.

Each thread appends finished requests to a queue of its own; the monitor's one thread takes them
from there (:mod:`torchtriage.operate.monitor.monitor`). An append to a ``deque`` is one step that cannot be
interrupted, and each of a ring's counters is written by its own thread alone, so no lock is needed
and the accounts are exact whenever they are read.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from contextvars import ContextVar
from time import perf_counter_ns
from types import TracebackType
from typing import Any, TypeVar, cast

from torchtriage.operate.monitor.aggregate import Aggregate, RequestNote, RequestRow, error_name

# Finished requests a thread may hold before new ones are dropped, and counted: 20 s of 3 000
# requests per second, 15 MB.
MAX_PENDING = 65_536

Call = TypeVar("Call", bound=Callable[..., Any])
# the last request begun by ``with model`` in this thread or task: they nest like their blocks
_open: ContextVar[Request | None] = ContextVar("torchtriage_open_request", default=None)


class Ring:
    """One thread's finished requests of one model, until the monitor takes them."""

    __slots__ = ("begun", "dropped", "rows", "thread")

    def __init__(self) -> None:
        self.rows: deque[RequestRow] = deque()
        self.begun = 0
        self.dropped = 0
        self.thread = threading.current_thread()

    def end(self, row: RequestRow) -> None:
        """Hand a finished request over, or count it as dropped."""
        if len(self.rows) < MAX_PENDING:
            self.rows.append(row)
        else:
            self.dropped += 1


class _Local(threading.local):
    def __init__(self, add: Callable[[Ring], None]) -> None:
        # when the thread first asks for it
        self.ring = Ring()
        add(self.ring)


def _abandoned(kind: type[BaseException]) -> bool:
    # the caller stopped waiting: it closed a generator, or cancelled a task of asyncio or trio
    cancelled = kind.__name__ in ("CancelledError", "Cancelled") and not issubclass(kind, Exception)
    return kind is GeneratorExit or cancelled


class Request:
    """One request, from ``with`` to its end. Everything may be set while it runs.

    ``size`` : how much was asked for (batch, tokens): latency is judged by size. ``queued_ns`` : how
    long it waited before it began. ``nan`` : whether its output holds NaN. None where unknown.
    ``error`` : the kind of a failure that is no exception: a short fixed word. ``fields`` : the caller's own, for logs
    and streams: ``request_id``, ``trace_id`` (also the exemplar's), and up to 14 more.
    """

    __slots__ = ("_local", "_start_ns", "error", "fields", "nan", "outer", "queued_ns", "size")
    _local: _Local
    _start_ns: int
    outer: Request | None
    size: int | None
    queued_ns: int | None
    nan: bool | None
    error: str
    fields: dict[str, Any] | None

    def __enter__(self) -> Request:
        """Begin."""
        self._local.ring.begun += 1
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trail: object) -> None:
        """End, and hand over."""
        end_ns = perf_counter_ns()
        note = None
        if kind is not None or self.nan is not None or self.queued_ns is not None or self.error or self.fields:
            note = self._note(kind)
        # as Ring.end: each call of a function is a twentieth of the whole cost
        ring = self._local.ring
        if len(ring.rows) < MAX_PENDING:
            ring.rows.append((self._start_ns, end_ns, self.size, note))
        else:
            ring.dropped += 1

    def _note(self, kind: type[BaseException] | None) -> RequestNote | None:
        name = self.error if kind is None or _abandoned(kind) else kind.__name__
        told = name or self.nan is not None or self.queued_ns is not None or self.fields
        return RequestNote(name, self.queued_ns, self.nan, self.fields) if told else None


class Model:
    """A model in a version, observed. A decorator, and a context manager.

    It decorates functions, coroutine functions, generators and asynchronous generators; a generator's request lasts
    from its first item to its end. ``size`` : a function of the call's arguments that gives the request's size.
    """

    def __init__(
        self,
        name: str,
        version: str,
        add: Callable[[Model, Ring], None],
        aggregate: Aggregate,
        size: Callable[..., int] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.aggregate = aggregate
        self.local = _Local(functools.partial(add, self))
        self._size = size

    def sized(self, size: Callable[..., int] | None) -> Model:
        """Return the same model for calls of size ``size(*args, **kwargs)``."""
        if size is None:
            return self
        other = object.__new__(Model)
        other.__dict__ = self.__dict__ | {"_size": size}
        return other

    def request(self, size: int | None = None, queued_ns: int | None = None) -> Request:
        """Return one request, for ``with``; the cheapest way beside the decorator."""
        # no __init__: its call would be a tenth of the whole cost
        request = Request()
        request._local = self.local
        request.size = size
        request.queued_ns = queued_ns
        request.nan = request.fields = None
        request.error = ""
        return request

    def __enter__(self) -> Request:
        """Begin a request of this thread or task."""
        # as request() and Request.__enter__
        request = Request()
        request._local = local = self.local
        request.size = request.queued_ns = request.nan = request.fields = None
        request.error = ""
        request.outer = _open.get()
        _open.set(request)
        local.ring.begun += 1
        request._start_ns = perf_counter_ns()
        return request

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        """End the request that was begun last."""
        end_ns = perf_counter_ns()
        request = _open.get()
        if request is None:  # left in another context than it was entered in
            return
        _open.set(request.outer)
        # as Request.__exit__
        note = None
        noted = request.nan is not None or request.queued_ns is not None or request.error or request.fields
        if kind is not None or noted:
            note = request._note(kind)
        ring = request._local.ring
        if len(ring.rows) < MAX_PENDING:
            ring.rows.append((request._start_ns, end_ns, request.size, note))
        else:
            ring.dropped += 1

    def __call__(self, function: Call) -> Call:
        """Return ``function``, observed."""
        if inspect.isasyncgenfunction(function):
            observed: Any = self._async_generator(function)
        elif inspect.iscoroutinefunction(function):
            observed = self._coroutine(function)
        elif inspect.isgeneratorfunction(function):
            observed = self._generator(function)
        else:
            observed = self._function(function)
        return cast(Call, functools.wraps(function)(observed))

    def _measure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        try:
            return None if self._size is None else int(self._size(*args, **kwargs))
        except Exception:
            return None  # never the service's error

    def _function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        local, measure, clock = self.local, self._measure if self._size else None, perf_counter_ns

        def observed(*args: Any, **kwargs: Any) -> Any:
            size = measure(args, kwargs) if measure else None
            ring = local.ring
            ring.begun += 1
            start_ns = clock()
            try:
                answer = function(*args, **kwargs)
            except BaseException as error:
                ring.end((start_ns, clock(), size, RequestNote(error_name(error))))
                raise
            ring.end((start_ns, clock(), size, None))
            return answer

        return observed

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        local, measure, clock = self.local, self._measure if self._size else None, perf_counter_ns

        async def observed(*args: Any, **kwargs: Any) -> Any:
            size = measure(args, kwargs) if measure else None
            local.ring.begun += 1
            start_ns = clock()
            try:
                answer = await function(*args, **kwargs)
            except BaseException as error:
                note = None if _abandoned(type(error)) else RequestNote(error_name(error))
                local.ring.end((start_ns, clock(), size, note))
                raise
            local.ring.end((start_ns, clock(), size, None))
            return answer

        return observed

    def _generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with self.request(self._measure(args, kwargs)):
                return (yield from function(*args, **kwargs))

        return observed

    def _async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def observed(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with self.request(self._measure(args, kwargs)):
                items = function(*args, **kwargs)
                try:
                    sent = await items.__anext__()
                    while True:
                        try:
                            answer = yield sent
                        except GeneratorExit:  # noqa: PERF203 - the caller throws in
                            raise
                        except BaseException as error:
                            sent = await items.athrow(error)
                        else:
                            sent = await items.asend(answer)
                except StopAsyncIteration:
                    return
                finally:
                    await items.aclose()

        return observed
