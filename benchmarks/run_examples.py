"""Every example, slow and fixed: what ``torchtriage run`` says, and what the fix really gives.

    python benchmarks/run_examples.py                   # all, 3 rounds; docs/run-measured.md
    python benchmarks/run_examples.py gpt robot --rounds 1 --json /tmp/examples.json

Needs torch, transformers and diffusers, and a machine that does nothing else. In each round every
program runs alone (``plain``), under ``torchtriage run`` (``run``), and under it with nothing
recorded (``watched``), slow and fixed in turns. The step time is the one the programs print
themselves. Results are kept as JSON after every program, so ``--table`` makes the table again
without a run.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torchtriage.core.toml import read_toml

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "run-measured.md"
BEGIN, END = "<!-- examples: begin -->", "<!-- examples: end -->"
STEP = re.compile(r"^mean step: ([0-9.]+) ms$", re.MULTILINE)
QUIET = ("note", 0.01)
"""A fixed program may have notes, and findings below this share of the step."""


def faults() -> dict[str, dict[str, Any]]:
    """Return what is wrong with each example (``examples/faults.toml``)."""
    return read_toml(EXAMPLES / "faults.toml")


def line_numbers(path: Path, texts: list[str]) -> list[int]:
    """Return where lines of a program stand, from 1."""
    wanted = set(texts)
    lines = path.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.strip() in wanted]


def changed_lines(name: str) -> int:
    """Return how many lines of the slow program the fixed one replaces, and adds."""
    slow, fixed = (
        (EXAMPLES / f"{name}_{kind}.py").read_text(encoding="utf-8").splitlines() for kind in ("slow", "fixed")
    )
    diff = difflib.unified_diff(slow, fixed, n=0, lineterm="")
    return sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in diff)


def execute(words: list[str], threads: int | None) -> tuple[str, float]:
    """Run a command in the folder of the examples; return what it printed, and its seconds."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "PYTHONWARNINGS": "ignore"}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, *words], cwd=EXAMPLES, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout, time.perf_counter() - begin


def printed_ms(text: str) -> float:
    """Return the step time that a program printed."""
    found = STEP.search(text)
    if found is None:
        sys.exit(f"expected a line 'mean step: ... ms', found:\n{text}")
    return float(found[1])


def record(program: str, threads: int | None) -> dict[str, Any]:
    """Run a program under ``torchtriage run``; return what was measured and found."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        words = ["-m", "torchtriage", "run", "-q", "--out", f"{folder}/run", "--json"]
        text, wall_s = execute([*words, "-o", str(report), program], threads)
        (result,) = json.loads(report.read_text(encoding="utf-8"))["results"]
        pages = [json.loads(path.read_text()) for path in Path(folder).glob("run/*/recording.json")]
    after = [ns / 1e6 for page in pages for ns in page["after"]["step_ns"]]
    recorded = result["recorded"]
    return {
        "printed_ms": printed_ms(text),
        "wall_s": wall_s,
        "unprofiled_ms": recorded["step_ms"],
        "after_ms": statistics.median(after) if after else None,
        "light_ms": recorded["light_ms"],
        "heavy_ms": recorded["heavy_ms"],
        "findings": [summary(one) for one in result["findings"]],
    }


def watch(program: str, threads: int | None) -> float:
    """Run a program under ``torchtriage run`` that never records; return its step time, ms."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "torchtriage", "run", "-q", "--warmup", "1000000", "--out", f"{folder}/run"]
        return printed_ms(execute([*words, program], threads)[0])


def summary(finding: dict[str, Any]) -> dict[str, Any]:
    """Return of a finding what the table needs."""
    cost, frame = finding["cost"] or {}, finding["place"]["frame"] or {}
    return {
        **{key: finding[key] for key in ("code", "severity", "certainty", "message")},
        **{key: cost.get(key) for key in ("low_ms", "high_ms", "of_ms", "share_high")},
        "file": Path(frame.get("file", "")).name,
        "line": frame.get("line"),
        "exact": frame.get("exact", False),
    }


def is_loud(finding: dict[str, Any]) -> bool:
    """Return whether a fixed program should not have this finding."""
    share = finding["share_high"]
    return finding["severity"] != QUIET[0] and (share is None or share >= QUIET[1])


