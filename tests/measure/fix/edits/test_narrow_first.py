"""Three factors are multiplied with the narrow product first."""

import pytest
from tests.measure.fix.proposing import proposed

GRAPH = """\
import torch
from torch import nn


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, adj, x):
        ctx.adj = adj
        return torch.sparse.mm(adj, x)

    @staticmethod
    def backward(ctx, grad):
        return None, torch.sparse.mm(ctx.adj.t(), grad)


class Layer(nn.Module):
    def __init__(self, wide, narrow):
        super().__init__()
        self.lin = nn.Linear(wide, narrow, bias=False)

    def forward(self, adj, x):
        return {value} + 1
"""


@pytest.mark.parametrize(
    ("value", "new"),
    [
        (
            'torch.einsum("bnd,bmd,bme->bne", q, k, v)',
            ['torch.einsum("bnd,bde->bne", q, torch.einsum("bmd,bme->bde", k, v))'],
        ),
        (
            "torch.einsum('ij, jk, kl -> il', a, b, c)",
            ['torch.einsum("ij,jl->il", a, torch.einsum("jk,kl->jl", b, c))'],
        ),
        (
            'torch.einsum("ij,kl,jk->il", a, b, c)',
            [
                'torch.einsum("kl,ik->il", b, torch.einsum("ij,jk->ik", a, c))',
                'torch.einsum("ij,lj->il", a, torch.einsum("kl,jk->lj", b, c))',
            ],
        ),
    ],
)
def test_einsum(value, new):
    before = f"import torch\n\ny = {value}\n"
    assert proposed(before, "y = ", "KRN071") == [before.replace(value, item) for item in new]
    assert not any(proposed(before.replace(value, item), "y = ", "KRN071") for item in new)


@pytest.mark.parametrize(
    "value",
    [
        'torch.einsum("ij,jk->ik", a, b)',
        'torch.einsum("...ij,jk,kl->...il", a, b, c)',
        'torch.einsum("ii,ij,jk->ik", a, b, c)',
        "torch.einsum(spec, a, b, c)",
        'torch.einsum("ij,jk,kl->il", *parts)',
        'torch.einsum("ij,jk,kl->il", a, torch.rand(3, 3), c)',
        'torch.einsum("i,j,k->ijk", a, b, c)',
        'torch.einsum("ij,jk,kl->il", a, b,  # the wide one\n    c)',
    ],
)
def test_other_einsums_stay(value):
    assert not proposed(f"import torch\n\ny = {value}\n", "y = ", "KRN071")


@pytest.mark.parametrize("product", ["torch.sparse.mm", "torch.spmm", "Spread.apply"])
def test_layer_before_the_product(product):
    before = GRAPH.format(value=f"self.lin({product}(adj, x))")
    after = GRAPH.format(value=f"{product}(adj, self.lin(x))")
    assert proposed(before, "+ 1", "KRN071") == [after]
    assert not proposed(after, "+ 1", "KRN071")


def test_layers_that_do_more_stay():
    before = GRAPH.format(value="self.lin(Spread.apply(adj, x))")
    assert not proposed(before.replace(", bias=False", ""), "+ 1", "KRN071")
    assert not proposed(before.replace("nn.Linear", "nn.Bilinear"), "+ 1", "KRN071")
    assert not proposed(before.replace("torch.sparse.mm(adj, x)", "torch.sparse.mm(adj, x).relu()"), "+ 1", "KRN071")
    assert not proposed(before.replace("mm(adj, x)", "mm(x, adj)"), "+ 1", "KRN071")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        return torch.sparse.mm(adj, x)", "        x = torch.relu(x)\n        return torch.sparse.mm(adj, x)"),
        ("        return torch.sparse.mm(adj, x)", "        x.clamp_(0)\n        return torch.sparse.mm(adj, x)"),
        (
            "        return torch.sparse.mm(adj, x)",
            "        if ctx:\n            return x\n        return torch.sparse.mm(adj, x)",
        ),
        ("    @staticmethod\n    def forward", "    @staticmethod\n    @doubled\n    def forward"),
        ("return None, torch.sparse.mm(ctx.adj.t(), grad)", "return None, None"),
        ("mm(ctx.adj.t(), grad)", "mm(ctx.adj.t(), grad).clamp(-1, 1)"),
        ("mm(ctx.adj.t(), grad)", "mm(ctx.adj.t(), grad.sign())"),
        ("bias=False)\n", "bias=False)\n        self.lin.bias = nn.Parameter(torch.ones(narrow))\n"),
        ("bias=False)\n", "bias=False)\n        self.lin.register_forward_hook(doubled)\n"),
        (
            "bias=False)\n",
            "bias=False)\n        for part in self.modules():\n            part.register_forward_pre_hook(doubled)\n",
        ),
        ("bias=False)\n", "bias=False)\n        spectral_norm(self.lin)\n"),
    ],
)
def test_products_and_layers_that_do_more_stay(old, new):
    before = GRAPH.format(value="self.lin(Spread.apply(adj, x))")
    assert proposed(before, "+ 1", "KRN071")
    assert not proposed(before.replace(old, new, 1), "+ 1", "KRN071")


@pytest.mark.torch
@pytest.mark.parametrize("spec", ["bnd,bmd,bme->bne", "ij,jk,kl->il", "ij,kl,jk->il", "ij,jk,k->"])
def test_the_result_is_equal(spec):
    import torch

    torch.manual_seed(0)
    factors = [torch.rand([ord(letter) % 5 + 2 for letter in part]) for part in spec[: spec.index("-")].split(",")]
    text = f'import torch\ny = torch.einsum("{spec}", a, b, c)\n'
    new = proposed(text, "y = ", "KRN071")
    assert new
    results = []
    for item in (text, *new):
        names = dict(zip("abc", factors, strict=True))
        exec(item, names)
        results.append(names["y"])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
