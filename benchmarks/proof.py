"""What an expert, our report and two public tools say of the same recordings, and how long they take: docs/proof.md.

    python benchmarks/proof.py --hta-python ../hta/bin/python --tracelens-python ../tracelens/bin/python

reads the shared recordings (``../shared/data``, or where TORCHTRIAGE_DATA points), runs each tool on each of them in a
process of its own, one after the other, and writes ``benchmarks/proof.json`` and the page. What the first file holds is
not measured again (``--again`` does), ``--page`` alone writes the page. The tools live in environments of their own:
``pip install traceinsight`` in one, a clone of AMD-AGI/TraceLens in the other.

What a tool says of a recording, and when that names the cause, is decided here and was written down before the tools
were run: see RULE.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from loading import descendants, peaks, read_through

from torchtriage.api.catalogue import pages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("TORCHTRIAGE_DATA", ROOT.parent / "shared" / "data"))
STORE = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "proof.md"
LIMIT_S = 120
TOOLS = ("torchtriage", "HTA", "TraceLens")

RULE = """\
HTA and TraceLens publish numbers, no causes. What they *say* is therefore taken as favourably as a rule allows:

- Each splits the device's time into *host* (idle), *communication*, *copies* and *kernels*, and the largest part is what
  it says. HTA: idle time of the temporal breakdown, which is *host* where the idle-time breakdown's largest class is
  host wait, and the kernel breakdown's sums by type. TraceLens: idle, exposed communication, exposed copies and
  computation of the report's `gpu_timeline`. Ranks of a job are added up.
- Where the largest part is kernels, it also says the name of the largest: HTA's longest kernel, TraceLens' largest
  operator category and its largest operator (of a trace without operators, the longest kernel).
- It **names the cause** where its part is that of a cause which the expert accepts; of a cause in kernels, one of its
  names must fit as well (products or convolutions for single precision and odd sizes, attention or softmax or products
  for unfused attention, element-wise kernels for unfused chains, copies for casts, transposes for layout conversions,
  normalisations for train mode; any for kernels far below their roof or too few blocks).
- On a healthy recording, *kernels* is right: it is as good as saying nothing.
- A tool that ends with an error or needs more than 120 s says nothing. One of HTA's analyses may fail alone; the others
  then count.

torchtriage is held to the expert's codes: its first finding that is more than a note. **Right** is a code that the expert
accepts, or no finding where none is needed; **second** is right as the second finding; **another** is a finding that the
expert did not put first. For comparison with the other two the column *part* judges it as coarsely as them, and more
strictly in one point: in kernels only an accepted code counts."""

HOST, COMMUNICATION, COPIES, KERNELS = "host", "communication", "copies", "kernels"
FITTING = {
    "KRN022": r"gemm|conv|cutlass|aten::(mm|addmm|bmm|linear)|winograd|[dw]grad",
    "KRN023": r"gemm|conv|cutlass|aten::(mm|addmm|bmm|linear)|winograd|[dw]grad",
    "KRN025": r"sdpa|attention|softmax|gemm|bmm",
    "KRN026": r"norm|bn_",
    "CFG042": r"norm|bn_|dropout",
    "CPY011": r"nchw|nhwc|transpose|layout",
    "CPY012": r"copy|cast|aten::to$",
    "CPY013": r"copy",
    "LCH015": r"elementwise|reduce|norm|copy|softmax",
    "KRN024": r"",
    "KRN056": r"",
}
"""What a name must hold to fit a cause that lies in kernels."""

HTA = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
files = dict(enumerate(sys.argv[1:]))
analysis = TraceAnalysis(trace_files=files, include_last_profiler_step=True)
out = {"errors": {}}
def tried(name, call):
    try:
        out[name] = call()
    except Exception as error:
        out["errors"][name] = f"{type(error).__name__}: {error}"[:120]
tried("temporal", lambda: analysis.get_temporal_breakdown(visualize=False).to_dict("records"))
tried("idle", lambda: analysis.get_idle_time_breakdown(ranks=list(files), visualize=False)[0].to_dict("records"))
def kernels():
    types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    out["types"] = types.to_dict("records")
    kernels = kernels[kernels["name"] != "others"]
    return kernels.groupby("name")["sum (us)"].sum().sort_values().tail(1).to_dict()
tried("kernels", kernels)
print("\\n" + json.dumps(out, default=float))
"""
TRACELENS = """
import json, sys, tempfile, warnings
warnings.filterwarnings("ignore")
from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
reports = []
for file in sys.argv[1:]:
    with tempfile.TemporaryDirectory() as folder:
        sheets = generate_perf_report_pytorch(file, output_csvs_dir=folder, kernel_summary=True)
    def largest(sheet, name):
        frame = sheets.get(sheet)
        column = "total_direct_kernel_time_ms"
        return {} if frame is None or name not in frame or column not in frame else dict(zip(frame[name], frame[column]))
    kernels = sheets.get("kernel_summary")
    reports.append({
        "timeline": dict(zip(sheets["gpu_timeline"]["type"], sheets["gpu_timeline"]["time ms"])),
        "categories": largest("ops_summary_by_category", "op category"),
        "operators": largest("ops_summary", "name"),
        "kernel": None if kernels is None or kernels.empty else str(kernels.iloc[0]["Kernel name"]),
    })
print("\\n" + json.dumps(reports, default=float))
"""
VERSIONS = {
    "HTA": "from importlib.metadata import version; print('traceinsight', version('traceinsight'))",
    "TraceLens": "import subprocess, TraceLens, os; print('commit', subprocess.check_output(['git', '-C', "
    "os.path.dirname(TraceLens.__file__), 'rev-parse', '--short=8', 'HEAD'], text=True).strip())",
}


