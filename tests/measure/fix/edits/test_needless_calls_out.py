"""Calls that the step does not need are taken out."""

from tests.measure.fix.proposing import change, proposals, proposed


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
