"""What an expert, our report and two public tools say of a recording, and when that names the cause: see RULE.

HTA and TraceLens live in environments of their own and are run in processes of their own. The rule was written down
before they were run on the labelled recordings. ``proof.py`` runs all of it and writes the page.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loading import descendants, peaks, read_through

from torchtriage.core.toml import read_toml

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("TORCHTRIAGE_DATA", ROOT.parent / "shared" / "data"))
HERE = Path(__file__).parent
LIMIT_S = 120
TOOLS = ("torchtriage", "HTA", "TraceLens")

RULE = """\
HTA and TraceLens publish numbers, no causes. What they *say* is therefore taken as favourably as a rule allows:

- Each splits the device's time into *host* (idle), *communication*, *copies* and *kernels*, and says the largest part.
  HTA: idle time of the temporal breakdown, which is *host* where the idle-time breakdown's largest class is
  host wait, and the kernel breakdown's sums by type. TraceLens: idle, exposed communication, exposed copies and
  computation of the report's `gpu_timeline`. Ranks of a job are added up.
- Where the largest part is kernels, it also says the name of the largest: HTA's longest kernel of computation,
  TraceLens' largest operator category and its largest operator (of a trace without operators, the longest kernel).
- It **names the cause** where its part is that of a cause which the expert accepts; of a cause in kernels, one of its
  names must fit as well (products or convolutions for single precision and odd sizes, attention or softmax or products
  for unfused attention, element-wise kernels for unfused chains, copies for casts, transposes for layout conversions,
  normalisations for train mode; any for kernels far below their roof or too few blocks).
- On a healthy recording, *kernels* is right: it is as good as saying nothing.
- A tool that ends with an error or needs more than 120 s says nothing. One of HTA's analyses may fail alone; the others
  then count.

torchtriage is held to the expert's codes: its first finding that is more than a note. **Right** is a code that the
expert accepts, or no finding where none is needed; **second** is right as the second finding; **another** is a finding
that the expert did not put first; **quiet** is no finding where one is needed. The column *part* judges it as coarsely
as the other two, and more strictly in one point: in kernels only an accepted code counts."""

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
    kernels = kernels[(kernels["name"] != "others") & (kernels["kernel_type"] == "COMPUTATION")]
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
        known = frame is not None and name in frame and column in frame
        return dict(zip(frame[name], frame[column])) if known else {}
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
    "HTA": "from importlib.metadata import version; "
    'print(f\'traceinsight {version("traceinsight")}, pandas {version("pandas")}\')',
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


def labels() -> list[Label]:
    """Return the label of every recording of the PyTorch profiler that holds a device, in the order of the index.

    Of ``gpu2`` they are those of ``tests/expected/devices.toml``, of the others those of ``benchmarks/devices``, and
    of those that two label files contradicted what ``proof_settled.toml`` says.
    """
    blind = read_toml(ROOT / "tests" / "expected" / "devices.toml")
    device = read_toml(ROOT / "benchmarks" / "devices" / "labels.toml")
    found = []
    for ident, name in json.loads((HERE / "proof_files.json").read_text(encoding="utf-8")).items():
        if name.startswith("gpu2/"):
            label = blind[name.removeprefix("gpu2/")]
            causes, quiet = tuple(label["first"]), label.get("none_ok", False) or not label["first"]
            judged = device[ident]["state"] != "cannot be judged" or not quiet
            found.append(Label(name, ident, causes, quiet, judged, "gpu2"))
        else:
            faults = device[ident].get("faults", [])
            named = [faults[0]["code"], *faults[0].get("or", ())] if faults else []
            causes = tuple(settled().get(ident, {}).get("first", named))
            quiet = settled().get(ident, {}).get("none_ok", False) or not causes
            judged = device[ident]["state"] != "cannot be judged"
            found.append(Label(name, ident, causes, quiet, judged, "traces"))
    return found


def settled() -> dict[str, dict[str, Any]]:
    """Return what raw rows say of the recordings that two label files contradicted."""
    return read_toml(HERE / "proof_settled.toml")


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
    """Run a tool on a recording in a process of its own.

    Returns what it says, ``s`` of processor time (all its threads and processes), ``wall_s`` and ``mb`` at the peak.
    """
    ranks = files(path)
    for one in ranks:
        read_through(one)
    if tool == "torchtriage":
        command = [python, "-m", "torchtriage", "analyze", str(path), "--json", "-q"]
    else:
        command = [python, "-c", HTA if tool == "HTA" else TRACELENS, *map(str, ranks)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        before, began_s = _ended_s(), time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=complaints, cwd=tempfile.gettempdir())
        peak_bytes: dict[int, int] = {}
        while process.poll() is None:
            peak_bytes |= peaks([process.pid, *descendants(process.pid)])
            if _running_s(process.pid) > LIMIT_S:
                process.kill()
            time.sleep(0.01)
        took_s = _ended_s() - before
        found: dict[str, Any] = {
            "s": round(took_s, 2),
            "wall_s": round(time.perf_counter() - began_s, 2),
            "mb": round(sum(peak_bytes.values()) / 1e6),
        }
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


def _ended_s() -> float:
    """Return the processor time of all processes that this one waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _running_s(pid: int) -> float:
    """Return the processor time of a process that runs, and of those it waited for; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


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


def machine() -> str:
    """Return what all of it ran on."""
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    name = model[1].strip() if model else platform.processor()
    return f"{os.cpu_count()} cores ({name}), {platform.system()}, Python {platform.python_version()}"


def version(tool: str, python: str) -> str:
    """Return a tool's version as its environment knows it."""
    if tool == "torchtriage":
        from torchtriage import __version__

        return __version__
    return subprocess.check_output([python, "-c", VERSIONS[tool]], text=True, stderr=subprocess.DEVNULL).strip()


def rotated(index: int) -> Iterator[str]:
    """Yield the tools in turn, so that none is always the first."""
    for step in range(len(TOOLS)):
        yield TOOLS[(index + step) % len(TOOLS)]
