"""How often the first finding is right on recordings of accelerators that nobody had looked at.

    python benchmarks/first_findings.py FOLDER

FOLDER holds the recordings of ``devices/unseen.toml`` under any names: they are known by their checksums. Right is a
first finding above a note that either reader accepts; where none is needed, one of low severity is right, too. False is
a finding of medium or high severity that either reader says the rows contradict.
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
    counts: Counter[tuple[str, str]] = Counter()
    for name, label in labels.items():
        path, half = by_sum.get(label["sha256"]), label["half"]
        if path is None:
            print(f"{name} is not there: {label['repository']} {label['commit']} {label['path']}")
            continue
        findings = [finding for finding in tt.analyze(path).findings if finding.severity != "note"]
        loud = [finding.code for finding in findings if finding.severity != "low"]
        right = findings[:1] and findings[0].code in label["first"] if label["first"] else not loud
        counts[half, "recordings"] += 1
        counts[half, "right"] += bool(right)
        counts[half, "false"] += bool(set(loud) & set(label["false"]))
        if half == "in view":
            print(f"{name:28} {'right' if right else 'WRONG':6} {[finding.code for finding in findings[:4]]}")
    for half in ("in view", "counted only"):
        n = counts[half, "recordings"]
        print(f"{half}: first finding right in {counts[half, 'right']} of {n}, false ones in {counts[half, 'false']}")


if __name__ == "__main__":
    main()
