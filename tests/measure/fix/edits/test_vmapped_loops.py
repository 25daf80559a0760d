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
        ("scores[n] = float(-(mean", "weights = [1, 2]\n            scores[n] = float(-(mean * weights[n]"),
        ("mean = p.mean(0)", "mean = mean + p.mean(0)"),
        ("scores[n] =", "scores[n, :3] ="),
        ("mean = p.mean(0)", "mean = p[p > 0.1]"),  # of another size in each turn
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


def made(text, line="for "):
    """Return what ``f`` of a text gives for the same tensors, before and after its only proposal."""
    torch = pytest.importorskip("torch")
    text = f"import torch\nimport torch.nn.functional as F\n\n\n{source(text)}"
    texts = [text, *proposed(text, line, "LCH017", "vmapped-loops")]
    assert len(texts) == 2
    results = []
    for item in texts:
        space: dict[str, object] = {}
        exec(item, space)
        torch.manual_seed(0)
        results.append(space["f"](torch.rand(6, 5, 7), torch.rand(6, 5, 7), torch.rand(7)))
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
        def f(pred, target, w):
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
        def f(pred, target, w):
            return sum(F.l1_loss(p, g) for p, g in zip(pred, target)) / pred.size(0)
        """,
    ],
)
def test_turns_at_once_give_the_same(text):
    torch, before, after = made(text)
    assert torch.allclose(before, after, atol=1e-5)
