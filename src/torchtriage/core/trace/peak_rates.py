"""Peak rates of accelerators, by the name the driver gives them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from torchtriage.core.errors import UsageError


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


class Family(NamedTuple):
    """Devices that one instruction set is built for, where the recording does not say which of them it is.

    ``slowest``, ``fastest`` : bounds of every rate. ``n_units`` : compute units, of the smallest.
    """

    names: tuple[str, ...]
    slowest: Peak
    fastest: Peak
    n_units: int


# Without sparsity. First match wins, so variants stand before their family. PG509 is the A100's board: engineering
# samples carry its name alone. An MI250(X) shows up as two devices, so each has half of what the sheet says. GeForce
# cards: fp16 with fp32 accumulation, which the sheets list beside the higher rate without. V100, T4 and RTX 20 have no
# units for bf16: what runs in it there is far below this rate.
_PEAKS: tuple[tuple[str, Peak, str], ...] = (
    (r"\bGB300\b", Peak(80, 1250, 2500, 8.0), "NVIDIA GB300 NVL72"),
    (r"\bB300\b", Peak(75, 1100, 2250, 8.0), "NVIDIA HGX B300"),
    (r"\bGB200\b", Peak(80, 1250, 2500, 8.0), "NVIDIA GB200 NVL72"),
    (r"\bB200\b", Peak(75, 1100, 2250, 7.7), "NVIDIA HGX B200"),
    (r"\bGH200 144G\b", Peak(67, 494, 990, 4.9), "NVIDIA GH200 data sheet"),
    (r"\bGH200\b", Peak(67, 494, 990, 4.0), "NVIDIA GH200 data sheet"),
    (r"\bH200 NVL\b", Peak(60, 418, 835, 4.8), "NVIDIA H200 data sheet"),
    (r"\bH200\b", Peak(67, 495, 989, 4.8), "NVIDIA H200 data sheet"),
    (r"\bH[18]00 NVL\b", Peak(60, 418, 835, 3.9), "NVIDIA H100 data sheet"),
    (r"\bH[18]00 PCIe\b", Peak(51, 378, 756, 2.0), "NVIDIA H100 data sheet"),
    (r"\bH[18]00\b", Peak(67, 495, 989, 3.35), "NVIDIA H100 data sheet; the H800 differs in NVLink and fp64"),
    (r"\bA[18]00\b.*80GB|PG509-21", Peak(19.5, 156, 312, 2.0), "NVIDIA A100 data sheet"),
    (r"\bA[18]00\b|PG509", Peak(19.5, 156, 312, 1.6), "NVIDIA A100 data sheet"),
    (r"\bA40\b", Peak(37.4, 74.8, 149.7, 0.7), "NVIDIA A40 data sheet"),
    (r"\bA30\b", Peak(10.3, 82, 165, 0.93), "NVIDIA A30 data sheet"),
    (r"\bA10\b", Peak(31.2, 62.5, 125, 0.6), "NVIDIA A10 data sheet"),
    (r"\bA10G\b", Peak(35, 35, 70, 0.6), "AWS data sheet of the A10G"),
    (r"\bL40S\b", Peak(91.6, 183, 362, 0.86), "NVIDIA L40S data sheet"),
    (r"\bL40\b", Peak(90.5, 90.5, 181, 0.86), "NVIDIA L40 data sheet"),
    (r"\bL4\b", Peak(30.3, 60, 121, 0.3), "NVIDIA L4 data sheet"),
    (r"\bV100-PCIE\b", Peak(14, 0, 112, 0.9), "NVIDIA V100 data sheet, PCIe"),
    (r"\bV100S\b", Peak(16.4, 0, 130, 1.13), "NVIDIA V100 data sheet, V100S PCIe"),
    (r"\bV100\b", Peak(15.7, 0, 125, 0.9), "NVIDIA V100 data sheet, SXM2"),
    (r"\bT4\b", Peak(8.1, 0, 65, 0.32), "NVIDIA T4 data sheet"),
    (r"\bRTX 5090\b(?! D)", Peak(104.8, 104.8, 209.5, 1.79), "NVIDIA RTX Blackwell whitepaper"),
    (r"\bRTX 5080\b", Peak(56.3, 56.3, 112.6, 0.96), "NVIDIA RTX Blackwell whitepaper"),
    (r"\bRTX 5070 Ti\b", Peak(43.9, 43.9, 87.9, 0.9), "NVIDIA RTX Blackwell whitepaper"),
    (r"\bRTX 5070\b", Peak(30.9, 30.9, 61.7, 0.67), "NVIDIA RTX Blackwell whitepaper"),
    (r"\bRTX 4090\b(?! D)", Peak(83, 83, 165, 1.0), "NVIDIA Ada whitepaper"),
    (r"\bRTX 4080\b(?! SUPER)", Peak(48.7, 48.7, 97.5, 0.72), "NVIDIA Ada whitepaper"),
    (r"\bRTX 3090\b(?! Ti)", Peak(35.6, 35.6, 71, 0.94), "NVIDIA Ampere GA102 whitepaper"),
    (r"\bRTX 3070\b(?! Ti)", Peak(20.3, 20.3, 40.6, 0.45), "NVIDIA Ampere GA102 whitepaper"),
    (r"\bRTX 2080 Ti\b", Peak(14.2, 0, 56.9, 0.62), "NVIDIA Turing whitepaper, Founders Edition"),
    (r"\bRTX 2080\b(?! SUPER)", Peak(10.6, 0, 42.4, 0.45), "NVIDIA Turing whitepaper, Founders Edition"),
    (r"\bRTX 2070\b(?! SUPER)", Peak(7.9, 0, 31.5, 0.45), "NVIDIA Turing whitepaper, Founders Edition"),
    (r"\bTITAN RTX\b", Peak(16.3, 0, 130.5, 0.67), "NVIDIA Turing whitepaper"),
    (r"\bRTX 6000 Ada\b", Peak(91.1, 182, 364, 0.96), "NVIDIA RTX 6000 Ada data sheet"),
    (r"\bRTX A6000\b", Peak(39, 77, 155, 0.77), "NVIDIA RTX A6000 data sheet"),
    (r"\bRTX A4000\b", Peak(19.2, 38.3, 76.7, 0.45), "NVIDIA RTX A4000 data sheet"),
    (r"\bMI355X\b", Peak(157.3, 0, 2517, 8.0), "AMD Instinct MI355X data sheet"),
    (r"\bMI350X\b", Peak(144.2, 0, 2307, 8.0), "AMD Instinct MI350X data sheet"),
    (r"\bMI325X\b", Peak(163, 654, 1307, 6.0), "AMD Instinct MI325X data sheet"),
    (r"\bMI300X\b", Peak(163, 654, 1307, 5.3), "AMD Instinct MI300X data sheet"),
    (r"\bMI300A\b", Peak(122.6, 490, 981, 5.3), "AMD Instinct MI300A data sheet"),
    (r"\bMI250X\b", Peak(47.9, 0, 191, 1.6), "AMD Instinct MI250X data sheet, matrix rate for fp32"),
    (r"\bMI250\b", Peak(45.3, 0, 181, 1.6), "AMD Instinct MI250 data sheet, matrix rate for fp32"),
    (r"\bMI210\b", Peak(45.3, 0, 181, 1.6), "AMD Instinct MI210 data sheet, matrix rate for fp32"),
)

# "AMD GPU hardware specifications", ROCm documentation
_INSTRUCTION_SETS = {
    "90a": (("MI210", "MI250", "MI250X"), 104),
    "942": (("MI300A", "MI300X", "MI325X"), 228),
    "950": (("MI350X", "MI355X"), 256),
}


def family_of(isa: str) -> Family | None:
    """Return the devices of an AMD instruction set (``942``), None when it is not known."""
    if isa not in _INSTRUCTION_SETS:
        return None
    names, n_units = _INSTRUCTION_SETS[isa]
    peaks = [peak for peak in map(peak_of, names) if peak is not None]
    slowest, fastest = (Peak(*map(bound, zip(*peaks, strict=True))) for bound in (min, max))
    return Family(names, slowest, fastest, n_units)


STATED = "MI300X, or fp32=67,half=989,memory=3.35 with the dense TFLOP/s (tf32 too where there is one) and TB/s"


def stated_peak(text: str) -> Peak:
    """Return the rates that a user states: a device's name, or rates by name, as :data:`STATED`.

    Raises UsageError: neither a known device nor rates.
    """
    known = peak_of(text)
    if known is not None:
        return known
    rates = dict(_RATE.findall(text))
    if not (_RATES.fullmatch(text) and rates.keys() >= {"fp32", "half", "memory"} and all(map(float, rates.values()))):
        raise UsageError(f"no device with known peak rates, and no rates: {text!r}", hint=f"state them as {STATED}")
    return Peak(*(float(rates.get(name, 0)) for name in ("fp32", "tf32", "half", "memory")))


_RATE = re.compile(r"(fp32|tf32|half|memory)=(\d+(?:\.\d+)?)")
_RATES = re.compile(rf"(?:{_RATE.pattern}(?:,|$))+")


@lru_cache(maxsize=64)
def peak_of(device_name: str) -> Peak | None:
    """Return the peak rates of a device; None when its name is not known, or is that of a part or a mobile variant."""
    if re.search(r"\bLaptop\b|\bMIG\b", device_name):
        return None
    for pattern, peak, _source in _PEAKS:
        if re.search(pattern, device_name):
            return peak
    return None
