"""Whether the lines that ``torchtriage run`` names hottest are those of py-spy, which watches the same program apart.

    python benchmarks/run_lines.py FOLDER REPORTS [--py-spy PY_SPY] [--python PYTHON]

``REPORTS`` holds what ``run_programs.py`` left of the programs in ``FOLDER``. py-spy (``pip install py-spy``) runs each
program again, 100 samples a second of the main thread, waits included. Both are counted inside the loop that the
report names, by statement of the program. A program agrees where py-spy's hottest statement is the report's, or the
report's is as hot within twice the error of counting. Beside it stands what the parts of the report's account add up
to, what they leave unknown, and what the light recording cost.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from run_programs import Program, programs, statements

FRAME = re.compile(r"\((?P<file>[^():]*):(?P<line>\d+)\)$")


def loop_lines(text: str, line: int) -> range:
    """Return the lines of the loop that begins at a line, of the whole file where there is none."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.For, ast.While, ast.AsyncFor)) and node.lineno == line:
            return range(line, (node.end_lineno or line) + 1)
    return range(1, len(text.splitlines()) + 1)


def sampled(program: Program, python: str, py_spy: str, loop: range) -> Counter[int]:
    """Return py-spy's samples by innermost line of the script, of those that are inside the loop."""
    counts: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / f"{program.name.rpartition('_')[0]}.py"
        shutil.copy(program.path, script)
        raw = Path(scratch) / "stacks.txt"
        command = [py_spy, "record", "-r", "100", "-f", "raw", "--threads", "--idle", "--full-filenames"]
        subprocess.run(
            [*command, "-o", str(raw), "--", python, script.name],
            cwd=scratch,
            capture_output=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )
        for row in raw.read_text().splitlines() if raw.exists() else ():
            stack, _, count = row.rpartition(" ")
            frames = [FRAME.search(frame) for frame in stack.split(";")]
            lines = [int(frame["line"]) for frame in frames if frame and Path(frame["file"]).name == script.name]
            if "MainThread" in stack.partition(";")[0] and any(line in loop for line in lines):
                counts[lines[-1]] += int(count)
    return counts


def main() -> None:
    """Print a line for each program, and how many agree."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("reports", type=Path)
    options.add_argument("--python", type=os.path.abspath, default=sys.executable)
    options.add_argument("--py-spy", default="py-spy")
    given = options.parse_args()
    agreed = compared = 0
    for program in programs(given.folder):
        path = given.reports / f"{program.name}.json"
        report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        recorded = ((report.get("jobs") or report.get("results") or [{}])[0]).get("recorded") or {}
        account = recorded.get("account")
        if not account:
            print(f"{program.name:26s} no account")
            continue
        text = program.path.read_text()
        spans = statements(text)
        counts = sampled(program, given.python, given.py_spy, loop_lines(text, account["loop_line"]))
        theirs: Counter[tuple[int, int]] = Counter()
        for line, count in counts.items():
            theirs[spans.get(line, (line, line))] += count
        ours: Counter[tuple[int, int]] = Counter()
        for line in account["lines"]:
            ours[spans.get(line["line"], (line["line"], line["line"]))] += line["share"]
        n_samples = sum(theirs.values())
        if not n_samples or not ours:
            print(f"{program.name:26s} nothing to compare")
            continue
        shares = {span: count / n_samples for span, count in theirs.items()}
        first, mine = theirs.most_common(1)[0][0], ours.most_common(1)[0][0]
        error = 2 * math.sqrt(2 * shares[first] * (1 - shares[first]) / n_samples)
        good = first == mine or shares.get(mine, 0.0) >= shares[first] - error
        compared += 1
        agreed += good
        unknown = sum(part["share"] for part in account["parts"] if part["kind"] == "unknown")
        whole = sum(part["ms"] for part in account["parts"]) / account["of_ms"]
        timed = recorded.get("light_ms") and recorded.get("step_ms")
        light = recorded["light_ms"] / recorded["step_ms"] - 1 if timed else math.nan
        said = ", ".join(
            f"{span[0]}: {shares[span]:.0%} / {ours.get(span, 0.0):.0%}" for span, _ in theirs.most_common(3)
        )
        print(
            f"{program.name:26s} {'agrees' if good else 'DIFFERS'}  py-spy / run at {said}; sum {whole:.3f},"
            f" unknown {unknown:.1%}, step {recorded.get('step_ms') or account['of_ms']:.2f} ms, light {light:+.0%}"
        )
        sys.stdout.flush()
    print(f"{agreed} of {compared} agree")


if __name__ == "__main__":
    main()
