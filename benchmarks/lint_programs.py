"""Whole programs with labelled faults: what ``torchtriage lint`` finds of them by line.

    python benchmarks/lint_programs.py FOLDER              # a table, and what is missed
    python benchmarks/lint_programs.py FOLDER --json OUT   # the same for another program to read

The folder holds ``labels.json`` (a list of programs, each with ``script`` and ``findings``, each of
these with ``pattern``, ``weight``, ``lint_sees`` and ``lines`` as pairs of first and last line),
``SCRIPT_bad.py`` with these faults, and twins that have none: ``SCRIPT_good.py``,
``SCRIPT_naive.py``. A fault is found when a finding stands on one of its lines, under any code;
what stands on a twin is printed in full, for a reader to judge.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchtriage.diagnose.lint import lint

TWINS = ("good", "naive", "fixed", "fast")
FAULTY = ("bad", "slow")


@dataclass(frozen=True)
class Alarm:
    """One finding, as it is printed."""

    file: str
    line: int
    code: str
    severity: str
    message: str


@dataclass(frozen=True)
class Fault:
    """One labelled fault, and the codes found on its lines."""

    script: str
    pattern: str
    weight: str
    visible: str
    lines: tuple[tuple[int, int], ...]
    codes: tuple[str, ...]


@dataclass
class Score:
    """What was found in a folder."""

    faults: list[Fault] = field(default_factory=list)
    elsewhere: list[Alarm] = field(default_factory=list)
    on_twins: list[Alarm] = field(default_factory=list)

    def recall(self, *visible: str, weight: str = "") -> tuple[int, int]:
        """Return found and labelled, of the faults whose visibility in source begins like this."""
        chosen = [one for one in self.faults if one.visible.startswith(visible) and weight in one.weight]
        return sum(bool(one.codes) for one in chosen), len(chosen)


def score(folder: Path) -> Score:
    """Judge every program of a folder."""
    made = Score()
    for program in json.loads((folder / "labels.json").read_text(encoding="utf-8")):
        _score_program(folder, program, made)
    return made


def _score_program(folder: Path, program: dict[str, Any], made: Score) -> None:
    name = program["script"]
    for kind in FAULTY:
        path = folder / f"{name}_{kind}.py"
        if not path.exists():
            continue
        alarms = found(path)
        used: set[Alarm] = set()
        for item in program["findings"]:
            lines = tuple((first, last) for first, last in item["lines"])
            here = [one for one in alarms if any(first <= one.line <= last for first, last in lines)]
            used |= set(here)
            codes = tuple(sorted({one.code for one in here}))
            made.faults.append(Fault(name, item["pattern"], item["weight"], item["lint_sees"], lines, codes))
        made.elsewhere += [one for one in alarms if one not in used]
    for kind in TWINS:
        path = folder / f"{name}_{kind}.py"
        if path.exists():
            made.on_twins += found(path)


def found(path: Path) -> list[Alarm]:
    """Return the findings in a file, remarks left out."""
    return [
        Alarm(path.name, one.place.frame.line, one.code, one.severity, one.message)
        for one in lint([str(path)]).findings
        if one.place.frame is not None
    ]


def table(made: Score) -> str:
    """Return the score as text."""
    rows = [
        ("faults that the source tells", made.recall("yes")),
        ("faults that it tells in part", made.recall("partly")),
        ("both", made.recall("yes", "partly")),
        ("both, of weight main", made.recall("yes", "partly", weight="main")),
        ("all", made.recall("")),
    ]
    lines = [f"{what:32} {hits:3} of {n:3}  {hits / n:.2f}" for what, (hits, n) in rows if n]
    lines.append(f"{'alarms on twins':32} {len(made.on_twins):3} in {len({one.file for one in made.on_twins})} files")
    lines.append("\nmissed")
    lines += [
        f"  {one.script:18} {one.pattern:32} {one.weight:16} {_spans(one.lines):18} {one.visible}"
        for one in made.faults
        if not one.codes
    ]
    for title, alarms in (("on twins", made.on_twins), ("elsewhere in faulty programs", made.elsewhere)):
        lines.append(f"\n{title}")
        lines += [f"  {one.file}:{one.line}: {one.code} [{one.severity}] {one.message}" for one in alarms]
    return "\n".join(lines)


def _spans(lines: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in lines)


def main() -> None:
    """Read the command line, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    made = score(options.folder)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(made), indent=1) + "\n", encoding="utf-8")
    print(table(made))


if __name__ == "__main__":
    main()
