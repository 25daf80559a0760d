"""Observed functions behave as before, and every request is counted once, whoever runs it."""

import asyncio
import gc
import os
import signal
import threading

import pytest

from torchtriage.operate.monitor import Monitor
from torchtriage.operate.monitor.instrument import MAX_PENDING


@pytest.fixture
def monitor():
    with Monitor() as monitor:
        yield monitor


def only(monitor):
    (found,) = monitor.snapshot()
    return found


def test_a_function_keeps_its_name_its_answer_and_its_error(monitor):
    @monitor.observe("detector", version="2.1")
    def divide(a, b=2):
        """Divide."""
        return a / b

    assert (divide.__name__, divide.__doc__) == ("divide", "Divide.")
    assert divide(4) == 2
    with pytest.raises(ZeroDivisionError):
        divide(1, b=0)
    found = only(monitor)
    assert (found.model, found.version, found.finished, found.in_flight) == ("detector", "2.1", 2, 0)
    assert found.errors == {"ZeroDivisionError": 1}


def test_sizes_are_told_by_a_function_of_the_call_and_never_an_error(monitor):
    detect = monitor.observe("detector", size=len)(sum)
    assert detect([1, 2, 3]) == 6
    assert detect((4,)) == 4
    assert only(monitor).sizes == 2
    assert monitor.observe("counter", size=len)(abs)(-5) == 5


def test_a_request_tells_size_queue_and_nan(monitor):
    model = monitor.observe("detector")
    with model.request(size=8, queued_ns=5_000_000) as request:
        request.nan = True
    with model.request() as request:
        request.error = "rejected"
    (state,) = monitor.state() if not monitor.drain() else ()
    assert state["sizes"] == [8]
    assert (state["n_nan"], state["errors"]) == (1, {"rejected": 1})
    assert (state["queued"]["count"], state["queued"]["sum_ns"]) == (1, 5_000_000)


def test_blocks_nest(monitor):
    model = monitor.observe("detector")
    with model, model:
        assert only(monitor).in_flight == 2
    assert (only(monitor).finished, only(monitor).in_flight) == (2, 0)


@pytest.mark.timing
def test_coroutines_that_overlap_each_have_their_own_time(monitor):
    model = monitor.observe("detector")

    async def one(delay_s):
        with model:
            await asyncio.sleep(delay_s)

    @monitor.observe("decorated")
    async def two(delay_s):
        await asyncio.sleep(delay_s)
        return delay_s

    async def run():
        await asyncio.gather(one(0.05), one(0.2))
        return await asyncio.gather(two(0.05), two(0.2))

    assert asyncio.run(run()) == [0.05, 0.2]
    for found in monitor.snapshot():
        assert found.finished == 2
        assert 0.04 < found.p50_s < 0.12 < 0.18 < found.p99_s < 0.4


def test_a_generator_lasts_to_its_end_and_may_be_left_early(monitor):
    @monitor.observe("tokens")
    def tokens(n):
        got = yield 0
        assert got == "sent"
        yield from range(1, n)
        return "done"

    stream = tokens(3)
    assert (next(stream), stream.send("sent"), next(stream)) == (0, 1, 2)
    with pytest.raises(StopIteration, match="done"):
        next(stream)
    left = tokens(3)
    next(left)
    assert only(monitor).in_flight == 1
    left.close()
    found = only(monitor)
    assert (found.finished, found.errors, found.in_flight) == (2, {}, 0)


def test_an_asynchronous_generator_too(monitor):
    @monitor.observe("tokens")
    async def tokens(n):
        try:
            for at in range(n):
                yield at
        except ValueError:
            yield "caught"

    async def run():
        everything = [item async for item in tokens(3)]
        stream = tokens(3)
        await stream.__anext__()
        caught = await stream.athrow(ValueError())
        await stream.aclose()
        return everything, caught

    assert asyncio.run(run()) == ([0, 1, 2], "caught")
    found = only(monitor)
    assert (found.finished, found.errors, found.in_flight) == (2, {}, 0)


def test_a_cancelled_coroutine_is_no_error(monitor):
    model = monitor.observe("detector")

    @model
    async def decorated():
        await asyncio.sleep(60)

    async def block():
        with model:
            await asyncio.sleep(60)

    async def run():
        tasks = [asyncio.create_task(call()) for call in (decorated, block)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(error) for error in asyncio.run(run())] == [asyncio.CancelledError] * 2
    found = only(monitor)
    assert (found.finished, found.errors, found.in_flight) == (2, {}, 0)


