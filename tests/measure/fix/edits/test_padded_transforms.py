"""Transforms of a convolution are padded to a fast length."""

import pytest
from tests.measure.fix.proposing import proposed

BEFORE = """\
import torch


def convolved(x, h):
    n = x.shape[-1] + h.shape[-1] - 1
    spectrum = torch.fft.rfft(x, n) * torch.fft.rfft(h, n=n)
    y = torch.fft.irfft(spectrum, n)
    return y[..., : x.shape[-1]]
"""
ADDED = "    n += -n % (1 << max(n.bit_length() - 5, 0))\n"
FIRST, LAST = "h.shape[-1] - 1\n", "[..., : x.shape[-1]]"


def test_padded():
    after = BEFORE.replace(FIRST, FIRST + ADDED)
    assert proposed(BEFORE, "irfft", "KRN070") == [after]
    assert not proposed(after, "irfft", "KRN070")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LAST, ""),
        (LAST, "[..., : n]"),
        (LAST, "[: x.shape[-1]]"),
        (LAST, "[..., x.shape[-1] :]"),
        (FIRST, "h.shape[-1] - 9\n"),
        ("h.shape[-1] - 1", "1 - 1"),
        ("irfft(spectrum, n)", "irfft(spectrum.conj(), n)"),
        ("(h, n=n)", "(h, n=n).conj()"),
        ("(h, n=n)", "(h, n, 0)"),
        ("rfft(x, n)", "rfft(x)"),
        ("irfft(spectrum, n)", "ifft(spectrum, n)"),
        ("    y =", "    def shape():\n        return n\n    y ="),
        ("def", "@torch.jit.script\ndef"),
        ("    y =", "    f = torch.fft.rfftfreq(n)\n    y ="),
        ("    y =", "    print(spectrum.shape)\n    y ="),
        ("    spectrum =", "    h = h.repeat(2)\n    spectrum ="),
    ],
)
def test_lengths_that_matter_stay(old, new):
    assert not proposed(BEFORE.replace(old, new, 1), "fft(", "KRN070")


def test_a_length_that_functions_read_stays():
    before = "".join(row.removeprefix("    ") for row in BEFORE.splitlines(keepends=True) if "def" not in row)
    before = before.replace("return", "cut =")
    assert proposed(before, "fft(", "KRN070")
    assert not proposed(f"{before}\n\ndef shape():\n    return n\n", "fft(", "KRN070")


def test_attributes_that_are_set_anew_stay():
    before = BEFORE.replace("h.shape", "self.h.shape").replace("rfft(h", "rfft(self.h")
    assert proposed(before, "irfft", "KRN070")
    before = before.replace("    spectrum =", "    self.h = self.drawn()\n    spectrum =")
    assert not proposed(before, "irfft", "KRN070")


@pytest.mark.torch
@pytest.mark.parametrize("sizes", [(7, 3), (1000, 10), (997, 1), (3, 500)])
def test_the_result_is_equal(sizes):
    import torch

    x, h = (torch.rand(2, size) for size in sizes)
    results = []
    for text in (BEFORE, *proposed(BEFORE, "irfft", "KRN070")):
        names = {}
        exec(text, names)
        results.append(names["convolved"](x, h))
    torch.testing.assert_close(results[1], results[0])
