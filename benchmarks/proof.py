"""What an expert, our report and two public tools say of the same recordings, and how long they take: docs/proof.md.

    python benchmarks/proof.py --hta-python ../hta/bin/python --tracelens-python ../tracelens/bin/python

reads the shared recordings (``../shared/data``, or where TORCHTRIAGE_DATA points), runs each tool on each of them in a
process of its own, one after the other, and writes ``benchmarks/proof.json`` and the page. What the first file holds is
not measured again (``--again`` does), ``--page`` alone writes the page. The tools live in environments of their own:
``pip install traceinsight 'pandas<3'`` in one, a clone of AMD-AGI/TraceLens in the other.

What a tool says of a recording, and when that names the cause, is the rule of ``peers.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from peers import (
    COMMUNICATION,
    COPIES,
    DATA,
    HOST,
    KERNELS,
    ROOT,
    RULE,
    TOOLS,
    Label,
    files,
    labels,
    largest,
    machine,
    measure,
    names_cause,
    ours,
    ours_in_part,
    part,
    rotated,
    settled,
    version,
    wilson,
)

from torchtriage.api.catalogue import pages

STORE = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "proof.md"

# -- the page -----------------------------------------------------------------------------------

TITLES = {page.code: page.name for page in pages() if page.part == "trace"}


def page(store: Mapping[str, Any]) -> str:
    """Return the page of what was measured."""
    measured: Mapping[str, Any] = store["recordings"]
    known = [label for label in labels() if label.name in measured]
    judged = [label for label in known if label.judged]
    return PAGE_TEXT.format(
        n=len(known),
        n_jobs=sum("." not in label.name.rsplit("/", 1)[1] for label in known),
        machine=store["machine"],
        date=store["date"],
        hta=store["versions"]["HTA"],
        tracelens=store["versions"]["TraceLens"],
        version=store["versions"]["torchtriage"],
        n_judged=len(judged),
        right=sum(ours(one, measured[one.name][TOOLS[0]]) == "right" for one in judged),
        part_ours=sum(ours_in_part(one, measured[one.name][TOOLS[0]]) for one in judged),
        part_either=sum(any(names_cause(one, measured[one.name][tool]) for tool in TOOLS[1:]) for one in judged),
        n_unjudged=sum(not label.judged for label in known),
        totals=_totals(known, measured),
        better=_better(known, measured),
        costs=_costs(known, measured),
        rule=RULE,
        settled="\n".join(
            f"- `{_short(label.name)}`: {settled()[label.ident]['why']}" for label in known if label.ident in settled()
        ),
        rows="\n".join(_row(label, measured[label.name]) for label in known),
    )


def _totals(known: Sequence[Label], measured: Mapping[str, Any]) -> str:
    def line(title: str, some: Sequence[Label]) -> str:
        of = len(some)
        rights = [
            sum(ours(one, measured[one.name]["torchtriage"]) == "right" for one in some),
            sum(ours_in_part(one, measured[one.name]["torchtriage"]) for one in some),
            *(sum(names_cause(one, measured[one.name][tool]) for one in some) for tool in TOOLS[1:]),
            sum(any(names_cause(one, measured[one.name][tool]) for tool in TOOLS[1:]) for one in some),
        ]
        cells = [
            f"{right} ({right / of:.2f}, {low:.2f}-{high:.2f})" for right in rights for low, high in [wilson(right, of)]
        ]
        return f"| {title} | {of} | " + " | ".join(cells) + " |"

    judged = [one for one in known if one.judged]
    faulty = [one for one in judged if not one.quiet]
    lines = [
        line("all", judged),
        line("a cause is needed", faulty),
        line("nothing is needed, or may be said", [one for one in judged if one.quiet]),
        line("second selection (labels of `devices.toml`)", [one for one in judged if one.set == "gpu2"]),
        line("first selection (labels of `benchmarks/devices`)", [one for one in judged if one.set == "traces"]),
    ]
    for title in (HOST, KERNELS, COPIES, COMMUNICATION):
        some = [one for one in faulty if part(one.causes[0]) == title]
        if some:
            lines.append(line(f"the cause lies in: {title}", some))
    return "\n".join(lines)


def _better(known: Sequence[Label], measured: Mapping[str, Any]) -> str:
    lines = []
    for title in (HOST, KERNELS, COPIES, COMMUNICATION):
        some = [one for one in known if one.judged and not one.quiet and part(one.causes[0]) == title]
        us = sum(ours_in_part(one, measured[one.name][TOOLS[0]]) for one in some)
        them = sum(any(names_cause(one, measured[one.name][tool]) for tool in TOOLS[1:]) for one in some)
        if them > us:
            lines.append(f"- Of {len(some)} causes in the part *{title}* one of the two names {them}, ours {us}.")
    for label in known:
        found = measured[label.name]
        right = [tool for tool in TOOLS[1:] if names_cause(label, found[tool])]
        if label.judged and right and not ours_in_part(label, found["torchtriage"]):
            said = "; ".join(f"{tool} says {_peer(found[tool])}" for tool in right)
            lines.append(f"- `{_short(label.name)}`: {said}; ours first: {_first(found['torchtriage'])}.")
    return "\n".join(lines) or "On none of these recordings."


def _costs(known: Sequence[Label], measured: Mapping[str, Any]) -> str:
    alike = [one for one in known if all("says" in measured[one.name][tool] for tool in TOOLS)]

    def quicker(tool: str) -> str:
        if tool == TOOLS[0]:
            return "-"
        found = (measured[one.name] for one in alike)
        return str(sum(one[tool]["s"] < one[TOOLS[0]]["s"] for one in found))

    lines = []
    for tool in TOOLS:
        all_of = [measured[one.name][tool] for one in known]
        some = [measured[one.name][tool] for one in alike]
        failed = sum(tool != TOOLS[0] and _peer(one) == "an error" for one in all_of)
        slow = sum("more than" in one.get("failure", "") for one in all_of)
        lines.append(
            f"| {tool} | {median(one['s'] for one in some):.2f} | {sum(one['s'] for one in some):,.0f} "
            f"| {max(one['s'] for one in some):.1f} | {median(one['mb'] for one in some):,.0f} "
            f"| {max(one['mb'] for one in some):,} | {quicker(tool)} | {failed} | {slow} |"
        )
    return f"Of the {len(alike)} recordings that all three finished:\n\n" + COST_HEAD + "\n".join(lines)


COST_HEAD = """\
| tool | median, s | sum, s | longest, s | median MB | largest MB | quicker than ours on | errors, of all | over 120 s |
|:--|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def _row(label: Label, found: Mapping[str, Any]) -> str:
    verdict = ours(label, found["torchtriage"]) if label.judged else "-"
    cells = [f"`{_short(label.name)}`", _expert(label), f"{_first(found['torchtriage'])}: **{verdict}**"]
    for tool in TOOLS[1:]:
        right = "-" if not label.judged else "names it" if names_cause(label, found[tool]) else "no"
        cells.append(f"{_peer(found[tool])}: **{right}**")
    cells.append(" / ".join(f"{found[tool]['s']:.1f}" for tool in TOOLS))
    cells.append(" / ".join(f"{found[tool]['mb']:,}" for tool in TOOLS))
    return "| " + " | ".join(cells) + " |"


