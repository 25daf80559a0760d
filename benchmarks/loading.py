"""Time and peak memory of reading a trace, next to other readers, in one interleaved run.

Every measurement is a fresh process, so that no reader inherits another's heap; the file is in the
page cache and the reader's own import is done before the clock starts. Rounds alternate in order,
so that a machine that slows down slows everybody. Runs on Linux (memory is read from /proc).

    python benchmarks/loading.py                      # the two largest shared traces and 1 GB
    python benchmarks/loading.py --hta-python /opt/hta/bin/python \
        --tracelens-python /opt/tracelens/bin/python --rounds 3 --json loading.json
    python benchmarks/loading.py --scale              # 50 thousand to 5 million events

The peers live in environments of their own: `pip install HolisticTraceAnalysis 'pandas<3'` in one,
`pip install git+https://github.com/AMD-AGI/TraceLens` in the other. A reader that is not there is
shown as not measured. The synthetic traces come from make_large_trace.py and stay in --work.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import make_large_trace

LOAD, PYTHON_LOAD = "torchtriage load", "torchtriage load, Python engine"
SCALE_EVENTS = (50_000, 150_000, 500_000, 1_500_000, 5_000_000)
INFLATE = "inflating alone (isal)"
POLL_S = 0.02

WORKER = """
import json, resource, sys, time
path, report = sys.argv[1:]
{setup}
start = time.perf_counter()
result = {call}
seconds = time.perf_counter() - start
with open("/proc/self/status") as status:
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
cpu = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
with open(report, "w") as file:
    json.dump(dict(
        seconds=seconds,
        cpu_seconds=sum(use.ru_utime + use.ru_stime for use in cpu),
        peak_bytes=peak_kib * 1024,
        events=int({events}),
        version={version},
    ), file)
"""


@dataclass(frozen=True)
class Reader:
    """A way to read a trace: what is imported, what is timed, how many events it then holds."""

    name: str
    python: str | None
    setup: str
    call: str
    events: str
    version: str

    @property
    def program(self) -> str:
        """The program a measuring process runs."""
        return WORKER.format(setup=self.setup, call=self.call, events=self.events, version=self.version)


@dataclass(frozen=True)
class Measurement:
    """One process' wall and CPU seconds and peak resident bytes, or why there is none.

    `seconds` is the timed call alone; `cpu_seconds` and `peak_bytes` are the whole process, imports
    included. `peak_bytes` adds up the peaks of the process and of all its children, which is an
    upper bound where they share pages.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    events: int = 0
    version: str = ""
    load_average: float = 0.0
    failure: str = ""


def readers(hta_python: str | None, tracelens_python: str | None) -> list[Reader]:
    """Return every reader compared, ours first; `python` is None where one is not installed."""

    def here(module: str) -> str | None:
        return sys.executable if importlib.util.find_spec(module) else None

    def columns(name: str, n_threads: int) -> Reader:
        return Reader(
            name,
            here("torchtriage"),
            "from torchtriage import __version__\nfrom torchtriage.core.trace import read_trace",
            f"read_trace(path, processes={n_threads})",
            "result.report.n_events",
            "__version__",
        )

    def ours(name: str, engine: str) -> Reader:
        return Reader(
            name,
            here("torchtriage"),
            f"import os\nos.environ['TORCHTRIAGE_READER'] = {engine!r}\n"
            "from torchtriage import __version__, load\n"
            "def load_all():\n"
            "    trace = load(path)\n"
            "    trace.tree, trace.frames, trace.links\n"  # each is made when first asked for
            "    return trace",
            "load_all()",
            "result.report.n_events",
            "__version__",
        )

    return [
        ours(LOAD, "native"),
        ours(PYTHON_LOAD, "python"),
        Reader(
            "torchtriage analyze",
            here("torchtriage"),
            "from torchtriage import __version__, analyze",
            "analyze(path)",
            "0",
            "__version__",
        ),
        Reader(
            "torchtriage analyze, within 256 MiB",
            here("torchtriage"),
            "from torchtriage import __version__, analyze",
            "analyze(path, max_memory=256 << 20)",
            "0",
            "__version__",
        ),
        columns("torchtriage columns, one thread", 1),
        columns("torchtriage columns, two threads", 2),
        Reader(
            "HTA TraceAnalysis",
            hta_python,
            "from importlib.metadata import version\nfrom hta.trace_analysis import TraceAnalysis",
            "TraceAnalysis(trace_files={0: path})",
            "len(result.t.get_trace(0))",
            "version('HolisticTraceAnalysis') + ', pandas ' + version('pandas')",
        ),
        Reader(
            "TraceLens from_file",
            tracelens_python,
            "from importlib.metadata import version\nfrom TraceLens import TreePerfAnalyzer",
            "TreePerfAnalyzer.from_file(path)",
            "len(result.tree.events)",
            "version('TraceLens')",
        ),
        Reader(
            "orjson.loads alone",
            here("orjson") or tracelens_python,
            "import gzip, orjson\n"
            "def read():\n"
            "    with (gzip.open if path.endswith('.gz') else open)(path, 'rb') as file:\n"
            "        return file.read()",
            "orjson.loads(read())",
            "len(result['traceEvents'])",
            "orjson.__version__",
        ),
        Reader(
            INFLATE,
            here("isal"),
            "from isal import igzip\n"
            "def inflate():\n"
            "    room = bytearray(1 << 20)\n"
            "    with igzip.open(path, 'rb') as file:\n"
            "        while file.readinto(room): pass",
            "inflate()",
            "0",
            "''",
        ),
        Reader(
            "bare read()",
            sys.executable,
            "def read():\n    with open(path, 'rb') as file:\n        return file.read()",
            "read()",
            "0",
            "''",
        ),
    ]


