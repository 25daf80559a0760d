"""Reading compile logs beside tlparse, in turns: ``python benchmarks/compile_logs.py LOG``.

LOG is a structured log of any program; it is repeated, each copy with its own frame numbers, to
the sizes asked for. tlparse is taken from the path, or from ``--tlparse``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FRAME = re.compile(rb'("frame_id": )(\d+)')


def repeated(source: bytes, target: Path, size_bytes: int) -> None:
    """Write copies of a log until there are so many bytes."""
    n_frames = max((int(match[2]) for match in FRAME.finditer(source)), default=0) + 1
    with target.open("wb") as file:
        copy = 0
        while file.tell() < size_bytes:
            shift = copy * n_frames
            file.write(FRAME.sub(lambda m, by=shift: b"%s%d" % (m[1], int(m[2]) + by), source))
            copy += 1


def measured(command: list[str]) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds and peak megabytes of a command."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    wall_s = time.perf_counter() - begin
    return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)


def main() -> None:
    """Print one row for each size and tool: medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100], help="megabytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tlparse", default=shutil.which("tlparse"))
    given = parser.parse_args()
    source = given.log.read_bytes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, theirs, ours = folder / "large.log", folder / "theirs", folder / "ours.json"
        tools = {
            "torchtriage": ([sys.executable, "-m", "torchtriage", "compile", str(log), "--json", "-o", str(ours)], ours)
        }
        if given.tlparse:
            tools["tlparse"] = ([given.tlparse, str(log), "-o", str(theirs), "--overwrite", "--no-browser"], theirs)
        print(f"{'log':>8} {'tool':12} {'wall s':>8} {'CPU s':>8} {'peak MB':>8} {'output':>10}")
        for size in given.sizes:
            repeated(source, log, size * 1_000_000)
            rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in tools}
            for _ in range(given.rounds):
                for name, (command, _) in tools.items():
                    rows[name].append(measured(command))
            for name, (_, output) in tools.items():
                wall_s, cpu_s, peak_mb = map(statistics.median, zip(*rows[name], strict=True))
                kilobytes = size_of(output) // 1000
                print(f"{size:>5} MB {name:12} {wall_s:8.2f} {cpu_s:8.2f} {peak_mb:8.0f} {kilobytes:>7} kB")


if __name__ == "__main__":
    main()