def _short(name: str) -> str:
    name = re.sub(r"^(gpu2/)?(traces|jobs)/", "", name).removesuffix(".json.gz").removesuffix(".pt.trace")
    return name if len(name) <= 60 else f"{name[:30]}…{name[-29:]}"


def _expert(label: Label) -> str:
    if not label.judged:
        return "cannot be judged"
    if not label.causes:
        return "healthy"
    said = f"{TITLES[label.causes[0]]} ({label.causes[0]})"
    others = ", ".join(label.causes[1:])
    return said + (f"; or {others}" if others else "") + ("; or nothing" if label.quiet else "")


def _first(measured: Mapping[str, Any]) -> str:
    if "failure" in measured:
        return "failed"
    found = measured["says"]["findings"]
    return f"{TITLES[found[0]]} ({found[0]})" if found else "nothing"


def _peer(measured: Mapping[str, Any]) -> str:
    if "failure" in measured:
        return "over 120 s" if "more than" in measured["failure"] else "an error"
    says = measured["says"]
    if not any(says["parts"].values()):
        return "no device time" if not says.get("errors") else "an error"
    most, share = largest(says)
    names = ", ".join(_name(name) for name in says["names"]) if most == KERNELS else ""
    return f"{most} {share:.0%}".replace("%", " %") + (f" ({names})" if names else "")


def _name(name: str) -> str:
    """Return the part of a kernel's name that tells it, for a table."""
    bare = re.sub(r"<.*|\(.*|^void ", "", name.replace("(anonymous namespace)::", "")).split("::")[-1].replace("|", "")
    return bare if len(bare) <= 28 else bare[:27] + "…"


