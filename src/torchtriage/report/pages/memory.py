"""The page of memory results: one script draws memory over time and the segments at the peak.

All text is in the page without scripts. Names from a snapshot are escaped text or data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtriage.core.html import as_data, filled, policy, template
from torchtriage.core.names import elide, visible
from torchtriage.memory.snapshot.result import Area, Growth, Picture
from torchtriage.report.documents.memory import MemoryReport, document
from torchtriage.report.page import body, text

MAX_PAGE_BYTES = 3_000_000
MAX_NAME = 300


def render(report: MemoryReport) -> str:
    """Return one self-contained HTML page, at most ``MAX_PAGE_BYTES`` unless text alone is more.

    Pictures that do not fit are left out, the last ones first, and the page says so.
    """
    growing = [
        {"id": f"{i}-{place}", **_growth(growth)}
        for i, result in enumerate(report.results)
        for place, growth in enumerate(result.growth)
    ]
    packed = [
        {"id": f"{i}-{device.device}", **_picture(device.picture)}
        for i, result in enumerate(report.results)
        for device in result.devices
        if device.picture is not None
    ]
    room = MAX_PAGE_BYTES - len(_page(report, [], growing).encode())
    pictures = []
    for picture in packed:
        room -= len(as_data(picture).encode()) + 1
        if room < 0:
            break
        pictures.append(picture)
    return _page(report, pictures, growing)


def _page(report: MemoryReport, pictures: Sequence[dict[str, Any]], growing: Sequence[dict[str, Any]]) -> str:
    shown = document(report, [str(picture["id"]) for picture in pictures])
    style, script = template("page.css") + template("memory.css"), template("memory.js")
    parts = {
        "policy": policy(style, script),
        "title": text(f"{shown.title} · torchtriage"),
        "version": text(shown.version),
        "schema": text(shown.schema),
        "style": style,
        "body": body(shown.blocks),
        "data": as_data({"growing": list(growing), "pictures": list(pictures)}),
        "script": script,
    }
    return filled("memory.html", parts)


def _picture(picture: Picture) -> dict[str, Any]:
    return {
        "entries": picture.entries,
        "times": picture.times_us,
        "reserved": picture.reserved_bytes,
        "areas": [_area(area) for area in picture.areas],
        "segments": [
            {"size": row.size_bytes, "allocated": row.allocated_bytes, "label": row.label, "pieces": row.pieces}
            for row in picture.segments
        ],
    }


def _area(area: Area) -> dict[str, Any]:
    return {
        "label": elide(visible(area.label), MAX_NAME),
        "kind": area.kind.replace("_", " "),
        "values": area.values,
        "stack": [elide(visible(line), MAX_NAME) for line in area.stack],
    }


def _growth(growth: Growth) -> dict[str, Any]:
    return {
        "steps": growth.steps,
        "held": growth.held_bytes,
        "leak": growth.is_leak,
        "from": growth.from_step,
        "slopes": [growth.slope_low_bytes, growth.slope_bytes, growth.slope_high_bytes],
        "middle": [growth.middle_step, growth.middle_bytes],
        "areas": [_area(area) for area in growth.areas],
    }
