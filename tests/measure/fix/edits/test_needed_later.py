"""Values are computed where they are needed."""

import pytest
from tests.measure.fix.proposing import change, proposed

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
