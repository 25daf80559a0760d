"""What compare says about scripts with a known difference, and about scripts without any.

Each pair of ``cpu_pairs.py`` is recorded three times in processes of their own: twice as it was,
once fixed. Two recordings of one script must give no change; the fixed one must give the change
that a stopwatch gives without the profiler, and the right cause. Needs a Python with torch.

    python benchmarks/compare_pairs.py --torch-python /path/to/python --keep FOLDER
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cpu_pairs import PAIRS, Pair

from torchtriage.core.trace import read_trace
from torchtriage.diagnose.compare.result import Comparison
from torchtriage.diagnose.compare.verdict import ChangeEvidence, compare, gather

RECORDINGS = (("a", "before"), ("b", "before"), ("c", "after"))


def record(python: str, pair: Pair, state: str, folder: Path, label: str) -> tuple[ChangeEvidence, float]:
    """Return the evidence of one recording and its unprofiled mean step in ms."""
    trace = folder / f"{pair.name}-{label}.json.gz"
    out = folder / f"{pair.name}-{label}.time.json"
    if not (trace.exists() and out.exists()):
        script = Path(__file__).parent / "cpu_pairs.py"
        command = [python, str(script), pair.name, state, str(out), str(trace)]
        subprocess.run(command, check=True, capture_output=True)
    return gather(read_trace(trace)), json.loads(out.read_text())["mean_ms"]


def line(name: str, result: Comparison, before_ms: float, after_ms: float) -> str:
    """Return one row of the table."""
    clock = f"{before_ms:7.2f} {after_ms:7.2f}"
    if result.total is None:
        return f"{name:28} {clock}  refused: {result.reasons[0].message}"
    total = result.total
    said = "no change" if not total.told else "faster" if total.delta_ns < 0 else "slower"
    told = [one for one in result.causes if one.change.told]
    top = f"{told[0].label} {told[0].change.delta_ns / 1e6:+.2f} ms" if told else "-"
    profiled = f"{total.before_ns / 1e6:7.2f} {total.after_ns / 1e6:7.2f}"
    return f"{name:28} {clock}  {profiled}  {said:9} {len(told)} told: {top}"


def main() -> None:
    """Record, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--keep", type=Path, help="keep recordings here, and use those there are")
    parser.add_argument("--only", nargs="*", help="names of pairs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{'':28} {'stopwatch, ms':15}  {'profiled, ms':15}  verdict")
        for pair in PAIRS:
            if pair.ranks > 1 or (options.only and pair.name not in options.only):
                continue
            (one, one_ms), (same, same_ms), (fixed, fixed_ms) = (
                record(options.torch_python, pair, state, folder, label) for label, state in RECORDINGS
            )
            print(line(f"{pair.name}, twice", compare(one, same), one_ms, same_ms), flush=True)
            print(line(f"{pair.name}, fixed", compare(one, fixed), one_ms, fixed_ms), flush=True)


if __name__ == "__main__":
    main()