@dataclass(frozen=True)
class Label:
    """What an expert puts first of a recording: any of ``causes``; nothing where ``quiet`` holds."""

    name: str
    ident: str
    causes: tuple[str, ...]
    quiet: bool
    judged: bool
    set: str

    @property
    def state(self) -> str:
        return "not judged" if not self.judged else "faulty" if self.causes else "healthy"


def labels() -> list[Label]:
    """Return the label of every recording of the PyTorch profiler that holds a device, in the order of the index.

    Of ``gpu2`` they are those of ``tests/expected/devices.toml``, of the others those of ``benchmarks/devices``.
    """
    blind = tomllib.loads((ROOT / "tests" / "expected" / "devices.toml").read_text(encoding="utf-8"))
    device = tomllib.loads((ROOT / "benchmarks" / "devices" / "labels.toml").read_text(encoding="utf-8"))
    found = []
    for ident, name in json.loads(STORE.with_name("proof_files.json").read_text(encoding="utf-8")).items():
        if name.startswith("gpu2/"):
            label = blind[name.removeprefix("gpu2/")]
            causes, quiet = tuple(label["first"]), label.get("none_ok", False) or not label["first"]
            judged = device[ident]["state"] != "cannot be judged" or not quiet
            found.append(Label(name, ident, causes, quiet, judged, "gpu2"))
        else:
            faults = device[ident].get("faults", [])
            causes = (faults[0]["code"], *faults[0].get("or", ())) if faults else ()
            judged = device[ident]["state"] != "cannot be judged"
            found.append(Label(name, ident, causes, not causes, judged, "traces"))
    return found


def part(code: str) -> str:
    """Return the part of the device's time in which a cause lies."""
    if code.startswith("COM"):
        return COMMUNICATION
    if code in FITTING:
        return KERNELS
    return COPIES if code.startswith("CPY") else HOST


# -- running ------------------------------------------------------------------------------------


def files(path: Path) -> list[Path]:
    """Return a recording's files, one for each rank."""
    if path.is_file():
        return [path]
    return sorted(path.glob("*.json.gz"), key=lambda one: [int(part) for part in re.findall(r"\d+", one.name)])


def measure(tool: str, python: str, path: Path) -> dict[str, Any]:
    """Run a tool on a recording in a process of its own: what it printed, its time, its peak memory."""
    ranks = files(path)
    for one in ranks:
        read_through(one)
    if tool == "torchtriage":
        command = [python, "-m", "torchtriage", "analyze", str(path), "--json", "-q"]
    else:
        command = [python, "-c", HTA if tool == "HTA" else TRACELENS, *map(str, ranks)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        began_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=complaints, cwd=tempfile.gettempdir())
        peak_bytes: dict[int, int] = {}
        while process.poll() is None:
            peak_bytes |= peaks([process.pid, *descendants(process.pid)])
            if time.perf_counter() - began_s > LIMIT_S:
                process.kill()
            time.sleep(0.01)
        took_s = time.perf_counter() - began_s
        found: dict[str, Any] = {"s": round(took_s, 2), "mb": round(sum(peak_bytes.values()) / 1e6)}
        output.seek(0)
        complaints.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
        lines = complaints.read().decode(errors="replace").strip().splitlines()
    if took_s > LIMIT_S:
        return {**found, "failure": f"more than {LIMIT_S} s"}
    try:
        document = json.loads(said[-1] if tool != "torchtriage" else "\n".join(said))
    except (ValueError, IndexError):
        return {**found, "failure": (lines or ["nothing printed"])[-1][:120]}
    return {**found, "says": READERS[tool](document)}


