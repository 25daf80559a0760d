"""Rows of gradients, taken one by one, are taken together."""

import pytest
from tests.measure.fix.proposing import proposed, source

BEFORE = """
    import torch


    def derivative(u, z):
        rows = []
        for i in range(u.shape[0]):
            g, = torch.autograd.grad(u[i], z, create_graph=True)
            rows.append(g[i])
        return torch.stack(rows)
"""
AFTER = """
    import torch


    def derivative(u, z):
        g, = torch.autograd.grad(u, z, torch.ones_like(u), create_graph=True)
        return g
"""


def test_one_call_for_all_points():
    assert proposed(BEFORE, "for i", "LCH017", "gradients-at-once") == [source(AFTER)]
    indexed = (
        BEFORE.replace("g, =", "g =").replace("=True)", "=True)[0]"),
        AFTER.replace("g, =", "g =").replace("=True)", "=True)[0]"),
    )
    assert proposed(indexed[0], "g = ", "LCH017", "gradients-at-once") == [source(indexed[1])]
    assert not proposed(AFTER, "g, =", "LCH017", "gradients-at-once")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("g[i]", "g[0]"),
        ("rows.append(g[i])", "rows.append(g)"),  # the whole Jacobian
        ("u[i], z", "u[i], z[i]"),
        ("range(u.shape[0])", "range(10)"),
        ("torch.stack(rows)", "torch.stack(rows), rows"),
    ],
)
def test_other_loops_stay(old, new):
    assert not proposed(BEFORE.replace(old, new), "for i", "LCH017", "gradients-at-once")
