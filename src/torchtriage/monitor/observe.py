"""What runs on the request path: two clock reads and a hand-off, nothing else.

Each thread appends finished requests to a queue of its own; the monitor's one thread takes them
from there (:mod:`torchtriage.monitor.monitor`). An append to a ``deque`` is one step that cannot be
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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from torchtriage.monitor.aggregate import Aggregate

__all__ = ["MAX_PENDING", "Model", "Note", "Request", "Ring", "Row", "plain"]

MAX_PENDING = 65_536
"""Finished requests a thread may hold before new ones are dropped, and counted: 20 s of 3 000
requests per second, 15 MB."""

Call = TypeVar("Call", bound=Callable[..., Any])
_open: ContextVar[Request | None] = ContextVar("torchtriage_open_request", default=None)
"""The last request begun by ``with model`` in this thread or task: they nest like their blocks."""


class Note(NamedTuple):
    """What few requests have to say beside their duration; None is what nobody told."""

    error: str = ""
    queued_ns: int | None = None
    nan: bool | None = None

    @property
    def failed(self) -> bool:
        """Whether there was no answer, or none of use."""
        return bool(self.error or self.nan)


Row = tuple[int, int, "int | None", "Note | None"]
"""``(start_ns, end_ns, size, note)`` on the clock of ``time.perf_counter_ns``."""


def plain(row: Row) -> Row:
    """Return the row with numbers and text alone, whatever the caller set (tensors, exceptions)."""
    start_ns, end_ns, size, note = row
    if note is not None:
        error: Any = note.error
        error = error if isinstance(error, str) else _error_name(error)
        note = Note(error, _told(int, note.queued_ns), _told(bool, note.nan))
    return start_ns, end_ns, _told(int, size), note


def _told(kind: Callable[[Any], Any], value: Any) -> Any:
    """Return ``value`` as a number; one that cannot be told is none, and never an error."""
    if value is None:
        return None
    try:
        return kind(value)
    except Exception:
        return None


class Ring:
    """One thread's finished requests of one model, until the monitor takes them."""

    __slots__ = ("begun", "dropped", "rows", "thread")

    def __init__(self) -> None:
        self.rows: deque[Row] = deque()
        self.begun = 0
        self.dropped = 0
        self.thread = threading.current_thread()

    def end(self, row: Row) -> None:
        """Hand a finished request over, or count it as dropped."""
        if len(self.rows) < MAX_PENDING:
            self.rows.append(row)
        else:
            self.dropped += 1


class _Local(threading.local):
    """A thread's ring, made when the thread first asks for it."""

    def __init__(self, add: Callable[[Ring], None]) -> None:
        self.ring = Ring()
        add(self.ring)


def _error_name(error: object) -> str:
    """Return the name of an exception, or of a class of them."""
    return (error if isinstance(error, type) else type(error)).__name__


class Request:
    """One request, from ``with`` to its end. Everything may be set while it runs."""

    __slots__ = ("_local", "_start_ns", "error", "nan", "outer", "queued_ns", "size")
    _local: _Local
    _start_ns: int
    outer: Request | None

    size: int | None
    """How much was asked for (batch, tokens): latency is judged by size."""
    queued_ns: int | None
    """How long it waited before it began; None of what is not known."""
    nan: bool | None
    """Whether its output holds NaN; None where nobody looked."""
    error: str
    """The kind of a failure that is no exception: a short fixed word."""

    def __enter__(self) -> Request:
        """Begin."""
        self._local.ring.begun += 1
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: object
    ) -> None:
        """End, and hand over."""
        end_ns = perf_counter_ns()
        note = None
        if kind is not None or self.nan is not None or self.queued_ns is not None or self.error:
            note = self._note(kind)
        self._local.ring.end((self._start_ns, end_ns, self.size, note))

    def _note(self, kind: type[BaseException] | None) -> Note | None:
        # a generator that is closed: its caller stopped listening, which is no error
        name = self.error if kind is None or kind is GeneratorExit else kind.__name__
        if not name and self.nan is None and self.queued_ns is None:
            return None
        return Note(name, self.queued_ns, self.nan)


class Model:
    """What is observed: a model in a version. A decorator, and a context manager.

    Functions, coroutine functions, generators and asynchronous generators are told apart by
    themselves; a generator's request lasts from its first item to its end. ``size`` : a function
    of the call's arguments that gives the request's size.
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
        """Return the same model for calls whose size ``size(*args, **kwargs)`` tells."""
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
        request.nan = None
        request.error = ""
        return request

    def __enter__(self) -> Request:
        """Begin a request of this thread or task."""
        request = self.request()
        request.outer = _open.get()
        _open.set(request)
        return request.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trail: TracebackType | None,
    ) -> None:
        """End the request that was begun last."""
        request = _open.get()
        if request is not None:  # None: left in another context than it was entered in
            _open.set(request.outer)
            request.__exit__(kind, error, trail)

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
        """Return the call's size; one that cannot be told is none, and never an error."""
        if self._size is None:
            return None
        try:
            return int(self._size(*args, **kwargs))
        except Exception:
            return None

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
                ring.end((start_ns, clock(), size, Note(_error_name(error))))
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
                local.ring.end((start_ns, clock(), size, Note(_error_name(error))))
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
