"""Turns that do not know of each other are computed at once."""

import pytest
from tests.measure.fix.proposing import change, proposals, proposed, source

BEFORE, AFTER = change("""
    import numpy as np
    import torch
    import torch.nn as nn


    class Learner:
        def __init__(self):
            self.net = nn.Linear(8, 3)

        def scores(self, x):
            x = torch.from_numpy(x)
            scores = np.zeros(len(x))
  -         for n in range(len(x)):
  -             p = torch.softmax(self.net(x[n].unsqueeze(0).expand(20, -1)), dim=1)
  +         def of_row(row):
  +             p = torch.softmax(self.net(row.unsqueeze(0).expand(20, -1)), dim=1)
                mean = p.mean(0)
  -             scores[n] = float(-(mean * mean.log()).sum())
  +             return -(mean * mean.log()).sum()
  +
  +         if len(x) > 0:
  +             scores[:len(x)] = torch.vmap(of_row, randomness="different", chunk_size=256)(x).flatten().tolist()
            return scores
""")


def test_scores_of_samples_are_computed_at_once():
    assert proposed(BEFORE, "for n", "LCH017", "vmapped-loops") == [AFTER]
    assert not proposed(AFTER, "p = ", "LCH017", "vmapped-loops")
    assert not proposals(BEFORE, "for n", "LCH017", "vmapped-loops")[0].changes
    draws = BEFORE.replace("nn.Linear(8, 3)", "nn.Sequential(nn.Linear(8, 3), nn.Dropout())")
    assert proposals(draws, "for n", "LCH017", "vmapped-loops")[0].changes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mean = p.mean(0)", "mean = p.mean(0) + scores[n - 1]"),  # of the turn before
        ("mean = p.mean(0)", "mean = p.mean(0) + x[n - 1].mean()"),
        ("scores[n] = float(-(mean", "weights = [1, 2]\n            scores[n] = float(-(mean * weights[n]"),
        ("mean = p.mean(0)", "mean = mean + p.mean(0)"),
        ("scores[n] =", "scores[n, :3] ="),
        ("mean = p.mean(0)", "mean = p[p > 0.1]"),  # of another size in each turn
        ("mean = p.mean(0)", "mean = p.mean(0) + torch.rand(3)"),
        ("mean = p.mean(0)", "mean = p.mean(0) if p.sum() > 0 else p[0]"),
        ("mean = p.mean(0)", "self.last = p.mean(0)"),
        ("x = torch.from_numpy(x)", "x = list(x)"),
        ("return scores", "return scores, mean"),
        ("for n in", "for _ in range(9):\n          print(mean)\n          for n in"),  # of the loop before
        ("for n in", "shown = lambda: mean\n        for n in"),
        ("for n in", "def shown():\n            print(mean)\n        for n in"),
        ("mean = p.mean(0)", "mean = p[n]"),
        ("scores = np.zeros(len(x))", "scores = {}"),
        ("scores[n] = float(", "self.scores[n] = float("),  # a tensor, an array, or a list
        ("range(len(x))", "range(next(self.sizes))"),
        ("range(len(x))", "range(len(x) or 1)"),
    ],
)
def test_other_loops_stay(old, new):
    assert not proposed(BEFORE.replace(old, new), "for n", "LCH017", "vmapped-loops")


LOOP = """
    import torch


    def scores(model, images):
        rows = torch.stack(images)
        out = []
        for {head}:
            logits = torch.softmax(rows[i], 0)
            out.append(logits.max(){read})
        return out
"""


@pytest.mark.parametrize(
    ("head", "row", "use"),
    [
        ("row in rows", "row", "row"),
        ("i, row in enumerate(rows)", "row", "row"),
        ("i in range(len(rows))", "row", "rows[i]"),
    ],
)
@pytest.mark.parametrize(("read", "listed"), [(".item()", ".flatten().tolist()"), ("", "")])
def test_what_is_put_into_a_list(head, row, use, read, listed):
    before = LOOP.format(head=head, read=read).replace("rows[i]", use)
    new = [
        f"    def of_row({row}):",
        f"        logits = torch.softmax({row}, 0)",
        "        return logits.max()",
        "",
        "    if len(rows) > 0:",
        f'        out.extend(torch.vmap(of_row, randomness="different", chunk_size=256)(rows){listed})',
    ]
    head_lines, tail = source(before).split("    for ")[0], "    return out\n"
    assert proposed(before, "for ", "LCH017", "vmapped-loops") == [head_lines + "\n".join(new) + "\n" + tail]


HELPERS = """

    def scaled(row):
        return shifted(row) / row.norm()


    def shifted(row):
        return row - {value}
"""