def test_every_thread_is_counted_and_none_is_kept(monitor):
    model = monitor.observe("detector")

    def work():
        for _ in range(500):
            with model.request():
                pass

    for _ in range(4):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        seen = [monitor.accounts() for _ in range(50)]
        for thread in threads:
            thread.join()
        for one in seen:
            assert one.produced == one.sent + one.dropped + one.pending
        assert [one.produced for one in seen] == sorted(one.produced for one in seen)
    assert only(monitor).finished == 4 * 8 * 500
    monitor.drain()
    assert len(monitor._rings) == 1  # of this thread


def test_a_full_queue_drops_and_counts():
    monitor = Monitor()
    model = monitor.observe("detector")
    monitor._wake.set()  # its thread stands still
    monitor._thread.join()
    call = model(lambda: None)
    for _ in range(MAX_PENDING + 100):
        call()
    with model.request(), model:
        pass
    accounts = monitor.accounts()
    assert (accounts.produced, accounts.dropped, accounts.pending) == (MAX_PENDING + 102, 102, MAX_PENDING)
    assert only(monitor).finished == MAX_PENDING
    assert monitor.accounts().produced == MAX_PENDING + 102
    monitor.close()


def test_names_beyond_the_bound_are_counted_together():
    with Monitor(max_models=3) as monitor:
        for at in range(50):
            with monitor.observe(f"model-{at}"):
                pass
        found = {one.model: one.finished for one in monitor.snapshot()}
        assert found == {"model-0": 1, "model-1": 1, "model-2": 1, "other": 47}
        assert monitor.n_refused == 47


def test_kinds_of_errors_beyond_the_bound_are_counted_together(monitor):
    model = monitor.observe("detector")
    for at in range(40):
        with pytest.raises(Exception, match="x"), model.request():
            raise type(f"Error{at}", (Exception,), {})("x")
    errors = only(monitor).errors
    assert len(errors) == 17
    assert errors["other"] == 24


def test_quantiles_are_within_two_percent_over_six_decades(monitor):
    from torchtriage.operate.monitor.aggregate import Histogram

    durations = [int(1_000 * 10 ** (6 * at / 5000)) for at in range(5001)]
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        exact = durations[round(share * 5000)] * 1e-9
        assert histogram.quantile_s(share) == pytest.approx(exact, rel=0.02)
    histogram.add(-5)  # a clock that went back
    histogram.add(10**30)
    assert histogram.count == 5003


def test_memory_is_flat(monitor):
    import tracemalloc

    call = monitor.observe("detector", size=lambda n: n % 10_000)(lambda n: n)
    for at in range(20_000):
        call(at)
    monitor.drain()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for at in range(50_000):
        call(at)
        if at % 1000 == 0:
            monitor.drain()
    monitor.drain()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000


def test_a_finalizer_or_a_signal_may_observe(monitor):
    model = monitor.observe("detector")

    class Late:
        def __del__(self):
            with monitor.observe("finalizer").request():
                pass

    signal.signal(signal.SIGUSR1, lambda *_: model(abs)(1))
    try:
        for _ in range(200):
            late = Late()
            late.self = late
            del late
            with model.request():
                os.kill(os.getpid(), signal.SIGUSR1)
            monitor.drain()
        gc.collect()
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    found = {one.model: one.finished for one in monitor.snapshot()}
    assert found == {"detector": 400, "finalizer": 200}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_begins_anew_and_the_parent_goes_on(monitor):
    call = monitor.observe("detector")(abs)
    for _ in range(10):
        call(-1)
    for _ in range(5):  # some of them while the monitor's thread holds its lock
        with monitor._lock:
            child = os.fork()
        if child == 0:
            for _ in range(3):
                call(-1)
            good = only(monitor).finished == 3 and monitor._thread.is_alive()
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert only(monitor).finished == 10


def test_the_process_has_a_monitor_of_its_own():
    from torchtriage.operate import monitor

    with monitor.observe("own", version="1"):
        pass
    assert any(one.model == "own" and one.finished == 1 for one in monitor.snapshot())


@pytest.mark.timing
def test_a_sink_that_raises_or_hangs_costs_nothing():
    import time

    class Bad:
        def start(self, monitor): ...

        def offer(self, model, rows):
            raise OSError("full")

        def close(self, deadline_s):
            time.sleep(max(deadline_s - time.monotonic(), 0))

    monitor = Monitor(Bad())
    monitor.observe("detector")(abs)(1)
    assert only(monitor).finished == 1
    assert monitor.n_sink_failures == 1
    before = time.monotonic()
    monitor.close()
    monitor.close()
    assert time.monotonic() - before < 0.2
    monitor.observe("detector")(abs)(1)  # after the end: still no error
    assert monitor.accounts().produced == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_closed_monitor_stays_closed_in_a_forked_child():
    started = []

    class Kept:
        def start(self, monitor):
            started.append(os.getpid())

        def offer(self, model, rows): ...

        def close(self, deadline_s): ...

    Monitor(Kept()).close()
    pid = os.fork()
    if pid == 0:
        os._exit(len(started))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
