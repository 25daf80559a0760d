"""Numbers of a tensor are taken out at once."""

import pytest
from tests.measure.fix.proposing import change, proposed

EDIT = "elements-listed"


def test_numbers_by_their_places():
    before, after = change("""
        import torch


        def count(logits, labels, n):
            pred = logits.argmax(1)
            counts = [[0] * n for _ in range(n)]
      +     labels_list = labels.tolist()
      +     pred_list = pred.tolist()
            for i in range(labels.size(0)):
      -         counts[labels[i].item()][int(pred[i])] += 1
      +         counts[labels_list[i]][int(pred_list[i])] += 1
            return counts
    """)
    assert proposed(before, "counts[labels", "LCH017", EDIT) == [after]


def test_elements_that_are_gone_through():
    before, after = change("""
        import torch


        def write(file, names, scores):
            scores = torch.sigmoid(scores)
      -     for name, score in zip(names, scores):
      -         file.write(f"{name},{score.detach().cpu().item():.4f}")
      +     for name, score in zip(names, scores.tolist()):
      +         file.write(f"{name},{score:.4f}")
    """)
    assert proposed(before, "file.write", "HST114", EDIT) == [after]


def test_numbers_in_a_comprehension():
    before, after = change("""
        import torch


        def line(row):
            row = torch.sigmoid(row)
      -     return ",".join(f"{float(row[j].detach().cpu().numpy()):.4f}" for j in range(len(row)))
      +     row_list = row.tolist()
      +     return ",".join(f"{float(row_list[j]):.4f}" for j in range(len(row)))
    """)
    assert proposed(before, "return", "HST114", EDIT) == [after]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("total += x[i].item()", "x[i] = 0\n        total += x[i].item()"),  # changes meanwhile
        ("total += x[i].item()", "total += x[i].sum().item()"),
        ("x = torch.rand(9)", "x = [torch.rand(1)] * 9"),
        ("total += x[i].item()", "total += x[0].item()"),
    ],
)
def test_others_stay(old, new):
    before = (
        "import torch\n\n\ndef f():\n    x = torch.rand(9)\n    total = 0\n    for i in range(9):\n"
        "        total += x[i].item()\n    return total\n"
    )
    assert proposed(before, "for i", "HST114", EDIT)
    assert not proposed(before.replace(old, new), "for i", "HST114", EDIT)
