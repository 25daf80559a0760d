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
  +         scores[:] = torch.vmap(of_row, randomness="different", chunk_size=256)(x).detach().cpu().numpy()
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
        ("mean = p.mean(0)", "mean = p.mean(0) * n"),
        ("mean = p.mean(0)", "mean = p.mean(0) + torch.rand(3)"),
        ("mean = p.mean(0)", "mean = p.mean(0) if p.sum() > 0 else p[0]"),
        ("mean = p.mean(0)", "self.last = p.mean(0)"),
        ("x = torch.from_numpy(x)", "x = list(x)"),
        ("return scores", "return scores, mean"),
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
@pytest.mark.parametrize(("read", "listed"), [(".item()", ".tolist()"), ("", "")])
def test_what_is_put_into_a_list(head, row, use, read, listed):
    before = LOOP.format(head=head, read=read).replace("rows[i]", use)
    new = [
        f"    def of_row({row}):",
        f"        logits = torch.softmax({row}, 0)",
        "        return logits.max()",
        "",
        f'    out.extend(torch.vmap(of_row, randomness="different", chunk_size=256)(rows){listed})',
    ]
    head_lines, tail = source(before).split("    for ")[0], "    return out\n"
    assert proposed(before, "for ", "LCH017", "vmapped-loops") == [head_lines + "\n".join(new) + "\n" + tail]


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