def _ours(document: Mapping[str, Any]) -> dict[str, Any]:
    judged = [*document["jobs"], *document["results"]]
    found = [one["code"] for one in judged[0]["findings"] if one["severity"] != "note"] if judged else []
    return {"findings": found[:3]}


def _hta(document: Mapping[str, Any]) -> dict[str, Any]:
    kinds: Counter[str] = Counter()
    for row in document.get("types", ()):
        kinds[row["kernel_type"]] += row["sum"]
    parts = {KERNELS: kinds["COMPUTATION"], COMMUNICATION: kinds["COMMUNICATION"], COPIES: kinds["MEMORY"]}
    waits: Counter[str] = Counter()
    streams: dict[tuple[int, int], float] = {}
    for row in document.get("idle", ()):
        waits[row["idle_category"]] += row["idle_time"]
        stream = (row["rank"], row["stream"])
        streams[stream] = streams.get(stream, 0) + row["idle_time"]
    if "temporal" in document:
        idle = sum(row["idle_time(us)"] for row in document["temporal"])
    else:  # a device is never idle for longer than its busiest stream
        ranks = {rank for rank, _ in streams}
        idle = sum(min(idle for (one, _), idle in streams.items() if one == rank) for rank in ranks)
    wait = max(waits, key=waits.__getitem__, default="host_wait")
    parts[HOST if wait == "host_wait" else f"idle ({wait.replace('_', ' ')})"] = idle
    return {"parts": parts, "names": [name[:300] for name in document.get("kernels", ())], "errors": document["errors"]}


def _tracelens(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Counter[str]] = {key: Counter() for key in ("timeline", "categories", "operators")}
    for report in reports:
        for key, counter in sums.items():
            counter.update(report[key])
    timeline = sums["timeline"]
    parts = {
        KERNELS: timeline["computation_time"],
        COMMUNICATION: timeline["exposed_comm_time"],
        COPIES: timeline["exposed_memcpy_time"],
        HOST: timeline["idle_time"],
    }
    names = [name for key in ("categories", "operators") for name, _ in sums[key].most_common(1)]
    return {"parts": parts, "names": names or [report["kernel"][:300] for report in reports if report["kernel"]][:1]}


READERS = {"torchtriage": _ours, "HTA": _hta, "TraceLens": _tracelens}


# -- judging ------------------------------------------------------------------------------------


def largest(says: Mapping[str, Any]) -> tuple[str, float]:
    """Return the largest part of the device's time, and its share."""
    parts = says["parts"]
    most = max(parts, key=parts.__getitem__)
    return most, parts[most] / (sum(parts.values()) or 1)


def names_cause(label: Label, measured: Mapping[str, Any]) -> bool:
    """Say whether what a peer says names a cause that the expert accepts: RULE."""
    says = measured.get("says")
    if says is None or not any(says["parts"].values()):
        return False
    most, _ = largest(says)
    if most == KERNELS and label.quiet:
        return True
    return any(
        part(code) == most
        and (most != KERNELS or any(re.search(FITTING[code], name, re.IGNORECASE) for name in says["names"]))
        for code in label.causes
    )


def ours(label: Label, measured: Mapping[str, Any]) -> str:
    """Return ``right``, ``second``, ``another`` or ``quiet``: how our report puts the expert's cause."""
    found = measured.get("says", {}).get("findings", [])
    if not found:
        return "right" if label.quiet else "quiet"
    if found[0] in label.causes:
        return "right"
    return "second" if set(found[1:2]) & set(label.causes) else "another"


def ours_in_part(label: Label, measured: Mapping[str, Any]) -> bool:
    """Judge our first finding as coarsely as a peer's largest part."""
    found = measured.get("says", {}).get("findings", [])
    if ours(label, measured) == "right":
        return True
    return bool(found) and part(found[0]) != KERNELS and part(found[0]) in {part(code) for code in label.causes}


def wilson(right: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    z, share = 1.96, right / of
    middle, spread = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - spread) / (1 + z * z / of), (middle + spread) / (1 + z * z / of)


# -- the page -----------------------------------------------------------------------------------

TITLES = {page.code: page.name for page in pages() if page.part == "trace"}


