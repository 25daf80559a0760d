"""Peak rates of the links between accelerators of one host, by the name the driver gives a device."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Link(NamedTuple):
    """What connects a device with others of its host; ``gbps`` : 10^9 bytes per second in one direction, in all."""

    name: str
    gbps: float


FASTEST_OTHER_GBPS = 100.0
"""No PCIe link up to generation 5 (63 GB/s) and no network card up to 800 Gb/s gives a device more."""

# Half of what data sheets state, who count both directions. First match wins. Boards that may or may not have bridges
# (PCIe cards with NVLink) are left out: the recording does not say.
_LINKS: tuple[tuple[str, Link], ...] = (
    (r"\bG?B[23]00\b", Link("NVLink", 900)),
    (r"\b(?:H[128]00|A[18]00|H20|A30|V100)\b.*(?:PCIe|PCIE|NVL)\b|\bV100S\b|\bGH200\b", Link("", 0)),
    (r"\bH800\b", Link("NVLink", 200)),
    (r"\bH[12]00\b|\bH20\b", Link("NVLink", 450)),
    (r"\bA800-SXM", Link("NVLink", 200)),
    (r"\bA100-SXM", Link("NVLink", 300)),
    (r"\bV100-SXM[23]", Link("NVLink", 150)),
    (r"\bP100-SXM2", Link("NVLink", 80)),
    (r"\bMI35[05]X\b", Link("Infinity Fabric", 537.6)),
    (r"\bMI3(?:00|25)X\b", Link("Infinity Fabric", 448)),
    (r"\bRTX 50[789]0\b", Link("PCIe 5.0 x16", 63)),
    (r"\bL40S?\b|\bA10G?\b|\bL4\b|\bRTX 40[89]0\b|\bRTX 6000 Ada\b", Link("PCIe 4.0 x16", 31.5)),
    (r"\bT4\b", Link("PCIe 3.0 x16", 15.75)),
)


@lru_cache(maxsize=64)
def link_of(device_name: str) -> Link | None:
    """Return the link of a device to others of its host, None where its name does not say which."""
    if re.search(r"\bLaptop\b|\bMIG\b", device_name):
        return None
    for pattern, link in _LINKS:
        if re.search(pattern, device_name):
            return link if link.gbps else None
    return None
