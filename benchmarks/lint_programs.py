"""What ``torchtriage lint`` finds of the labelled faults in whole programs, by line.

    python benchmarks/lint_programs.py FOLDER [FOLDER ...]

A folder holds programs and labels as ``run_programs.py`` reads them. A fault counts as found where a finding stands on
one of its lines, under any code; what stands on a program without faults is printed in full, for a reader to judge.
Look-alikes are places that a naive reader would blame.
"""

from __future__ import annotations

import sys
from pathlib import Path

from run_programs import Fault, Program, programs

from torchtriage.core.finding import Finding
from torchtriage.diagnose.lint import lint


def line(finding: Finding) -> int:
    """Return the line of a finding, 0 where it has none."""
    return finding.place.frame.line if finding.place.frame is not None else 0


def recall(faults: list[tuple[Program, Fault, bool]], told: tuple[str, ...], *, mains: bool = False) -> str:
    """Return how many faults are found, of those that the source tells so well."""
    hits = [hit for _, fault, hit in faults if fault.source_tells in told and (fault.main or not mains)]
    return f"{sum(hits):3} of {len(hits):3}  {sum(hits) / max(len(hits), 1):.2f}"


def main() -> None:
    """Lint the programs and print the table."""
    faults: list[tuple[Program, Fault, bool]] = []
    elsewhere, alarms, fooled, looks = [], [], 0, 0
    for program in (program for folder in sys.argv[1:] for program in programs(Path(folder))):
        findings = lint([str(program.path)]).findings
        lines = {line(finding) for finding in findings}
        looks += len(program.lookalikes)
        fooled += sum(bool(lines & look) for look in program.lookalikes)
        faults += [(program, fault, bool(lines & fault.lines)) for fault in program.faults]
        labelled = {number for fault in program.faults for number in fault.lines}
        others = elsewhere if program.faults else alarms
        for finding in findings:
            if line(finding) not in labelled:
                said = f"{program.path.name}:{line(finding)}: {finding.code} [{finding.severity}] {finding.message}"
                others.append(f"  {said}")
    print(f"faults that the source tells      {recall(faults, ('yes',))}")
    print(f"... that it tells in part         {recall(faults, ('partly',))}")
    print(f"both                              {recall(faults, ('yes', 'partly'))}")
    print(f"both, main ones                   {recall(faults, ('yes', 'partly'), mains=True)}")
    print(f"all                               {recall(faults, ('yes', 'partly', 'no'))}")
    print(f"alarms on programs without faults {len(alarms):3}")
    print(f"alarms on look-alikes             {fooled:3} of {looks}")
    print("\nmissed")
    for program, fault, hit in faults:
        if not hit:
            numbers = ", ".join(map(str, sorted(fault.lines)[:6]))
            print(
                f"  {program.name:18} {fault.kind:36} {'main' if fault.main else '':5} {numbers} {fault.source_tells}"
            )
    print("\non programs without faults", *alarms, sep="\n")
    print("\nelsewhere in faulty programs", *elsewhere, sep="\n")


if __name__ == "__main__":
    main()
