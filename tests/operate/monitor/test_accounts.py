"""Random histories of queues: at every moment each record is sent, dropped or pending, once."""

from __future__ import annotations

import threading
from importlib import import_module

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from torchtriage.operate.monitor import Monitor, observe
from torchtriage.operate.monitor.batch_sink import BatchSink

MODEL = observe("accounts")
few = st.integers(0, 9)


class OutletHistories(RuleBasedStateMachine):
    """An outlet whose server comes and goes; requests arrive in the middle of sending too."""

    @initialize(most=st.integers(1, 20), batch=st.integers(1, 8))
    def begin(self, most: int, batch: int) -> None:
        self.outlet = Sender(max_pending=most)
        self.outlet.batch = batch
        self.most, self.n_offered = most, 0

    @rule(n=st.integers(0, 30))
    def arrive(self, n: int) -> None:
        rows = [(0, 0, at, None) for at in range(self.n_offered, self.n_offered + n)]
        self.n_offered += n
        self.outlet.offer(MODEL, rows)

    @rule(arrives=st.booleans(), during=few)
    def send(self, arrives: bool, during: int) -> None:
        def meanwhile() -> None:
            self.arrive(during)
            self.accounts_balance()
            if not arrives:
                raise ConnectionError

        self.outlet.meanwhile = meanwhile
        batch = self.outlet._next_batch()
        if batch:
            assert self.outlet._send(batch) == arrives

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "outlet"):
            return
        accounts = self.outlet.accounts()
        assert accounts.produced == self.n_offered
        assert accounts.produced == accounts.sent + accounts.dropped + accounts.pending
        # a batch on its way cannot be dropped: it may be more than there is room for
        assert accounts.pending <= max(self.most, self.outlet._n_sending)
        # in their order, none twice, none both sent and waiting
        sent, waiting = self.outlet.sent, [row[2] for _, _, row in self.outlet._rows]
        assert accounts.sent == len(sent)
        assert [*sent, *waiting] == sorted({*sent, *waiting})


class Sender(BatchSink):
    def __init__(self, **settings):
        self.sent: list[int | None] = []
        super().__init__(**settings)

    def send(self, records):
        self.meanwhile()
        self.sent += [record.size for record in records]


class RequestHistories(RuleBasedStateMachine):
    """Threads that come, call and end, with room for few requests each."""

    @initialize()
    def begin(self) -> None:
        self.monitor = Monitor()
        self.call = self.monitor.observe("detector")(abs)
        # its own thread stands still: this one drains
        self.monitor._wake.set()
        self.monitor._thread.join()
        self.n_made = self.n_open = 0

    @rule(n=st.integers(0, 30))
    def calls(self, n: int) -> None:
        self.n_made += n
        for at in range(n):
            self.call(at)

    @rule(n=st.integers(0, 30))
    def a_thread_calls_and_ends(self, n: int) -> None:
        thread = threading.Thread(target=self.calls, args=(n,))
        thread.start()
        thread.join()

    @rule()
    def drain(self) -> None:
        self.monitor.drain()
        assert self.monitor.accounts().pending == 0
        assert len(self.monitor._rings) <= 1  # of this thread

    @rule(n=few)
    def inside_of_requests(self, n: int) -> None:
        model = self.monitor.observe("detector")
        requests = [model.request() for _ in range(n)]
        for request in requests:
            request.__enter__()
        assert self.monitor.in_flight()["detector", ""] == n
        for request in requests:
            request.__exit__(None, None, None)
        self.n_made += n

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "monitor"):
            return
        accounts = self.monitor.accounts()
        assert accounts.produced == self.n_made
        assert accounts.produced == accounts.sent + accounts.dropped + accounts.pending
        assert self.monitor.in_flight()["detector", ""] == 0

    def teardown(self) -> None:
        if hasattr(self, "monitor"):
            self.monitor.close()


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    monkeypatch.setattr(import_module("torchtriage.operate.monitor.instrument"), "MAX_PENDING", 40)


plain = settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
OutletHistories.TestCase.settings = RequestHistories.TestCase.settings = plain
TestOutlets = OutletHistories.TestCase
TestRequests = RequestHistories.TestCase


@pytest.mark.parametrize("given", [{"queued_ns": 10**400}, {"size": 10**400}, {"queued_ns": float("inf")}])
def test_no_number_of_a_caller_ends_the_monitors_thread(given, monkeypatch):
    with Monitor() as watch:
        model = watch.observe("m")
        with model.request(**given):
            pass
        watch.drain()
        assert watch.n_sink_failures == 0
        with monkeypatch.context() as patched:
            patched.setattr(type(model.aggregate), "add", lambda *_: 1 / 0)
            with model.request():
                pass
            watch.drain()
        (numbers,) = watch.snapshot()
        assert (numbers.finished, numbers.in_flight, watch.n_sink_failures) == (2, 0, 1)
        assert all(abs(size) <= 2**60 for size in model.aggregate.sizes)
