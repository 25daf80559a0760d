from __future__ import annotations

import pytest

from torchtriage.core.trace.link_rates import Link, link_of


@pytest.mark.parametrize(
    ("device", "link"),
    [
        # half of what data sheets state for both directions
        ("NVIDIA H100 80GB HBM3", Link("NVLink", 450)),
        ("NVIDIA H200", Link("NVLink", 450)),
        ("NVIDIA H800", Link("NVLink", 200)),
        ("NVIDIA B200", Link("NVLink", 900)),
        ("NVIDIA GB200", Link("NVLink", 900)),
        ("NVIDIA A100-SXM4-80GB", Link("NVLink", 300)),
        ("Tesla V100-SXM2-16GB", Link("NVLink", 150)),
        ("AMD Instinct MI300X", Link("Infinity Fabric", 448)),
        ("NVIDIA L4", Link("PCIe 4.0 x16", 31.5)),
        ("Tesla T4", Link("PCIe 3.0 x16", 15.75)),
        # bridges between cards are not recorded
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GeForce RTX 3090", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("", None),
    ],
)
def test_a_link_is_told_by_a_device_that_has_no_other(device: str, link: Link | None) -> None:
    assert link_of(device) == link
