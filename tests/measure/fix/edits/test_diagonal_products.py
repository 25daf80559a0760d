"""A product with a diagonal matrix scales rows or columns."""

import pytest
from tests.measure.fix.proposing import proposed, source

FUNCTION = """
    import torch


    def forward(x, adj, weight):
        degree = {degree}
        norm = {norm}  # normalised
        return norm @ (x @ weight)
"""
SUM = "adj.sum(dim=1).pow(-0.5)"


@pytest.mark.parametrize(
    ("degree", "norm", "scales", "scaled"),
    [
        (f"torch.diag({SUM})", "degree @ adj @ degree", SUM, "(degree[:, None] * adj) * degree"),
        (f"torch.diag({SUM})", "degree @ (adj + 1)", SUM, "(degree[:, None] * (adj + 1))"),
        ("1 / adj.sum(1)", "torch.diag(degree) @ adj", "1 / adj.sum(1)", "((degree)[:, None] * adj)"),
        ("torch.sum(adj, 1)", "(adj - 1) @ torch.diag(degree)", "torch.sum(adj, 1)", "(adj - 1) * (degree)"),
    ],
)
def test_rows_and_columns_are_scaled(degree, norm, scales, scaled):
    before, after = FUNCTION.format(degree=degree, norm=norm), FUNCTION.format(degree=scales, norm=scaled)
    assert proposed(before, "degree = ", "LCH105", "diagonal-products") == [source(after)]
    assert not proposed(after, "degree = ", "LCH105", "diagonal-products")


@pytest.mark.parametrize(
    ("degree", "norm"),
    [
        ("torch.diag(adj)", "degree @ adj"),  # the diagonal of a matrix
        (f"torch.diag({SUM})", "degree + adj @ adj"),  # the matrix itself is used
        ("torch.diag(adj.sum(1, keepdim=True))", "degree @ adj"),
        (f"torch.diag({SUM})", "degree @ degree"),
    ],
)
def test_other_products_stay(degree, norm):
    text = FUNCTION.format(degree=degree, norm=norm)
    assert not proposed(text, "degree = ", "LCH105", "diagonal-products")
