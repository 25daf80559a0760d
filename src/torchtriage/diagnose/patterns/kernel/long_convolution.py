"""Convolutions of a signal with a long kernel.

Looks like: on a CPU ``conv1d`` of stride 1 with 64 taps or more, few channels, and three times the time that Fourier
    transforms of that size take (reverberation, matched filters, smoothing by a long window).
Slow because: each result costs a product for each tap. With Fourier transforms it costs a few for each bit of the
    length.
Cost: modelled, from the operators' time: what is above a transform for each signal, kernel and result (0.25 ns for each
    number and bit of the length) and their products (1.5 ns), twice that in the backward pass; three times as much at
    the low end.
Fix: convolve by ``torch.fft`` (``torchaudio.functional.fftconvolve``).
Leave it when: the kernel is learned and short, or results must be equal to the last digit. On a device nothing is
    reported.
Source: measured with torch 2.13 (AVX-512, one thread): 8 signals of 16,000 numbers with 512 taps 16 ms, by transforms
    1.9; with 4,000 taps 175 and 1.8; 32 channels of 2,000 numbers, each with 512 taps of its own, 9.2 and 2.8, with 127
    taps 1.4 and 2.8.
"""

import math
import re
from typing import NamedTuple

import numpy as np

from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claims, Fix, Pattern, Trace

PATTERN = Pattern.of(__name__, "KRN074", "A convolution with a long kernel", order=546, needs="ops shapes work")
FIX = Fix(
    text="Convolve with FFTs.",
    code="""n = signal.shape[-1] + kernel.shape[-1] - 1
spectrum = torch.fft.rfft(signal, n) * torch.fft.rfft(kernel, n)
out = torch.fft.irfft(spectrum, n)  # conv1d(signal, kernel.flip(-1), padding=taps - 1)""",
    link="https://docs.pytorch.org/audio/stable/generated/torchaudio.functional.fftconvolve.html",
)

MIN_SHARE = 0.05
FEWEST_TAPS = 64
NS_FOR_NUMBER_AND_BIT, NS_FOR_PRODUCT = 0.25, 1.5
SAFETY = 3.0
_LARGEST = 1 << 60


class _Sizes(NamedTuple):
    """A convolution's batch, channels in and out, length, taps and groups; 0 taps where it is none of these."""

    batch: int = 0
    channels: int = 0
    out: int = 0
    length: int = 0
    taps: int = 0
    groups: int = 1

    def transforms_ns(self) -> float:
        """Return about how long it takes by Fourier transforms."""
        numbers = 1 << (self.length + self.taps - 2).bit_length()
        per_group = self.channels // self.groups
        n_transforms = self.batch * (self.channels + self.out) + self.out * per_group
        products = self.batch * self.out * per_group * numbers / 2
        bits = numbers.bit_length() - 1
        return n_transforms * numbers * bits * NS_FOR_NUMBER_AND_BIT + products * NS_FOR_PRODUCT


def find(trace: Trace) -> Claims:
    """Yield one claim over all convolutions that transforms would do faster."""
    if trace.devices:
        return
    rows = np.flatnonzero(trace.named("aten::convolution", "aten::convolution_backward"))
    if not len(rows):
        return
    inputs, which = inputs_of(trace, rows)
    back = trace.named("aten::convolution_backward")[rows]
    sizes = [[_sizes(given, first) for given in inputs] for first in (0, 1)]
    own = [sizes[int(is_back)][code] for is_back, code in zip(back.tolist(), which.tolist(), strict=True)]
    taken = np.array([size.transforms_ns() if size.taps >= FEWEST_TAPS else np.inf for size in own]) * (1 + back)
    slow = trace.dur_ns[rows] > SAFETY * taken
    work = work_of(trace, rows[slow]) if slow.any() else None
    if work is None or work.share < MIN_SHARE:
        return
    at = np.searchsorted(rows, work.rows)
    part = taken[at] / np.maximum(trace.dur_ns[work.rows], 1)
    longest = int(np.argmax(trace.dur_ns[work.rows]))
    size = own[at[longest]]
    yield work.claim(
        f"convolutions with {size.taps:,} taps take {work.text}, in {format_count(work.n_per_step, 'call')}"
        f" {trace.steps.per}; {size.batch * size.channels:,} signals of {size.length:,} numbers",
        "convolution",
        low=1 - SAFETY * part,
        high=1 - part / SAFETY,
        method="what is above the time of Fourier transforms; low end: above three times as much",
        evidence={"n_taps": size.taps, "n_channels": size.channels, "n_groups": size.groups, "n_out": size.out},
        anchor=int(work.rows[longest]),
    )


def _sizes(given: Inputs, first: int) -> _Sizes:
    """Return what an operator convolves; ``first`` : the place of the signal among its inputs."""
    signal, kernel = given.shape(first), given.shape(first + 1)
    stride, dilation, transposed, groups = (given.value(first + at) for at in (3, 5, 6, 8))
    plain = stride == dilation == "[1]" and transposed == "False" and re.fullmatch(r"[1-9]\d{0,8}", groups)
    if (
        given.type(first) not in ("float", "double")
        or len(signal) != 3
        or len(kernel) != 3
        or not plain
        or not 0 < math.prod((*signal, *kernel)) < _LARGEST
    ):
        return _Sizes()
    return _Sizes(signal[0], signal[1], kernel[0], signal[2], kernel[2], int(groups))
