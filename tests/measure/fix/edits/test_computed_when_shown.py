"""A running metric is computed where it is shown."""

import pytest
from tests.measure.fix.proposing import proposed, source

BEFORE = """
    import numpy as np


    class RunningAP:
        def __init__(self):
            self.scores = []

        def update(self, scores):
            self.scores.append(scores)
            return self.compute()

        def compute(self):
            return float(np.sort(np.concatenate(self.scores)).mean())


    ap = RunningAP()
    for step, scores in enumerate(batches):
        running = ap.update(scores)  # so far
        if step % 100 == 0:
            print(f"{running:.3f}")
    print(ap.compute())
"""
AFTER = BEFORE.replace("            return self.compute()\n", "").replace("running = ap.update", "ap.update")
AFTER = AFTER.replace("            print(f", "            running = ap.compute()\n            print(f")


def test_what_is_shown_now_and_then_is_computed_then():
    assert proposed(BEFORE, "return float", "HST106", "computed-when-shown") == [source(AFTER)]
    assert not proposed(AFTER, "return float", "HST106", "computed-when-shown")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("print(ap.compute())", "print(running)"),
        ("if step % 100 == 0:", "if running > 0.5:"),
        ("return float(", "self.n = 1; return float("),
        ("print(ap.compute())", "print(ap.update(last))"),
        ("self.scores.append(scores)", "if not len(scores): return 0"),
    ],
)
def test_what_is_read_in_each_step_stays(old, new):
    assert not proposed(BEFORE.replace(old, new), "return float", "HST106", "computed-when-shown")
