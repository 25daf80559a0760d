"""Numbers as people read them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core.units import format_bytes, format_count, format_ms, format_ns, format_share, ms

_SCALE = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (0, "0 ns"),
        (-0.0, "0 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_499, "999 µs"),
        (999_700, "1.00 ms"),
        (53_600_000, "53.6 ms"),
        (1_200_000_000, "1.20 s"),
        (43_425_300_000, "43.4 s"),
        (-1_500_000, "-1.50 ms"),
    ],
)
def test_durations_have_three_digits_and_a_unit_that_fits(value_ns: float, text: str) -> None:
    assert format_ns(value_ns) == text


@given(st.integers(1, 10**14))
def test_a_duration_reads_back_to_half_a_percent(value_ns: int) -> None:
    number, unit = format_ns(value_ns).split()
    assert abs(float(number) * _SCALE[unit] - value_ns) <= 0.0051 * value_ns
    assert unit == "ns" or re.fullmatch(r"\d\.\d\d|\d\d\.\d|\d{3,}", number)


@given(st.integers(0, 10**15))
def test_longer_never_reads_shorter(value_ns: int) -> None:
    def read(text: str) -> float:
        number, unit = text.split()
        return float(number) * _SCALE[unit]

    assert read(format_ns(value_ns)) <= read(format_ns(value_ns + value_ns // 50 + 10))


def test_milliseconds_keep_the_nanosecond() -> None:
    assert ms(1_234_567) == 1.234567
    assert format_ms(1.2345) == "1.23 ms"
    assert format_ms(1234.5) == "1.23 s"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 %"),
        (0.004, "0.4 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (0.256, "26 %"),
        (0.998, "99.8 %"),
        (1, "100 %"),
    ],
)
def test_shares(ratio: float, text: str) -> None:
    assert format_share(ratio) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 reads"),
        (1, "1 read"),
        (0.5, "0.5 reads"),
        (1332, "1,332 reads"),
        (1332.5, "1,332 reads"),
        (math.nan, "nan reads"),
        (math.inf, "inf reads"),
        (-math.inf, "-inf reads"),
    ],
)
def test_counts(number: float, text: str) -> None:
    assert format_count(number, "read") == text
    assert format_count(number) == text.split()[0]
    assert format_count(2, "pass", "passes") == "2 passes"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (395_264, "386 KiB"),
        (1.5 * 2**30, "1.50 GiB"),
        (64 << 30, "64.0 GiB"),
        (5 << 40, "5.00 TiB"),
        (1024**2 - 1, "1.00 MiB"),
    ],
)
def test_sizes(size: float, text: str) -> None:
    assert format_bytes(size) == text
