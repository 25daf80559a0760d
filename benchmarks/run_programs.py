"""What ``torchtriage run`` says of programs that others wrote, against labels that were there first.

    python benchmarks/run_programs.py FOLDER [NAME ...] [--out DIR] [--python PYTHON]

``FOLDER`` holds NAME_bad.py (or _slow) with NAME_good.py (or _fixed), healthy ones (NAME_good.py beside
NAME_naive.py, or NAME_healthy.py), and ``labels.json`` or ``labels.toml``. Each program is copied to a neutral
name, run once, and its report kept in DIR. For each main fault: whether the first finding points at a
labelled line, whether any does, and whether the promised saving holds the measured one (inside its
min-max, or within 15 % of the time saved). Programs without a fault are quiet where no finding's low
end promises over 3 %.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtriage.core.toml import read_toml

LOUD = 0.03
NEAR = 0.15


@dataclass(frozen=True)
class Fault:
    """A labelled fault: the lines of its statements, and the speed-up without it (median, least, most).

    ``per`` : whether that is of a step or of the whole run. ``source_tells`` : to a reader: yes, partly or no.
    """

    kind: str
    main: bool
    lines: frozenset[int]
    ratio: tuple[float, float, float] | None
    per: str
    source_tells: str


@dataclass(frozen=True)
class Program:
    """A script, the faults in it, and the lines that only look like faults."""

    name: str
    path: Path
    faults: tuple[Fault, ...]
    lookalikes: tuple[frozenset[int], ...] = ()


def statements(text: str) -> dict[int, tuple[int, int]]:
    """Return the first and last line of the innermost statement at each line; of compound ones, of their head."""
    spans: dict[int, tuple[int, int]] = {}
    for node in ast.walk(ast.parse(text)):  # outer ones first
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = max(body[0].lineno - 1, node.lineno) if body else node.end_lineno or node.lineno
            spans.update(dict.fromkeys(range(node.lineno, last + 1), (node.lineno, last)))
    return spans


def programs(folder: Path) -> Iterator[Program]:
    """Yield the programs of a folder, the healthy ones without faults."""
    if (folder / "labels.json").exists():
        yield from _from_json(folder)
    else:
        yield from _from_toml(folder)


def _whole(text: str, lines: Iterable[int]) -> frozenset[int]:
    """Return all lines of the statements that these lines are part of."""
    spans = statements(text)
    return frozenset(
        at for line in lines for first, last in [spans.get(line, (line, line))] for at in range(first, last + 1)
    )


def _from_json(folder: Path) -> Iterator[Program]:
    for entry in json.loads((folder / "labels.json").read_text()):
        name, measured = entry["script"], entry["measured"]
        bad, faults = folder / f"{name}_bad.py", []
        text = bad.read_text() if bad.exists() else ""
        for finding in entry["findings"]:
            lines = _whole(text, (line for first, last in finding["lines"] for line in range(first, last + 1)))
            fix = measured.get(finding["single_fix"] or "good")
            ratio = (fix["ratio"], fix["ratio_min"], fix["ratio_max"]) if fix else None
            main, told = finding["weight"] == "main", finding["lint_sees"].split()[0].rstrip(",")
            faults.append(Fault(finding["pattern"], main, lines, ratio, entry["per"], told))
        for kind in ("bad", "good"):
            if (path := folder / f"{name}_{kind}.py").exists():
                yield Program(f"{name}_{kind}", path, tuple(faults) if kind == "bad" else ())


def _from_toml(folder: Path) -> Iterator[Program]:
    for name, entry in read_toml(folder / "labels.toml").items():
        for kind in ("slow", "fixed", "healthy"):
            path = folder / f"{name}_{kind}.py"
            if not path.exists():
                continue
            text = path.read_text()
            rows = [line.strip() for line in text.splitlines()]

            def places(texts: Iterable[str], text: str = text, rows: list[str] = rows) -> frozenset[int]:
                wanted = {line.strip() for line in texts}
                return _whole(text, (at for at, row in enumerate(rows, 1) if row in wanted))

            faults = []
            for fault in entry.get("fault", ()) if kind == "slow" else ():
                ratio = tuple(fault["ratio"]) if fault.get("ratio") else None
                main, told = fault.get("main", False), "yes" if fault.get("source_tells", True) else "no"
                faults.append(Fault(fault["kind"], main, places(fault["lines"]), ratio, entry.get("per", "step"), told))
            looks = tuple(places(look["lines"]) for look in entry.get("lookalike", ()))
            yield Program(f"{name}_{kind}", path, tuple(faults), looks)


def run(program: Program, out: Path, python: str) -> dict[str, Any]:
    """Return the report on one program, run under a neutral name."""
    report = out / f"{program.name}.json"
    with tempfile.TemporaryDirectory() as scratch:
        name = program.name.rpartition("_")[0]
        script = Path(scratch) / f"{name}.py"
        shutil.copy(program.path, script)
        command = [sys.executable, "-m", "torchtriage", "run", "--json", "-o", str(report), "--out", f"{scratch}/run"]
        done = subprocess.run(
            [*command, python, script.name],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )
    (out / f"{program.name}.err").write_text(done.stderr)
    if not report.exists():
        return {"error": done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]}
    read: dict[str, Any] = json.loads(report.read_text())
    return read


def findings(report: dict[str, Any], script: str) -> list[dict[str, Any]]:
    """Return what a report found, first what it puts first: code, lines in the script, cost."""
    found = []
    result = (report.get("jobs") or report.get("results") or [{}])[0]
    for finding in result.get("findings", ()):
        place = finding["place"]
        frames = [frame for frame in (place.get("frame"), *(place.get("stack") or ())[:1]) if frame]
        lines = [
            line
            for frame in frames[:1]
            if Path(frame["file"]).name == script
            for line in (frame["lines"] or [frame["line"]])
        ]
        cost = finding.get("cost")
        found.append(
            {
                "code": finding["code"],
                "lines": lines,
                "severity": finding["severity"],
                "share": (cost["share_low"], cost["share_high"]) if cost else None,
                "message": finding["message"],
            }
        )
    return found


def held(share: tuple[float, float] | None, ratio: tuple[float, float, float] | None) -> bool | None:
    """Whether the promised share holds what the fix gives: inside its min-max or within 15 %."""
    if ratio is None:
        return None
    if share is None:
        return False
    middle, least, most = (1 - 1 / max(value, 1e-9) for value in ratio)
    low, high = share
    return low <= most * (1 + NEAR) and high >= least * (1 - NEAR) and (high - low <= 0.5 or low >= middle / 3)


def main() -> None:
    """Run the programs and print the table."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("names", nargs="*")
    options.add_argument("--out", type=Path, default=Path("run-programs"))
    options.add_argument("--python", type=os.path.abspath, default=sys.executable)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--read", action="store_true", help="judge the reports of DIR, without running")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [
        program
        for program in programs(given.folder)
        if not given.names or program.name in given.names or program.name.rpartition("_")[0] in given.names
    ]

    def report_on(program: Program) -> dict[str, Any]:
        path = given.out / f"{program.name}.json"
        if given.read:
            return json.loads(path.read_text()) if path.exists() else {"error": ["no report"]}
        return run(program, given.out, given.python)

    counts = dict.fromkeys(("programs", "first", "mains", "named", "promises", "held", "quiet", "sound", "recorded"), 0)
    with ThreadPoolExecutor(given.jobs) as pool:
        for program, report in zip(wanted, pool.map(report_on, wanted), strict=True):
            found = findings(report, f"{program.name.rpartition('_')[0]}.py")
            counts["recorded"] += "error" not in report
            mains = [fault for fault in program.faults if fault.main]
            words = []
            if mains:
                counts["programs"] += 1
                first = any(set(found[0]["lines"]) & fault.lines for fault in mains) if found else False
                counts["first"] += first
                words.append("first" if first else "NOT FIRST")
                for fault in mains:
                    hit = next((finding for finding in found if set(finding["lines"]) & fault.lines), None)
                    counts["mains"] += 1
                    counts["named"] += hit is not None
                    good = held(hit["share"], fault.ratio) if hit else None
                    if good is not None:
                        counts["promises"] += 1
                        counts["held"] += good
                    true = f"{1 - 1 / fault.ratio[0]:.0%}" if fault.ratio else "?"
                    at = found.index(hit) + 1 if hit else "-"
                    promised = f"{hit['share'][0]:.0%}-{hit['share'][1]:.0%}" if hit and hit["share"] else "-"
                    found_at = f"#{at} {hit['code']}" if hit else "MISSED"
                    off = "" if good in (None, True) else " OFF"
                    words.append(f"{fault.kind}: {found_at} promised {promised} true {true}{off}")
            elif not program.faults:
                counts["sound"] += 1
                loud = [finding for finding in found if finding["share"] and finding["share"][0] > LOUD]
                counts["quiet"] += not loud
                words.append("quiet" if not loud else "LOUD")
            if "error" in report:
                words.append(f"error: {report['error']}")
            print(f"{program.name:26s} {'; '.join(words)}")
            for finding in found[:5]:
                share = "" if not finding["share"] else f"{finding['share'][0]:.1%}-{finding['share'][1]:.1%}"
                print(
                    f"    {finding['code']} {finding['severity']:6s} {share:14s} {finding['lines']}"
                    f" {finding['message'][:110]}"
                )
            sys.stdout.flush()
    print(counts)


if __name__ == "__main__":
    main()