def measure(reader: Reader, path: Path) -> Measurement:
    """Read `path` with `reader` in a process of its own."""
    if reader.python is None:
        return Measurement(failure="not measured")
    read_through(path)
    with tempfile.TemporaryDirectory() as folder:
        report, complaint = Path(folder, "report"), Path(folder, "stderr")
        with complaint.open("wb") as stderr:
            process = subprocess.Popen(
                [reader.python, "-c", reader.program, str(path), str(report)], stdout=subprocess.DEVNULL, stderr=stderr
            )
            children: dict[int, int] = {}
            while process.poll() is None:
                children |= peaks(descendants(process.pid))
                time.sleep(POLL_S)
        if process.returncode or not report.exists():
            lines = complaint.read_text(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"exit status {process.returncode}"
            return Measurement(failure=f"failed: {reason[:120]}")
        found = json.loads(report.read_text())
    found["peak_bytes"] += sum(children.values())
    return Measurement(**found, load_average=os.getloadavg()[0])


def read_through(path: Path) -> None:
    """Bring `path` into the page cache."""
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def descendants(pid: int) -> list[int]:
    """Return the processes `pid` and its threads have started, and theirs."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            started = [int(child) for child in children.read_text().split()]
        except OSError:  # the thread has ended
            continue
        for child in started:
            found += [child, *descendants(child)]
    return found


def peaks(pids: list[int]) -> dict[int, int]:
    """Return the peak resident bytes of each process that still runs."""
    found = {}
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        if peak:
            found[pid] = int(peak.group(1)) * 1024
    return found


def interleaved(readers: list[Reader], paths: list[Path], rounds: int) -> dict[Path, dict[str, list[Measurement]]]:
    """Measure every reader on every file, `rounds` times, every other round in reversed order.

    Peers read plain files only: of ours alone something is promised for compressed ones.
    """
    jobs = [
        (path, reader)
        for path in paths
        for reader in readers
        if reader.name.startswith("torchtriage") or (path.suffix == ".gz") == (reader.name == INFLATE)
    ]
    results: dict[Path, dict[str, list[Measurement]]] = {path: {} for path in paths}
    for number in range(rounds):
        for path, reader in jobs if number % 2 == 0 else reversed(jobs):
            result = measure(reader, path)
            results[path].setdefault(reader.name, []).append(result)
            said = result.failure or f"{result.seconds:.2f} s, {result.peak_bytes / 1e6:,.0f} MB"
            print(f"round {number + 1}: {path.name}: {reader.name}: {said}", file=sys.stderr)
    return results


def middle(runs: list[Measurement]) -> Measurement:
    """Return the median of every figure, or the first failure: a reader must never fail."""
    failed = [run for run in runs if run.failure]
    if failed:
        return failed[0]
    return Measurement(
        seconds=statistics.median(run.seconds for run in runs),
        cpu_seconds=statistics.median(run.cpu_seconds for run in runs),
        peak_bytes=int(statistics.median(run.peak_bytes for run in runs)),
        events=runs[0].events,
        version=runs[0].version,
        load_average=max(run.load_average for run in runs),
    )


def table(path: Path, raw_bytes: int, runs: dict[str, list[Measurement]]) -> str:
    """Return the Markdown table of one file, each reader beside `torchtriage load`."""
    ours = middle(runs[LOAD])
    rows = [
        f"### {path.name}: {raw_bytes / 1e6:,.1f} MB of JSON\n",
        "| reader | wall s | x load | MB/s | CPU s | peak MB | x load | peak / raw | events held |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, all_runs in runs.items():
        run = middle(all_runs)
        if run.failure:
            rows.append(f"| {name} | {run.failure} | | | | | | | |")
            continue
        times = f"{run.seconds / ours.seconds:.1f}" if ours.seconds else "-"
        peak = f"{run.peak_bytes / ours.peak_bytes:.1f}" if ours.peak_bytes else "-"
        rows.append(
            f"| {name} | {run.seconds:.2f} | {times} | {raw_bytes / run.seconds / 1e6:,.0f} "
            f"| {run.cpu_seconds:.2f} | {run.peak_bytes / 1e6:,.0f} | {peak} "
            f"| {run.peak_bytes / raw_bytes:.2f} | {f'{run.events:,}' if run.events else '-'} |"
        )
    return "\n".join(rows)


def targets(raw_bytes: int, plain: dict[str, list[Measurement]], packed: dict[str, list[Measurement]]) -> str:
    """Return what is promised of one trace beside what was measured of its two forms."""
    large = raw_bytes >= 900_000_000
    megabytes = raw_bytes / 1e6
    peers = ("HTA TraceAnalysis", "TraceLens from_file", "orjson.loads alone")
    promises: dict[str, tuple[tuple[float, ...], float, float]] = {
        # times faster than each peer, peak MB at most, time from .gz at most
        LOAD: ((90, 40, 19) if large else (50, 27, 8), 64 + 0.2 * megabytes, 1.3),
        PYTHON_LOAD: ((15, 7) if large else (8, 5), 0.65 * megabytes + 60, 1.3),
    }
    checks: list[tuple[str, float, float, str]] = []
    for name, (faster, peak, gzip_ratio) in promises.items():
        load, from_gzip = middle(plain[name]), middle(packed[name])
        if load.failure:
            continue
        for peer, limit in zip(peers, faster, strict=False):
            run = middle(plain[peer])
            if not run.failure:
                checks.append((f"{peer}, time / {name}", run.seconds / load.seconds, limit, "min"))
            if not run.failure and peer != "orjson.loads alone":
                ratio = run.peak_bytes / load.peak_bytes
                checks.append((f"{peer}, peak / {name}", ratio, 8, "min"))
        checks.append((f"{name}, peak MB", load.peak_bytes / 1e6, peak, "max"))
        if not from_gzip.failure:
            ratio = from_gzip.seconds / load.seconds
            checks.append((f"{name}, .gz / plain", ratio, gzip_ratio, "max"))
    analyze, load = middle(plain["torchtriage analyze"]), middle(plain[LOAD])
    if not analyze.failure and not load.failure:
        checks.append(("analyze / load", analyze.seconds / load.seconds, 2.0, "max"))
    rows = ["| target | measured | promised | |", "|---|--:|--:|---|"]
    for what, value, limit, kind in checks:
        met = value >= limit if kind == "min" else value <= limit
        sign = ">=" if kind == "min" else "<="
        rows.append(f"| {what} | {value:.1f} | {sign} {limit:.1f} | {'met' if met else 'MISSED'} |")
    return "\n".join(rows)


def growth(runs: dict[Path, dict[str, list[Measurement]]], n_events: dict[Path, int]) -> str:
    """Return the Markdown table of time and memory against the number of events."""
    names = list(next(iter(runs.values())))
    medians = {name: {path: middle(runs[path][name]) for path in runs} for name in names}
    rows = [
        "| events | MB |" + "".join(f" {name} s | peak MB |" for name in names),
        "|--:|--:|" + "--:|--:|" * len(names),
    ]
    for path, count in n_events.items():
        cells = [f"| {count:,} | {path.stat().st_size / 1e6:,.0f} |"]
        for name in names:
            run = medians[name][path]
            cells.append(
                f" {run.failure} | |" if run.failure else f" {run.seconds:.2f} | {run.peak_bytes / 1e6:,.0f} |"
            )
        rows.append("".join(cells))
    counts = list(n_events.values())
    log_counts = [math.log(count) for count in counts]
    for name in names:
        found = [medians[name][path] for path in n_events]
        if any(run.failure for run in found):
            continue
        log_seconds = [math.log(run.seconds) for run in found]
        slope = statistics.linear_regression(log_counts, log_seconds).slope
        last = (log_seconds[-1] - log_seconds[-2]) / (log_counts[-1] - log_counts[-2])
        memory = statistics.linear_regression(counts, [run.peak_bytes for run in found])
        rows.append(
            f"\n{name}: time grows as events^{slope:.2f} (last two sizes: {last:.2f}); peak memory "
            f"{memory.slope:.0f} B per event + {memory.intercept / 1e6:.0f} MB"
        )
    return "\n".join(rows)


def largest_shared(count: int) -> list[Path]:
    """Return the shared recordings with the most JSON text, largest first."""

    def raw_size(path: Path) -> int:
        with path.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            return int.from_bytes(file.read(), "little")  # gzip ends with the size mod 2**32

    traces = make_large_trace.DATA.glob("traces/**/*.json.gz")
    whole = [path for path in traces if path.parent.name != "odd"]  # those have no true size
    return sorted(whole, key=raw_size, reverse=True)[:count]


def made(path: Path, make: Callable[[Path], object]) -> Path:
    """Return `path`, calling `make` first where it does not exist; never leaves half a file."""
    if not path.exists():
        print(f"making {path}", file=sys.stderr)
        half = path.with_name(f"half-{path.name}")
        try:
            make(half)
            half.rename(path)
        finally:
            half.unlink(missing_ok=True)
    return path


def both_forms(path: Path, work: Path) -> tuple[Path, Path]:
    """Return `path` as plain JSON and as gzip, making in `work` the one it is not."""

    def unpack(out: Path) -> None:
        with gzip.open(path) as source, out.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)

    def pack(out: Path) -> None:
        with path.open("rb") as source, make_large_trace.open_for_writing(out) as target:
            shutil.copyfileobj(source, target, 1 << 20)

    if path.suffix == ".gz":
        return made(work / path.stem, unpack), path
    return path, made(work / f"{path.name}.gz", pack)


def synthetic(work: Path, base: Path, *, n_events: int = 0, gigabytes: float = 0) -> Path:
    """Return the synthetic trace of that size, making it in `work` where it does not exist."""
    size = f"{gigabytes:g}GB" if gigabytes else f"{n_events}-events"
    return made(
        work / f"{base.name.partition('.')[0]}-{size}.json",
        lambda out: make_large_trace.make(out, base=base, n_events=n_events, n_bytes=int(gigabytes * 1e9)),
    )


def count_events(path: Path) -> int:
    """Return how many events the plain trace at `path` holds, by their phase key."""
    with path.open("rb") as file:
        return sum(line.count(b'"ph":') for line in file)


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    models = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="default: the two largest shared ones")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the synthetic trace (%(default)s)")
    parser.add_argument("--scale", action="store_true", help="growth with events, ours alone")
    parser.add_argument("--base", type=Path, default=make_large_trace.BASE, help="what synthetic traces repeat")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--hta-python", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--tracelens-python", help="a Python that has AMD's TraceLens")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "torchtriage-benchmarks"))
    parser.add_argument("--json", type=Path, help="write every measurement here")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    compared = readers(args.hta_python, args.tracelens_python)

    if args.scale:
        ours = [reader for reader in compared if reader.name.startswith("torchtriage")]
        paths = [synthetic(args.work, args.base, n_events=size) for size in SCALE_EVENTS]
        runs = interleaved(ours, paths, args.rounds)
        print(growth(runs, {path: count_events(path) for path in paths}))
    else:
        traces = args.traces or largest_shared(2)
        forms = [both_forms(path, args.work) for path in traces]
        if args.gigabytes:
            large = synthetic(args.work, args.base, gigabytes=args.gigabytes)
            forms.append(both_forms(large, args.work))
        runs = interleaved(compared, [path for pair in forms for path in pair], args.rounds)
        for plain, packed in forms:
            raw_bytes = plain.stat().st_size
            print(f"## {plain.name}: {count_events(plain):,} events\n")
            print(table(plain, raw_bytes, runs[plain]), "\n")
            print(table(packed, raw_bytes, runs[packed]), "\n")
            print(targets(raw_bytes, runs[plain], runs[packed]), "\n")

    if args.json:
        document = {
            "machine": machine(),
            "rounds": args.rounds,
            "files": [
                {
                    "name": path.name,
                    "size_bytes": path.stat().st_size,
                    "readers": {name: [asdict(run) for run in all_runs] for name, all_runs in found.items()},
                }
                for path, found in runs.items()
            ],
        }
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
