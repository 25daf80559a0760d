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
      +     labels_list = labels.flatten().tolist()
      +     pred_list = pred.flatten().tolist()
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
      +     for name, score in zip(names, scores.flatten().tolist()):
      +         file.write(f"{name},{score:.4f}")
    """)
    assert proposed(before, "file.write", "HST114", EDIT) == [after]


def test_numbers_in_a_comprehension():
    before, after = change("""
        import torch


        def line(row):
            row = torch.sigmoid(row)
      -     return ",".join(f"{float(row[j].detach().cpu().numpy()):.4f}" for j in range(len(row)))
      +     row_list = row.flatten().tolist()
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
        ("total += x[i].item()", "step(x)\n        total += x[i].item()"),
        ("total += x[i].item()", "total += x[i].item()\n        add(x)"),
        ("total += x[i].item()", "opt.step()\n        total += x[i].item()"),
        ("total = 0", "total = 0\n    v = x.view(3, 3)\n    w = v[0]"),
        ("total += x[i].item()", "total += x[i].item() if ok else 0"),
        ("total += x[i].item()", "total += ok and x[i].item()"),
        ("total += x[i].item()", "if ok:\n            total += x[i].item()"),
        ("total += x[i].item()", "if ok:\n            continue\n        total += x[i].item()"),
        ("total += x[i].item()", "yield x[i].item()"),
        ("total += x[i].item()", "calls.append(lambda: x[i].item())"),
        ("total += x[i].item()", "total += sum(x[i].item() for x in others)"),
        ("total += x[i].item()", "total += x[i].item() + x[i, 0].item()"),
        ("x = torch.rand(9)", "x = others"),
        ("x = torch.rand(9)", "x = torch.rand(9).numpy()"),  # whose flatten takes no dimension
        ("x = torch.rand(9)", "x = torch.rand(9)\n    x = x.cpu().numpy().reshape(9)"),
    ],
)
def test_others_stay(old, new):
    before = (
        "import torch\n\n\ndef add(y):\n    y += 1\n\n\ndef f():\n"
        "    x = torch.rand(9)\n    total = 0\n    for i in range(9):\n"
        "        total += x[i].item()\n        w[0] = 1\n    return total\n"
    )
    assert proposed(before, "for i", "HST114", EDIT)
    assert not proposed(before.replace(old, new), "for i", "HST114", EDIT)


def test_a_number_that_is_read_twice():
    before, after = change("""
        import torch


        def f(x: torch.Tensor):
      +     x_list = x.flatten(1).tolist()
            for i in range(9):
      -         print(int(x[i, 0].item()))
      +         print(int(x_list[i][0]))
    """)
    assert proposed(before, "for i", "HST114", EDIT) == [after]


@pytest.mark.parametrize(
    "statement",
    [
        "while any(x[i].item() > 0 for i in range(3)):\n        x -= 1",
        "y = [] if x is None else [x[i].item() for i in range(3)]",
        "y = x is not None and [x[i].item() for i in range(3)]",
        "y = lambda: [x[i].item() for i in range(3)]",
        "y = [[x[i].item() for i in range(3)] for x in others]",
        "y = [x[i].item() for i in range(3) if ok]",
        "y = (x[i].item() for i in range(3))",
        "y = g(x), [x[i].item() for i in range(3)]",
    ],
)
def test_lists_that_are_not_always_made(statement):
    before = f"import torch\n\n\ndef f(x: torch.Tensor, others, ok):\n    {statement}\n"
    assert not proposed(before, statement[:9], "HST114", EDIT)
    plain = before.replace(statement, "y = [x[i].item() for i in range(3)]")
    assert proposed(plain, "y = ", "HST114", EDIT)


ROWS = """
import torch

def f(x: torch.Tensor, out):
    for v in x:
        out.append(v.item())
    return out
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("out.append(v.item())", "out.append(v.item())\n        x += 1"),
        ("out.append(v.item())", "step(x)\n        out.append(v.item())"),
        ("out.append(v.item())", "out.append(v.item())\n        w += 1"),
        ("out.append(v.item())", "out.append(lambda: v.item())"),
        ("return out", "return out, v.shape"),
    ],
)
def test_elements_that_are_more_than_numbers(old, new):
    before = ROWS.replace("    for", "    w = x[1:]\n    for")
    assert proposed(before, "for v", "HST114", EDIT)
    assert not proposed(before.replace(old, new), "for v", "HST114", EDIT)


def test_another_loop_with_the_same_variable():
    before = ROWS.replace("return out", "for v in out:\n        print(v.shape)")
    assert "for v in x.flatten().tolist():\n" in proposed(before, "for v", "HST114", EDIT)[0]
