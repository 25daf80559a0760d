"""Values are computed where they are needed."""

import pytest
from tests.measure.fix.proposing import change, proposed, source

EDIT = "needed-later"


def test_a_value_that_is_shown_now_and_then():
    before, after = change("""
        import torch


        def train(model, loader, optimizer):
            seen = []
            for i, (x, y) in enumerate(loader):
                out = model(x)
                loss = torch.nn.functional.cross_entropy(out, y)
                loss.backward()
      -         pred = out.argmax(1)
      -         acc = (pred == y).float().mean().item()
                seen.append(i)
                if i % 100 == 0:
      +             pred = out.argmax(1)
      +             acc = (pred == y).float().mean().item()
                    print(acc)
    """)
    assert proposed(before, "acc = ", "HST114", EDIT) == [after]
    assert not proposed(after, "acc = ", "HST114", EDIT)


def test_a_value_of_the_last_turn():
    before, after = change("""
        import torch


        def run(model, loader):
            outs = []
            for x in loader:
                outs.append(model(x))
      -         ranked = torch.cat(outs).sort().values
      +     ranked = torch.cat(outs).sort().values
            return ranked
    """)
    assert proposed(before, "ranked = ", "HST106", EDIT) == [after]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("print(acc)", "print(acc)\n            last = acc\n        best = acc"),
        ("step(i)", "out.zero_()"),  # changes what it is made of
        ("step(i)", "change(out)"),
        ("acc = (out == y)", "acc = (torch.rand_like(out) == y)"),
        ("if i % 100 == 0:", "if acc > 0.5:"),
        ("if i % 100 == 0:", "while i % 100 == 0:"),
    ],
)
def test_others_stay(old, new):
    before = """
import torch


def train(model, loader):
    for i, (x, y) in enumerate(loader):
        out = model(x)
        acc = (out == y).float().mean().item()
        step(i)
        if i % 100 == 0:
            print(acc)
"""
    assert proposed(before, "acc = ", "HST114", EDIT)
    assert not proposed(before.replace(old, new), "acc = ", "HST114", EDIT)


METER = """
    import numpy as np
    from sklearn.metrics import average_precision_score


    class Precision:
        def __init__(self):
            self.scores, self.targets = [], []

        def update(self, scores, targets):
            self.scores.append(scores.numpy())
            self.targets.append(targets.numpy())
            return self.compute()

        def compute(self):
            return average_precision_score(np.concatenate(self.targets), np.concatenate(self.scores))


    meter = Precision()
    for step, (x, y) in enumerate(loader):
        value = meter.update(model(x), y)
        seen = step + 1
        if seen % 100 == 0:
            print(seen, value)
    print(meter.compute())
"""


def test_what_a_method_returns_is_computed_where_it_is_read():
    after = source(METER).replace("        return self.compute()\n", "", 1)
    after = after.replace("value = meter.update", "meter.update")
    after = after.replace("        print(seen", "        value = meter.compute()\n        print(seen")
    assert proposed(METER, "value = ", "HST114", "needed-later") == [after]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return self.compute()", "return self.compute() + len(scores)"),
        ("return self.compute()", "return len(self.scores)"),
        ("seen = step + 1", "seen = step + value"),
        ("seen = step + 1", "meter.reset()"),
        ("seen = step + 1", "clear(meter)"),
        ("print(meter.compute())", "print(meter.update(x, y))"),
        ("print(meter.compute())", "print(value)"),
        ("print(meter.compute())", "hooks.append(meter.update)"),
        ("print(meter.compute())", "other.update(x)"),
        ("if seen % 100 == 0:", "while value:"),
        ("if seen % 100 == 0:", "if value > 0.5:"),
        ("value = meter.update(model(x), y)", "meter.last = meter.update(model(x), y)"),
    ],
)
def test_what_others_need_of_a_method_stays(old, new):
    assert not proposed(METER.replace(old, new, 1), ".update(model", "HST114", "needed-later")