def judge(name: str, fault: dict[str, Any], runs: dict[str, Any]) -> dict[str, Any]:
    """Return the row of one example."""
    plain = {kind: statistics.median(runs[kind]["plain_ms"]) for kind in ("slow", "fixed")}
    last = runs["slow"]["run"][-1]["findings"]
    rank = next((at for at, one in enumerate(last, 1) if one["code"] == fault["code"]), None)
    hit = last[rank - 1] if rank else {}
    where = line_numbers(EXAMPLES / f"{name}_slow.py", fault["where"])
    every = [one for kind in ("slow", "fixed") for one in runs[kind]["run"]]
    ran = {kind: statistics.median(one["printed_ms"] for one in runs[kind]["run"]) for kind in plain}
    return {
        "name": name,
        **{key: fault[key] for key in ("domain", "code", "why")},
        "rank": rank,
        "line": hit.get("line"),
        "line_right": hit.get("line") in where and hit.get("file") == f"{name}_slow.py",
        "exact": hit.get("exact", False),
        "certainty": hit.get("certainty"),
        "promised_ms": [hit.get("low_ms"), hit.get("high_ms")],
        "slow_ms": plain["slow"],
        "fixed_ms": plain["fixed"],
        "light_overhead": statistics.median(one["light_ms"] / one["unprofiled_ms"] - 1 for one in every),
        "watched_overhead": statistics.median(
            watched / alone - 1
            for kind in plain
            for watched, alone in zip(runs[kind]["watched_ms"], runs[kind]["plain_ms"], strict=True)
        ),
        "whole_run_overhead": statistics.median(ran[kind] / plain[kind] - 1 for kind in plain),
        "false_findings": sorted(
            {one["code"] for run in runs["fixed"]["run"] for one in run["findings"] if is_loud(one)}
        ),
        "changed_lines": changed_lines(name),
        "wall_s": max(max(runs[kind]["wall_s"]) for kind in plain),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| example | fault | found | at | promised per step | fix gives | ratio | fixed twin"
        " | light recording | nothing recorded |",
        "|:--|:--|:--|:--|--:|--:|--:|:--|--:|--:|",
    ]
    for row in rows:
        low, high = row["promised_ms"]
        found = f"{row['code']}, " + (ordinal(row["rank"]) if row["rank"] else "missed")
        at = f"line {row['line']}"
        at += "" if row["exact"] else " (the function's first)"
        at += "" if row["line_right"] else ", which is another"
        gain = row["slow_ms"] - row["fixed_ms"]
        lines.append(
            f"| `{row['name']}`, {row['domain']} | {row['why']} | {found}"
            f" | {at if row['rank'] else '-'}"
            f" | {f'{low:.3g}-{high:.3g} ms' if high else 'not counted'}"
            f" | {gain:.3g} of {row['slow_ms']:.3g} ms | {row['slow_ms'] / row['fixed_ms']:.2f}"
            f" | {', '.join(row['false_findings']) or 'quiet'}"
            f" | {row['light_overhead']:+.1%} | {row['watched_overhead']:+.1%} |"
        )
    return "\n".join(lines)


def ordinal(rank: int) -> str:
    """Return 1st, 2nd, 3rd, 4th."""
    return f"{rank}" + {1: "st", 2: "nd", 3: "rd"}.get(rank, "th")


def write_page(text: str) -> None:
    """Put the table between its markers on the page."""
    page = PAGE.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        sys.exit(f"{PAGE}: expected the lines {BEGIN} and {END}")
    head, rest = page.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    """Run what was asked for, keep the JSON, print the table and put it on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = faults()
    parser.add_argument("names", nargs="*", help="examples  [all]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of the programs")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "run_examples.json")
    parser.add_argument("--table", action="store_true", help="make the table of a kept JSON only")
    parser.add_argument("--no-page", action="store_true", help="leave docs/run-measured.md as it is")
    options = parser.parse_args()
    names = options.names or list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such example: {', '.join(unknown)}; there are {', '.join(known)}")

    kept: dict[str, Any] = {}
    if options.table or options.names:
        kept = json.loads(options.json.read_text()) if options.json.exists() else {}
    if not options.table:
        for name in names:
            kept[name] = {
                kind: {"plain_ms": [], "watched_ms": [], "wall_s": [], "run": []} for kind in ("slow", "fixed")
            }
        for number in range(options.rounds):
            for name in names:
                order = ("slow", "fixed") if number % 2 == 0 else ("fixed", "slow")
                for kind in order:
                    program, runs = f"{name}_{kind}.py", kept[name][kind]
                    print(f"round {number + 1} of {options.rounds}: {program}", file=sys.stderr)
                    text, wall_s = execute([program], options.threads)
                    runs["plain_ms"].append(printed_ms(text))
                    runs["wall_s"].append(wall_s)
                    runs["watched_ms"].append(watch(program, options.threads))
                    runs["run"].append(record(program, options.threads))
                done = {one: kept[one] for one in kept if kept[one]["fixed"]["run"]}
                options.json.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    rows = [judge(name, known[name], kept[name]) for name in known if name in kept]
    text = table(rows)
    print(text)
    for row in rows:
        print(
            f"{row['name']}: {row['certainty']}, {row['changed_lines']} lines changed,"
            f" {row['wall_s']:.0f} s, step over the whole run {row['whole_run_overhead']:+.1%}"
        )
    if not options.no_page:
        write_page(text)


if __name__ == "__main__":
    main()