def page(store: Mapping[str, Any]) -> str:
    """Return the page of what was measured."""
    measured: Mapping[str, Any] = store["recordings"]
    known = [label for label in labels() if label.name in measured]
    return PAGE_TEXT.format(
        n=len(known),
        machine=store["machine"],
        date=store["date"],
        hta=store["versions"]["HTA"],
        tracelens=store["versions"]["TraceLens"],
        version=store["versions"]["torchtriage"],
        n_unjudged=sum(not label.judged for label in known),
        totals=_totals(known, measured),
        better=_better(known, measured),
        costs=_costs(known, measured),
        rule=RULE,
        settled=SETTLED,
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
    for label in known:
        found = measured[label.name]
        right = [tool for tool in TOOLS[1:] if names_cause(label, found[tool])]
        if label.judged and right and not ours_in_part(label, found["torchtriage"]):
            said = "; ".join(f"{tool} says {_peer(found[tool])}" for tool in right)
            lines.append(f"- `{_short(label.name)}`: {said}; ours first: {_first(found['torchtriage'])}.")
    return "\n".join(lines) or "On none of these recordings."


def _costs(known: Sequence[Label], measured: Mapping[str, Any]) -> str:
    alike = [one for one in known if all("says" in measured[one.name][tool] for tool in TOOLS)]
    lines = []
    for tool in TOOLS:
        all_of = [measured[one.name][tool] for one in known]
        some = [measured[one.name][tool] for one in alike]
        failed = sum("failure" in one and "more than" not in one["failure"] for one in all_of)
        slow = sum("more than" in one.get("failure", "") for one in all_of)
        lines.append(
            f"| {tool} | {median(one['s'] for one in some):.2f} | {sum(one['s'] for one in some):,.0f} "
            f"| {max(one['s'] for one in some):.1f} | {median(one['mb'] for one in some):,.0f} "
            f"| {max(one['mb'] for one in some):,} | {failed} | {slow} |"
        )
    return f"Of the {len(alike)} recordings that all three finished:\n\n" + COST_HEAD + "\n".join(lines)


COST_HEAD = """\
| tool | median, s | sum, s | longest, s | median peak, MB | largest peak, MB | errors (of all) | over 120 s (of all) |
|:--|--:|--:|--:|--:|--:|--:|--:|
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
    bare = re.sub(r"<.*|\(.*|^void ", "", name).split("::")[-1].replace("|", "")
    return bare if len(bare) <= 28 else bare[:27] + "…"


SETTLED = ""
PAGE_TEXT = ""


# -- the command --------------------------------------------------------------------------------


def machine() -> str:
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    name = model[1].strip() if model else platform.processor()
    return f"{os.cpu_count()} cores ({name}), {platform.system()}, Python {platform.python_version()}"


def version(tool: str, python: str) -> str:
    if tool == "torchtriage":
        from torchtriage import __version__

        return __version__
    return subprocess.check_output([python, "-c", VERSIONS[tool]], text=True, stderr=subprocess.DEVNULL).strip()


def rotated(index: int) -> Iterator[str]:
    """Yield the tools in turn, so that none is always the first."""
    for step in range(len(TOOLS)):
        yield TOOLS[(index + step) % len(TOOLS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta-python", help="a Python that has HTA (traceinsight)")
    parser.add_argument("--tracelens-python", help="a Python that has TraceLens, from a clone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long; the next call goes on")
    parser.add_argument("--again", action="store_true", help="measure all again")
    parser.add_argument("--page", action="store_true", help="only write the page of what was measured")
    given = parser.parse_args()
    store = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() and not given.again else {"recordings": {}}
    if not given.page:
        if not (given.hta_python and given.tracelens_python):
            parser.error("expected --hta-python and --tracelens-python, or --page")
        pythons = dict(zip(TOOLS, (sys.executable, given.hta_python, given.tracelens_python), strict=True))
        store |= {
            "versions": {tool: version(tool, python) for tool, python in pythons.items()},
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d"),
        }
        end_s = time.monotonic() + given.minutes * 60
        todo = sorted(labels(), key=lambda label: sum(one.stat().st_size for one in files(DATA / label.name)))
        for index, label in enumerate(todo):
            if label.name in store["recordings"]:
                continue
            if time.monotonic() > end_s:
                print(f"stopped before {label.name}: {len(todo) - index} to go", file=sys.stderr)
                break
            found = {tool: measure(tool, pythons[tool], DATA / label.name) for tool in rotated(index)}
            store["recordings"][label.name] = found
            STORE.write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")
            print(label.name, {tool: found[tool]["s"] for tool in TOOLS}, file=sys.stderr)
    PAGE.write_text(page(store), encoding="utf-8")


if __name__ == "__main__":
    main()
