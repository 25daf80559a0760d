"""What ``torchtriage fix`` makes of programs that others wrote, beside what their fixed twins save.

    python benchmarks/fix_programs.py FOLDER [NAME ...] [--out DIR] [--python PYTHON] [-- OPTIONS of fix]

``FOLDER`` holds NAME_bad.py (or _slow) with its twin NAME_good.py (or _fixed), and healthy programs (NAME_good.py
beside NAME_naive.py, or NAME_healthy.py), to which nothing should be done. Each is copied into a folder of its own
under a neutral name and mended with ``--json``; the twin is measured by ``verify`` against the same program. A patch
counts where it saves at least half of the time that the twin saves, per step or, where that saves nothing, per run.
With ``-- --proposer llm`` it measures a language model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TWINS = {"_bad": "_good", "_slow": "_fixed"}
HALF = 0.5
CLEAR = 0.03
"""A share of the time that the twin saves per step; below, whole runs are compared."""


def programs(folder: Path) -> Iterator[tuple[str, Path, Path | None]]:
    """Yield name, script and fixed twin of each program; healthy ones have no twin."""
    for path in sorted(folder.glob("*.py")):
        for ending, fixed in TWINS.items():
            if path.stem.endswith(ending):
                name = path.stem.removesuffix(ending)
                yield name, path, folder / f"{name}{fixed}.py"
        if path.stem.endswith("_healthy"):
            yield path.stem.removesuffix("_healthy"), path, None
        if path.stem.endswith("_naive"):
            name = path.stem.removesuffix("_naive")
            yield name, folder / f"{name}_good.py", None


def document(arguments: list[str], out: Path) -> Any:
    """Run torchtriage and return its JSON document, kept in ``out``; None where it failed."""
    done = subprocess.run(arguments, capture_output=True, check=False, cwd=out.parent)
    out.with_suffix(".log").write_bytes(done.stderr)
    out.write_bytes(done.stdout)
    return json.loads(done.stdout) if done.stdout else None


def measure(
    name: str, script: Path, twin: Path | None, out: Path, python: str, options: list[str], *, with_twin: bool
) -> dict[str, Any]:
    """Return what ``fix`` did, and what the twin saves: shares of the time."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program, fixed = folder / f"{name}.py", folder / "twin" / f"{name}.py"
    shutil.copyfile(script, program)
    triage = [python, "-m", "torchtriage"]
    command = [*triage, "fix", "--json", *options, "--project", str(folder), program.name]
    fix = document(command, folder / "fix.json")
    row: dict[str, Any] = {"name": name, "healthy": twin is None, "failed": fix is None, "saved": 0.0, "twin": None}
    if fix is not None and fix["together"] is not None:
        row |= {"saved": 1 - fix["together"]["ratio"], "per": fix["together"]["per"]}
        row["edits"] = [attempt["edit"] for attempt in fix["attempts"] if attempt["outcome"] == "in the patch"]
    if twin is not None and with_twin:
        fixed.parent.mkdir()
        shutil.copyfile(twin, fixed)
        for steps in ("40", "0"):
            verify = [*triage, "verify", "--json", "-q", "--no-record", "--allow", "--rounds", "5", "--steps", steps]
            trial = document([*verify, program.name, f"twin/{name}.py"], folder / f"twin-{steps}.json")
            row["twin"] = 1 - trial["ratio"] if trial is not None else None
            if row.get("per") != "run" and row["twin"] and row["twin"] > CLEAR:
                break
    return row


def main() -> None:
    """Print the table and what it comes to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("fix-programs"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--no-twins", action="store_true", help="do not measure what the twins save")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once; each needs a core for itself")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    given, options = parser.parse_args(words[:cut]), words[cut + 1 :]
    out = given.out.resolve()
    chosen = [row for row in programs(given.folder) if not given.names or row[0] in given.names]
    with ThreadPoolExecutor(given.jobs) as pool:
        tasks = [pool.submit(measure, *row, out, given.python, options, with_twin=not given.no_twins) for row in chosen]
        rows = []
        for task in tasks:
            rows.append(row := task.result())
            twin = f"{row['twin']:7.1%}" if row["twin"] is not None else "      -"
            print(
                f"{row['name']:20} saved {row['saved']:6.1%}  twin {twin}  {', '.join(row.get('edits', ()))}",
                flush=True,
            )
    faulty = [row for row in rows if not row["healthy"]]
    mended = [row for row in faulty if row["twin"] and row["saved"] >= HALF * row["twin"]]
    quiet = [row for row in rows if row["healthy"] and not row["saved"]]
    n_healthy = len(rows) - len(faulty)
    print(f"{len(mended)} of {len(faulty)} save at least half; {len(quiet)} of {n_healthy} healthy untouched")
    (out / "table.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
