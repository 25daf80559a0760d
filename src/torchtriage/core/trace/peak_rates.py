"""Peak rates of accelerators, by the name the driver gives them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

__all__ = ["Peak", "peak_of"]


class Peak(NamedTuple):
    """Dense peak rates of one device; 0 where it has no such units.

    A product of the vendor's boost clock and unit count: real kernels reach 40-80 % of it.
    """

    fp32_tflops: float
    tf32_tflops: float
    half_tflops: float
    """fp16 and bf16 with fp32 accumulation."""
    memory_tbps: float

    def flop_per_ns(self, dtype: str) -> float:
        """Return the rate for ``half``, ``tf32`` or ``float`` (fp32 without tensor cores)."""
        tera = {"half": self.half_tflops, "tf32": self.tf32_tflops, "float": self.fp32_tflops}
        return tera[dtype] * 1e3

    @property
    def bytes_per_ns(self) -> float:
        """Memory bandwidth."""
        return self.memory_tbps * 1e3


# Vendors' data sheets, without sparsity. First match wins, so variants stand before their family.
# PG509 is the A100's board: engineering samples carry its name alone. An MI250(X) shows up as two
# devices, so each has half of what the sheet says.
_PEAKS: tuple[tuple[str, Peak], ...] = (
    (r"\bG?B200\b", Peak(75, 1100, 2250, 8.0)),
    (r"\bH200\b", Peak(67, 495, 989, 4.8)),
    (r"\bH100 NVL\b", Peak(60, 418, 835, 3.9)),
    (r"\bH100 PCIe\b", Peak(51, 378, 756, 2.0)),
    (r"\bH100\b", Peak(67, 495, 989, 3.35)),
    (r"\bA100\b.*80GB|PG509-21", Peak(19.5, 156, 312, 2.0)),
    (r"\bA100\b|PG509", Peak(19.5, 156, 312, 1.6)),
    (r"\bV100\b", Peak(15.7, 0, 125, 0.9)),
    (r"\bRTX 4090\b(?! D)", Peak(83, 83, 165, 1.0)),
    (r"\bRTX A6000\b", Peak(39, 77, 155, 0.77)),
    (r"\bMI300X\b", Peak(163, 654, 1307, 5.3)),
    (r"\bMI250X?\b", Peak(23.9, 0, 191, 1.6)),
    (r"\bMI210\b", Peak(22.6, 0, 181, 1.6)),
)


@lru_cache(maxsize=64)
def peak_of(device_name: str) -> Peak | None:
    """Return the peak rates of a device, None when its name is not known."""
    for pattern, peak in _PEAKS:
        if re.search(pattern, device_name):
            return peak
    return None