PAGE_TEXT = """\
# Is it right, and compared with what?

<!-- written by benchmarks/proof.py -->

An expert's label, our first finding and what two public tools say about the same file, for {n} recordings of real
devices from public repositories (PyTorch profiler, {n_jobs} of them jobs of several ranks). Generated by
`benchmarks/proof.py`; what it measured is in `benchmarks/proof.json`.

| | |
|:--|:--|
| measured | {date}, {machine} |
| torchtriage | {version}, `torchtriage analyze FILE --json` |
| HTA | HolisticTraceAnalysis, PyPI {hta}: temporal, idle-time and kernel breakdown |
| TraceLens | AMD-AGI/TraceLens, {tracelens}: its PyTorch report as CSV, with the kernel summary |
| how | every tool on every file in its own process, the three in turn, once each |

## What it shows, and what it does not

Shares are of recordings, with Wilson's 95 % intervals. {n_unjudged} recordings that the experts say cannot be judged
are listed below and not counted. *Right* is the exact cause; the columns *part* ask only for the part of the device's
time and, in kernels, a fitting name.

| recordings | n | ours: right | ours: part | HTA: part | TraceLens: part | either of the two: part |
|:--|--:|--:|--:|--:|--:|--:|
{totals}

- Asked only for the part, ours names it on {part_ours} and at least one of the other two on {part_either}, of
  {n_judged}: where the time goes, they show about as well. The exact cause, which they do not give, ours has first on
  {right}.
- **Our figure is not one of first contact.** torchtriage's rules were made, tested and fixed on these files; HTA's and
  TraceLens' were not, though several recordings come from their own repositories. At first contact our first finding
  was right in 36 of the 54 of the second selection (0.67, interval 0.53-0.78, [accuracy](accuracy.md)) and in 11 of 14
  others that nobody had seen. Compare with those.
- **The labels are ours.** Readers wrote them from the rows, most before a report existed; their words are our codes.
  A code is finer than a part, and the other tools were not made to name one.
- The other two were made to be read: an expert finds more in their tables than one line shows. TraceLens'
  roofline columns and HTA's launch statistics are not used here.
- *Either of the two* counts a recording where at least one names the part: a best case, as nobody knows beforehand
  which. Most of it is busy against idle, and where the label accepts any slow kernel, any name of a kernel is counted.
- TraceLens finds no device in traces whose rows are spelt `Kernel` (profilers of 2021), that hold only copies, or of
  MTIA; HTA's breakdowns need kernels that name a stream, which three micro-benchmarks do not. That counts as no
  answer.
- Two things were changed after a first run, both in HTA's favour: with pandas 3, which pip takes today, it ended with
  an error on five more of the first 60 files, so it runs with pandas 2; and its longest *kernel* of one was a copy.
- Files of Nsight Systems, rocpd and XPlane are labelled as well and left out: the two reports here read none of them.
- Twins and successive commits of one program count one each: the intervals are too narrow by that.

## Where another tool is better

{better}

## Time and memory

{costs}

Time is CPU time, user and system, of all threads and processes from the start to the end, imports included:
the machine was also doing other work. It favours the two others where torchtriage uses both cores. Peak memory is the
resident peak of the process and those it started. What takes over 120 s is stopped, and is not in the sums.

## The rule

{rule}

## Labels that contradicted each other

Two label files of the project did not agree on eight recordings. Each was settled by its raw rows before this page was
made (`benchmarks/proof_settled.toml`):

{settled}

## Every recording

| recording | expert | ours first | HTA | TraceLens | s: ours / HTA / TraceLens | MB |
|:--|:--|:--|:--|:--|--:|--:|
{rows}

```console
$ python benchmarks/proof.py --hta-python ../hta/bin/python --tracelens-python ../tracelens/bin/python
```
"""


# -- the command --------------------------------------------------------------------------------


def stored() -> dict[str, Any]:
    """Return what was measured up to now, by this or another call."""
    return json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {"recordings": {}}  # type: ignore[no-any-return]


def main() -> None:
    """Measure what is not measured yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta-python", help="a Python that has HTA (traceinsight)")
    parser.add_argument("--tracelens-python", help="a Python that has TraceLens, from a clone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long; the next call goes on")
    parser.add_argument("--again", action="store_true", help="measure all again")
    parser.add_argument("--page", action="store_true", help="only write the page of what was measured")
    given = parser.parse_args()
    if given.again:
        STORE.unlink(missing_ok=True)
    if not given.page:
        if not (given.hta_python and given.tracelens_python):
            parser.error("expected --hta-python and --tracelens-python, or --page")
        pythons = dict(zip(TOOLS, (sys.executable, given.hta_python, given.tracelens_python), strict=True))
        about = {
            "versions": {tool: version(tool, python) for tool, python in pythons.items()},
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d"),
        }
        end_s = time.monotonic() + given.minutes * 60
        todo = sorted(labels(), key=lambda label: sum(one.stat().st_size for one in files(DATA / label.name)))
        for index, label in enumerate(todo):
            if label.name in stored()["recordings"]:
                continue
            if time.monotonic() > end_s:
                print(f"stopped before {label.name}: {len(todo) - index} to go", file=sys.stderr)
                break
            found = {tool: measure(tool, pythons[tool], DATA / label.name) for tool in rotated(index)}
            print(label.name, {tool: found[tool]["s"] for tool in TOOLS}, file=sys.stderr)
            store = about | {"recordings": stored()["recordings"] | {label.name: found}}
            STORE.write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(stored()), encoding="utf-8")


if __name__ == "__main__":
    main()
