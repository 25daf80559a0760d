"""Counts are filled with a batch at once."""

import pytest
from tests.measure.fix.proposing import change, proposed

BEFORE, AFTER = change("""
    import torch


    class Meter:
        def __init__(self, n):
            self.confusion = torch.zeros(n, n, dtype=torch.long)

        def update(self, logits, y):
            pred, target = torch.argmax(logits, 1), torch.flatten(y)
            true = torch.flatten(y)
            guess = torch.argmax(logits, 1)
  -         for t, p in zip(true, guess):
  -             self.confusion[t, p] += 1
  +         self.confusion.index_put_((true.long(), guess.long()), {one}, accumulate=True)
""")
AFTER = AFTER.replace("{one}", "torch.ones((), dtype=self.confusion.dtype, device=self.confusion.device)")


@pytest.mark.parametrize("index", ["[t, p]", "[t.item(), p.item()]", "[t.long()][p.long()]", "[int(t)][int(p)]"])
def test_a_confusion_matrix_is_filled_at_once(index):
    before = BEFORE.replace("[t, p]", index)
    assert proposed(before, "for t", "LCH017", "counted-at-once") == [AFTER]
    assert not proposed(AFTER, "index_put_", "LCH017", "counted-at-once")


def test_an_array_counts_with_numpy():
    before = BEFORE.replace("import torch\n", "import numpy as np\nimport torch\n", 1)
    before = before.replace("torch.zeros(n, n, dtype=torch.long)", "np.zeros((n, n))")
    assert "np.add.at(self.confusion, (true.cpu(), guess.cpu()), 1)" in proposed(before, "for t", "LCH017")[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+= 1", "+= p"),
        ("+= 1", "-= 1"),
        ("[t, p]", "[t, 0]"),
        ("[t, p]", "[p + 1, t]"),
        ("guess = torch.argmax(logits, 1)", "guess = names_of(logits)"),
        ("torch.zeros(n, n, dtype=torch.long)", "[[0] * n for _ in range(n)]"),
    ],
)
def test_other_loops_stay(old, new):
    assert not proposed(BEFORE.replace(old, new), "for t", "LCH017", "counted-at-once")


def test_counts_are_the_same():
    torch = pytest.importorskip("torch")
    made = {}
    array = BEFORE.replace("torch.zeros(n, n, dtype=torch.long)", "np.zeros((n, n))").replace(
        "import torch\n", "import numpy as np\nimport torch\n"
    )
    for text in (BEFORE, AFTER, proposed(array, "for t", "LCH017")[0]):
        space: dict[str, object] = {}
        exec(text, space)
        meter = space["Meter"](3)
        torch.manual_seed(0)
        meter.update(torch.randn(50, 3), torch.randint(0, 3, (50,)))
        made[text] = torch.as_tensor(meter.confusion).long()
    first, second, third = made.values()
    assert torch.equal(first, second)
    assert torch.equal(first, third)
