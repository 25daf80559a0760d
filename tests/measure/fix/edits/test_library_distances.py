"""Distances of all pairs come from one operator."""

import pytest
from tests.measure.fix.proposing import proposed, source

FUNCTION = """
    import torch


    def assign(x, centers):
        d = {value}  # of all pairs
        return d.min(dim=1)
"""


@pytest.mark.parametrize(
    ("value", "new"),
    [
        ("((x[:, None] - centers[None]) ** 2).sum(-1)", "torch.cdist(x, centers).square()"),
        ("(x.unsqueeze(1) - centers.unsqueeze(0)).pow(2).sum(dim=2)", "torch.cdist(x, centers).square()"),
        ("(x[None] - centers[:, None, :]).square().sum(-1)", "torch.cdist(centers, x).square()"),
        ("(x[:, None] - centers[None]).pow(2).sum(-1).sqrt()", "torch.cdist(x, centers)"),
        ("torch.sqrt(((x[:, None] - centers[None]) ** 2).sum(-1))", "torch.cdist(x, centers)"),
        ("torch.norm(x[:, None] - centers[None], dim=-1)", "torch.cdist(x, centers)"),
        ("(x[:, :, None, :] - centers[:, None, :, :]).norm(dim=-1)", "torch.cdist(x, centers)"),
    ],
)
def test_one_operator(value, new):
    before, after = FUNCTION.format(value=value), FUNCTION.format(value=new)
    assert proposed(before, "d = ", "KRN102", "library-distances") == [source(after)]
    assert not proposed(after, "d = ", "KRN102", "library-distances")


def test_differences_with_a_name_of_their_own():
    before = FUNCTION.format(value="(diff ** 2).sum(-1)").replace(
        "        d = ", "        diff = x[:, None] - centers[None]\n        d = "
    )
    after = FUNCTION.format(value="torch.cdist(x, centers).square()")
    assert proposed(before, "diff = ", "KRN102", "library-distances") == [source(after)]
    used = before.replace("d.min(dim=1)", "d.min(dim=1), diff")
    assert not proposed(used, "diff = ", "KRN102", "library-distances")


@pytest.mark.parametrize(
    "value",
    [
        "((x[:, None] - centers[None]) ** 2).sum(1)",  # over the pairs
        "((x[:, None] - centers[None]) ** 3).sum(-1)",
        "((x[:, None] - centers[:, None]) ** 2).sum(-1)",  # no pairs
        "((x[:, None] - centers[None]) ** 2).sum(-1, keepdim=True)",
        "((x - centers) ** 2).sum(-1)",
    ],
)
def test_other_sums_stay(value):
    assert not proposed(FUNCTION.format(value=value), "d = ", "KRN102", "library-distances")
