"""Memory results as one page that asks no server: verdict, pictures, tables, findings.

All text is in the page without scripts; one script draws memory over time and the segments at the
peak. Names from a snapshot are escaped text or data (``page.py``).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from torchtriage.finding import Finding
from torchtriage.memory.result import (
    Area,
    Device,
    Growth,
    MemoryResult,
    OutOfMemory,
    Part,
    Peak,
    Picture,
)
from torchtriage.names import elide, visible
from torchtriage.report.memory import words
from torchtriage.report.page import as_data, filled, head, note, notes, policy, template, text
from torchtriage.units import format_bytes, format_count, format_share

__all__ = ["MAX_PAGE_BYTES", "render"]

MAX_PAGE_BYTES = 3_000_000
MAX_NAME = 300
N_LINES = 30
N_PARTS = 10
N_FAILED = 5


def render(results: Sequence[MemoryResult]) -> str:
    """Return one self-contained HTML page, at most ``MAX_PAGE_BYTES`` unless text alone is more.

    Pictures that do not fit are left out, the last ones first, and the page says so.

    Raises
    ------
    ValueError
        If ``results`` is empty.
    """
    if not results:
        raise ValueError("expected at least one result to render, found none")
    growing = [
        {"id": f"{i}-{place}", **_growth(one)}
        for i, result in enumerate(results)
        for place, one in enumerate(result.growth)
    ]
    packed = [
        (f"{i}-{device.device}", _picture(device.picture))
        for i, result in enumerate(results)
        for device in result.devices
        if device.picture is not None
    ]
    room = MAX_PAGE_BYTES - len(_page(results, [], growing, frozenset()).encode())
    kept = []
    for name, picture in packed:
        room -= len(as_data({"id": name, **picture}).encode()) + 1
        if room < 0:
            break
        kept.append({"id": name, **picture})
    return _page(results, kept, growing, frozenset(str(one["id"]) for one in kept))


def _page(
    results: Sequence[MemoryResult],
    pictures: Sequence[dict[str, Any]],
    growing: Sequence[dict[str, Any]],
    drawn: frozenset[str],
) -> str:
    style = template("page.css") + template("memory.css")
    script = template("memory.js")
    names = [words.file_name(result.path) for result in results]
    title = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    parts = {
        "policy": policy(style, script),
        "title": text(f"{title} · torchtriage"),
        "version": text(results[0].version),
        "schema": text(results[0].schema),
        "style": style,
        "body": "\n".join(
            line for i, result in enumerate(results) for line in _result(result, i, drawn)
        ),
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
            {
                "size": row.size_bytes,
                "allocated": row.allocated_bytes,
                "label": row.label,
                "pieces": row.pieces,
            }
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


# -- the text ----------------------------------------------------------------------------------


def _result(result: MemoryResult, index: int, drawn: frozenset[str]) -> Iterable[str]:
    yield from head("torchtriage memory", result.verdict)
    yield '<dl class="facts">'
    for label, value in _facts(result):
        yield f"<div><dt>{label}</dt><dd>{text(value)}</dd></div>"
    yield "</dl></header>"
    if result.growth:
        yield "<section><h2>From step to step</h2>"
        for place, one in enumerate(result.growth):
            yield from _slope(one, f"{index}-{place}")
        yield "</section>"
    for device in result.devices:
        yield from _device(device, f"{index}-{device.device}", drawn)
    yield '<section id="findings"><h2>Findings</h2>'
    if not result.findings:
        kind, rest = ("clean", "") if result.healthy else ("unsure", " in what could be judged")
        yield f'<div class="{kind}"><p>No findings{rest}.</p></div>'
    for finding in result.findings:
        yield from _finding(finding)
    if advice := words.advice(result):
        yield f"<p>{text(advice)}</p>"
    yield "</section>"
    yield from notes(result.notes)
    if result.not_checked or result.crashes:
        yield '<section><h2>Not checked</h2><ul class="notes">'
        for how, group in words.unchecked(result):
            rows = "".join(f"<p>{text(line)}</p>" for line in group)
            is_code = "\n" in how
            told = f"<pre>{_lines(how)}</pre>" if is_code else f'<p class="how">{text(how)}</p>'
            yield f'<li class="warn">{rows}{told}</li>'
        for crash in result.crashes:
            yield note("refuse", f"{crash.code}: {crash.error}")
        yield "</ul></section>"


def _facts(result: MemoryResult) -> Iterable[tuple[str, str]]:
    yield "file", f"{words.file_name(result.path)}, {format_bytes(result.size_bytes)}"
    if result.n_steps is not None:
        yield "watched", format_count(result.n_steps, "step")
        return
    yield "devices", f"{len(result.devices)} of {result.n_devices} with memory"
    yield "history", format_count(result.n_entries, "entry", "entries")
    yield "stacks", format_count(result.n_stacks, "distinct stack")
    yield "allocator settings", result.settings


def _slope(one: Growth, name: str) -> Iterable[str]:
    areas = (
        " Below, what the growing stacks have left behind by each step, from zero."
        if one.areas
        else ""
    )
    steps = f" Steps by {text(one.steps_by)}." if one.steps_by else ""
    yield (
        f"<h3>{text(one.name[:1].upper() + one.name[1:])}</h3>"
        f'<p class="sub">{text(words.change(one))}.{steps} The line is the median of the slopes'
        " between all pairs of steps, the wedge its 95&nbsp;% interval; the axis does"
        f' not begin at zero.{areas}</p><div id="slope-{name}"></div>'
        "<noscript><p>The pictures need scripts; this page runs only its own.</p></noscript>"
    )


def _lines(value: str) -> str:
    return "\n".join(text(line) for line in value.split("\n"))


def _device(device: Device, name: str, drawn: frozenset[str]) -> Iterable[str]:
    yield f"<section><h2>{text(device.name.capitalize())}</h2>"
    for one in device.out_of_memory[-N_FAILED:]:
        yield from _failed(one)
    picture = device.picture
    if picture is not None and name in drawn:
        moments = format_count(len(picture.entries), "moment")
        yield (
            f'<h3>Memory over time</h3><p class="sub">Allocated bytes by who asked for them, at'
            f" {moments} in the order of the history; the highest of each stretch is shown. The"
            " dashed line is what was reserved, the dotted one the peak.</p>"
            f'<div id="over-{name}"></div>'
            "<noscript><p>The pictures need scripts; this page runs only its own.</p></noscript>"
        )
    elif picture is not None:
        yield '<p class="sub">Its pictures are left out to keep the page small.</p>'
    if device.peak is not None:
        yield from _peak(device.peak)
    if picture is not None and name in drawn and picture.segments:
        left = picture.n_segments_left_out
        also = f" The {left:,} smallest are left out." if left else ""
        when = (
            "when it failed"
            if device.out_of_memory
            else "at the peak"
            if device.peak is not None
            else "at the snapshot"
        )
        yield (
            f'<h3>Segments {when}</h3><p class="sub">One row each, the largest first; widths grow'
            f" with the square root of the size. Colours as above, free memory is empty.{also}</p>"
            f'<div id="map-{name}"></div><p class="mkey"><span><i class="free"></i>free</span>'
            '<span><i class="await"></i>freed, another stream still uses it</span>'
            '<span><i class="mixed"></i>several small blocks</span></p>'
        )
    yield '<div class="two"><div><h3>At the snapshot</h3><dl class="account">'
    for label, size, meaning in words.accounts(device):
        shown = format_bytes(size) if size is not None else "not told"
        yield f"<dt>{label}</dt><dd>{text(shown)}</dd><dd>{meaning}</dd>"
    yield "</dl></div>"
    told = device.fragmentation
    if told is not None and told.free_bytes:
        yield f"<div><h3>Why reserved memory was free</h3><p>{text(words.because(told))}</p>"
        yield _table(told.parts) + "</div>"
    yield "</div></section>"


def _failed(one: OutOfMemory) -> Iterable[str]:
    first, *others = one.sentences
    yield f'<div class="failed"><h3>{text(first)}</h3>'
    yield "".join(f"<p>{text(line)}</p>" for line in others)
    yield _table(one.parts) + "</div>"


def _peak(peak: Peak) -> Iterable[str]:
    yield (
        f'<h3>Held at the peak</h3><p class="sub">{text(format_bytes(peak.allocated_bytes))}'
        f" allocated, after entry {peak.entry:,} of {peak.n_entries:,}. Shares are of that.</p>"
    )
    if peak.lines:
        yield from _lines_held(peak)
    yield '<div class="two">'
    for title, parts in (
        ("By phase of the step", peak.phases),
        ("By purpose", peak.categories),
        ("By module", peak.modules),
    ):
        if len(parts) > 1 or (parts and parts[0].name not in ("unknown", "no stack recorded")):
            yield f"<div><h3>{title}</h3>{_table(parts)}</div>"
    yield "</div>"


def _lines_held(peak: Peak) -> Iterable[str]:
    yield '<div class="scroll tall"><table class="held"><thead><tr><th>size</th><th>share</th>'
    yield "<th>by</th></tr></thead><tbody>"
    for one in peak.lines[:N_LINES]:
        tags = words.tags(one)
        callers = words.where(one)
        yield (
            f"<tr><td>{text(format_bytes(one.size_bytes))}</td>"
            f"<td>{text(format_share(one.share))}</td>"
            f"<td><code>{text(one.label, MAX_NAME)}</code>"
            f'<span class="tag">{text(tags)}{text(" · from " + callers) if callers else ""}'
            "</span></td></tr>"
        )
    yield "</tbody></table></div>"


def _table(parts: Sequence[Part]) -> str:
    """Return a table of parts; it adds up, what has no row of its own is in the last one."""
    first, rest = list(parts[:N_PARTS]), list(parts[N_PARTS:])
    if len(rest) > 1:
        size, share = sum(one.size_bytes for one in rest), sum(one.share for one in rest)
        rest = [Part(format_count(len(rest), "other"), size, share)]
    rows = [
        f"<tr><td>{text(part.name, MAX_NAME)}</td><td>{text(format_bytes(part.size_bytes))}</td>"
        f"<td>{text(format_share(part.share))}</td></tr>"
        for part in first + rest
    ]
    return f'<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>'


def _finding(finding: Finding) -> Iterable[str]:
    yield (
        f'<div class="finding"><h3>{text(finding.title)}</h3><p class="meta">'
        f'<span class="sev {finding.severity}">{finding.severity}</span> {text(finding.code)},'
        f" {finding.certainty}</p>"
        f'<p class="message">{text(finding.message)}</p>'
    )
    frame = finding.place.frame
    if frame is not None:
        where = f"{frame.file}:{frame.line} {frame.function}"
        yield f"<p><code>{text(where, MAX_NAME)}</code></p>"
    yield f"<p>Fix: {text(finding.fix.text)}</p>"
    if finding.fix.code:
        yield f"<pre>{_lines(finding.fix.code)}</pre>"
    if finding.fix.link.startswith("https://"):
        link = html.escape(finding.fix.link, quote=True)
        yield f'<p><a href="{link}" rel="noreferrer">{link}</a></p>'
    yield "</div>"
