"""Fourier transforms of a length that no fast algorithm fits.

Looks like: ``_fft_r2c``, ``_fft_c2r`` or ``_fft_c2c`` (what ``torch.fft`` and ``stft`` call) along an axis whose length
    has a prime factor above 127, at least 5 % of the kernel time (on a CPU, of the step).
Slow because: fast transforms divide the length into small factors. A large prime one is done as a convolution, by three
    transforms of more than twice the length.
Cost: modelled: on a CPU 65 to 96 % of their time, by how much faster the next length without factors above 7 was for 61
    lengths between 500 and 300,000 (MKL, one thread; nine of ten lie between); on a device up to that, not measured.
Fix: pad to the next length with small factors, and cut the result. A convolution only needs the sum of both lengths or
    more.
Leave it when: the frequencies themselves are needed: padding moves them.
Source: NVIDIA, "cuFFT API Reference", accuracy and performance; SciPy documentation, ``scipy.fft.next_fast_len``.
"""

import re

import numpy as np

from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claims, Fix, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "KRN070", "Fourier transforms of a length with a large prime factor", order=545, needs="ops shapes work"
)
FIX = Fix(
    text="Pad the transform to a length with small prime factors, and crop the result.",
    code="""n = signal.shape[-1] + kernel.shape[-1] - 1
fast = 1 << (n - 1).bit_length()  # or scipy.fft.next_fast_len(n, real=True)
spectrum = torch.fft.rfft(signal, fast) * torch.fft.rfft(kernel, fast)
out = torch.fft.irfft(spectrum, fast)[..., :n]""",
    link="https://docs.scipy.org/doc/scipy/reference/generated/scipy.fft.next_fast_len.html",
)

MIN_SHARE = 0.05
LARGE = 127
"""cuFFT has code for prime factors up to here; on CPUs transforms with larger ones took longer in all cases but one."""
LOW, HIGH = 0.65, 0.96
_LONGEST = 1 << 40


def find(trace: Trace) -> Claims:
    """Yield one claim over all transforms along an axis of such a length."""
    rows = np.flatnonzero(trace.named("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"))
    if not len(rows):
        return
    inputs, which = inputs_of(trace, rows)
    lengths = [_lengths(given) for given in inputs]
    odd = [[n for n in axes if _largest_prime(n) > LARGE] for axes in lengths]
    share = np.array([len(slow) / max(len(axes), 1) for slow, axes in zip(odd, lengths, strict=True)])
    slow = share[which] > 0
    outer = trace.tree.nearest(rows, trace.matching(r"^aten::fft_"))  # with the copy that pads
    outer = np.where(outer >= 0, outer, rows)
    work = work_of(trace, outer[slow])
    if work is None or work.share < MIN_SHARE:
        return
    longest = int(np.argmax(np.where(slow, trace.dur_ns[rows], 0)))
    length = max(odd[int(which[longest])])
    prime = _largest_prime(length)
    of = "a prime number" if prime == length else f"which has the prime factor {prime:,}"
    # a transform along several axes takes its time along each of them
    parts = dict(zip(outer.tolist(), share[which].tolist(), strict=True))
    part = np.array([parts.get(row, 1.0) for row in work.op.tolist()])
    yield work.claim(
        f"Fourier transforms of length {length:,}, {of}, take {work.text} in {format_count(work.n_per_step, 'call')}",
        "transforms",
        low=np.zeros(len(part)) if trace.devices else LOW * part,
        high=HIGH * part,
        method="times how much faster lengths of small factors are",
        evidence={"length": length, "largest_prime_factor": prime, "n_per_step": work.n_per_step},
        anchor=int(outer[longest]),
    )


def _lengths(inputs: Inputs) -> list[int]:
    """Return the lengths of the axes that a transform goes along; empty where they were not recorded."""
    shape = inputs.shape(0)
    axes = [int(axis) for axis in re.findall(r"-?\d+", inputs.value(1)[:100])]
    if not shape or not all(-len(shape) <= axis < len(shape) for axis in axes):
        return []
    lengths = [shape[axis] for axis in axes]
    if lengths and inputs.value(2).isdigit() and re.fullmatch(r"\d{1,15}", inputs.value(3)):
        lengths[-1] = int(inputs.value(3))  # of real numbers from half as many complex ones
    return lengths


def _largest_prime(n: int) -> int:
    largest, factor = 1, 2
    n = min(n, _LONGEST)
    while factor * factor <= n:
        while n % factor == 0:
            largest, n = factor, n // factor
        factor += 1
    return max(largest, n)
