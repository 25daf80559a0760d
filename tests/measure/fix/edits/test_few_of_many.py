"""The few that are used, of many."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposals, proposed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("best = x.argsort(dim=1, descending=True)[:, :k]", "best = x.topk(k, dim=1).indices"),
        ("best = torch.argsort(x)[:5]", "best = x.topk(5, largest=False).indices"),
        ("best = x.sort(descending=True).values[..., : k + 1]", "best = x.topk(k + 1).values"),
        ("best = torch.sort(x, dim=-1, descending=True)[1][:, :k]", "best = x.topk(k, dim=-1)[1]"),
        ("best = sorted(rows, key=score, reverse=True)[:10]", "best = nlargest(10, rows, key=score)"),
    ],
)
def test_a_sort_of_which_the_first_are_taken(old: str, new: str) -> None:
    (text,) = proposed(
        f"import torch\n\ndef few(x, k, rows):\n    {old}\n    return best\n", 4, "KRN101", "few-of-many"
    )
    assert f"    {new}\n" in text


def test_a_sort_under_a_name() -> None:
    text = """
        class Recall:
            def compute(self, sim, ids):
                order = sim.argsort(dim=1, descending=True)
                return ids[order[:, : max(self.ks)]]
    """
    (new,) = proposed(text, "argsort", "HST114", "few-of-many")
    assert "order = sim.topk(max(self.ks), dim=1).indices\n        return ids[order]\n" in new


def test_a_permutation_of_which_a_few_are_used() -> None:
    text = "import torch\n\nperm = torch.randperm(len(x), device=device)\nbatch = x[perm[:64]]\n"
    (proposal,) = proposals(text, 3, "KRN101", "few-of-many")
    assert proposal.changes
    (new,) = proposed(text, 3, "KRN101", "few-of-many")
    assert new.endswith("perm = torch.randint(len(x), (64,), device=device)\nbatch = x[perm]\n")
    assert proposed(new, 3, "KRN101", "few-of-many") == []


@pytest.mark.parametrize(
    "text",
    [
        "order = x.argsort()\nranks = order.argsort()\nbest = order[:k]\n",
        "best = x.sort(dim=0).values[:, :k]\n",
        "rest = x.argsort()[k:]\n",
        "rows.sort()\nbest = rows[:3]\n",
        "import torch\n\nperm = torch.randperm(n)\na, b = perm[:k], perm[k:]\n",
        "order = x.argsort()\nk = 3\nbest = order[:k]\n",
    ],
)
def test_nothing_where_more_of_the_order_is_used(text: str) -> None:
    for line in range(1, text.count("\n") + 1):
        assert proposed(text, line, "KRN101", "few-of-many") == []


def test_the_axis_and_the_number_are_said() -> None:
    (proposal,) = proposals("import torch\n\nbest = torch.argsort(s)[:100]\n", 3, "KRN101", "few-of-many")
    assert "fewer" in proposal.changes
    assert "last axis" in proposal.changes