@pytest.mark.parametrize("value", ["row.mean().item()", "float(row.mean())", "int(row.mean() * row.shape[0])"])
def test_a_function_that_reads_what_tensors_hold_is_not_mapped(value):
    before = LOOP.format(head="row in rows", read="").replace("torch.softmax(rows[i], 0)", "{}(row)")
    helpers = HELPERS.format(value=value)
    assert not proposed(before.format("shifted") + helpers, "for ", "LCH017", "vmapped-loops")
    assert not proposed(before.format("scaled") + helpers, "for ", "LCH017", "vmapped-loops")


def test_scores_are_the_same():
    torch = pytest.importorskip("torch")
    before = LOOP.format(head="row in rows", read=".item()").replace("rows[i]", "row")
    made = []
    for text in (source(before), proposed(before, "for ", "LCH017", "vmapped-loops")[0]):
        space: dict[str, object] = {}
        exec(text, space)
        torch.manual_seed(0)
        made.append(space["scores"](None, list(torch.randn(300, 4))))
    assert made[0] == pytest.approx(made[1])


@pytest.mark.parametrize(
    "value",
    ["row.mean()", 'row.masked_fill(row < 0, float("-inf")).max()', "int(row.shape[0])", "float(row.size(0) * -2)"],
)
@pytest.mark.torch
def test_numbers_that_are_constants_or_sizes_are_mapped(value):
    import torch

    before = LOOP.format(head="row in rows", read=".item()").replace("torch.softmax(rows[i], 0)", "shifted(row)")
    before += HELPERS.format(value=value)
    (after,) = proposed(before, "for ", "LCH017", "vmapped-loops")
    made = []
    for text in (source(before), after):
        space: dict[str, object] = {}
        exec(text, space)
        torch.manual_seed(0)
        made.append(space["scores"](None, list(torch.randn(30, 4))))
    assert made[0] == pytest.approx(made[1])


def made(text, line="for ", lengths=(6, 6)):
    """Return what ``f`` of a text gives for the same tensors, before and after its only proposal."""
    torch = pytest.importorskip("torch")
    first, second = lengths
    text = f"import torch\nimport torch.nn.functional as F\n\n\n{source(text)}"
    texts = [text, *proposed(text, line, "LCH017", "vmapped-loops")]
    assert len(texts) == 2
    results = []
    for item in texts:
        space: dict[str, object] = {}
        exec(item, space)
        torch.manual_seed(0)
        results.append(space["f"](torch.rand(first, 5, 7), torch.rand(second, 5, 7), torch.rand(7)))
    return torch, *results


@pytest.mark.parametrize(
    "text",
    [
        """
        def f(pred, target, w):
            total = 0.0
            for b in range(pred.shape[0]):
                gap = F.mse_loss(pred[b], target[b], reduction="none")
                total = total + (gap * w).topk(3).values.mean()
            return total / pred.shape[0]
        """,
        """
        def f(pred, target, w):
            n, c, t = pred.shape
            dice = []
            for k in range(c):
                p, g = pred[:, k], target[:, k, :]
                dice.append((p * g).sum() / (p.sum() + g.sum()))
            return torch.stack(dice)
        """,
        """
        def f(pred, target: torch.Tensor, w):
            out = torch.zeros(6, 5, pred.size(1))
            norms = torch.zeros(6)
            for i, (p, g) in enumerate(zip(pred, target)):
                sim = torch.matmul(p, g.t())
                out[i] = sim.softmax(-1)
                norms[i] = sim.norm()
            return out.sum(0) + norms.sum()
        """,
        """
        def f(pred, target, w):
            labels = pred.argmax(1)
            hits = 0
            for c in range(3):
                hits += ((labels == c).float() * w[c]).sum().item()
            return torch.tensor(hits)
        """,
        """
        def f(pred, target, w):
            return torch.stack([torch.matmul(pred[..., i], target[:, :, i].t()) for i in range(4)], dim=1)  # for
        """,
        """
        def f(pred, target: torch.Tensor, w):
            return sum(F.l1_loss(p, g) for p, g in zip(pred, target)) / pred.size(0)
        """,
    ],
)
def test_turns_at_once_give_the_same(text):
    torch, before, after = made(text)
    assert torch.allclose(before, after, atol=1e-5)


