"""Peak rates are looked up by the names drivers really give."""

from __future__ import annotations

import pytest

from torchtriage.core.errors import UsageError
from torchtriage.core.trace.peak_rates import Peak, family_of, peak_of, stated_peak


@pytest.mark.parametrize(
    ("name", "fp32", "half"),
    [
        ("NVIDIA H100 80GB HBM3", 67, 989),
        ("NVIDIA H100 PCIe", 51, 756),
        ("NVIDIA H200", 67, 989),
        ("NVIDIA B200", 75, 2250),
        ("NVIDIA A100-SXM4-40GB", 19.5, 312),
        ("NVIDIA A100-PG509-200", 19.5, 312),
        ("NVIDIA PG509-210", 19.5, 312),
        ("Tesla V100-SXM2-32GB", 15.7, 125),
        ("NVIDIA GeForce RTX 4090", 83, 165),
        ("NVIDIA RTX A6000", 39, 155),
        ("NVIDIA RTX A4000", 19.2, 76.7),
        ("NVIDIA RTX 6000 Ada Generation", 91.1, 364),
        ("NVIDIA GeForce RTX 2080 Ti", 14.2, 56.9),
        ("NVIDIA L40S", 91.6, 362),
        ("NVIDIA L40", 90.5, 181),
        ("NVIDIA L4", 30.3, 121),
        ("Tesla T4", 8.1, 65),
        ("NVIDIA GH200 480GB", 67, 990),
        ("NVIDIA GB200", 80, 2500),
        ("NVIDIA H800", 67, 989),
        ("NVIDIA A800-SXM4-80GB", 19.5, 312),
        ("AMD Instinct MI300A", 122.6, 981),
        ("AMD Instinct MI355X", 157.3, 2517),
        ("AMD Instinct MI300X VF", 163, 1307),
        ("AMD Instinct MI250X / MI250", 47.9, 191),
        ("AMD Instinct MI250", 45.3, 181),
        ("NVIDIA H200 NVL", 60, 835),
        ("NVIDIA H800 NVL", 60, 835),
        ("Tesla V100-PCIE-16GB", 14, 112),
        ("NVIDIA A10G", 35, 70),
        ("Tesla V100S-PCIE-32GB", 16.4, 130),
        ("NVIDIA GeForce RTX 5070 Ti", 43.9, 87.9),
        ("NVIDIA GeForce RTX 5070", 30.9, 61.7),
        ("NVIDIA GeForce RTX 4080", 48.7, 97.5),
        ("NVIDIA GeForce RTX 2080", 10.6, 42.4),
        ("NVIDIA TITAN RTX", 16.3, 130.5),
    ],
)
def test_known_devices(name, fp32, half):
    peak = peak_of(name)
    assert peak is not None
    assert (peak.fp32_tflops, peak.half_tflops) == (fp32, half)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "AMD Radeon Graphics",
        "NVIDIA RTX A400",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA GeForce RTX 3080",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "Quadro GP100",
        "NVIDIA RTX 500 Ada Generation Laptop GPU",
        "GH100",
    ],
)
def test_unknown_devices_have_no_peak(name):
    assert peak_of(name) is None


def test_memory_tells_the_two_a100_apart():
    small, large = peak_of("NVIDIA A100-SXM4-40GB"), peak_of("NVIDIA A100-SXM4-80GB")
    assert large.bytes_per_ns > small.bytes_per_ns


def test_rates_per_ns():
    peak = peak_of("NVIDIA H100 80GB HBM3")
    assert peak.flop_per_ns("half") == 989_000
    assert peak.flop_per_ns("tf32") == 495_000
    assert peak.flop_per_ns("float") == 67_000
    assert peak.bytes_per_ns == 3350


def test_an_instruction_set_bounds_the_rates_of_its_devices():
    family = family_of("942")
    assert family.names == ("MI300A", "MI300X", "MI325X")
    assert (family.slowest.half_tflops, family.fastest.half_tflops) == (981, 1307)
    assert (family.slowest.memory_tbps, family.fastest.memory_tbps) == (5.3, 6.0)
    assert family_of("1100") is None


def test_every_device_of_an_instruction_set_has_a_peak():
    assert all(peak_of(name) is not None for isa in ("90a", "942", "950") for name in family_of(isa).names)


def test_a_user_states_a_device_or_its_rates():
    assert stated_peak("MI300X") == peak_of("AMD Instinct MI300X VF")
    assert stated_peak("fp32=67,half=989,memory=3.35") == Peak(67, 0, 989, 3.35)
    assert stated_peak("memory=3.35,tf32=495,half=989,fp32=67") == Peak(67, 495, 989, 3.35)


@pytest.mark.parametrize(
    "text", ["x", "half=989", "fp32=1,half=0,memory=1", "fp32=1,half=2,memory=-1", "fp32=1 half=2"]
)
def test_rates_that_state_no_device_are_refused(text):
    with pytest.raises(UsageError, match="no device with known peak rates") as caught:
        stated_peak(text)
    assert "MI300X" in str(caught.value.hint)
