"""Threads wait for events instead of polling."""

from tests.measure.fix.proposing import change, proposals, proposed


def test_an_answer_is_notified():
    before, after = change("""
        import queue
        import threading
        import time


        class Server:
            def __init__(self):
                self.requests = queue.Queue()
      +         self.changed = threading.Condition()
                self.results = {}
                self.thread = threading.Thread(target=self.serve)
                self.thread.start()

            def serve(self):
                while True:
                    ticket, x = self.requests.get()
                    self.results[ticket] = answer(x)
      +             with self.changed:
      +                 self.changed.notify_all()

            def wait_for(self, ticket):
      -         while ticket not in self.results:
      -             time.sleep(0.05)
      +         with self.changed:
      +             self.changed.wait_for(lambda: ticket in self.results)
                return self.results.pop(ticket)
    """)
    assert proposed(before, "time.sleep", "HST104", "waits-for-events")[0] == after


def test_a_queue_waits_by_itself():
    before, after = change("""
        import time


        def work(jobs):
            for _ in range(10):
      -         while jobs.empty():
      -             time.sleep(0.01)
                job = jobs.get()
                run(job)
    """)
    assert proposed(before, "while jobs.empty", "HST104", "waits-for-events")[0] == after


def test_a_question_without_waiting_waits():
    before, after = change("""
        import queue
        import time


        def work(jobs):
            while True:
                try:
      -             job = jobs.get_nowait()
      +             job = jobs.get(timeout=0.01)
                except queue.Empty:
      -             time.sleep(0.01)
                    continue
                run(job)
    """)
    assert proposed(before, "time.sleep", "HST104", "waits-for-events")[0] == after


def test_a_thread_that_spins_pauses():
    before, after = change("""
        import queue
        import threading

        import torch
      + import time


        class Stream:
            def __init__(self, capture):
                self.capture, self.frames, self.stopped = capture, queue.Queue(8), False

            def start(self):
                thread = threading.Thread(target=self.update, daemon=True)
                thread.start()

            def update(self):
                while not self.stopped:
                    if not self.frames.full():
                        self.frames.put(self.capture.read())
      +             else:
      +                 time.sleep(0.001)


        stream = Stream(capture)
        stream.start()
        model = torch.nn.Linear(4, 4)
    """)
    assert proposed(before, "if not self.frames.full", "HST108", "waits-for-events")[0] == after


def test_an_empty_loop_pauses():
    before, after = change("""
        import time

        while not done():
      -     pass
      +     time.sleep(0.001)
    """)
    assert proposed(before, "pass", "HST108", "waits-for-events")[0] == after


def test_a_loop_that_waits_stays():
    before = """
        class Stream:
            def update(self):
                while not self.stopped:
                    use(self.frames.get())
    """
    assert not proposed(before, "self.frames.get", "HST108", "waits-for-events")


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
    assert [item.what for item in found] == ["poll more often in line 12"]
    assert found[0].changes
    assert not proposed(before.replace("0.05", "30"), "time.sleep", "HST104", "waits-for-events")