ROWS = {
    "a tensor longer than the one gone through": """
        def f(pred: torch.Tensor, target, w):
            total = torch.zeros(7)
            for i, p in enumerate(pred):
                total += (p - target[i]).sum(0)
            return total
        """,
    "both of a zip": """
        def f(pred: torch.Tensor, target: torch.Tensor, w):
            total = torch.zeros(7)
            for p, g in zip(pred, target):
                total += (p - g).sum(0)
            return total
        """,
    "a sum of none": """
        def f(pred: torch.Tensor, target: torch.Tensor, w):
            return torch.zeros(7) + sum(torch.softmax(p - g, 0).sum(0) for p, g in zip(pred, target))
        """,
    "rows counted before more are joined": """
        def f(pred: torch.Tensor, target, w):
            n = pred.size(0)
            total = torch.zeros(7)
            pred = torch.cat([pred, pred])
            for i in range(n):
                total += torch.softmax(pred[i], 0).sum(0)
            return total
        """,
    "rows counted by the caller": """
        def f(pred: torch.Tensor, target, w, n=0):
            total = torch.zeros(7)
            if n is None:
                n = pred.size(0)
            for i in range(n):
                total += torch.softmax(pred[i], 0).sum(0)
            return total
        """,
    "a place for each of more rows": """
        def f(pred, target, w):
            out = torch.zeros(9, 7)
            for i in range(pred.size(0)):
                out[i] = (pred[i] * w).sum(0)
            return out
        """,
    "places of one number": """
        def f(pred: torch.Tensor, target, w):
            out = pred.new_zeros(len(pred))
            for i in range(len(pred)):
                out[i] = torch.softmax(pred[i], 0).sum().view(1, 1)
            return out
        """,
    "a place in another dimension": """
        def f(pred, target, w):
            out = torch.zeros(7, 9)
            for i in range(len(pred)):
                out[:, i] = torch.softmax(pred[i], 0).sum(0)
            return out
        """,
    "numbers in a list": """
        def f(pred, target, w):
            out = [0.0] * 9
            for i in range(pred.size(0)):
                out[i] = float((pred[i] > 0.5).sum())
            assert {type(item) for item in out} == {float}
            return torch.tensor(out)
        """,
    "numbers of one place": """
        def f(pred, target, w):
            out = []
            for i in range(pred.size(0)):
                out.append(torch.softmax(pred[i], 0).sum().view(1, 1).item())
            assert all(type(item) is float for item in out)
            return torch.tensor(out)
        """,
    "what a sum begins with is another's": """
        def f(pred, target, w):
            kept = [w.clone()]
            total = kept[0]
            for i in range(pred.size(0)):
                total += torch.softmax(pred[i], 0).sum(0)
            return kept[0]
        """,
    "numbers made a tensor": """
        def f(pred, target, w):
            x = torch.softmax(pred.double(), 0)
            return torch.tensor([torch.softmax(p, 0).sum().item() for p in x])
        """,
    "names of two that end the same": """
        def f(pred, target, w):
            a, b = torch.nn.Module(), torch.nn.Module()
            a.loss, b.loss = 0.0, 0.0
            for i in range(pred.size(0)):
                p = torch.softmax(pred[i], 0)
                a.loss += p.sum()
                b.loss += p.max()
            return torch.tensor([float(a.loss), float(b.loss)])
        """,
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("lengths", [(6, 6), (1, 3), (0, 3), (3, 6)])
def test_other_numbers_of_rows_give_the_same(name, lengths):
    torch, before, after = made(ROWS[name], lengths=lengths)
    assert before.dtype == after.dtype
    assert torch.allclose(before, after, atol=1e-5)


ROW = """
    import torch


    def f(x: torch.Tensor, y, a, b):
        out, last = [], None
        for row in x:
            last = torch.softmax(row, 0)
            out.append(last)
        return out
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for row in x", "for row, other in zip(x, y)"),  # which may be a list
        ("out.append(last)", "out.append(last)\n            out.append(last + 1)"),
        ("out.append(last)", "out.append((last, last))"),
        ("out.append(last)", "out += [last]"),
        ("out.append(last)", "out.append(last.shape[0])"),
        ("out.append(last)", "out.append(last)\n            a.count += 1"),
        ("out, last = [], None", "out, last, sum = [], None, 0"),  # sum() may be needed
        ("torch.softmax(row, 0)", "torch.softmax(row, 0) or row"),
        ("torch.softmax(row, 0)", "torch.softmax(row['box'], 0)"),
        (
            "row in x:\n            last = torch.softmax(row",
            "i, row in enumerate(x):\n            last = torch.softmax(row[i]",
        ),
        ("out.append(last)", "kept = out\n            kept.append(last)"),
    ],
)
def test_what_is_no_tensor_of_all_rows_stays(old, new):
    assert proposed(ROW, "for row", "LCH017", "vmapped-loops")
    assert not proposed(ROW.replace(old, new), "for ", "LCH017", "vmapped-loops")
