"""A shadow sees requests and harms none."""

from __future__ import annotations

import os
import threading
import time

import pytest

from torchtriage.core.errors import UsageError
from torchtriage.operate.experiment.shadow import Shadow, ShadowReport


def balanced(told: ShadowReport) -> bool:
    parts = told.n_agree + told.n_differ + told.n_failed + told.n_dropped + told.n_waiting
    return told.n_offered == parts


def test_answers_are_compared() -> None:
    shadow = Shadow(lambda x: x * 2 if x < 8 else x, backlog=100)
    for n in range(10):
        assert shadow.offer(n, n * 2, n)
    assert shadow.drain()
    told = shadow.report()
    assert (told.n_agree, told.n_differ) == (8, 2)
    assert told.examples == ("1 of 1 values differ",)
    assert told.agree_ratio == 0.8
    shadow.close()


def test_what_the_candidate_raises_goes_no_further() -> None:
    def fails(kind: type[BaseException]) -> None:
        raise kind("of the candidate")

    shadow = Shadow(fails)
    for n, kind in enumerate((ValueError, SystemExit, KeyboardInterrupt)):
        shadow.offer(n, None, kind)
    assert shadow.drain()
    assert shadow.report().n_failed == 3
    assert "ValueError: of the candidate" in shadow.report().examples
    shadow.close()


def test_a_comparison_that_gives_no_agreement_is_told() -> None:
    shadow = Shadow(lambda: 1, compare=lambda one, other: one == other)
    for n in range(3):
        shadow.offer(n, 1)
        assert shadow.drain(5)
    told = shadow.report()
    assert told.n_failed == 3
    assert told.examples == ("TypeError: expected an Agreement from compare, found True",)
    shadow.close()


def test_a_candidate_that_hangs_holds_up_nobody() -> None:
    go = threading.Event()
    shadow = Shadow(lambda: go.wait(10), backlog=2)
    start = time.perf_counter()
    for n in range(1000):
        shadow.offer(n, True)
        assert balanced(shadow.report())
    assert time.perf_counter() - start < 2
    told = shadow.report()
    assert told.n_offered == 1000
    assert told.n_dropped >= 997
    go.set()
    assert shadow.drain()
    assert balanced(shadow.report())
    shadow.close()


def test_a_share_is_shadowed_by_id() -> None:
    shadow = Shadow(lambda: 1, share=0.1, backlog=10_000)
    taken = [n for n in range(2000) if shadow.offer(n, 1)]
    assert 130 < len(taken) < 270
    assert [n for n in range(2000) if shadow.offer(n, 1)] == taken
    shadow.close()
    assert not any(shadow.offer(n, 1) for n in range(2000))


def test_its_thread_ends_when_it_is_closed() -> None:
    shadow = Shadow(lambda: 1)
    shadow.offer("a", 1)
    shadow.drain()
    thread = shadow._thread
    shadow.close()
    thread.join(2)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside a thread, as meant
def test_it_works_in_a_fork() -> None:
    shadow = Shadow(lambda x: x)
    shadow.offer(1, 1, 1)
    shadow.drain()
    shadow._lock.acquire()  # as a fork may find it
    child = os.fork()
    if not child:
        shadow.offer(2, 2, 2)
        os._exit(0 if shadow.drain(5) and shadow.report().n_agree == 1 else 1)
    shadow._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    shadow.close()


def test_a_backlog_of_none_is_refused() -> None:
    with pytest.raises(UsageError, match="backlog of 1 or more"):
        Shadow(lambda: 1, backlog=0)
