"""How often the first finding is right on recordings of accelerators that nobody had looked at.

    python benchmarks/first_findings.py FOLDER

FOLDER holds the recordings of ``devices/unseen.toml`` under any names: they are known by their checksums; the ranks of
one job are in one folder. Right is a first finding above a note that either reader accepts; where none is needed, one
of low severity is right, too. False is a finding of medium or high severity that either reader says the rows
contradict.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from pathlib import Path

import torchtriage as tt
from torchtriage.core.toml import read_toml


def main() -> None:
    """Judge the recordings that are there, and print a line for each half."""
    labels = read_toml(Path(__file__).parent / "devices" / "unseen.toml")
    paths = [path for path in Path(sys.argv[1]).rglob("*") if path.is_file()]
    by_sum = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in paths}
    counts: Counter[tuple[int, str, str]] = Counter()
    for name, label in labels.items():
        files, half = [by_sum.get(checksum) for checksum in label["sha256"]], label["half"]
        if None in files:
            print(f"{name} is not there: {label['repository']} {label['commit']} {label['path']}")
            continue
        report = tt.analyze_ranks(files)
        findings = [item for item in [*report.jobs, *report.results][0].findings if item.severity != "note"]
        loud = [finding.code for finding in findings if finding.severity != "low"]
        right = findings[:1] and findings[0].code in label["first"] if label["first"] else not loud
        said = {"recordings": True, "right": bool(right), "false": bool(set(loud) & set(label["false"]))}
        counts.update({(label["hunt"], half, what): int(holds) for what, holds in said.items()})
        if half == "in view":
            print(f"{name:28} {'right' if right else 'WRONG':6} {[finding.code for finding in findings[:4]]}")
    for (hunt, half, what), n in sorted(counts.items()):
        if what == "recordings":
            n_right, n_false = counts[hunt, half, "right"], counts[hunt, half, "false"]
            print(f"{hunt}, {half}: first finding right in {n_right} of {n}, false ones in {n_false}")


if __name__ == "__main__":
    main()
