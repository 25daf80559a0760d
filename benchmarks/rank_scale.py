"""Time and memory of the driver against the number of ranks.

    python benchmarks/rank_scale.py FOLDER... [--engine ray] [--processes 2]
    python benchmarks/rank_scale.py --copies 16 --of TRACE

Each job is analysed in a fresh process, which says how long reading, judging and writing took, and how much memory
it had at most (its workers not counted). ``--copies`` : one rank's recording stands for so many ranks, through a file
system that writes each one's number into it as it is read, so that no disk has to hold a hundred gigabytes.
Printed last: the slopes of time and memory against ranks, both logarithmic, and what 16 nodes would need.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

N_NODES, CORES_PER_NODE = 16, 32


def one(files: list[str], engine: str, processes: int | None, copies: str) -> dict[str, Any]:
    """Analyse a job in this process; return times in s and memory in bytes."""
    from torchtriage.diagnose.ranks import job_detection, workers
    from torchtriage.diagnose.ranks.job import judge
    from torchtriage.diagnose.verdict.options import Options
    from torchtriage.report import formats
    from torchtriage.report.json_report import JsonReport

    options = Options(sources=None)
    if copies:
        workers.read_trace = _copied(copies, workers.read_trace)
    begun, first_s = time.perf_counter(), 0.0
    records: list[Any] = []
    for outcome in workers.examine_all(files, options, engine=engine, processes=processes):
        records.append(outcome)
        first_s = first_s or time.perf_counter() - begun
    read_s = time.perf_counter() - begun
    peak_read = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    bad = [record for record in records if isinstance(record, Exception)]
    if bad:
        raise bad[0]
    begun = time.perf_counter()
    found = job_detection.detect_jobs(records)
    jobs = [judge(records, job, min_share=0.01) for job in found]
    judge_s = time.perf_counter() - begun
    begun = time.perf_counter()
    report = JsonReport.of([record.result for record in records], jobs)
    text = formats.json(report)
    json_s = time.perf_counter() - begun
    begun = time.perf_counter()
    page = formats.page(report, None)
    page_s = time.perf_counter() - begun
    return {
        "ranks": len(records),
        "read_s": read_s,
        "judge_s": judge_s,
        "json_s": json_s,
        "page_s": page_s,
        "peak_read_mb": peak_read / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "json_mb": len(text) / 1e6,
        "page_mb": len(page) / 1e6,
        "said": [finding.code for job in jobs for finding in job.findings][:4],
    }
