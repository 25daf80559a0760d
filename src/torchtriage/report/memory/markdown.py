"""A memory result as a comment for a pull request, in GitHub's dialect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtriage.memory.result import Device, Holder, MemoryResult, Part
from torchtriage.report.markdown import code, prose
from torchtriage.report.memory import words
from torchtriage.units import format_bytes, format_share

__all__ = ["render"]

N_LINES = 8


def render(results: Sequence[MemoryResult]) -> str:
    """Return GitHub Markdown: the verdict, who held what at the peak, findings."""
    return "\n\n".join(block for result in results for block in _blocks(result)) + "\n"


def _blocks(result: MemoryResult) -> Iterable[str]:
    first, *others = result.verdict
    yield f"### {prose(first)}"
    yield "  \n".join(prose(line) for line in others)
    for device in result.devices:
        yield from _device(device)
    for finding in result.findings:
        lines = [
            f"**{code(finding.code)} {prose(finding.title)}** ({finding.severity})  ",
            f"{prose(finding.message)}  ",
            f"Fix: {prose(finding.fix.text)}",
        ]
        yield "\n".join(lines)
        if finding.fix.code:
            yield f"```sh\n{finding.fix.code.replace('```', '')}\n```"
    if result.advice:
        yield prose(result.advice)
    if result.not_checked:
        yield "\n".join(
            f"- Not checked: {code(one.code)} {prose(one.name)}, no {prose(', '.join(one.missing))}"
            for one in result.not_checked
        )
    yield (
        f"<sub>{prose(words.file_name(result.path))}: {prose(words.facts(result))}, torchtriage"
        f" {prose(result.version)}</sub>"
    )


def _device(device: Device) -> Iterable[str]:
    peak = device.peak
    if peak is None:
        return
    by = "by"
    held: list[tuple[Holder | Part, str]] = [(one, words.holder(one)) for one in peak.lines]
    if not held:  # the profiler's timeline has no stacks
        by, held = "by purpose", [(part, part.name) for part in peak.categories]
    rows = [
        f"| held at the peak of {prose(device.name)} | | {by} |",
        "|--:|--:|:--|",
    ]
    rows += [
        f"| {format_bytes(one.size_bytes)} | {format_share(one.share)} | {prose(name)} |"
        for one, name in held[:N_LINES]
    ]
    rows.append(f"| **{format_bytes(peak.allocated_bytes)}** | | **all allocated** |")
    yield "\n".join(rows)
    told = device.fragmentation
    if told is not None and told.free_bytes:
        yield f"Free: {prose(words.because(told))}: {prose(words.parts(told.parts))}."
