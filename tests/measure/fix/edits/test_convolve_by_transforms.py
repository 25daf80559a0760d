from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed

CHANNELS = {"n_channels": 4, "n_groups": 4, "n_out": 4}


def convolved(expression: str, evidence: dict[str, int] = CHANNELS) -> list[str]:
    before = f"""
        import torch
        import torch.nn.functional as F

        def reverberate(x, h):
            y = {expression}
            return y.squeeze(0)
    """
    return proposed(before, "conv1d(", "KRN074", "convolve-by-transforms", evidence)


@pytest.mark.torch
@pytest.mark.parametrize("padding", ["", ", padding=5"])
def test_the_result_is_that_of_the_convolution(padding: str) -> None:
    torch = pytest.importorskip("torch")
    (after,) = convolved(f"F.conv1d(x.float(), h.flip(1).unsqueeze(1){padding}, groups=len(h))")
    assert "F.conv1d" not in after
    names: dict = {}
    exec(after, names)
    x, h = torch.randn(1, 4, 200), torch.randn(4, 64)
    wanted = torch.nn.functional.conv1d(x, h.flip(1).unsqueeze(1), groups=4, padding=5 if padding else 0).squeeze(0)
    torch.testing.assert_close(names["reverberate"](x, h), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("expression", "evidence"),
    [
        ("F.conv1d(x, h, stride=2)", CHANNELS),
        ("F.conv1d(x, h, bias)", CHANNELS),
        ("F.conv1d(x, h, padding=pad)", CHANNELS),
        ("F.conv1d(x, h)", CHANNELS | {"n_groups": 1}),
        ("F.conv1d(F.conv1d(x, h), h)", CHANNELS),
        ("[F.conv1d(x, h, groups=4) for x in xs]", CHANNELS),
        ("F.conv1d(x, h, groups=4) if x is not None else x", CHANNELS),
        ("x.mul_(2) + F.conv1d(x, h, groups=4)", CHANNELS),
        ("(lambda x: F.conv1d(x, h, groups=4))(x)", CHANNELS),
    ],
)
def test_what_is_not_each_channel_with_its_kernel(expression: str, evidence: dict[str, int]) -> None:
    assert not convolved(expression, evidence)


def test_once_is_enough() -> None:
    (after,) = convolved("F.conv1d(x, h, groups=len(h))")
    assert not proposed(after, "irfft(", "KRN074", "convolve-by-transforms", CHANNELS)
