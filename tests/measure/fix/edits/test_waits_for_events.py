"""Threads wait for events instead of polling."""

from tests.measure.fix.proposing import proposals, proposed


def test_what_is_set_from_outside_is_not_waited_for():
    before = """
        import time


        class Worker:
            def __init__(self):
                self.closed = False

            def close(self):
                self.closed = True

            def join(self):
                while not self.closed:
                    time.sleep(0.05)


        def stop(worker):
            worker.closed = True
    """
    found = proposals(before, "time.sleep", "HST104", "waits-for-events")
    assert [item.what for item in found] == ["poll more often on line 12"]
    assert found[0].changes
    assert not proposed(before.replace("0.05", "30"), "time.sleep", "HST104", "waits-for-events")
