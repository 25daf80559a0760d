"""Time and memory of the driver against the number of ranks.

    python benchmarks/rank_scale.py FOLDER... [--engine ray]
    python benchmarks/rank_scale.py TRACE --copies 4 8 16 [--engine ray]

Each job is analysed in a fresh process, which says how many seconds of processors the workers and the driver took, and
how much memory the driver had at most. ``--copies`` : one rank's recording stands for so many ranks, with each one's
number. At the end the slopes of time and memory against ranks, both logarithmic, and what 1,000 ranks would take on 16
nodes: ranks shared out evenly over their processors, each as fast as these, the driver's part after them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

N_NODES, CORES_PER_NODE = 16, 32
N_PROCESSES = 2


def copies(trace: Path, n: int, folder: Path) -> list[str]:
    """Write one rank's recording as that of every rank of a job."""
    opened = gzip.open if trace.suffix == ".gz" else open
    with opened(trace, "rb") as file:
        text = file.read()
    text = re.sub(rb'"world_size": \d+', b'"world_size": %d' % n, text)
    head, found, rest = text.partition(b'"rank": 0,')
    assert found, "expected the recording of rank 0"
    # members of gzip may follow each other: the long one is compressed once
    begin, end = gzip.compress(head, 1), gzip.compress(rest, 1)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"rank{rank}.json.gz" for rank in range(n)]
    for rank, file in enumerate(files):
        file.write_bytes(begin + gzip.compress(b'"rank": %d,' % rank, 1) + end)
    return list(map(str, files))


def one(files: list[str], engine: str) -> dict[str, Any]:
    """Analyse a job in this process."""
    import torchtriage as tt

    begun, times = time.perf_counter(), os.times()
    report = tt.analyze_ranks(files, engine=engine, processes=N_PROCESSES)
    read = os.times()
    wall_s = time.perf_counter() - begun
    text, page = report.to_json(), report.to_html()
    shown = os.times()
    said = [
        f"{finding.code} {finding.evidence.get('late_rank', '')}" for job in report.jobs for finding in job.findings
    ]
    return {
        "ranks": len(report.results),
        "unreadable": [str(error) for error in report.unreadable][:3],
        "wall_s": round(wall_s, 1),
        "driver_s": round(read.user + read.system - times.user - times.system, 2),
        "report_s": round(shown.user + shown.system - read.user - read.system, 2),
        "peak_mb": _peak_mb(),
        "json_mb": round(len(text) / 1e6, 2),
        "page_mb": round(len(page) / 1e6, 2),
        "said": said[:3],
    }


def _peak_mb() -> int:
    # the resource limits' count begins with the parent's
    return round(int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024 / 1e6)


def main() -> None:
    """Measure each job, and print the slopes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--copies", type=int, nargs="*", default=[])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(one(args.paths, args.engine)))
        return
    if args.copies:
        folder = Path(tempfile.mkdtemp(prefix="rank-scale-"))
        jobs = [copies(Path(args.paths[0]), n, folder / str(n)) for n in args.copies]
    else:
        jobs = [[str(file) for file in sorted(Path(path).glob("rank*.json*"))] for path in args.paths]
    rows = []
    for files in jobs:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, __file__, "--child", "--engine", args.engine, *files]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        row = json.loads(run.stdout.splitlines()[-1])
        all_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row["workers_s"] = round(all_s - row["driver_s"] - row["report_s"], 2)
        rows.append(row)
        print(row, flush=True)
    n = np.log([row["ranks"] for row in rows])
    if len(rows) > 1:
        for name in ("workers_s", "driver_s", "report_s", "peak_mb", "json_mb", "page_mb"):
            slope = np.polyfit(n, np.log([max(row[name], 0.01) for row in rows]), 1)[0]
            print(f"{name:10} slope {slope:.2f}")
    if args.engine != "local":
        return  # its workers are no children of this process
    last = rows[-1]
    share = 1000 / last["ranks"]
    rounds = -(-1000 // (N_NODES * CORES_PER_NODE))
    each_s = last["workers_s"] / last["ranks"]
    print(
        f"1,000 ranks on {N_NODES} nodes of {CORES_PER_NODE} cores: {rounds} rounds of {each_s:.2f} s and"
        f" {(last['driver_s'] + last['report_s']) * share:.1f} s of the driver:"
        f" {rounds * each_s + (last['driver_s'] + last['report_s']) * share:.0f} s"
    )


if __name__ == "__main__":
    main()
