"""Runs a user's script in a Python that has torch_xla, and writes its metrics when it ends.

``python -m torchtriage.compile.xla.script_main METRICS SCRIPT [ARGUMENT...]``; what else is dumped, the environment
says (``run.py``).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the script as ``__main__``, however it ends."""
    report, script, *_ = sys.argv[1:]
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        if "torch_xla" in sys.modules:
            import torch_xla.core.xla_model as xm
            import torch_xla.debug.metrics as metrics

            xm.wait_device_ops()
            Path(report).write_text(str(metrics.metrics_report()), encoding="utf-8")


if __name__ == "__main__":
    main()
