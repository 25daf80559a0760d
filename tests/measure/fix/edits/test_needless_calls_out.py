"""Calls that the step does not need are taken out."""

from tests.measure.fix.proposing import change, proposals, proposed


def test_a_collection_leaves_a_loop():
    before, after = change("""
        import gc

        import torch

        for step, batch in enumerate(loader):
            train(batch)
      -     gc.collect()  # keep memory low
      -     torch.cuda.empty_cache()
            log(step)
    """)
    assert proposed(before, "gc.collect", "HST021", "needless-calls-out")[0] == after


def test_a_guarded_call_leaves_with_its_condition():
    before, after = change("""
        import torch


        def train(loader):
            for batch in loader:
                step(batch)
      -         if torch.cuda.is_available():
      -             torch.cuda.empty_cache()
    """)
    assert proposed(before, "empty_cache", "MEM028", "needless-calls-out")[0] == after


def test_a_helper_that_does_nothing_else_is_not_called():
    before, after = change("""
        import gc
        import torch


        def free_memory():
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


        class Trainer:
            def fit(self, loader):
                for batch in loader:
                    self.step(batch)
      -             free_memory()  #
    """)
    assert proposed(before, "free_memory()  #", "HST021", "needless-calls-out")[0] == after


def test_a_log_is_not_flushed_by_line():
    before, after = change("""
        import json
        import os


        class Controller:
            def log(self, row):
                with open(self.path, "a") as f:
                    f.write(json.dumps(row) + "\\n")
      -             f.flush()
      -             os.fsync(f.fileno())
    """)
    assert proposed(before, "os.fsync", "HST101", "needless-calls-out")[0] == after


def test_a_line_is_printed_without_flush():
    before, after = change("""
        for step in range(100):
      -     print("step", step, flush=True)
      +     print("step", step)
    """)
    assert proposed(before, "print(", "HST115", "needless-calls-out")[0] == after


def test_a_loop_is_not_slowed_down():
    before, after = change("""
        import time

        PAUSE = 0.01
        for batch in loader:
            train(batch)
      -     time.sleep(PAUSE)
    """)
    assert proposed(before, "time.sleep", "HST104", "needless-calls-out")[0] == after


def test_a_copy_that_nobody_reads_goes():
    before, after = change("""
        import copy


        def fit(model, loader):
            for batch in loader:
      -         backup = copy.deepcopy(model.state_dict())
                train(model, batch)
    """)
    assert proposed(before, "backup =", "HST109", "needless-calls-out")[0] == after


def test_a_poll_stays():
    before = """
        import time


        def wait(self, ticket):
            while ticket not in self.results:
                time.sleep(0.05)
    """
    assert not proposed(before, "time.sleep", "HST104", "needless-calls-out")


def test_a_paced_loop_stays():
    before = """
        import time

        for batch in loader:
            train(batch)
            time.sleep(max(0.0, deadline - time.time()))
    """
    assert not proposed(before, "time.sleep", "HST104", "needless-calls-out")


def test_a_wait_before_the_clock_stays():
    before = """
        import time
        import torch

        for batch in loader:
            train(batch)
            torch.cuda.synchronize()
            end = time.perf_counter()
    """
    assert not proposed(before, "torch.cuda.synchronize", "SYN003", "needless-calls-out")


def test_a_wait_for_a_copy_to_the_host_stays():
    before = """
        import torch

        for batch in loader:
            out = model(batch).to("cpu", non_blocking=True)
            torch.cuda.synchronize()
            save(out)
    """
    assert not proposed(before, "torch.cuda.synchronize", "SYN003", "needless-calls-out")


def test_flushes_and_pauses_are_said_to_change():
    before = """
        import time

        for item in items:
            log.write(item)
            log.flush()
            send(item)
            time.sleep(0.5)
    """
    for line in ("log.flush", "time.sleep"):
        assert proposals(before, line, "HST104", "needless-calls-out")[0].changes
