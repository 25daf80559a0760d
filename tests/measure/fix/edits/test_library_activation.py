import pytest
from measure.fix.proposing import proposed

FORMULAS = {
    "0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))": (
        'F.gelu(x, approximate="tanh")'
    ),
    "0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x ** 3)))": 'F.gelu(x, approximate="tanh")',
    "x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))": "F.gelu(x)",
    "x * torch.sigmoid(x)": "F.silu(x)",
    "x.sigmoid() * x": "F.silu(x)",
    "x / (1 + torch.exp(-x))": "F.silu(x)",
    "x * torch.tanh(F.softplus(x))": "F.mish(x)",
    "torch.log(1 + torch.exp(x))": "F.softplus(x)",
}


@pytest.mark.parametrize(("formula", "call"), FORMULAS.items())
def test_a_formula_is_known_by_its_values(formula, call):
    text = f"""
    import math
    import torch
    import torch.nn.functional as F

    class Activation(torch.nn.Module):
        def forward(self, x):
            return {formula}  # as in the paper
    """
    (new,) = proposed(text, "return", "LCH015", "library-activation")
    assert f"return {call}  # as in the paper" in new
    assert not proposed(new, "return", "LCH015", "library-activation")


def test_the_functional_module_is_imported_where_it_is_missing():
    text = """
    import torch

    def swish(value):
        out = value * torch.sigmoid(value)
        return out
    """
    (new,) = proposed(text, "out = value", "HST114", "library-activation")
    assert "out = torch.nn.functional.silu(value)" in new


@pytest.mark.parametrize(
    "formula",
    [
        "0.5 * x * (1 + torch.tanh(0.8 * x))",
        "x * torch.sigmoid(y)",
        "x * 2 + 1",
        "torch.sigmoid(x)",
        "x ** x",
        "x / 0",
        "1 / (1 + math.exp(-x))",
    ],
)
def test_other_formulas_stay(formula):
    text = f"""
    import math
    import torch

    def gate(x, y):
        return {formula}
    """
    assert not proposed(text, "return", "LCH015", "library-activation")
