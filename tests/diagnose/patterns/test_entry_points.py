"""Patterns of packages that are installed beside ours, found by their entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PATTERN = '''"""An operator of ours runs.

Looks like: an operator named acme::wait.
Slow because: it waits.
Cost: its time.
Fix: do not call it.
Leave it when: never.
Source: ours.
"""

from torchtriage.core.finding import Fix
from torchtriage.diagnose.patterns.base import Claim, Pattern

PATTERN = Pattern.of(__name__, "ACM001", "An operator of ours waits", order=900, needs="ops")
FIX = Fix(text="Do not call it.", code="pass", link="https://docs.example.org")


def find(trace):
    rows = trace.matching("^acme::wait$").nonzero()[0]
    if len(rows):
        yield Claim(
            message="acme::wait waits", certainty="certain", rows=rows, spans=trace.spans_of(rows), time_class="host"
        )
'''
SCRIPT = """
import json, sys
from builder import TraceBuilder
import torchtriage as tt

builder = TraceBuilder()
for i in range(4):
    builder.step(i, 10_000 * i, 10_000).op("acme::wait", 10_000 * i + 10, 8_000)
try:
    print([finding.code for finding in tt.analyze(builder.build()).findings])
except tt.TriageError as error:
    print(f"refused: {error}")
"""


def analysed(folder: Path, target: str, text: str = PATTERN) -> str:
    """Return what an analysis says where a package is installed whose entry point names ``target``."""
    package = folder / "acme" / "host"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "acme_wait.py").write_text(text)
    about = folder / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[torchtriage.patterns]\nwait = {target}\n")
    tests = Path(__file__).parents[2]
    paths = f"sys.path[:0] = {[str(folder), str(tests)]!r}"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {paths}\n{SCRIPT}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_pattern_of_another_package_is_one_of_all(tmp_path: Path) -> None:
    assert "ACM001" in analysed(tmp_path, "acme.host.acme_wait")


@pytest.mark.parametrize(
    ("target", "old", "new", "said"),
    [
        ("acme.host.absent", "", "", "No module named"),
        ("acme.host.acme_wait:FIX", "", "", "expected a module, found a Fix"),
        ("acme.host.acme_wait", "ACM001", "SYN001", "two patterns share the code SYN001"),
        ("acme.host.acme_wait", "Leave it when: never.", "", "no section 'Leave it when'"),
        ("acme.host.acme_wait", "PATTERN = ", "raise KeyError(1)\nPATTERN = ", "KeyError: 1"),
    ],
)
def test_one_that_is_off_is_named_with_its_package(tmp_path: Path, target: str, old: str, new: str, said: str) -> None:
    answer = analysed(tmp_path, target, PATTERN.replace(old, new) if old else PATTERN)
    assert answer.startswith("refused: ")
    assert said in answer
