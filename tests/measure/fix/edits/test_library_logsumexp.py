"""Logarithms of sums of exponentials come from one operator."""

import pytest
from tests.measure.fix.proposing import proposed

FUNCTION = """\
import torch


def energy(x, n):
    b = x.size(0)
{rows}
    return {value}
"""
FORMS = [
    ("m = torch.max(x, -1)[0]", "m + (x - m.unsqueeze(-1)).exp().sum(-1).log()", "torch.logsumexp(x, -1)"),
    (
        "m, _ = x.max(dim=1, keepdim=True)",
        "m + torch.log(torch.sum(torch.exp(x - m), dim=1, keepdim=True))",
        "torch.logsumexp(x, dim=1, keepdim=True)",
    ),
    (
        "_, at = torch.max(x, 1)\n    m = torch.gather(x, 1, at.view(-1, 1))",
        "m.view(-1) + torch.log(torch.sum(torch.exp(x - m.expand_as(x)), 1)).view(-1)",
        "torch.logsumexp(x, 1).view(-1)",
    ),
    ("m = x.amax(1)", "torch.log(torch.exp(x - m[:, None]).sum(axis=1)) + m", "torch.logsumexp(x, dim=1)"),
]


@pytest.mark.parametrize(("rows", "value", "new"), FORMS)
def test_one_operator(rows, value, new):
    before = FUNCTION.format(rows=f"    {rows}", value=value)
    after = FUNCTION.format(rows="", value=new).replace("\n\n    return", "\n    return")
    assert proposed(before, "return", "KRN102", "library-logsumexp") == [after]
    assert not proposed(after, "return", "KRN102", "library-logsumexp")


def test_what_is_read_elsewhere_stays():
    rows, value, new = FORMS[0]
    before = FUNCTION.format(rows=f"    {rows}", value=f"{value}, m")
    assert proposed(before, "return", "KRN102", "library-logsumexp") == [before.replace(value, new)]


def test_what_the_operator_is_given_stays():
    value = "m + torch.log(torch.sum(torch.exp(logits - m[:, None]), dim=1))"
    before = FUNCTION.format(rows="    logits = torch.matmul(x, n)\n    m = logits.max(dim=1)[0]", value=value)
    (after,) = proposed(before, "return", "KRN102", "library-logsumexp")
    assert "    logits = torch.matmul(x, n)\n    return torch.logsumexp(logits, dim=1)\n" in after


def test_what_a_function_inside_reads_stays():
    rows, value, new = FORMS[0]
    before = FUNCTION.format(rows=f"    {rows}\n    def show():\n        print(m)\n", value=value)
    assert proposed(before, "return", "KRN102", "library-logsumexp") == [before.replace(value, new)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m + (", "m[:, 0] + ("),
        (".exp().sum(-1)", ".exp(out=n).sum(-1)"),
        ("m + (", "n + ("),
        ("m + (", "m - ("),
        ("x - m", "x + m"),
        (".sum(-1)", ".sum()"),
        (".sum(-1)", ".mean(-1)"),
        (".exp()", ".exp2()"),
        (".log()", ".log2()"),
        (".sum(-1)", ".sum(-1, dtype=torch.float64)"),
    ],
)
def test_other_sums_stay(old, new):
    before = FUNCTION.format(rows=f"    {FORMS[0][0]}", value=FORMS[0][1])
    assert not proposed(before.replace(old, new, 1), "return", "KRN102", "library-logsumexp")


@pytest.mark.torch
@pytest.mark.parametrize(("rows", "value", "new"), FORMS)
def test_the_result_and_its_gradient_are_equal(rows, value, new):
    import torch

    results = []
    for text in (f"    {rows}", value), ("", new):
        names = {}
        exec(FUNCTION.format(rows=text[0], value=text[1]), names)
        x = torch.linspace(-90, 90, 40).view(8, 5).requires_grad_()
        y = names["energy"](x, 5)
        y.square().sum().backward()
        results.append((y, x.grad))
    torch.testing.assert_close(results[0], results[1])
